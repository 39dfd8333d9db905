//! A hook for tests: a task whose key is `panics at <name>` makes this process panic at the call of [`strike`] with
//! that name. It works only in debug builds, and only if the environment has PLANTED_PANICS; a release build does not
//! have it.

#[cfg(debug_assertions)]
pub fn strike(key: Option<&str>, place: &str) {
    use std::sync::LazyLock;
    static ARMED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PLANTED_PANICS").is_some());
    if *ARMED && key.and_then(|key| key.strip_prefix("panics at ")) == Some(place) {
        panic!("planted at {place}");
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn strike(_: Option<&str>, _: &str) {}

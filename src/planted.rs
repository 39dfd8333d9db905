//! A hook for tests: a task whose key is `panics at <place>` makes this process panic there. Only in debug
//! builds, and only where the environment has PLANTED_PANICS; a release build has no trace of it.

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

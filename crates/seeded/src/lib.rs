//! Gives a thread the random bytes of a seed where it asks the system for them.
//!
//! The order of a `HashMap` and the branch that `tokio::select!` polls first come from keys that the standard library
//! requests from the system once for each thread. No interface of either sets them. The standard library calls `getrandom`
//! by a symbol that a program may define itself, and this crate defines it. It is linked to tests only, and is the only
//! crate here with unsafe code. A thread without a seed gets the bytes of the system.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on, this thread gets the bytes of this seed. Call it first in a new thread: keys that the thread has requested
/// before stay.
pub fn seed_this_thread(seed: u64) {
    STATE.set(Some(seed));
}

/// Returns the next number of the sequence (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_long, c_uint, c_void};

    use super::{STATE, next};

    #[cfg(target_arch = "x86_64")]
    const GETRANDOM: c_long = 318;
    #[cfg(target_arch = "aarch64")]
    const GETRANDOM: c_long = 278;

    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }

    /// Does what `getrandom(2)` does.
    ///
    /// # Safety
    ///
    /// `buffer` must be valid for writes of `length` bytes.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
        // While the thread ends, its state is gone.
        let Ok(Some(mut state)) = STATE.try_with(|state| state.get()) else {
            // SAFETY: the arguments are those of the system call, and the caller has promised that the buffer is valid.
            return unsafe { syscall(GETRANDOM, buffer, length, flags) as isize };
        };
        // SAFETY: the caller has promised that the buffer is valid for `length` bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        for chunk in bytes.chunks_mut(8) {
            let random = next(&mut state).to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
        STATE.set(Some(state));
        length as isize
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(
    clippy::unwrap_used,
    reason = "a test that fails by a panic says where"
)]
mod tests {
    use std::{
        hash::{BuildHasher, RandomState},
        thread,
    };

    use super::seed_this_thread;

    fn drawn(seed: Option<u64>) -> u64 {
        let draw = move || {
            if let Some(seed) = seed {
                seed_this_thread(seed);
            }
            RandomState::new().hash_one("order")
        };
        thread::spawn(draw).join().unwrap()
    }

    #[test]
    fn the_order_of_maps_is_that_of_the_seed() {
        assert_eq!(drawn(Some(1)), drawn(Some(1)));
        assert_ne!(drawn(Some(1)), drawn(Some(2)));
        assert_ne!(drawn(None), drawn(None));
    }
}

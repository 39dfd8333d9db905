//! The chance of the product: every module draws random numbers and makes ids through this one, and through no other
//! (clippy.toml refuses those of `rand` and `uuid` elsewhere). So a simulation can repeat them from a seed. In the product
//! they come from the thread's generator.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the module that may draw random numbers"
)]

use std::sync::Mutex;

use rand::{
    RngExt,
    distr::{
        Distribution, StandardUniform,
        uniform::{SampleRange, SampleUniform},
    },
};
use uuid::{ContextV7, Timestamp, Uuid};

#[cfg(test)]
use crate::{clock, host};

#[inline]
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    #[cfg(test)]
    if let Some(host) = host::current() {
        return host.with_chance(RngExt::random);
    }
    rand::random()
}

#[inline]
pub fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
    #[cfg(test)]
    if let Some(host) = host::current() {
        return host.with_chance(|chance| chance.random_range(range));
    }
    rand::random_range(range)
}

/// Fills the bytes with random ones.
#[inline]
pub fn fill(bytes: &mut [u8]) {
    rand::rng().fill(bytes);
}

/// Returns a new id that is ordered by the machine's wall clock.
#[inline]
pub fn id() -> Uuid {
    #[cfg(test)]
    if host::current().is_some() {
        let millis = clock::since_epoch().as_millis();
        return id_at(u64::try_from(millis).unwrap_or(u64::MAX));
    }
    Uuid::now_v7()
}

/// Returns a new id of this time, in milliseconds since 1970. Those of one millisecond are in the order in which they
/// were made.
pub fn id_at(millis: u64) -> Uuid {
    #[cfg(test)]
    if let Some(host) = host::current() {
        return host.id_at(millis);
    }
    // uuid requires the mutex of the standard library.
    static ORDER: Mutex<ContextV7> = Mutex::new(ContextV7::new());
    let nanos = u32::try_from((millis % 1000) * 1_000_000).unwrap_or_default();
    Uuid::new_v7(Timestamp::from_unix(&ORDER, millis / 1000, nanos))
}

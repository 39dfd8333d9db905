//! The clock of the product: every module reads the time, waits and limits a wait through this one, and through no other
//! (clippy.toml refuses the clocks of the standard library and of tokio elsewhere). So a simulation can give each
//! instance a time of its own: the monotonic clock and all waits are those of the runtime, and the other clocks are those of
//! the host (`crate::host`, only in tests). In the product these functions are those of tokio and of the system.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the module that may read the clocks"
)]

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
pub use tokio::time::{Instant, MissedTickBehavior};
use tokio::time::{Interval, Sleep, Timeout};

use crate::domain::values::Timestamp;
#[cfg(test)]
use crate::host;

/// The clock of the system that continues while the machine is suspended, if there is one.
#[cfg(target_os = "linux")]
const ELAPSED: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const ELAPSED: ClockId = ClockId::Monotonic;

/// Returns the time of the monotonic clock.
#[inline]
pub fn instant() -> Instant {
    Instant::now()
}

/// Returns the time of the machine's wall clock, which people may set.
#[inline]
pub fn wall() -> Timestamp {
    Timestamp::from_millis(i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX))
}

/// Returns the time of the machine's wall clock since 1970. A clock before 1970 counts as 1970.
#[inline]
pub fn since_epoch() -> Duration {
    #[cfg(test)]
    if let Some(host) = host::current() {
        return host.since_epoch();
    }
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_epoch.unwrap_or_default()
}

/// Returns the time since the start of the machine, with the times in which it was suspended.
#[inline]
pub fn since_boot() -> Duration {
    #[cfg(test)]
    if let Some(host) = host::current() {
        return host.since_boot();
    }
    let elapsed = clock_gettime(ELAPSED);
    // Neither value is ever negative.
    Duration::new(
        u64::try_from(elapsed.tv_sec).unwrap_or(0),
        u32::try_from(elapsed.tv_nsec).unwrap_or(0),
    )
}

#[inline]
pub fn sleep(duration: Duration) -> Sleep {
    tokio::time::sleep(duration)
}

#[inline]
pub fn sleep_until(deadline: Instant) -> Sleep {
    tokio::time::sleep_until(deadline)
}

#[inline]
pub fn timeout<F: Future>(duration: Duration, work: F) -> Timeout<F> {
    tokio::time::timeout(duration, work)
}

#[inline]
pub fn timeout_at<F: Future>(deadline: Instant, work: F) -> Timeout<F> {
    tokio::time::timeout_at(deadline, work)
}

#[inline]
pub fn interval(period: Duration) -> Interval {
    tokio::time::interval(period)
}

/// Keeps the thread waiting. Only threads that run no futures may call it.
#[inline]
pub fn block(duration: Duration) {
    // The thread of a simulation runs everything.
    #[cfg(test)]
    if host::current().is_some() {
        return;
    }
    std::thread::sleep(duration);
}

//! The bounds of a check: its time, and the reason why it ends before it is complete.

use std::time::Duration;

use crate::{
    clock::{self, Instant, sleep_until},
    domain::values::{Span, Timestamp},
};

/// Why the check ends before it is complete.
pub(super) struct CutShort(pub String);

/// The time of a check.
pub(super) struct CheckTime {
    start: Instant,
    /// The store's time at the start.
    store_start: Timestamp,
    within: Duration,
}

impl CheckTime {
    /// Begins now. `now` is the store's time, `within` the most time for all calls together.
    pub fn begin(now: Timestamp, within: Duration) -> Self {
        Self {
            start: clock::instant(),
            store_start: now,
            within,
        }
    }

    /// Returns the time at which the check ends.
    pub fn end(&self) -> Instant {
        self.start + self.within
    }

    pub fn left(&self) -> Duration {
        self.end().saturating_duration_since(clock::instant())
    }

    /// Returns the store's time.
    pub fn now(&self) -> Timestamp {
        self.store_start + Span::from_millis(millis(self.start.elapsed()))
    }

    /// Waits, but not for longer than the check may take.
    pub async fn pause(&self, length: Duration) -> Result<(), CutShort> {
        let until = clock::instant() + length;
        sleep_until(until.min(self.end())).await;
        if until > self.end() {
            return Err(self.cut_short());
        }
        Ok(())
    }

    /// Returns the end of the check because its time is over.
    pub fn cut_short(&self) -> CutShort {
        let within = Span::from_millis(millis(self.within));
        CutShort(format!("the time of the check, {within}, was over"))
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_ends_with_the_check() {
        let time = CheckTime::begin(Timestamp::from_millis(1_000), Duration::from_millis(10));
        assert!(time.pause(Duration::ZERO).await.is_ok());
        let CutShort(why) = time.pause(Duration::from_secs(3600)).await.unwrap_err();
        assert_eq!(why, "the time of the check, 10ms, was over");
        assert_eq!(time.left(), Duration::ZERO);
        assert!(time.now() >= Timestamp::from_millis(1_010));
    }
}

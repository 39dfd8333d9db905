//! The database's clock. Between two readings it is estimated by the clock of this process for a few seconds, so that
//! not every reading of the time asks the database.

use std::time::Duration;

use parking_lot::Mutex;

use crate::{
    clock::Instant,
    domain::values::{Span, Timestamp},
};

/// Within this time two clocks drift apart by less than a millisecond, or by a few while one of them is being adjusted.
const FRESH: Duration = Duration::from_secs(5);
/// A sample that took longer is not used, because the time in the record could be late by as much.
const CLOSE: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<ClockSample>>);

/// A reading of the database's clock. It was made between `asked` and `answered`, which are by this process's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockSample {
    pub now: Timestamp,
    pub asked: Instant,
    pub answered: Instant,
}

/// A time of the database's clock, with the matching time of this process's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClockEstimate {
    /// The database's clock is not earlier than this, and at most a little later.
    pub now: Timestamp,
    /// A moment at which the database's clock was not later than `now`.
    pub instant: Instant,
}

impl Clock {
    /// Keeps the sample with the later time: no sample is ahead of the database, and the time that was returned must
    /// not go back.
    pub fn set(&self, sample: ClockSample) {
        let mut best = self.0.lock();
        let known = best.and_then(|best| best.at(sample.answered));
        if known.is_none_or(|known| known.now <= sample.now) {
            *best = Some(sample);
        }
    }

    /// Returns `None` if the database was not asked within [`FRESH`], or took longer than [`CLOSE`] to respond.
    pub fn at(&self, instant: Instant) -> Option<ClockEstimate> {
        let best = *self.0.lock();
        best?.at(instant)
    }

    /// Returns the estimated time, however long ago the database was asked. Returns `None` before the first time.
    pub fn estimated_now(&self, instant: Instant) -> Option<Timestamp> {
        let best = *self.0.lock();
        Some(best?.read_on(instant).now)
    }
}

impl ClockSample {
    /// The estimate counts from the arrival of the response, so it is late by the duration of the response and never
    /// ahead of the database's clock. Therefore nothing is found to be due that the writer would refuse as not yet due.
    fn at(self, instant: Instant) -> Option<ClockEstimate> {
        let since = instant.saturating_duration_since(self.answered);
        let is_close = self.answered - self.asked <= CLOSE;
        (is_close && since < FRESH).then(|| self.read_on(instant))
    }

    fn read_on(self, instant: Instant) -> ClockEstimate {
        let since = instant.saturating_duration_since(self.answered);
        ClockEstimate {
            now: self.now + Span::from_millis(since.as_millis() as u64),
            instant: self.asked + since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_on_and_is_asked_again_after_a_moment() {
        let clock = Clock::default();
        let asked = Instant::now();
        let answered = asked + Duration::from_millis(5);
        assert_eq!(clock.at(answered), None);
        let now = Timestamp::from_millis(5000);
        clock.set(ClockSample {
            now,
            asked,
            answered,
        });
        let since = Duration::from_millis(300);
        let estimate = ClockEstimate {
            now: Timestamp::from_millis(5300),
            instant: asked + since,
        };
        assert_eq!(clock.at(answered + since), Some(estimate));
        assert_eq!(clock.at(answered + FRESH), None);
        let estimated_now = clock.estimated_now(answered + Duration::from_secs(60));
        assert_eq!(estimated_now, Some(Timestamp::from_millis(65_000)));
    }

    #[test]
    fn an_answer_that_took_long_is_not_read_on() {
        let clock = Clock::default();
        let asked = Instant::now();
        let answered = asked + CLOSE + Duration::from_millis(1);
        clock.set(ClockSample {
            now: Timestamp::from_millis(5000),
            asked,
            answered,
        });
        assert_eq!(clock.at(answered), None);
        assert!(clock.estimated_now(answered).is_some());
    }

    #[test]
    fn an_answer_that_took_long_does_not_set_the_clock_back() {
        let clock = Clock::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let read = |now, asked, answered| ClockSample {
            now: Timestamp::from_millis(now),
            asked: at(asked),
            answered: at(answered),
        };
        let told = |millis| clock.at(at(millis)).unwrap().now.as_millis();
        clock.set(read(5000, 0, 1));
        clock.set(read(5100, 101, 150));
        assert_eq!(told(150), 5149);
        clock.set(read(5200, 199, 200));
        assert_eq!(told(200), 5200);
        // The database's clock was set back. The new time counts once the old sample has expired.
        clock.set(read(100, 300, 301));
        assert_eq!(told(301), 5301);
        clock.set(read(5100, 5300, 5301));
        assert_eq!(told(5301), 5100);
    }
}

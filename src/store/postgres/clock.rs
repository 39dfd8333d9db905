//! The database's clock, read on by this process's own for a moment: whoever wants to know the time does
//! not ask the database each time.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::domain::{Span, Timestamp};

/// What two clocks differ by after so long is far below a millisecond.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<(Timestamp, Instant)>>);

impl Clock {
    /// What the database answered, and when the answer was there. Counted from then, this clock is behind
    /// the database's by what the answer took, and never ahead of it: nothing is found to be due that the
    /// writer would refuse because it is not.
    pub fn set(&self, now: Timestamp, answered: Instant) {
        // A panic while holding the lock leaves the value valid.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, answered));
    }

    /// `None` where the database has not been asked lately.
    pub fn at(&self, instant: Instant) -> Option<Timestamp> {
        let (now, since) = self.read(instant)?;
        (since < FRESH).then(|| now + Span::from_millis(since.as_millis() as u64))
    }

    /// However long ago it was asked; `None` before the first time.
    pub fn reckoned(&self, instant: Instant) -> Option<Timestamp> {
        let (now, since) = self.read(instant)?;
        Some(now + Span::from_millis(since.as_millis() as u64))
    }

    /// What the database answered last, and how long ago.
    fn read(&self, instant: Instant) -> Option<(Timestamp, Duration)> {
        let read = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        read.map(|(now, answered)| (now, instant.saturating_duration_since(answered)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_on_and_is_asked_again_after_a_moment() {
        let clock = Clock::default();
        let answered = Instant::now();
        assert_eq!(clock.at(answered), None);
        clock.set(Timestamp::from_millis(5000), answered);
        let later = answered + Duration::from_millis(300);
        assert_eq!(clock.at(later), Some(Timestamp::from_millis(5300)));
        assert_eq!(clock.at(answered + FRESH), None);
        let reckoned = clock.reckoned(answered + Duration::from_secs(60));
        assert_eq!(reckoned, Some(Timestamp::from_millis(65_000)));
    }
}

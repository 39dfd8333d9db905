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
    /// What the database answered when it was asked at `asked`.
    pub fn set(&self, now: Timestamp, asked: Instant) {
        // A panic while holding the lock leaves the value valid.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, asked));
    }

    /// `None` where the database has not been asked lately.
    pub fn at(&self, instant: Instant) -> Option<Timestamp> {
        let read = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, asked) = read?;
        let since = instant.saturating_duration_since(asked);
        let millis = u64::try_from(since.as_millis()).ok()?;
        (since < FRESH).then(|| now + Span::from_millis(millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_on_and_is_asked_again_after_a_moment() {
        let clock = Clock::default();
        let asked = Instant::now();
        assert_eq!(clock.at(asked), None);
        clock.set(Timestamp::from_millis(5000), asked);
        let later = asked + Duration::from_millis(300);
        assert_eq!(clock.at(later), Some(Timestamp::from_millis(5300)));
        assert_eq!(clock.at(asked + FRESH), None);
    }
}

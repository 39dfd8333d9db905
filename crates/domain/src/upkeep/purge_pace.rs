//! The pace at which ended tasks are deleted: deleting must cost other users of the store little.

use std::time::Duration;

use crate::values::time::Span;

/// The pace of one purge: the number of tasks that are deleted at once, and the time for which others then have the
/// store to themselves.
///
/// A batch has as many tasks as can be deleted in the time for which others may be held up, whatever the size of the
/// tasks. The rest after it is nine times its duration, so that a tenth of the store's time is spent on deleting. If
/// more tasks end than are deleted at this pace, the rests get shorter step by step: a store that grows without bound
/// is worse than a slower one.
/// than one that is slower.
#[derive(Debug)]
pub struct PurgePace {
    most: usize,
    target: Duration,
    batch: usize,
    /// The index in [`RESTS`] of the current rest.
    step: usize,
    watched: Option<LagSample>,
}

/// The rest, as a multiple of the time that deleting took.
const RESTS: [u32; 4] = [9, 4, 2, 1];
/// The size of the first batch, while the size of the tasks is not known.
const FIRST: usize = 8;
/// The interval at which it is checked if deleting keeps up.
const JUDGED_EVERY: Duration = Duration::from_secs(30);
/// The pace is not increased while the lag is less than this, because rounds come at intervals.
const USUAL_LAG: Span = Span::from_secs(300);

#[derive(Clone, Copy, Debug)]
struct LagSample {
    at: Duration,
    lag: Span,
}

impl PurgePace {
    /// Makes a pace of at most `most` tasks at once, and no more than can be deleted in `target`.
    pub fn new(most: usize, target: Duration) -> Self {
        Self {
            most: most.max(1),
            target,
            batch: FIRST.clamp(1, most.max(1)),
            step: 0,
            watched: None,
        }
    }

    /// Returns the number of tasks to delete next.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Records that `count` tasks were deleted in the time `took`. Returns the time to rest now.
    pub fn record_batch(&mut self, count: usize, took: Duration) -> Duration {
        if count > 0 {
            let of_one =
                (took / u32::try_from(count).unwrap_or(u32::MAX)).max(Duration::from_nanos(1));
            let fitting = self.target.as_nanos() / of_one.as_nanos().max(1);
            let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
            // One batch that was slow or quick by chance must not change the size of the next ones much.
            let near = (self.batch / 2).max(1)..=self.batch.saturating_mul(2);
            self.batch = fitting
                .clamp(*near.start(), *near.end())
                .clamp(1, self.most);
        }
        self.rest(took)
    }

    /// Returns the time to rest after work of this duration.
    pub fn rest(&self, took: Duration) -> Duration {
        took * RESTS[self.step]
    }

    /// Records that the tasks that are deleted now should have been deleted `lag` ago. `at` is a time of any monotonic
    /// clock. If the lag grows, the pace is increased.
    pub fn record_lag(&mut self, lag: Span, at: Duration) {
        let Some(last) = self.watched else {
            self.watched = Some(LagSample { at, lag });
            return;
        };
        if at < last.at + JUDGED_EVERY {
            return;
        }
        self.watched = Some(LagSample { at, lag });
        self.step = match lag > USUAL_LAG && lag > last.lag {
            true => (self.step + 1).min(RESTS.len() - 1),
            false => self.step.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(2);

    fn pace() -> PurgePace {
        PurgePace::new(500, TARGET)
    }

    #[test]
    fn a_batch_is_as_large_as_fits_into_its_time() {
        let mut pace = pace();
        for _ in 0..10 {
            let count = pace.batch();
            pace.record_batch(count, Duration::from_micros(50) * count as u32);
        }
        assert_eq!(pace.batch(), 40);
        // Tasks with large inputs follow.
        for _ in 0..10 {
            let count = pace.batch();
            pace.record_batch(count, Duration::from_millis(3) * count as u32);
        }
        assert_eq!(pace.batch(), 1, "less than one is none");
        for _ in 0..20 {
            let count = pace.batch();
            pace.record_batch(count, Duration::ZERO);
        }
        assert_eq!(pace.batch(), 500);
    }

    #[test]
    fn one_slow_batch_halves_the_next() {
        let mut pace = pace();
        assert_eq!(pace.batch(), 8);
        pace.record_batch(8, Duration::from_secs(1));
        assert_eq!(pace.batch(), 4);
        pace.record_batch(0, Duration::from_secs(1));
        assert_eq!(pace.batch(), 4, "nothing was learnt of what a task weighs");
    }

    #[test]
    fn a_tenth_of_the_time_goes_into_deleting() {
        assert_eq!(pace().record_batch(8, TARGET), TARGET * 9);
    }

    #[test]
    fn rests_get_shorter_while_deleting_falls_back_and_longer_again_once_it_does_not() {
        let mut pace = pace();
        let minutes = |count: u64| Span::from_secs(60 * count);
        let at = |count: u64| Duration::from_secs(60 * count);
        let rests = |pace: &PurgePace| pace.rest(TARGET) / TARGET.as_millis() as u32;
        pace.record_lag(minutes(10), at(0));
        pace.record_lag(minutes(20), Duration::from_secs(10));
        assert_eq!(rests(&pace).as_millis(), 9, "it is too soon to judge");
        for (minute, rest) in [(1, 4), (2, 2), (3, 1), (4, 1)] {
            pace.record_lag(minutes(10 + minute), at(minute));
            assert_eq!(rests(&pace).as_millis(), rest);
        }
        for (minute, rest) in [(5, 2), (6, 4), (7, 9), (8, 9)] {
            pace.record_lag(minutes(14 - minute), at(minute));
            assert_eq!(rests(&pace).as_millis(), rest);
        }
        pace.record_lag(minutes(1), at(9));
        pace.record_lag(minutes(2), at(10));
        assert_eq!(rests(&pace).as_millis(), 9, "rounds come at intervals");
    }
}

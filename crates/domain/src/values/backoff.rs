//! The wait before the next attempt after a failure, and the spread of the waits of many instances. The random number,
//! from 0 to 1, is an argument.

use std::time::Duration;

/// Waits that grow with each failure in a row, up to a maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// The wait after the first failure.
    pub initial: Duration,
    pub max: Duration,
    /// Each wait is this many times the one before.
    pub factor: u32,
}

impl Backoff {
    pub const fn doubling(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            factor: 2,
        }
    }

    /// Returns the wait after this many failures in a row, without jitter. It is the longest wait with jitter.
    pub fn wait(&self, failures: u32) -> Duration {
        let growth = self.factor.saturating_pow(failures.saturating_sub(1));
        self.initial.saturating_mul(growth).min(self.max)
    }

    /// Returns a random wait from zero to the whole: calls that failed together are spread as widely as possible.
    pub fn full_jitter(&self, failures: u32, chance: f64) -> Duration {
        self.wait(failures).mul_f64(chance.clamp(0.0, 1.0))
    }

    /// Returns a random wait of at least half of the whole: chance must not make it zero.
    pub fn equal_jitter(&self, failures: u32, chance: f64) -> Duration {
        let share = 0.5 + chance.clamp(0.0, 1.0) / 2.0;
        self.wait(failures).mul_f64(share)
    }
}

/// Returns an interval that is longer or shorter by up to a quarter: instances that share a store must not all poll at
/// once.
pub fn jittered(interval: Duration, chance: f64) -> Duration {
    interval.mul_f64(0.75 + chance.clamp(0.0, 1.0) / 2.0)
}

/// Returns the interval of a poll while no work is found and notifications report new work: every instance polls all
/// the time.
pub fn idle(poll: Duration) -> Duration {
    poll.saturating_mul(10)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(1),
        factor: 3,
    };

    #[test]
    fn each_failure_multiplies_the_wait_up_to_the_maximum() {
        let waits = [0, 1, 2, 3, 4, u32::MAX].map(|failures| BACKOFF.wait(failures));
        assert_eq!(
            waits.map(|wait| wait.as_millis()),
            [100, 100, 300, 900, 1000, 1000]
        );
        let doubled = Backoff::doubling(Duration::MAX / 2, Duration::MAX);
        assert_eq!(doubled.wait(u32::MAX), Duration::MAX, "nothing overflows");
    }

    #[test]
    fn full_jitter_is_between_nothing_and_the_wait_and_equal_jitter_in_its_upper_half() {
        let full = [0.0, 0.5, 1.0].map(|chance| BACKOFF.full_jitter(2, chance).as_millis());
        assert_eq!(full, [0, 150, 300]);
        let equal = [0.0, 0.5, 1.0].map(|chance| BACKOFF.equal_jitter(2, chance).as_millis());
        assert_eq!(equal, [150, 225, 300]);
    }

    proptest! {
        #[test]
        fn a_jittered_interval_is_off_by_a_quarter_at_most(millis in 1..1_000_000u64, chance in 0.0..1.0) {
            let interval = Duration::from_millis(millis);
            let jittered = jittered(interval, chance);
            prop_assert!(jittered >= interval * 3 / 4 && jittered <= interval * 5 / 4);
        }
    }
}

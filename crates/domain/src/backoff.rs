//! How long to wait before something that failed is tried again, and how the waits of many instances are spread. The
//! random number, from 0 to 1, is an argument.

use std::time::Duration;

/// Waits that grow with each failure in a row, up to a maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// The wait after the first failure.
    pub initial: Duration,
    pub max: Duration,
    /// Each wait is so many times the one before.
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

    /// The wait after so many failures in a row, without jitter: the longest with it.
    pub fn wait(&self, failures: u32) -> Duration {
        let growth = self.factor.saturating_pow(failures.saturating_sub(1));
        self.initial.saturating_mul(growth).min(self.max)
    }

    /// Anywhere between nothing and the whole wait: those that failed together spread the most.
    pub fn full_jitter(&self, failures: u32, chance: f64) -> Duration {
        self.wait(failures).mul_f64(chance.clamp(0.0, 1.0))
    }

    /// At least half of the wait: chance must not make it nothing.
    pub fn equal_jitter(&self, failures: u32, chance: f64) -> Duration {
        let share = 0.5 + chance.clamp(0.0, 1.0) / 2.0;
        self.wait(failures).mul_f64(share)
    }
}

/// An interval, longer or shorter by up to a quarter: instances that share a store must not all poll at once.
pub fn jittered(interval: Duration, chance: f64) -> Duration {
    interval.mul_f64(0.75 + chance.clamp(0.0, 1.0) / 2.0)
}

/// The interval of a poll while nothing is there and others report what comes: every instance polls, for ever.
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

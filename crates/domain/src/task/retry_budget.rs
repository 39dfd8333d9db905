//! The bound on the retries among an agent's calls. A service that fails gets more calls than one that works, because
//! each failed call is made again: the budget keeps the retries to a share of all calls, and parks the retries beyond
//! it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::definition::AttemptRules;

/// The wait before a retry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RetryWait {
    /// This part of the wait is taken from the time that the step has to complete.
    pub backoff: Duration,
    /// The further wait because of the retry budget of the agent: it is not taken from the step's time.
    pub parked: Duration,
}

impl RetryWait {
    /// Returns the wait as the time of the step counts it: where a number bounds the attempts, no wait takes time from them.
    pub fn within_attempts(self, rules: Option<&AttemptRules>) -> Self {
        match rules.is_some_and(|rules| rules.max_attempts.is_some()) {
            true => Self {
                backoff: Duration::ZERO,
                parked: self.whole(),
            },
            false => self,
        }
    }

    pub fn whole(self) -> Duration {
        self.backoff.saturating_add(self.parked)
    }
}

impl From<Duration> for RetryWait {
    fn from(backoff: Duration) -> Self {
        let parked = Duration::ZERO;
        Self { backoff, parked }
    }
}

const SECONDS: usize = 10;
/// This number of retries a second is always allowed: with hardly any calls, a share of them is nothing.
const LEAST_PER_SECOND: u64 = 1;
/// The longest time, in ms, for which a retry is parked. Retries that would be parked for longer are spread over the
/// second half of it.
const LONGEST_PARKED: u64 = 60_000;

/// The calls of the last ten seconds, and the time of the next retry. All times are in milliseconds of a monotonic
/// clock.
#[derive(Clone, Debug, Default)]
pub struct RetryBudget {
    seconds: [u64; SECONDS],
    latest: u64,
    /// The earliest time of the next retry, in thousandths of a millisecond.
    next: u64,
}

impl RetryBudget {
    /// Counts a call that begins, a retry or not.
    pub fn add_call(&mut self, millis: u64) {
        self.forget(millis);
        self.seconds[self.latest as usize % SECONDS] += 1;
    }

    fn forget(&mut self, millis: u64) {
        let second = (millis / 1000).max(self.latest);
        for passed in (self.latest + 1..=second).rev().take(SECONDS) {
            self.seconds[passed as usize % SECONDS] = 0;
        }
        self.latest = second;
    }

    pub fn in_use(&mut self, millis: u64) -> RetryBudgetUse {
        self.forget(millis);
        let parked = (self.next / 1000).saturating_sub(millis);
        RetryBudgetUse {
            calls: self.seconds.iter().sum(),
            parked_for: Duration::from_millis(parked.min(LONGEST_PARKED)),
        }
    }

    /// Lets one retry begin after `backoff`, and parks it for as long as other retries take `percent` of all calls.
    /// `chance` is a random number from 0 to 1.
    pub fn reserve(
        &mut self,
        percent: u32,
        backoff: Duration,
        millis: u64,
        chance: f64,
    ) -> RetryWait {
        self.forget(millis);
        let calls: u64 = self.seconds.iter().sum();
        // The retries that ten seconds allow, in hundredths.
        let allowed = (calls * u64::from(percent)).max(LEAST_PER_SECOND * SECONDS as u64 * 100);
        let interval = SECONDS as u64 * 1000 * 100 * 1000 / allowed;
        let waits_until = millis.saturating_add(millis_of(backoff));
        let begins = self.next.max(waits_until * 1000);
        let parked = begins / 1000 - waits_until;
        let parked = if parked > LONGEST_PARKED {
            LONGEST_PARKED / 2 + (chance.clamp(0.0, 1.0) * (LONGEST_PARKED / 2) as f64) as u64
        } else {
            self.next = self.next.max(millis * 1000) + interval;
            parked
        };
        RetryWait {
            backoff,
            parked: Duration::from_millis(parked),
        }
    }
}

/// The use of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryBudgetUse {
    /// The calls of the last ten seconds.
    pub calls: u64,
    /// The time for which a retry that is needed now would be parked.
    pub parked_for: Duration,
}

fn millis_of(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Duration = Duration::from_millis(100);

    fn reserve(budget: &mut RetryBudget, millis: u64) -> u64 {
        let wait = budget.reserve(20, BACKOFF, millis, 0.5);
        assert_eq!(wait.backoff, BACKOFF);
        wait.parked.as_millis() as u64
    }

    #[test]
    fn a_share_of_the_calls_may_be_retries_and_the_others_are_parked() {
        let mut budget = RetryBudget::default();
        for millis in 0..10_000 {
            budget.add_call(millis);
        }
        // 1000 calls a second: 200 retries, one every 5 ms.
        let parked: Vec<u64> = (0..400).map(|_| reserve(&mut budget, 9_999)).collect();
        assert_eq!(parked[..3], [0, 0, 0], "within its own wait");
        assert_eq!(parked[399] - parked[199], 1000);
        assert_eq!(parked[200], 900);
        // Later no retries have accumulated.
        for millis in 20_000..30_000 {
            budget.add_call(millis);
        }
        assert_eq!(reserve(&mut budget, 29_999), 0);
    }

    #[test]
    fn with_hardly_a_call_one_retry_a_second_is_made() {
        let mut budget = RetryBudget::default();
        budget.add_call(5);
        let parked: Vec<u64> = (0..4).map(|_| reserve(&mut budget, 5)).collect();
        assert_eq!(parked, [0, 900, 1900, 2900]);
        let parked_for = Duration::from_secs(4);
        assert_eq!(
            budget.in_use(5),
            RetryBudgetUse {
                calls: 1,
                parked_for
            }
        );
        let parked_for = Duration::ZERO;
        assert_eq!(
            budget.in_use(20_000),
            RetryBudgetUse {
                calls: 0,
                parked_for
            }
        );
    }

    #[test]
    fn nothing_is_parked_for_longer_than_a_minute() {
        let mut budget = RetryBudget::default();
        let parked: Vec<u64> = (0..100).map(|_| reserve(&mut budget, 0)).collect();
        assert!(parked.iter().all(|parked| *parked <= LONGEST_PARKED));
        assert_eq!(parked[99], 45_000);
        assert_eq!(reserve(&mut budget, 61_000), 0, "those beyond take no turn");
    }

    #[test]
    fn calls_are_forgotten_after_ten_seconds() {
        let mut budget = RetryBudget::default();
        for _ in 0..1000 {
            budget.add_call(0);
        }
        budget.forget(9_999);
        assert_eq!(budget.seconds.iter().sum::<u64>(), 1000);
        budget.forget(10_000);
        assert_eq!(budget.seconds.iter().sum::<u64>(), 0);
        budget.add_call(3);
        assert_eq!(budget.seconds.iter().sum::<u64>(), 1, "the clock went back");
    }
}

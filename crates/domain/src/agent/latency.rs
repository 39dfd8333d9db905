//! The choice between two endpoints of a service for the next call: the one with fewer calls in flight takes it, unless
//! the other is clearly faster. Failures count as slow calls. Otherwise an endpoint that fails at once, and therefore
//! has few calls in flight, would get all calls.

use std::time::Duration;

/// After this time, in ms, without a call a third of the weight of the earlier calls is left.
const MEMORY: f64 = 5_000.0;
/// Latencies, in ms, below this one count as equal to it.
const FAST: f64 = 2.0;
/// A failed call counts with this duration, in ms, if it did not take longer.
const FAILED: f64 = 10_000.0;
/// An endpoint is clearly better if its cost is this many times lower.
const CLEARLY: f64 = 2.0;

/// The recent mean duration of an endpoint's calls, in ms; zero if none is known.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Latency {
    millis: f64,
    /// The recent share of its calls that failed.
    failed: f64,
    /// The number of calls that failed since the last success.
    in_a_row: u32,
    /// The time of the last call, in ms, by a monotonic clock.
    at: u64,
}

/// After this many failures in a row the endpoint counts as failing. Its share of failures would show that only some
/// seconds later, and a busy endpoint that has died must not fail calls for so long.
const IN_A_ROW: u32 = 3;

impl Latency {
    /// Counts a call that ended at `now`.
    pub fn add(&mut self, now: u64, took: Duration, failed: bool) {
        let took = took.as_secs_f64() * 1000.0;
        let sample = if failed { took.max(FAILED) } else { took };
        let is_first = *self == Self::default();
        // A call has more weight if the one before it ended longer ago.
        let passed = now.saturating_sub(self.at).max(1) as f64;
        let weight = if is_first {
            1.0
        } else {
            1.0 - (-passed / MEMORY).exp()
        };
        self.millis += (sample - self.millis) * weight;
        self.failed += (f64::from(u8::from(failed)) - self.failed) * weight;
        self.in_a_row = if failed {
            self.in_a_row.saturating_add(1)
        } else {
            0
        };
        self.at = self.at.max(now);
    }

    /// Returns whether more than half of its recent calls failed, or the last few in a row did. A few seconds after the
    /// last call this is false, so that the endpoint may be called again.
    pub fn fails_mostly(self, now: u64) -> bool {
        let passed = now.saturating_sub(self.at) as f64;
        let failed = if self.in_a_row >= IN_A_ROW {
            1.0
        } else {
            self.failed
        };
        failed * (-passed / MEMORY).exp() > 0.5
    }

    /// Returns the latency at `now`. It decays without calls, so that an endpoint that was slow gets calls again.
    fn at(self, now: u64) -> f64 {
        let passed = now.saturating_sub(self.at) as f64;
        (self.millis * (-passed / MEMORY).exp()).max(FAST)
    }
}

/// An endpoint that could take the next call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// The number of calls that it has in flight.
    pub load: u32,
    pub latency: Latency,
}

impl Candidate {
    /// Returns the expected duration of a call to this endpoint, given the calls that it has in flight.
    fn cost(self, now: u64) -> f64 {
        (f64::from(self.load) + 1.0) * self.latency.at(now)
    }

    /// Returns whether this endpoint takes the next call rather than the other. Of two equal endpoints neither is
    /// better.
    pub fn is_better(self, other: Self, now: u64) -> bool {
        let (mine, others) = (self.cost(now), other.cost(now));
        match mine * CLEARLY < others || others * CLEARLY < mine {
            true => mine < others,
            false => self.load < other.load,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(millis: u64) -> Latency {
        let mut latency = Latency::default();
        latency.add(1, Duration::from_millis(millis), false);
        latency
    }

    fn candidate(load: u32, millis: u64) -> Candidate {
        let latency = latency(millis);
        Candidate { load, latency }
    }

    #[test]
    fn the_one_with_fewer_calls_is_better_unless_the_other_is_clearly_faster() {
        let is_better = |a: Candidate, b: Candidate| (a.is_better(b, 1), b.is_better(a, 1));
        assert_eq!(is_better(candidate(1, 10), candidate(2, 10)), (true, false));
        assert_eq!(
            is_better(candidate(1, 15), candidate(1, 10)),
            (false, false)
        );
        assert_eq!(is_better(candidate(1, 50), candidate(1, 10)), (false, true));
        assert_eq!(is_better(candidate(0, 50), candidate(3, 10)), (true, false));
        assert_eq!(is_better(candidate(0, 90), candidate(3, 10)), (false, true));
        // Latencies of a few milliseconds count as equal.
        assert_eq!(is_better(candidate(2, 0), candidate(1, 2)), (false, true));
    }

    #[test]
    fn one_that_fails_at_once_is_slow_until_that_is_forgotten() {
        let mut failing = Latency::default();
        failing.add(1, Duration::from_millis(1), true);
        let failing = Candidate {
            load: 0,
            latency: failing,
        };
        let busy = candidate(9, 10);
        assert!(busy.is_better(failing, 1));
        assert!(!failing.is_better(busy, 10_000));
        assert!(failing.is_better(busy, 40_000));
    }

    #[test]
    fn one_that_fails_mostly_is_called_again_after_a_few_seconds() {
        let mut latency = latency(10);
        assert!(!latency.fails_mostly(1));
        latency.add(2_000, Duration::from_millis(1), true);
        assert!(!latency.fails_mostly(2_000), "one of two");
        latency.add(9_000, Duration::from_millis(1), true);
        assert!(latency.fails_mostly(9_000));
        assert!(latency.fails_mostly(10_000));
        assert!(!latency.fails_mostly(13_000));
    }

    #[test]
    fn one_that_was_well_and_dies_fails_mostly_after_three_calls() {
        let mut latency = latency(10);
        for now in 1..1_000 {
            latency.add(now, Duration::from_millis(10), false);
        }
        for now in 1_000..1_003 {
            assert!(!latency.fails_mostly(now));
            latency.add(now, Duration::from_millis(1), true);
        }
        assert!(latency.fails_mostly(1_003));
        assert!(!latency.fails_mostly(5_000), "it is tried again");
        latency.add(5_000, Duration::from_millis(1), true);
        assert!(latency.fails_mostly(5_000), "one that fails still");
    }

    #[test]
    fn many_calls_weigh_as_much_as_few_in_the_same_time() {
        let mut latency = latency(100);
        for now in 1..=5_000 {
            latency.add(now, Duration::from_millis(10), false);
        }
        let left = latency.at(5_000);
        assert!((40.0..50.0).contains(&left), "{left}");
        latency.add(100_000, Duration::from_millis(10), false);
        let left = latency.at(100_000);
        assert!((9.9..10.1).contains(&left), "{left}");
        latency.add(5, Duration::from_millis(10), false);
        assert_eq!(latency.at, 100_000, "the clock went back");
    }
}

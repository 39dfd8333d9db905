//! The limit of the calls that an agent may get in a time: a token bucket, kept as the one time at which it would be
//! full again (the generic cell rate algorithm), so that instances can share it as one number.

use crate::values::rate::RateLimitSpec;

/// A bucket: when it is full again, in nanoseconds of some clock. A time that is past is a full bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateBucket(pub i64);

impl RateBucket {
    /// One that has nothing yet: a process that restarts gets no burst for it.
    pub fn empty(spec: &RateLimitSpec, now: i64) -> Self {
        Self(now.saturating_add(spec.whole()))
    }

    /// One that was left by a lower rate, or by a clock that was ahead, as the rate is now: at most empty.
    pub fn within(self, spec: &RateLimitSpec, now: i64) -> Self {
        Self(self.0.min(now.saturating_add(spec.whole())))
    }

    /// Returns the number of calls that could begin now.
    pub fn available(self, spec: &RateLimitSpec, now: i64) -> u32 {
        let cost = spec.cost();
        let whole = spec.whole();
        // One that was filled at a lower rate, or by a clock that was ahead, is at most empty.
        let debt = self.0.saturating_sub(now).clamp(0, whole);
        u32::try_from((whole - debt) / cost).unwrap_or(u32::MAX)
    }

    /// Takes up to `wanted` calls, and returns the number taken.
    pub fn take(&mut self, spec: &RateLimitSpec, now: i64, wanted: u32) -> u32 {
        let taken = self.available(spec, now).min(wanted);
        let cost = spec.cost();
        let whole = spec.whole();
        let debt = self.0.saturating_sub(now).clamp(0, whole);
        self.0 = now
            .saturating_add(debt)
            .saturating_add(cost.saturating_mul(i64::from(taken)));
        taken
    }

    /// Gives one back that was not used.
    pub fn give_back(&mut self, spec: &RateLimitSpec) {
        self.0 = self.0.saturating_sub(spec.cost());
    }

    /// When there is one, in nanoseconds from now.
    pub fn next_in(self, spec: &RateLimitSpec, now: i64) -> i64 {
        let cost = spec.cost();
        let whole = spec.whole();
        let debt = self.0.saturating_sub(now).clamp(0, whole);
        (debt + cost - whole).max(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::values::rate::{Rate, RatePeriod};

    fn spec(rate: &str, burst: u32) -> RateLimitSpec {
        RateLimitSpec {
            rate: Rate::parse(rate).unwrap(),
            burst: Some(burst),
        }
    }

    #[test]
    fn what_a_lower_rate_has_left_is_at_most_empty() {
        let slow = spec("1/h", 1);
        let fast = spec("10/s", 2);
        let mut bucket = RateBucket(0);
        bucket.take(&slow, 0, 1);
        assert_eq!(bucket.available(&fast, 100_000_000), 0);
        let mut bucket = bucket.within(&fast, 0);
        assert_eq!(bucket.take(&fast, 100_000_000, 5), 1);
        assert_eq!(bucket.within(&fast, 100_000_000), bucket);
    }

    #[test]
    fn after_a_rest_a_burst_may_begin_and_then_the_rate_holds() {
        let spec = spec("10/s", 3);
        let mut bucket = RateBucket(0);
        let now = 5_000_000_000;
        assert_eq!(bucket.take(&spec, now, 10), 3);
        assert_eq!(bucket.take(&spec, now, 10), 0);
        assert_eq!(bucket.next_in(&spec, now), 100_000_000);
        assert_eq!(bucket.take(&spec, now + 99_999_999, 1), 0);
        assert_eq!(bucket.take(&spec, now + 100_000_000, 10), 1);
        bucket.give_back(&spec);
        assert_eq!(bucket.take(&spec, now + 100_000_000, 10), 1);
        assert_eq!(bucket.take(&spec, now + 60_000_000_000, 10), 3);
    }

    #[test]
    fn a_bucket_is_at_most_empty() {
        let spec = spec("1/s", 2);
        let ahead = RateBucket(i64::MAX);
        assert_eq!(ahead.available(&spec, 0), 0);
        assert_eq!(ahead.next_in(&spec, 0), 1_000_000_000);
        let empty = RateBucket::empty(&spec, 7);
        assert_eq!(empty.available(&spec, 7), 0);
        assert_eq!(empty.next_in(&spec, 7), 1_000_000_000);
    }

    proptest! {
        /// However often and whenever calls are asked for, no more are taken in any time than the burst and what the rate gives.
        #[test]
        fn no_more_than_the_rate_and_a_burst(
            calls in 1u32..2_000, burst in 1u32..50,
            asks in prop::collection::vec((0i64..300_000_000, 0u32..60), 1..100),
        ) {
            let spec = RateLimitSpec { rate: Rate { calls, per: RatePeriod::Second }, burst: Some(burst) };
            let mut bucket = RateBucket(0);
            let (mut now, mut taken) = (1_000_000_000i64, 0u64);
            let start = now;
            for (wait, wanted) in asks {
                now += wait;
                taken += u64::from(bucket.take(&spec, now, wanted));
                let most = (now - start) / spec.cost() + i64::from(burst) + 1;
                prop_assert!(taken <= most as u64, "{taken} of {most}");
                prop_assert!(bucket.available(&spec, now) > 0 || bucket.next_in(&spec, now) > 0);
            }
        }
    }
}

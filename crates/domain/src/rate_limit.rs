//! How many calls an agent may get in a time: a token bucket, kept as the one time at which it would be full again (the
//! generic cell rate algorithm), so that instances can share it as one number.

use std::{fmt, ops::RangeInclusive, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{fields::Fields, time::Span};

const MOST_CALLS: u32 = 1_000_000;
const MOST_BURST: u32 = 100_000;

/// The rate of an agent's calls, all instances together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitSpec {
    pub rate: Rate,
    /// How many calls may begin at once after a rest. `None`: what the rate gives in a tenth of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl RateLimitSpec {
    pub const BURSTS: RangeInclusive<i64> = 1..=MOST_BURST as i64;

    pub fn burst(&self) -> u32 {
        let tenth = 100_000_000 / self.cost();
        self.burst
            .unwrap_or(u32::try_from(tenth).unwrap_or(u32::MAX).max(1))
    }

    /// What is wrong with it: each fault as the name of the field, and a message.
    pub(crate) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if !(1..=MOST_CALLS).contains(&self.rate.calls) {
            faults.push(("rate", format!("must be 1 to {MOST_CALLS} calls")));
        }
        if self
            .burst
            .is_some_and(|burst| !(1..=MOST_BURST).contains(&burst))
        {
            faults.push(("burst", format!("must be 1 to {MOST_BURST}")));
        }
        faults
    }

    /// The time that one call takes of the bucket, in nanoseconds, rounded up.
    fn cost(&self) -> i64 {
        let per = self.rate.per.as_span().as_millis() * 1_000_000;
        let calls = i64::from(self.rate.calls.max(1));
        (per + calls - 1) / calls
    }

    /// How long an empty bucket takes until it is full.
    pub fn fills_within(&self) -> Duration {
        Duration::from_nanos(self.whole().unsigned_abs())
    }

    fn whole(&self) -> i64 {
        self.cost().saturating_mul(i64::from(self.burst()))
    }
}

/// So many calls in a second, a minute or an hour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    pub calls: u32,
    pub per: RatePeriod,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RatePeriod {
    Second,
    Minute,
    Hour,
}

/// How a rate is written.
pub const RATE_FORMS: &str = "such as \"50/s\", \"10/m\" or \"1000/h\"";

impl RatePeriod {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Second, "s"), (Self::Minute, "m"), (Self::Hour, "h")];

    fn as_span(self) -> Span {
        Span::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
        })
    }
}

impl Rate {
    pub fn parse(text: &str) -> Option<Self> {
        let (calls, unit) = text.split_once('/')?;
        // A sign would be taken for a part of the number.
        if !calls.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let (per, _) = RatePeriod::ALL
            .into_iter()
            .find(|(_, name)| *name == unit)?;
        let calls = calls.parse().ok()?;
        Some(Self { calls, per })
    }
}

/// The rate among the fields of an object; `None` where there is none, or a fault.
pub fn read_rate(fields: &mut Fields<'_>) -> Option<Rate> {
    let text = fields.string("rate", 100)?;
    let rate = Rate::parse(&text);
    if rate.is_none() {
        fields.fault("rate", format!("must be a rate {RATE_FORMS}"));
    }
    rate
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = RatePeriod::ALL.iter().find(|(per, _)| *per == self.per);
        write!(f, "{}/{}", self.calls, named.map_or("", |(_, name)| name))
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no rate: write one {RATE_FORMS}"))
        })
    }
}

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

    /// How many calls could begin now.
    pub fn available(self, spec: &RateLimitSpec, now: i64) -> u32 {
        let cost = spec.cost();
        let whole = spec.whole();
        // One that was filled at a lower rate, or by a clock that was ahead, is at most empty.
        let debt = self.0.saturating_sub(now).clamp(0, whole);
        u32::try_from((whole - debt) / cost).unwrap_or(u32::MAX)
    }

    /// Takes up to so many.
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
    fn a_rate_is_a_count_and_a_unit() {
        for text in ["1/s", "50/m", "1000/h"] {
            assert_eq!(Rate::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "5",
            "/s",
            "5/",
            "5/d",
            "+5/s",
            "-5/s",
            "5 /s",
            "1.5/s",
            "99999999999/s",
        ] {
            assert_eq!(Rate::parse(text), None, "{text}");
        }
        assert_eq!(spec("0/s", 0).faults().len(), 2);
        assert_eq!(spec("1000000/s", 100_000).faults(), []);
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
    fn without_a_burst_it_is_a_tenth_of_a_second() {
        let burst = |rate: &str| {
            let rate = Rate::parse(rate).unwrap();
            RateLimitSpec { rate, burst: None }.burst()
        };
        assert_eq!(["200/s", "5/s", "6000/m", "1/h"].map(burst), [20, 1, 10, 1]);
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

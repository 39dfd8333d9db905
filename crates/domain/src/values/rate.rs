//! A rate: the most calls, steps or tasks that begin in a time.

use std::{fmt, time::Duration};

use provost_object::{
    Bounds, Definitions, Faults, FieldValue, Object, Place, Span, Unfit, read_text, text_schema,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, value::RawValue};

const MOST_CALLS: u32 = 1_000_000;
/// The most calls that may begin at once after a rest.
pub(crate) const MOST_BURST: u32 = 100_000;
/// The most characters of a rate that are read.
const LONGEST_RATE: usize = 100;

/// The most calls that begin in a time, all instances together. Steps beyond wait in the queue.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "RateLimit")]
pub struct RateLimitSpec {
    /// A number of calls, 1 to 1,000,000, in a second (`s`), a minute (`m`) or an hour (`h`).
    #[field(
        required = "give a rate such as \"50/s\", \"10/m\" or \"1000/h\"",
        example = "50/s"
    )]
    pub rate: Rate,
    /// How many calls may begin at once after a rest. Default: what the rate gives in a tenth of a second, at least 1.
    #[field(1..=MOST_BURST, example = 10)]
    pub burst: Option<u32>,
}

impl RateLimitSpec {
    pub fn burst(&self) -> u32 {
        let tenth = 100_000_000 / self.cost();
        self.burst
            .unwrap_or(u32::try_from(tenth).unwrap_or(u32::MAX).max(1))
    }

    /// The time that one call takes of the bucket, in nanoseconds, rounded up.
    pub(crate) fn cost(&self) -> i64 {
        let per = self.rate.per.as_span().as_millis() * 1_000_000;
        let calls = i64::from(self.rate.calls.max(1));
        (per + calls - 1) / calls
    }

    /// Returns the time that an empty bucket takes until it is full.
    pub fn fills_within(&self) -> Duration {
        Duration::from_nanos(self.whole().unsigned_abs())
    }

    /// The time that all calls of a burst take of the bucket, in nanoseconds.
    pub(crate) fn whole(&self) -> i64 {
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

/// Examples of the form of a rate.
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

    /// Returns how many calls begin in a time, rounded down.
    pub(crate) fn calls_in(self, span: Span) -> u64 {
        let calls = i64::from(self.calls).saturating_mul(span.as_millis());
        (calls / self.per.as_span().as_millis()).unsigned_abs()
    }

    /// Returns the time in which so many calls begin, rounded up.
    pub(crate) fn time_of(self, calls: u64) -> Span {
        let per = self.per.as_span().as_millis().unsigned_abs();
        let millis = calls
            .saturating_mul(per)
            .div_ceil(u64::from(self.calls.max(1)));
        Span::from_millis(millis)
    }
}

impl FieldValue for Rate {
    type Bound = ();

    fn read(value: &RawValue, _: Place<'_>, _: &Bounds<()>) -> Result<Self, Unfit> {
        let text = read_text(value, &Bounds::from(..=LONGEST_RATE))?;
        Rate::parse(&text).ok_or_else(|| Unfit::Value(format!("must be a rate {RATE_FORMS}")))
    }

    fn check(&self, _: &Bounds<()>, faults: &mut Faults) {
        if !(1..=MOST_CALLS).contains(&self.calls) {
            faults.add(format!("must be 1 to {MOST_CALLS} calls"));
        }
    }

    fn schema(_: &Bounds<()>, _: &mut Definitions) -> Value {
        let mut schema = text_schema(&Bounds::ANY);
        schema["pattern"] = "^[0-9]+/[smh]$".into();
        schema
    }

    fn form(_: &Bounds<()>) -> String {
        format!("rate, 1 to {MOST_CALLS} calls")
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let of = |rate, burst| RateLimitSpec {
            rate: Rate::parse(rate).unwrap(),
            burst: Some(burst),
        };
        assert_eq!(of("0/s", 0).object_faults("").len(), 2);
        assert_eq!(of("1000000/s", 100_000).object_faults(""), []);
    }

    #[test]
    fn without_a_burst_it_is_a_tenth_of_a_second() {
        let burst = |rate: &str| {
            let rate = Rate::parse(rate).unwrap();
            RateLimitSpec { rate, burst: None }.burst()
        };
        assert_eq!(["200/s", "5/s", "6000/m", "1/h"].map(burst), [20, 1, 10, 1]);
    }
}

//! A duration, as people write it.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration: `250ms`, `30s`, `15m`, `24h`, `30d`, or several units as in `1h30m`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Span(Duration);

/// The words of every refusal of a duration.
pub const SPAN_FORMS: &str = "a duration such as \"250ms\", \"30s\", \"15m\", \"24h\" or \"30d\"";

impl Span {
    /// No duration in Provost is longer: ten years.
    pub const LONGEST: Span = Span(Duration::from_secs(3650 * 86_400));

    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    pub fn as_millis(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }

    pub const fn duration(self) -> Duration {
        self.0
    }

    #[must_use]
    pub fn saturating_mul(self, times: u32) -> Self {
        Self(self.0.saturating_mul(times))
    }

    #[must_use]
    pub fn saturating_add(self, other: Span) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `None` where the text is not one of [`SPAN_FORMS`] or longer than [`Span::LONGEST`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut total = 0u64;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            let (number, tail) = rest.split_at(digits);
            let unit_len = tail
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_len);
            let scale = match unit {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(scale)?)?;
            rest = tail;
        }
        let span = Self::from_millis(total);
        (!text.is_empty() && span <= Self::LONGEST).then_some(span)
    }
}

/// The shortest exact form: `90s` is written `1m30s`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut millis = self.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        for (unit, scale) in [
            ("d", 86_400_000),
            ("h", 3_600_000),
            ("m", 60_000),
            ("s", 1_000),
            ("ms", 1),
        ] {
            let count = millis / scale;
            // A whole number of days up to two is more readable in hours: "24h" is how people say it.
            if count == 0 || (unit == "d" && millis <= 2 * 86_400_000) {
                continue;
            }
            write!(f, "{count}{unit}")?;
            millis -= count * scale;
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Span::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not {SPAN_FORMS}")))
    }
}

/// The syntax that [`Span::parse`] accepts, as a regular expression.
pub const DURATION: &str = "^([0-9]+(ms|s|m|h|d))+$";

/// Whole milliseconds of it.
impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

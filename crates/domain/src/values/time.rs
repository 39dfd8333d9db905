//! Points and lengths of time. The domain reads no clock: the store's time comes in as an argument.

use std::{
    fmt,
    ops::{Add, RangeInclusive},
    time::Duration,
};

use jiff::civil;
pub use provost_object::{SPAN_FORMS, Span};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub const HOUR_MILLIS: i64 = 3_600_000;

/// A point in time on the store's clock, in milliseconds since the Unix epoch.
///
/// Fields of this type need no schema of their own: the derive of `utoipa` knows the name of the type, and describes it
/// as a time of RFC 3339.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const MAX: Self = Self(i64::MAX);

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns the time from `now` until this point; zero if the point has passed.
    pub fn since(self, now: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }

    /// Reads a date and time of RFC 3339 (section 5.6) such as `2026-01-31T09:30:00Z`, and no other form of ISO 8601.
    /// Digits beyond milliseconds are cut off.
    pub fn parse(text: &str) -> Option<Self> {
        let (year, rest) = digits(text, 4)?;
        let (month, rest) = digits(rest.strip_prefix('-')?, 2)?;
        let (day, rest) = digits(rest.strip_prefix('-')?, 2)?;
        let (hour, rest) = digits(rest.strip_prefix(['T', 't'])?, 2)?;
        let (minute, rest) = digits(rest.strip_prefix(':')?, 2)?;
        let (second, rest) = digits(rest.strip_prefix(':')?, 2)?;
        let (millis, rest) = match rest.strip_prefix('.') {
            None => (0, rest),
            Some(fraction) => {
                let end = fraction.find(|c: char| !c.is_ascii_digit())?;
                let (fraction, rest) = fraction.split_at_checked(end)?;
                if fraction.is_empty() {
                    return None;
                }
                let millis = format!("{fraction:0<3}");
                (digits(&millis, 3)?.0, rest)
            }
        };
        let offset = match rest {
            "Z" | "z" => 0,
            _ => {
                let sign = if rest.starts_with('-') { -1 } else { 1 };
                let (hours, rest) = digits(rest.strip_prefix(['+', '-'])?, 2)?;
                let (minutes, rest) = digits(rest.strip_prefix(':')?, 2)?;
                if !rest.is_empty() || hours > 23 || minutes > 59 {
                    return None;
                }
                sign * (hours * 60 + minutes)
            }
        };
        // The year has at most four digits, the month and the day two.
        let date = civil::Date::new(year as i16, month as i8, day as i8).ok()?;
        let minutes = hour * 60 + minute - offset;
        let is_leap = second == 60 && minutes.rem_euclid(24 * 60) == 24 * 60 - 1;
        if hour > 23 || minute > 59 || (second > 59 && !is_leap) {
            return None;
        }
        let days = date.duration_since(EPOCH).as_hours() / 24;
        let seconds = (days * 24 * 60 + minutes) * 60 + second;
        let time = seconds * 1000 + millis;
        WRITABLE.contains(&time).then_some(Self(time))
    }

    /// Returns whether RFC 3339 can express the time.
    pub fn is_writable(self) -> bool {
        WRITABLE.contains(&self.0)
    }

    /// Writes RFC 3339 in UTC with milliseconds. A task has many times, in its calls, its history and the responses:
    /// with a general formatter this took 1 to 2 % of all instructions.
    fn write(self, text: &mut [u8; LENGTH]) -> &str {
        *text = *b"9999-12-31T23:59:59.999Z";
        // RFC 3339 ends with the year 9999: a later time only comes from saturation.
        let point = match jiff::Timestamp::from_millisecond(self.0) {
            Ok(point) => Some(jiff::tz::Offset::UTC.to_datetime(point)),
            // The times of `jiff::Timestamp` end a day before the last time that can be written.
            Err(_) => {
                let since = jiff::SignedDuration::from_millis(self.0);
                EPOCH.at(0, 0, 0, 0).checked_add(since).ok()
            }
        };
        if let Some(point) = point {
            let mut digits = |at: usize, count: usize, number: i32| {
                let mut left = number.unsigned_abs();
                for digit in text[at..at + count].iter_mut().rev() {
                    // One decimal digit.
                    *digit = b'0' + (left % 10) as u8;
                    left /= 10;
                }
            };
            digits(0, 4, point.year().into());
            digits(5, 2, point.month().into());
            digits(8, 2, point.day().into());
            digits(11, 2, point.hour().into());
            digits(14, 2, point.minute().into());
            digits(17, 2, point.second().into());
            digits(20, 3, point.millisecond().into());
        }
        // The text has only digits and punctuation.
        std::str::from_utf8(text).unwrap_or_default()
    }
}

const EPOCH: civil::Date = civil::Date::constant(1970, 1, 1);

/// From 0000-01-01T00:00:00Z to 9999-12-31T23:59:59.999Z.
const WRITABLE: RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

/// Splits a text after its first `count` characters, which must be decimal digits. Returns their number and the rest.
fn digits(text: &str, count: usize) -> Option<(i64, &str)> {
    let (number, rest) = text.split_at_checked(count)?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_number)?, rest))
}

/// The length of RFC 3339 with milliseconds.
const LENGTH: usize = 24;

impl Add<Span> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_add(span.as_millis()))
    }
}

/// RFC 3339 in UTC with milliseconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.write(&mut [0; LENGTH]))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.write(&mut [0; LENGTH]))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Timestamp::parse(&text).ok_or_else(|| serde::de::Error::custom("not an RFC 3339 time"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, string::string_regex};

    use super::*;
    use crate::values::DURATION;

    #[test]
    fn a_duration_reads_back_as_it_was_written() {
        for text in ["250ms", "30s", "15m", "24h", "30d", "1h30m", "1m30s500ms"] {
            assert_eq!(Span::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Span::parse("90s").unwrap().to_string(), "1m30s");
    }

    #[test]
    fn what_is_not_a_duration_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "10 s",
            "1w",
            "99999999999999999999s",
            "4000d",
        ] {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_is_written_as_rfc_3339_with_milliseconds() {
        let time = Timestamp::from_millis(1_700_000_000_007);
        assert_eq!(time.to_string(), "2023-11-14T22:13:20.007Z");
        assert_eq!(Timestamp::parse(&time.to_string()), Some(time));
        let json = serde_json::to_string(&time).unwrap();
        assert_eq!(json, "\"2023-11-14T22:13:20.007Z\"");
        let saturated = Timestamp::from_millis(i64::MAX);
        assert_eq!(saturated.to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn only_rfc_3339_is_read() {
        for (text, written) in [
            ("2026-01-31T09:30:00Z", "2026-01-31T09:30:00.000Z"),
            ("2026-01-31t09:30:00z", "2026-01-31T09:30:00.000Z"),
            ("2026-01-31T09:30:00.5+02:00", "2026-01-31T07:30:00.500Z"),
            (
                "2026-01-31T23:30:00.123456789-01:30",
                "2026-02-01T01:00:00.123Z",
            ),
            ("2026-01-31T00:00:00+23:59", "2026-01-30T00:01:00.000Z"),
            ("2024-02-29T00:00:00-00:00", "2024-02-29T00:00:00.000Z"),
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"),
            ("2017-01-01T00:59:60.5+01:00", "2017-01-01T00:00:00.500Z"),
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000Z"),
            ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
            ("9999-12-30T22:00:01Z", "9999-12-30T22:00:01.000Z"),
            ("9999-12-31T00:00:00Z", "9999-12-31T00:00:00.000Z"),
            ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
        ] {
            let time = Timestamp::parse(text);
            assert_eq!(
                time.map(|time| time.to_string()).as_deref(),
                Some(written),
                "{text}"
            );
        }
        for text in [
            "",
            "2026-01-31",
            "2026-01-31T09:30:00",
            "2026-01-31T09:30Z",
            "2026-01-31 09:30:00Z",
            "20260131T093000Z",
            "2026-01-31T09:30:00+25:00",
            "2026-01-31T09:30:00+24:00",
            "2026-01-31T09:30:00+01:60",
            "2026-01-31T09:30:00+01",
            "2026-01-31T09:30:00+0100",
            "2026-01-31T09:30:00+01:00:00",
            "2026-01-31T09:30:00+01:00[Europe/Paris]",
            "2026-01-31T09:30:00Z[UTC]",
            "2026-01-31T09:30:00ZZ",
            "2026-01-31T09:30:00.Z",
            "2026-01-31T09:30:00,5Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T09:60:00Z",
            "2026-01-31T09:30:61Z",
            "2026-01-31T09:30:60Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-10T00:00:00Z",
            "+2026-01-31T09:30:00Z",
            "+002026-01-31T09:30:00Z",
            "-026-01-31T09:30:00Z",
            "2026-+1-31T09:30:00Z",
            "2026-W05-6T09:30:00Z",
            " 2026-01-31T09:30:00Z",
            "2026-01-31T09:30:00\u{2212}01:00",
            "２026-01-31T09:30:00Z",
            "9999-12-31T23:59:60Z",
            "9999-12-31T23:59:59-00:01",
            "0000-01-01T00:00:00+00:01",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    /// Texts that match the pattern, with numbers that are not longer than ten years.
    fn durations() -> impl Strategy<Value = String> {
        let pattern = DURATION.trim_matches(['^', '$']);
        let short = pattern
            .replace("[0-9]+", "[0-9]{1,3}")
            .replace(")+", "){1,3}");
        string_regex(&short).unwrap()
    }

    proptest! {
        #[test]
        fn every_time_is_written_as_jiff_writes_it(millis in 0..253_402_200_000_000_i64) {
            let time = jiff::Timestamp::from_millisecond(millis).unwrap();
            let written = Timestamp::from_millis(millis).to_string();
            prop_assert_eq!(&written, &format!("{time:.3}"));
            prop_assert_eq!(Timestamp::parse(&written), Some(Timestamp::from_millis(millis)));
        }

        #[test]
        fn what_matches_the_pattern_is_read_as_a_duration(text in durations()) {
            prop_assert!(Span::parse(&text).is_some(), "{text}");
        }
    }
}

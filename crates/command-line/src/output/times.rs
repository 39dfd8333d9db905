//! Times for people: how long ago, or in UTC.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use provost_domain::values::{SPAN_FORMS, Span};

#[derive(Clone, Copy, Debug)]
pub struct Times {
    utc: bool,
    /// The time from which on others are reckoned. `None`: the clock, as a command may wait for long before it shows a time.
    fixed: Option<Timestamp>,
}

impl Times {
    pub fn new(utc: bool) -> Self {
        Self { utc, fixed: None }
    }

    #[cfg(test)]
    pub fn at(utc: bool, now: Timestamp) -> Self {
        Self {
            utc,
            fixed: Some(now),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.fixed.unwrap_or_else(Timestamp::now)
    }

    /// Returns a time of the API as people read it: `3 min ago`, `in 2 h`, or the time in UTC.
    pub fn show(&self, time: &str) -> String {
        let Ok(at) = time.parse::<Timestamp>() else {
            return time.to_owned();
        };
        if self.utc {
            return at.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        }
        let past = self.now().duration_since(at);
        if past.abs() < SignedDuration::from_secs(1) {
            return "just now".to_owned();
        }
        match past.is_negative() {
            true => format!("in {}", rough(past.abs())),
            false => format!("{} ago", rough(past)),
        }
    }

    pub fn show_optional(&self, time: Option<&str>) -> String {
        time.map(|time| self.show(time)).unwrap_or_default()
    }

    /// Returns the time between two times, such as `42 ms`.
    pub fn between(begin: &str, end: &str) -> Option<String> {
        let (begin, end) = (
            begin.parse::<Timestamp>().ok()?,
            end.parse::<Timestamp>().ok()?,
        );
        Some(rough(end.duration_since(begin).abs()))
    }
}

/// Returns a duration in one unit.
fn rough(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.subsec_millis()),
        1..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns a number of milliseconds in one unit.
pub fn millis_in_words(millis: u64) -> String {
    rough(SignedDuration::from_millis(
        i64::try_from(millis).unwrap_or(i64::MAX),
    ))
}

/// Parses a duration such as `250ms`, `30s`, `15m`, `2h`, `7d` or `1h30m`, as the API takes them.
pub fn span_of(text: &str) -> Result<Duration, String> {
    let span = Span::parse(text);
    let span = span.ok_or_else(|| format!("{text:?} is not {SPAN_FORMS}"))?;
    Ok(Duration::from_millis(span.as_millis().unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_or_in_utc() {
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let times = Times::at(false, now);
        assert_eq!(times.show("2026-03-01T11:57:00.500Z"), "2 min ago");
        assert_eq!(times.show("2026-03-01T14:30:00Z"), "in 2 h");
        assert_eq!(times.show("2026-02-01T14:30:00Z"), "27 d ago");
        assert_eq!(times.show("soon"), "soon");
        let utc = Times::at(true, now);
        assert_eq!(utc.show("2026-03-01T11:57:00.500Z"), "2026-03-01 11:57:00Z");
    }

    #[test]
    fn a_time_that_is_shown_after_a_wait_is_past() {
        let times = Times::new(false);
        let begin = Timestamp::now();
        let ended = std::iter::repeat_with(Timestamp::now).find(|now| *now > begin);
        let times_of_end = times.now();
        assert!(times_of_end >= ended.unwrap(), "the clock stands still");
    }

    #[test]
    fn durations_are_those_of_the_api() {
        assert_eq!(span_of("15m").unwrap(), Duration::from_secs(900));
        assert_eq!(span_of("1h30m").unwrap(), Duration::from_secs(5_400));
        assert_eq!(span_of("250ms").unwrap(), Duration::from_millis(250));
        for wrong in ["", "15", "m", "-3s", "1.5h", "3 s", "99999999999999999999d"] {
            assert!(span_of(wrong).is_err(), "{wrong}");
        }
    }
}

//! Times for people: how long ago, or in UTC.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

#[derive(Clone, Copy, Debug)]
pub struct Times {
    utc: bool,
    now: Timestamp,
}

impl Times {
    pub fn new(utc: bool, now: Timestamp) -> Self {
        Self { utc, now }
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns a time of the API as people read it: `3 min ago`, `in 2 h`, or the time in UTC.
    pub fn show(&self, time: &str) -> String {
        let Ok(at) = time.parse::<Timestamp>() else {
            return time.to_owned();
        };
        if self.utc {
            return at.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        }
        let past = self.now.duration_since(at);
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
    pub fn between(&self, begin: &str, end: &str) -> Option<String> {
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

/// Parses a duration such as `250ms`, `30s`, `15m`, `2h` or `7d`.
pub fn span_of(text: &str) -> Result<Duration, String> {
    let refused = || format!("{text:?} is not a duration such as 30s, 15m, 2h or 7d");
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(refused)?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().map_err(|_| refused())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(refused()),
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_or_in_utc() {
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let times = Times::new(false, now);
        assert_eq!(times.show("2026-03-01T11:57:00.500Z"), "2 min ago");
        assert_eq!(times.show("2026-03-01T14:30:00Z"), "in 2 h");
        assert_eq!(times.show("2026-02-01T14:30:00Z"), "27 d ago");
        assert_eq!(times.show("soon"), "soon");
        let utc = Times::new(true, now);
        assert_eq!(utc.show("2026-03-01T11:57:00.500Z"), "2026-03-01 11:57:00Z");
    }

    #[test]
    fn durations_have_one_unit() {
        assert_eq!(span_of("15m").unwrap(), Duration::from_secs(900));
        assert_eq!(span_of("250ms").unwrap(), Duration::from_millis(250));
        for wrong in ["", "15", "m", "-3s", "1.5h", "3 s", "99999999999999999999d"] {
            assert!(span_of(wrong).is_err(), "{wrong}");
        }
    }
}

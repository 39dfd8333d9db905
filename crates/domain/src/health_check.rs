//! Active checks: each endpoint of an agent is asked at a path, again and again, whether it is well. One that is not gets
//! no calls until it is.

use serde::{Deserialize, Serialize};

use crate::time::{Span, Timestamp};

const INTERVALS: std::ops::RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3600);
const TIMEOUTS: std::ops::RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(60);
const MOST_IN_A_ROW: u32 = 100;
const LONGEST_PATH: usize = 2000;

/// How the endpoints of an agent are checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthSpec {
    /// Below the URL of each endpoint. 2xx means that it is well.
    pub path: String,
    #[serde(default = "HealthSpec::default_interval")]
    pub interval: Span,
    /// Within which the whole response comes.
    #[serde(default = "HealthSpec::default_timeout")]
    pub timeout: Span,
    /// So many checks in a row must have failed.
    #[serde(default = "HealthSpec::default_unhealthy_after")]
    pub unhealthy_after: u32,
    /// So many checks in a row must have succeeded.
    #[serde(default = "HealthSpec::default_healthy_after")]
    pub healthy_after: u32,
}

impl HealthSpec {
    /// How many checks in a row can be asked for.
    pub const COUNTS: std::ops::RangeInclusive<i64> = 1..=MOST_IN_A_ROW as i64;

    pub const fn default_interval() -> Span {
        Span::from_secs(10)
    }

    pub const fn default_timeout() -> Span {
        Span::from_secs(2)
    }

    pub const fn default_unhealthy_after() -> u32 {
        3
    }

    pub const fn default_healthy_after() -> u32 {
        2
    }

    /// With this path, and else the defaults.
    pub fn at(path: String) -> Self {
        Self {
            path,
            interval: Self::default_interval(),
            timeout: Self::default_timeout(),
            unhealthy_after: Self::default_unhealthy_after(),
            healthy_after: Self::default_healthy_after(),
        }
    }

    /// What is wrong with it: each fault as the name of the field, and a message.
    pub(crate) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let is_plain = self.path.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.path.starts_with('/') || self.path.len() > LONGEST_PATH || !is_plain {
            let message =
                format!("must be a path such as \"/health\", of at most {LONGEST_PATH} characters");
            faults.push(("path", message));
        } else if self.path.contains('#') || self.path.contains("..") {
            faults.push(("path", "must not contain # or ..".to_owned()));
        }
        for (field, span, range) in [
            ("interval", self.interval, INTERVALS),
            ("timeout", self.timeout, TIMEOUTS),
        ] {
            if !range.contains(&span) {
                let message = format!("must be {} to {}", range.start(), range.end());
                faults.push((field, message));
            }
        }
        if self.timeout > self.interval {
            let message = format!("must be at most `interval` ({})", self.interval);
            faults.push(("timeout", message));
        }
        for (field, count) in [
            ("unhealthy_after", self.unhealthy_after),
            ("healthy_after", self.healthy_after),
        ] {
            if !(1..=MOST_IN_A_ROW).contains(&count) {
                faults.push((field, format!("must be 1 to {MOST_IN_A_ROW}")));
            }
        }
        faults
    }
}

/// An endpoint whose checks fail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unhealthy {
    pub reason: String,
    /// The instance that checked it.
    pub by: String,
    pub since: Timestamp,
}

impl Unhealthy {
    /// When it is checked again, about: the checks follow each other at the same interval.
    pub fn next_check(&self, spec: &HealthSpec, now: Timestamp) -> Timestamp {
        let interval = spec.interval.duration().as_millis().max(1);
        let into = now.since(self.since).as_millis() % interval;
        // Shorter than the interval.
        now + Span::from_millis((interval - into) as u64)
    }
}

/// The latest checks of an endpoint in a row that came to the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckTally {
    failed: u32,
    succeeded: u32,
}

/// What the checks of an endpoint have come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HealthChange {
    BecomesUnhealthy,
    BecomesHealthy,
}

impl CheckTally {
    /// `is_unhealthy`: by the record, which others may have changed.
    pub fn add(
        &mut self,
        spec: &HealthSpec,
        succeeded: bool,
        is_unhealthy: bool,
    ) -> Option<HealthChange> {
        *self = match succeeded {
            true => Self {
                failed: 0,
                succeeded: self.succeeded.saturating_add(1),
            },
            false => Self {
                failed: self.failed.saturating_add(1),
                succeeded: 0,
            },
        };
        match is_unhealthy {
            false if self.failed >= spec.unhealthy_after => Some(HealthChange::BecomesUnhealthy),
            true if self.succeeded >= spec.healthy_after => Some(HealthChange::BecomesHealthy),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> HealthSpec {
        HealthSpec::at("/health".to_owned())
    }

    #[test]
    fn so_many_checks_in_a_row_decide() {
        let mut tally = CheckTally::default();
        let mut is_unhealthy = false;
        let mut states = String::new();
        for succeeded in "--+---++-++++---".chars().map(|check| check == '+') {
            match tally.add(&spec(), succeeded, is_unhealthy) {
                Some(HealthChange::BecomesUnhealthy) => is_unhealthy = true,
                Some(HealthChange::BecomesHealthy) => is_unhealthy = false,
                None => {}
            }
            states.push(if is_unhealthy { '-' } else { '+' });
        }
        assert_eq!(states, "+++++--++++++++-");
    }

    #[test]
    fn what_was_not_recorded_is_said_again() {
        let mut tally = CheckTally::default();
        let mut becomes = |succeeded, is_unhealthy| tally.add(&spec(), succeeded, is_unhealthy);
        for _ in 0..2 {
            assert_eq!(becomes(false, false), None);
        }
        for _ in 0..2 {
            let change = becomes(false, false);
            assert_eq!(change, Some(HealthChange::BecomesUnhealthy));
        }
        assert_eq!(becomes(false, true), None);
        assert_eq!(becomes(true, true), None);
        for _ in 0..2 {
            assert_eq!(becomes(true, true), Some(HealthChange::BecomesHealthy));
        }
    }

    #[test]
    fn the_next_check_is_at_most_an_interval_away() {
        let unhealthy = Unhealthy {
            reason: "503".to_owned(),
            by: "one".to_owned(),
            since: Timestamp::from_millis(5_000),
        };
        let next = [0, 5_000, 5_001, 15_000, 99_000].map(|now| {
            let next = unhealthy.next_check(&spec(), Timestamp::from_millis(now));
            next.as_millis()
        });
        assert_eq!(next, [10_000, 15_000, 15_000, 25_000, 105_000]);
    }

    #[test]
    fn every_fault_of_a_specification_is_found() {
        assert_eq!(spec().faults(), []);
        let bad = HealthSpec {
            path: "health".to_owned(),
            interval: Span::from_millis(999),
            timeout: Span::from_secs(61),
            unhealthy_after: 0,
            healthy_after: 101,
        };
        let fields: Vec<_> = bad.faults().into_iter().map(|(field, _)| field).collect();
        let all = [
            "path",
            "interval",
            "timeout",
            "timeout",
            "unhealthy_after",
            "healthy_after",
        ];
        assert_eq!(fields, all);
        for path in ["", "/a b", "/a#b", "/../admin", "/ä", "//\n"] {
            assert_eq!(HealthSpec::at(path.to_owned()).faults().len(), 1, "{path}");
        }
        for path in ["/", "/health?deep=1", "/v1/status"] {
            assert_eq!(HealthSpec::at(path.to_owned()).faults(), [], "{path}");
        }
    }
}

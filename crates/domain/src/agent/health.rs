//! Active checks: each endpoint of an agent is asked at a path, again and again, whether it is well. One that is not gets
//! no calls until it is.

use provost_object::{Faults, Object, Span};
use serde::{Deserialize, Serialize};

use crate::values::time::Timestamp;

const LONGEST_PATH: usize = 2000;

/// A GET to each endpoint, made by one instance. 2xx means that it is well.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "HealthCheck", check = HealthSpec::check_timeout)]
pub struct HealthSpec {
    /// Below the URL of the endpoint; it may have a query.
    #[field(
        ..=LONGEST_PATH,
        required = "give a path such as \"/health\"",
        check = check_path,
        pattern = "^/",
        example = "/health"
    )]
    pub path: String,
    /// From one check to the next, 1 s to 1 h.
    #[field(late, "1s"..="1h", default = "10s")]
    pub interval: Span,
    /// Within which the response comes, 100 ms to 1 m, and at most `interval`.
    #[field(late, "100ms"..="1m", default = "2s")]
    pub timeout: Span,
    /// So many checks in a row must fail.
    #[field(1..=100, default = 3, example = 3)]
    pub unhealthy_after: u32,
    /// So many checks in a row must succeed afterwards.
    #[field(1..=100, default = 2, example = 2)]
    pub healthy_after: u32,
}

impl HealthSpec {
    fn check_timeout(&self, faults: &mut Faults) {
        if self.timeout > self.interval {
            let message = format!("must be at most `interval` ({})", self.interval);
            faults.field("timeout", message);
        }
    }
}

fn check_path(path: &str, faults: &mut Faults) {
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
    if !path.starts_with('/') || path.len() > LONGEST_PATH || !is_plain {
        faults.add(format!(
            "must be a path such as \"/health\", of at most {LONGEST_PATH} characters"
        ));
    } else if path.contains('#') || path.contains("..") {
        faults.add("must not contain # or ..");
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

/// The change that follows from the checks of an endpoint.
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

    fn at(path: &str) -> HealthSpec {
        serde_json::from_value(serde_json::json!({ "path": path })).unwrap()
    }

    fn spec() -> HealthSpec {
        at("/health")
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
        assert_eq!(spec().object_faults(""), []);
        let bad = HealthSpec {
            path: "health".to_owned(),
            interval: Span::from_millis(999),
            timeout: Span::from_secs(61),
            unhealthy_after: 0,
            healthy_after: 101,
        };
        let fields: Vec<_> = bad
            .object_faults("")
            .into_iter()
            .map(|fault| fault.pointer[1..].to_owned())
            .collect();
        let all = [
            "path",
            "interval",
            "timeout",
            "unhealthy_after",
            "healthy_after",
            "timeout",
        ];
        assert_eq!(fields, all);
        for path in ["", "/a b", "/a#b", "/../admin", "/ä", "//\n"] {
            assert_eq!(at(path).object_faults("").len(), 1, "{path}");
        }
        for path in ["/", "/health?deep=1", "/v1/status"] {
            assert_eq!(at(path).object_faults(""), [], "{path}");
        }
    }
}

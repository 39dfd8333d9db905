//! Ejection: an endpoint that has failed several times in a row gets no calls for a while, and the others of its agent
//! take them. It is quicker than a breaker, because a few calls are enough, and never takes more than half of the
//! endpoints out.

use serde::{Deserialize, Serialize};

use crate::time::{Span, Timestamp};

const TIMES: std::ops::RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(3600);
const MOST_FAILURES: u32 = 1000;

/// When an endpoint is ejected, and for how long.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EjectionSpec {
    /// So many calls in a row must have failed, by the calls of one instance.
    pub after: u32,
    /// For how long the first time. The second time in a row it is twice as long, and so on.
    #[serde(rename = "for")]
    pub base: Span,
    /// It never takes longer.
    pub max: Span,
}

impl Default for EjectionSpec {
    fn default() -> Self {
        Self {
            after: 5,
            base: Span::from_secs(10),
            max: Span::from_secs(300),
        }
    }
}

impl EjectionSpec {
    /// How many failures in a row can be asked for.
    pub const FAILURES: std::ops::RangeInclusive<i64> = 1..=MOST_FAILURES as i64;

    /// What is wrong with it: each fault as the name of the field, and a message.
    pub(crate) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if !(1..=MOST_FAILURES).contains(&self.after) {
            faults.push(("after", format!("must be 1 to {MOST_FAILURES}")));
        }
        for (field, span) in [("for", self.base), ("max", self.max)] {
            if !TIMES.contains(&span) {
                let message = format!("must be {} to {}", TIMES.start(), TIMES.end());
                faults.push((field, message));
            }
        }
        if self.max < self.base {
            let message = format!("must be at least as long as `for` ({})", self.base);
            faults.push(("max", message));
        }
        faults
    }

    /// How long an ejection takes that is the last of so many in a row.
    fn lasts(&self, times: u32) -> Span {
        self.base.saturating_mul(times.max(1)).min(self.max)
    }
}

/// An endpoint that was ejected. When its time is over it stays here, because the next ejection takes longer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ejection {
    pub until: Timestamp,
    /// How many in a row.
    pub times: u32,
    pub reason: String,
    /// The instance that saw the failures.
    pub by: String,
    pub since: Timestamp,
}

impl Ejection {
    pub fn new(
        spec: &EjectionSpec,
        before: Option<&Ejection>,
        reason: String,
        by: String,
        now: Timestamp,
    ) -> Self {
        let times = before.map_or(0, |before| before.times_left(spec, now));
        // More than it takes to reach the longest would take that much longer to be forgotten.
        let most = spec.max.as_millis() / spec.base.as_millis().max(1) + 1;
        let times = (times + 1).min(u32::try_from(most).unwrap_or(u32::MAX));
        Self {
            until: now + spec.lasts(times),
            times,
            reason,
            by,
            since: now,
        }
    }

    /// A clock that was set back does not make it longer.
    pub fn holds_at(&self, now: Timestamp) -> bool {
        (self.since..self.until).contains(&now)
    }

    /// Of so many in a row, one is forgotten each time that the endpoint has not been ejected for as long as the first
    /// ejection takes.
    pub fn times_left(&self, spec: &EjectionSpec, now: Timestamp) -> u32 {
        let well = now.since(self.until).as_millis() / spec.base.duration().as_millis().max(1);
        self.times
            .saturating_sub(u32::try_from(well).unwrap_or(u32::MAX))
    }
}

/// Whether one more endpoint may be ejected, where `out` of those that take new calls get none for whatever reason:
/// never more than half of them, rounded down, so never one that is alone.
pub fn may_eject(out: usize, all: usize) -> bool {
    (out + 1) * 2 <= all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn ejected(spec: &EjectionSpec, before: Option<&Ejection>, seconds: i64) -> Ejection {
        let (reason, by) = ("503".to_owned(), "one".to_owned());
        Ejection::new(spec, before, reason, by, at(seconds))
    }

    #[test]
    fn each_in_a_row_takes_longer_up_to_the_longest() {
        let spec = EjectionSpec {
            max: Span::from_secs(25),
            ..EjectionSpec::default()
        };
        let mut ejection = ejected(&spec, None, 0);
        let mut ends = vec![ejection.until];
        for _ in 0..3 {
            let end = ejection.until.as_millis() / 1000;
            ejection = ejected(&spec, Some(&ejection), end);
            ends.push(ejection.until);
        }
        assert_eq!(ends, [at(10), at(30), at(55), at(80)]);
        assert_eq!(ejection.times, 3, "more would take longer to be forgotten");
    }

    #[test]
    fn an_endpoint_that_is_well_is_forgiven_step_by_step() {
        let spec = EjectionSpec::default();
        let mut ejection = ejected(&spec, None, 0);
        for end in [10, 30] {
            ejection = ejected(&spec, Some(&ejection), end);
        }
        assert_eq!((ejection.times, ejection.until), (3, at(60)));
        let left = [0, 59, 60, 69, 70, 80, 90, 1_000_000];
        let left = left.map(|seconds| ejection.times_left(&spec, at(seconds)));
        assert_eq!(left, [3, 3, 3, 3, 2, 1, 0, 0]);
        let again = ejected(&spec, Some(&ejection), 80);
        assert_eq!((again.times, again.until), (2, at(100)));
    }

    #[test]
    fn it_holds_for_its_time_and_not_before_it_began() {
        let ejection = ejected(&EjectionSpec::default(), None, 100);
        let holds = [99, 100, 109, 110].map(|seconds| ejection.holds_at(at(seconds)));
        assert_eq!(holds, [false, true, true, false]);
    }

    #[test]
    fn at_least_half_of_the_endpoints_stay() {
        let most = (0..=7).map(|all| (0..=all).find(|out| !may_eject(*out, all)).unwrap());
        assert_eq!(most.collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn every_fault_of_a_specification_is_found() {
        assert_eq!(EjectionSpec::default().faults(), []);
        let bad = EjectionSpec {
            after: 0,
            base: Span::from_secs(3601),
            max: Span::from_millis(99),
        };
        let fields: Vec<_> = bad.faults().into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["after", "for", "max", "max"]);
    }
}

//! Ejection: an endpoint that has failed several times in a row gets no calls for a while, and the others of its agent
//! take them. It is quicker than a breaker, because a few calls are enough, and never takes more than half of the
//! endpoints out.

use provost_object::{Faults, Object, Span};
use serde::{Deserialize, Serialize};

use crate::values::time::Timestamp;

/// When an endpoint is ejected: it gets no calls for a while, and the others of its agent take them.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "Ejection", default, check = EjectionSpec::check_max)]
pub struct EjectionSpec {
    /// So many calls in a row failed, by the calls of one instance. What counts is what counts for a breaker.
    #[field(1..=1000, default = 5, example = 5)]
    pub after: u32,
    /// For how long the first time, 100 ms to 1 h; the second time in a row twice as long, and so on.
    #[field(rename = "for", late, "100ms"..="1h", default = "10s")]
    pub base: Span,
    /// The longest time, up to 1 h.
    #[field(late, "100ms"..="1h", default = "5m")]
    pub max: Span,
}

impl EjectionSpec {
    fn check_max(&self, faults: &mut Faults) {
        if self.max < self.base {
            let message = format!("must be at least as long as `for` ({})", self.base);
            faults.field("max", message);
        }
    }

    /// Returns the time that an ejection takes if it is the last of `times` in a row.
    fn lasts(&self, times: u32) -> Span {
        self.base.saturating_mul(times.max(1)).min(self.max)
    }
}

/// An endpoint that was ejected. When its time is over it stays here, because the next ejection takes longer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ejection {
    pub until: Timestamp,
    /// The number of ejections in a row.
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

    /// Returns the number of ejections in a row that still count. One is forgotten each time that the endpoint has not
    /// been ejected for as long as the first ejection takes.
    pub fn times_left(&self, spec: &EjectionSpec, now: Timestamp) -> u32 {
        let well = now.since(self.until).as_millis() / spec.base.duration().as_millis().max(1);
        self.times
            .saturating_sub(u32::try_from(well).unwrap_or(u32::MAX))
    }
}

/// Returns whether one more endpoint may be ejected, if `out` of the endpoints that take new calls get none for any
/// reason: never more than half of them, rounded down, so never one that is alone.
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
        assert_eq!(EjectionSpec::default().object_faults(""), []);
        let bad = EjectionSpec {
            after: 0,
            base: Span::from_secs(3601),
            max: Span::from_millis(99),
        };
        let fields: Vec<_> = bad
            .object_faults("")
            .into_iter()
            .map(|fault| fault.pointer[1..].to_owned())
            .collect();
        assert_eq!(fields, ["after", "for", "max", "max"]);
    }
}

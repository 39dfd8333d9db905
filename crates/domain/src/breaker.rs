//! The circuit breaker of an endpoint: when the calls of a sliding window are reason enough to stop calling it.

use serde::{Deserialize, Serialize};

use crate::time::Span;

const WINDOWS: std::ops::RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3600);
const WAITS: std::ops::RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(3600);
const SLOW: std::ops::RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(3600);
const MOST_MIN_CALLS: u32 = 10_000;
const MOST_CANARIES: u32 = 100;

/// When a breaker opens, for how long, and what closes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerSpec {
    /// It opens when so many percent of the calls in the window failed.
    pub failure_percent: u32,
    /// A call that takes longer is slow. `None`: no call is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_after: Option<Span>,
    /// It opens as well when so many percent of the calls in the window were slow.
    pub slow_percent: u32,
    pub window: Span,
    /// With fewer calls in the window it does not open.
    pub min_calls: u32,
    /// How long no call is made then.
    pub open_for: Span,
    /// How many calls at a time show then whether the endpoint works again, and how many must succeed.
    pub canaries: u32,
}

impl Default for BreakerSpec {
    fn default() -> Self {
        Self {
            failure_percent: 50,
            slow_after: None,
            slow_percent: 50,
            window: Span::from_secs(30),
            min_calls: 20,
            open_for: Span::from_secs(15),
            canaries: 3,
        }
    }
}

impl BreakerSpec {
    pub const PERCENTS: std::ops::RangeInclusive<i64> = 1..=100;
    pub const MIN_CALLS: std::ops::RangeInclusive<i64> = 1..=MOST_MIN_CALLS as i64;
    pub const CANARIES: std::ops::RangeInclusive<i64> = 1..=MOST_CANARIES as i64;

    /// What is wrong with it: each fault as the name of the field, and a message.
    pub(crate) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let percents = [
            ("failure_percent", self.failure_percent),
            ("slow_percent", self.slow_percent),
        ];
        for (field, percent) in percents {
            if !(1..=100).contains(&percent) {
                faults.push((field, "must be 1 to 100".to_owned()));
            }
        }
        let spans = [
            ("slow_after", self.slow_after, SLOW),
            ("window", Some(self.window), WINDOWS),
            ("open_for", Some(self.open_for), WAITS),
        ];
        for (field, span, range) in spans {
            if span.is_some_and(|span| !range.contains(&span)) {
                faults.push((
                    field,
                    format!("must be {} to {}", range.start(), range.end()),
                ));
            }
        }
        let counts = [
            ("min_calls", self.min_calls, MOST_MIN_CALLS),
            ("canaries", self.canaries, MOST_CANARIES),
        ];
        for (field, count, most) in counts {
            if !(1..=most).contains(&count) {
                faults.push((field, format!("must be 1 to {most}")));
            }
        }
        faults
    }

    pub fn is_slow(&self, took: Span) -> bool {
        self.slow_after.is_some_and(|limit| took > limit)
    }
}

const SLICES: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct CallCounts {
    calls: u32,
    failed: u32,
    slow: u32,
}

/// The calls of the last window, in ten slices: the oldest slice is forgotten as a whole.
#[derive(Clone, Debug, Default)]
pub struct CallWindow {
    slices: [CallCounts; SLICES as usize],
    /// The number of the latest slice, counted from time zero.
    latest: u64,
}

/// How one call went, as far as the health of an endpoint is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallSample {
    pub failed: bool,
    pub slow: bool,
}

impl CallWindow {
    /// Adds a call that ended at `millis` of a clock that never goes back. Returns why the breaker must open, if it
    /// must.
    pub fn add(&mut self, spec: &BreakerSpec, millis: u64, sample: CallSample) -> Option<String> {
        self.forget(spec, millis);
        let counts = &mut self.slices[(self.latest % SLICES) as usize];
        counts.calls = counts.calls.saturating_add(1);
        counts.failed = counts.failed.saturating_add(u32::from(sample.failed));
        counts.slow = counts.slow.saturating_add(u32::from(sample.slow));
        let sums = self.sums();
        (sums.calls >= u64::from(spec.min_calls))
            .then(|| sums.reason_to_open(spec))
            .flatten()
    }

    /// Whether there was no call in it.
    pub fn is_empty(&self) -> bool {
        self.sums().calls == 0
    }

    /// What is older than the window.
    fn forget(&mut self, spec: &BreakerSpec, millis: u64) {
        let width = (spec.window.as_millis() as u64 / SLICES).max(1);
        let slice = (millis / width).max(self.latest);
        for passed in (self.latest + 1..=slice).rev().take(SLICES as usize) {
            self.slices[(passed % SLICES) as usize] = CallCounts::default();
        }
        self.latest = slice;
    }

    fn sums(&self) -> CallSums {
        let sum = |count: fn(&CallCounts) -> u32| -> u64 {
            self.slices.iter().map(count).map(u64::from).sum()
        };
        CallSums {
            calls: sum(|slice| slice.calls),
            failed: sum(|slice| slice.failed),
            slow: sum(|slice| slice.slow),
        }
    }
}

/// The calls of a whole window.
#[derive(Clone, Copy, Default)]
struct CallSums {
    calls: u64,
    failed: u64,
    slow: u64,
}

impl CallSums {
    /// However few they are.
    fn reason_to_open(self, spec: &BreakerSpec) -> Option<String> {
        let Self {
            calls,
            failed,
            slow,
        } = self;
        let window = spec.window;
        let reaches = |count: u64, percent: u32| count * 100 >= u64::from(percent) * calls;
        if reaches(failed, spec.failure_percent) {
            return Some(format!("{failed} of {calls} calls in {window} failed"));
        }
        let limit = spec.slow_after?;
        reaches(slow, spec.slow_percent)
            .then(|| format!("{slow} of {calls} calls in {window} took longer than {limit}"))
    }
}

/// Why the breakers of all these endpoints must open, if they must: each has too few calls to say so itself, but together
/// they have enough, and none of them does better than the others. One that is well keeps all of them closed, because
/// the calls can go there. An endpoint that had no call says nothing.
pub fn reason_to_open_all<'w>(
    spec: &BreakerSpec,
    millis: u64,
    windows: impl Iterator<Item = &'w mut CallWindow>,
) -> Option<String> {
    let mut all = CallSums::default();
    for window in windows {
        window.forget(spec, millis);
        let sums = window.sums();
        if sums.calls == 0 {
            continue;
        }
        sums.reason_to_open(spec)?;
        all.calls += sums.calls;
        all.failed += sums.failed;
        all.slow += sums.slow;
    }
    let reason = (all.calls >= u64::from(spec.min_calls)).then(|| all.reason_to_open(spec));
    Some(format!("{} at all endpoints", reason??))
}

/// The limit of all endpoints of an agent together, while some have just recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SlowStartLimit {
    /// The most calls that this instance may have in flight now.
    pub limit: u32,
    /// How far it grows while calls succeed.
    pub most: u32,
}

/// After a breaker has closed: the calls under way may grow from its canaries to as many as ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlowStart {
    /// How many more than the canaries.
    grown: u32,
}

impl SlowStart {
    pub fn most(self, canaries: u32) -> u32 {
        canaries.saturating_add(self.grown)
    }

    /// Each success lets one call more begin, so that their number doubles while they succeed; a failure halves it.
    pub fn add(&mut self, canaries: u32, sample: CallSample) {
        self.grown = match sample.failed || sample.slow {
            false => self.grown.saturating_add(1),
            true => (self.most(canaries) / 2).saturating_sub(canaries),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: CallSample = CallSample {
        failed: false,
        slow: false,
    };
    const FAILED: CallSample = CallSample {
        failed: true,
        slow: false,
    };
    const SLOW_CALL: CallSample = CallSample {
        failed: false,
        slow: true,
    };

    fn spec() -> BreakerSpec {
        BreakerSpec {
            window: Span::from_secs(10),
            min_calls: 4,
            slow_after: Some(Span::from_secs(1)),
            ..BreakerSpec::default()
        }
    }

    #[test]
    fn a_few_calls_are_no_reason() {
        let mut window = CallWindow::default();
        for _ in 0..3 {
            assert_eq!(window.add(&spec(), 0, FAILED), None);
        }
        let reason = window.add(&spec(), 0, FAILED);
        assert_eq!(reason.unwrap(), "4 of 4 calls in 10s failed");
    }

    #[test]
    fn the_share_decides() {
        let mut window = CallWindow::default();
        for _ in 0..5 {
            assert_eq!(window.add(&spec(), 0, GOOD), None);
        }
        for _ in 0..4 {
            assert_eq!(window.add(&spec(), 0, FAILED), None);
        }
        assert!(window.add(&spec(), 0, FAILED).is_some());
    }

    #[test]
    fn slow_calls_are_a_reason_of_their_own() {
        let mut window = CallWindow::default();
        for sample in [GOOD, GOOD, SLOW_CALL] {
            assert_eq!(window.add(&spec(), 0, sample), None);
        }
        let reason = window.add(&spec(), 0, SLOW_CALL);
        assert_eq!(reason.unwrap(), "2 of 4 calls in 10s took longer than 1s");
        let unlimited = BreakerSpec {
            slow_after: None,
            ..spec()
        };
        assert_eq!(window.add(&unlimited, 0, SLOW_CALL), None);
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut window = CallWindow::default();
        for at in [0, 500, 999] {
            assert_eq!(window.add(&spec(), at, FAILED), None);
        }
        let mut later = window.clone();
        assert!(window.add(&spec(), 9_999, FAILED).is_some());
        assert_eq!(later.add(&spec(), 10_000, FAILED), None);
        // However long nobody called.
        assert_eq!(later.add(&spec(), u64::MAX / 2, FAILED), None);
    }

    #[test]
    fn a_clock_that_seems_to_go_back_counts_for_the_latest_slice() {
        let mut window = CallWindow::default();
        for at in [50_000, 49_000, 10, 0] {
            let reason = window.add(&spec(), at, FAILED);
            assert_eq!(reason.is_some(), at == 0);
        }
    }

    #[test]
    fn endpoints_with_few_calls_each_open_together_unless_one_is_well() {
        let mut windows: Vec<_> = (0..4).map(|_| CallWindow::default()).collect();
        let reason = |windows: &mut [CallWindow], millis| {
            reason_to_open_all(&spec(), millis, windows.iter_mut())
        };
        for window in &mut windows[..3] {
            assert_eq!(window.add(&spec(), 0, FAILED), None);
        }
        assert_eq!(reason(&mut windows, 0), None, "three calls");
        let mut mixed = windows.clone();
        assert_eq!(windows[0].add(&spec(), 0, SLOW_CALL), None);
        let text = "3 of 4 calls in 10s failed at all endpoints";
        assert_eq!(reason(&mut windows, 9_999).unwrap(), text);
        assert_eq!(reason(&mut windows, 10_000), None, "that is long ago");
        for _ in 0..3 {
            assert_eq!(mixed[3].add(&spec(), 0, GOOD), None);
        }
        assert_eq!(reason(&mut mixed, 0), None, "one endpoint is well");
        assert_eq!(reason(&mut [], 0), None);
    }

    #[test]
    fn every_fault_of_a_specification_is_found() {
        assert_eq!(BreakerSpec::default().faults(), []);
        let bad = BreakerSpec {
            failure_percent: 0,
            slow_after: Some(Span::default()),
            slow_percent: 101,
            window: Span::from_millis(999),
            min_calls: 0,
            open_for: Span::from_millis(99),
            canaries: 101,
        };
        let fields: Vec<_> = bad.faults().into_iter().map(|(field, _)| field).collect();
        let all = [
            "failure_percent",
            "slow_percent",
            "slow_after",
            "window",
            "open_for",
            "min_calls",
            "canaries",
        ];
        assert_eq!(fields, all);
    }

    #[test]
    fn calls_double_while_they_succeed_and_a_failure_halves_them() {
        let sample = |failed| CallSample {
            failed,
            slow: false,
        };
        let mut start = SlowStart::default();
        assert_eq!(start.most(3), 3);
        for _ in 0..13 {
            start.add(3, sample(false));
        }
        assert_eq!(start.most(3), 16);
        start.add(3, sample(true));
        assert_eq!(start.most(3), 8);
        let slow = CallSample {
            slow: true,
            ..sample(false)
        };
        start.add(3, slow);
        start.add(3, slow);
        assert_eq!(start.most(3), 3, "never fewer than canaries");
    }
}

//! The circuit breaker of an endpoint: when the calls of a sliding window are reason enough to stop calling it.

use provost_object::{Object, Span};
use serde::Serialize;
use utoipa::ToSchema;

/// When the breaker of an endpoint opens, and how it closes. Every endpoint has one of its own.
#[derive(Clone, PartialEq, Eq, Debug, Object)]
#[object(name = "Breaker", default)]
pub struct BreakerSpec {
    /// It opens when so many percent of the calls in the window failed: no response, or one that is retried, but for 429.
    #[field(1..=100, default = 50, example = 50)]
    pub failure_percent: u32,
    /// A call that takes longer is slow, 1 ms to 1 h. Default: no call is.
    #[field(late, "1ms"..="1h")]
    pub slow_after: Option<Span>,
    /// It opens as well when so many percent of the calls in the window were slow.
    #[field(1..=100, default = 50, example = 50)]
    pub slow_percent: u32,
    /// The time that counts, 1 s to 1 h, by each instance for its own calls.
    #[field(late, "1s"..="1h", default = "30s")]
    pub window: Span,
    /// With fewer calls in the window it does not open.
    #[field(1..=10_000, default = 20, example = 20)]
    pub min_calls: u32,
    /// The time without calls after it opens, 100 ms to 1 h.
    #[field(late, "100ms"..="1h", default = "15s")]
    pub open_for: Span,
    /// Afterwards one instance makes so many calls at a time. When so many have succeeded, it closes; when one fails, it
    /// opens again.
    #[field(1..=100, default = 3, example = 3)]
    pub canaries: u32,
}

impl BreakerSpec {
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

/// The result of one call, as far as it concerns the health of an endpoint.
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

    /// Returns whether the window has no call.
    pub fn is_empty(&self) -> bool {
        self.sums().calls == 0
    }

    /// Forgets the calls that are older than the window.
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

/// The limit of calls in flight while endpoints of an agent have just recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct SlowStartLimit {
    /// The most calls that the instance which returned this response may have in flight now.
    #[schema(example = 6)]
    pub limit: u32,
    /// The limit to which it grows while calls succeed.
    #[schema(example = 64)]
    pub most: u32,
}

/// The growth after a breaker has closed: the calls in flight may grow from its canaries to the usual number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlowStart {
    /// The number of calls in flight beyond the canaries.
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
        // The gap without calls may be of any length.
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
        assert_eq!(BreakerSpec::default().object_faults(""), []);
        let bad = BreakerSpec {
            failure_percent: 0,
            slow_after: Some(Span::default()),
            slow_percent: 101,
            window: Span::from_millis(999),
            min_calls: 0,
            open_for: Span::from_millis(99),
            canaries: 101,
        };
        let fields: Vec<_> = bad
            .object_faults("")
            .into_iter()
            .map(|fault| fault.pointer[1..].to_owned())
            .collect();
        let all = [
            "failure_percent",
            "slow_after",
            "slow_percent",
            "window",
            "min_calls",
            "open_for",
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

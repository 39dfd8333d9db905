//! Claims ahead of slots. A claim is saved before its call begins, and that takes a while. If an agent has no free
//! slot, the instance claims as many further steps as slots will be freed in that time; each is called when a slot is
//! free, and no slot is idle while the next claim is saved. If calls take seconds, no step is claimed ahead, or a few
//! if there are hundreds of slots.

use std::time::Duration;

/// The time over which the ends of calls are counted to compute the pace.
const WINDOW: Duration = Duration::from_millis(25);
/// A commit that takes longer is counted as if it took this time. So a step waits for its slot for less than 30 ms on
/// average, also on a slow disk.
const LONGEST_COMMIT: Duration = Duration::from_millis(10);
/// The number of commits for which steps are claimed ahead: one for the steps that are being saved, one for the steps
/// that wait for slots until the next are saved, and one for a commit that takes longer than others.
const COMMITS: f64 = 3.0;

/// The pace at which the calls of an agent end: that of the slower of the last two windows, so that a service that
/// stops responding is noticed after at most two windows.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallPace {
    since: Duration,
    ended: u64,
    latest: f64,
    before: f64,
}

impl CallPace {
    /// Returns the calls that end in a second. `ended` is the total number of calls that have ended at the time `now`.
    pub fn per_second(&mut self, ended: u64, now: Duration) -> f64 {
        let window = now.saturating_sub(self.since);
        if window >= WINDOW {
            let count = ended.saturating_sub(self.ended);
            self.before = self.latest;
            self.latest = count as f64 / window.as_secs_f64();
            self.since = now;
            self.ended = ended;
        }
        self.latest.min(self.before)
    }
}

/// Returns how many steps without a slot an agent with this many slots may have claimed; never more than it has slots.
pub fn claims_ahead(per_second: f64, commit: Duration, slots: u32) -> u32 {
    let freed = per_second * commit.min(LONGEST_COMMIT).as_secs_f64() * COMMITS;
    // Saturates, and rounds down.
    (freed as u32).min(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn as_many_are_claimed_ahead_as_slots_are_freed_while_claims_are_saved() {
        for (per_second, commit, slots, ahead) in [
            (7000.0, MS(3), 64, 63),
            (10_000.0, MS(3), 16, 16),
            // A hundred calls run at once and take a second each.
            (100.0, MS(3), 100, 0),
            (0.0, MS(3), 64, 0),
            // The disk hangs.
            (1000.0, MS(5000), 1000, 30),
            (1000.0, MS(3), 0, 0),
            (f64::INFINITY, MS(3), u32::MAX, u32::MAX),
        ] {
            let found = claims_ahead(per_second, commit, slots);
            assert_eq!(found, ahead, "{per_second}/s, {commit:?}, {slots} slots");
        }
    }

    #[test]
    fn the_pace_is_that_of_the_slower_of_two_windows() {
        let mut pace = CallPace::default();
        assert_eq!(
            pace.per_second(100, MS(100)),
            0.0,
            "one window says too little"
        );
        assert_eq!(pace.per_second(200, MS(200)), 1000.0);
        assert_eq!(pace.per_second(290, MS(210)), 1000.0, "too early to say");
        assert_eq!(pace.per_second(300, MS(300)), 1000.0);
        assert_eq!(pace.per_second(500, MS(400)), 1000.0);
        assert_eq!(pace.per_second(700, MS(500)), 2000.0);
        assert_eq!(pace.per_second(700, MS(525)), 0.0, "nothing ends any more");
    }
}

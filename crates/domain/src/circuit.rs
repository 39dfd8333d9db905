//! How often a destination is asked while it fails: by one message at a time, a *probe*, after a pause that
//! grows. What else waits for the destination waits with it. The first message that it takes ends that.

use std::time::Duration;

use crate::{
    delivery::{DeliveryPolicy, LONGEST_ASKED},
    ids::{Destination, ReceiverName},
    time::{Span, Timestamp},
};

/// The first pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Span = Span::from_millis(50);
/// So long may a destination that is back wait for the next probe, unless it asked for more.
pub const LONGEST_PAUSE: Span = Span::from_secs(15);

/// A try that failed because its destination did.
#[derive(Clone, PartialEq, Debug)]
pub struct DestinationFailure {
    pub destination: Destination,
    pub receiver: ReceiverName,
    pub began: Timestamp,
    /// What the receiver asked for.
    pub retry_after: Option<Duration>,
    pub reason: String,
    /// Drawn from 0 to 1.
    pub chance: f64,
}

/// What is on record of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Circuit {
    /// In a row; 0 of a destination that answers, as far as is known.
    pub failures: u32,
    /// When the first of them began.
    pub failing_since: Option<Timestamp>,
    /// When the last of them was noted, or the end of them.
    pub changed_at: Timestamp,
    pub paused_until: Timestamp,
}

impl Circuit {
    /// `None` where the try began before the last change: several messages that were under way together
    /// fail for one reason, and what an instance knows from before says nothing new.
    pub fn after(
        &self,
        failure: &DestinationFailure,
        policy: &DeliveryPolicy,
        now: Timestamp,
    ) -> Option<Self> {
        if failure.began < self.changed_at {
            return None;
        }
        let failing_since = match (self.failures, self.failing_since) {
            (1.., Some(since)) => since,
            _ => failure.began,
        };
        let longest = LONGEST_PAUSE.min(policy.max);
        let longest = longest.min(FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)));
        // At least half of it: a pause that chance makes nothing would be none.
        let pause = longest
            .duration()
            .mul_f64(0.5 + failure.chance.clamp(0.0, 1.0) / 2.0);
        let asked = failure.retry_after.unwrap_or_default().min(LONGEST_ASKED);
        let mut until = now + span(pause.max(asked));
        let end = failing_since + policy.give_up_after;
        if end > now {
            // A try is made when the time of what waits from the beginning is up, and decides.
            until = until.min(end);
        }
        Some(Self {
            failures: self.failures.saturating_add(1),
            failing_since: Some(failing_since),
            changed_at: now,
            paused_until: until,
        })
    }

    /// Since when what waits must have waited to be given up at `now`, after a failure: the destination has
    /// failed for all of that time.
    pub fn gives_up_since(&self, policy: &DeliveryPolicy, now: Timestamp) -> Option<Timestamp> {
        let since = policy.given_up_since(now);
        self.failing_since
            .filter(|failing_since| self.failures > 0 && *failing_since <= since)
            .map(|_| since)
    }
}

fn span(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_000_000);
    const UNKNOWN: Circuit = Circuit {
        failures: 0,
        failing_since: None,
        changed_at: Timestamp::from_millis(0),
        paused_until: Timestamp::from_millis(0),
    };

    fn failure(began: Timestamp, retry_after: Option<u64>) -> DestinationFailure {
        DestinationFailure {
            destination: Destination::new("http://a:1/r"),
            receiver: ReceiverName::new("http://a:1"),
            began,
            retry_after: retry_after.map(Duration::from_secs),
            reason: "503".to_owned(),
            chance: 1.0,
        }
    }

    fn policy(give_up_after: u64) -> DeliveryPolicy {
        DeliveryPolicy {
            give_up_after: Span::from_secs(give_up_after),
            ..DeliveryPolicy::default()
        }
    }

    #[test]
    fn the_pause_doubles_up_to_the_longest_and_ends_when_the_first_time_is_up() {
        let (mut pace, mut now) = (UNKNOWN, START);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            pace = pace.after(&failure(now, None), &policy(60), now).unwrap();
            pauses.push(pace.paused_until.since(now).as_millis());
            now = pace.paused_until;
        }
        assert_eq!(
            pauses,
            [
                50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000, 4450
            ]
        );
        assert_eq!(now, START + Span::from_secs(60));
        assert_eq!(pace.gives_up_since(&policy(60), now), Some(START));
        pace = pace.after(&failure(now, None), &policy(60), now).unwrap();
        assert_eq!(pace.paused_until.since(now), LONGEST_PAUSE.duration());
        assert_eq!(pace.failing_since, Some(START));
    }

    #[test]
    fn messages_that_were_under_way_together_count_once() {
        let later = START + Span::from_secs(1);
        let pace = UNKNOWN
            .after(&failure(START, None), &policy(60), later)
            .unwrap();
        assert_eq!(pace.after(&failure(START, None), &policy(60), later), None);
        let again = pace.after(&failure(later, None), &policy(60), later);
        assert_eq!(again.unwrap().failures, 2);
        // What began before it answered says nothing of now.
        let answered = Circuit {
            changed_at: later,
            ..UNKNOWN
        };
        assert_eq!(
            answered.after(&failure(START, None), &policy(60), later),
            None
        );
    }

    #[test]
    fn it_is_left_alone_for_as_long_as_it_asks_within_bounds() {
        let paused = |asked, give_up_after| {
            let pace = UNKNOWN.after(&failure(START, Some(asked)), &policy(give_up_after), START);
            pace.unwrap().paused_until.since(START).as_secs()
        };
        assert_eq!(paused(120, 86_400), 120);
        assert_eq!(paused(u64::MAX, 86_400), 3600);
        assert_eq!(
            paused(120, 60),
            60,
            "what waits is not kept beyond its time"
        );
    }

    #[test]
    fn nothing_is_given_up_before_the_destination_has_failed_for_all_of_its_time() {
        let policy = policy(60);
        let late = START + Span::from_secs(59);
        let pace = UNKNOWN
            .after(&failure(START, None), &policy, START)
            .unwrap();
        let pace = pace.after(&failure(late, None), &policy, late).unwrap();
        assert_eq!(pace.gives_up_since(&policy, late), None);
        let end = START + Span::from_secs(61);
        let since = START + Span::from_secs(1);
        assert_eq!(pace.gives_up_since(&policy, end), Some(since));
    }
}

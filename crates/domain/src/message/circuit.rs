//! The circuit of a destination. While the destination fails, it gets one message at a time, a *probe*, after a pause
//! that grows; other messages wait in its backlog. The first response closes the circuit.

use std::time::Duration;

use crate::{
    message::delivery::{DeliveryPolicy, LONGEST_ASKED},
    values::{
        backoff::Backoff,
        ids::{Destination, ReceiverName},
        time::{Span, Timestamp},
    },
};

/// The first pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Span = Span::from_millis(50);
/// The longest time that a destination that has recovered waits for the next probe, unless it requested a longer one.
pub const LONGEST_PAUSE: Span = Span::from_secs(15);

/// A failed attempt to deliver that its destination caused.
#[derive(Clone, PartialEq, Debug)]
pub struct DestinationFailure {
    pub destination: Destination,
    pub receiver: ReceiverName,
    pub began: Timestamp,
    /// The wait that the receiver requested.
    pub retry_after: Option<Duration>,
    pub reason: String,
    /// A random number from 0 to 1.
    pub chance: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Circuit {
    /// The number of failures in a row; 0 while the destination responds, as far as is known.
    pub failures: u32,
    /// The time at which the first of these failures began.
    pub failing_since: Option<Timestamp>,
    /// The time at which the last failure or the recovery was recorded.
    pub changed_at: Timestamp,
    pub paused_until: Timestamp,
}

/// The queues that a claim may take from the backlog of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BacklogClaim {
    /// True if the claimed queue is the probe of a failing destination.
    pub is_probe: bool,
    pub limit: usize,
    /// True if a queue is claimed only when its own next attempt is due. False if the destination responds: the queues
    /// wait only because it failed before.
    pub only_due: bool,
}

/// The state of a destination's backlog after a claim from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BacklogState {
    /// More queues may wait.
    Remains,
    /// The destination fails, and no queue is due: the backlog is idle until one is.
    Idle,
    /// The destination responds, and no queue is left: its record is deleted.
    Empty,
}

/// Messages that expire together, because their destination has failed for all of their time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpiredMessages {
    /// Messages that have waited since this time or longer expire.
    pub waiting_since: Timestamp,
    pub reason: String,
}

impl Circuit {
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Returns the circuit after a failed attempt. `None` if the attempt began before the last change: several messages
    /// that were in flight together fail for one reason, and an earlier failure is no evidence for the present state.
    pub fn after(
        &self,
        failure: &DestinationFailure,
        policy: &DeliveryPolicy,
        now: Timestamp,
    ) -> Option<Self> {
        if failure.began < self.changed_at {
            return None;
        }
        let failing_since = match (self.is_failing(), self.failing_since) {
            (true, Some(since)) => since,
            _ => failure.began,
        };
        let longest = LONGEST_PAUSE.min(policy.max);
        let backoff = Backoff::doubling(FIRST_PAUSE.duration(), longest.duration());
        let failures = self.failures.saturating_add(1);
        let pause = backoff.equal_jitter(failures, failure.chance);
        let asked = failure.retry_after.unwrap_or_default().min(LONGEST_ASKED);
        let mut until = now + pause.max(asked).into();
        let end = failing_since + policy.give_up_after;
        if end > now {
            // The probe at that time decides about the messages that have waited from the beginning.
            until = until.min(end);
        }
        Some(Self {
            failures,
            failing_since: Some(failing_since),
            changed_at: now,
            paused_until: until,
        })
    }

    /// Returns the circuit of a destination that has responded.
    pub fn recovered(now: Timestamp) -> Self {
        Self {
            failures: 0,
            failing_since: None,
            changed_at: now,
            paused_until: now,
        }
    }

    /// Returns what a request for at most `limit` queues may claim.
    pub fn claim(&self, limit: usize) -> BacklogClaim {
        match self.is_failing() {
            true => BacklogClaim {
                is_probe: true,
                limit: 1,
                only_due: true,
            },
            false => BacklogClaim {
                is_probe: false,
                limit,
                only_due: false,
            },
        }
    }

    /// Returns the messages that expire after a failure of the destination.
    pub fn expire(
        &self,
        policy: &DeliveryPolicy,
        reason: &str,
        now: Timestamp,
    ) -> Option<ExpiredMessages> {
        let since = policy.expired_since(now);
        let has_failed_since = self.failing_since.is_some_and(|failing| failing <= since);
        let within = policy.give_up_after;
        (self.is_failing() && has_failed_since).then(|| ExpiredMessages {
            waiting_since: since,
            reason: format!("{reason}; no message was delivered there within {within}"),
        })
    }
}

impl BacklogClaim {
    pub fn after(&self, claimed: usize) -> BacklogState {
        match (claimed < self.limit, self.is_probe) {
            (false, _) => BacklogState::Remains,
            (true, true) => BacklogState::Idle,
            (true, false) => BacklogState::Empty,
        }
    }
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

    fn expiry(circuit: &Circuit, give_up_after: u64, now: Timestamp) -> Option<Timestamp> {
        let expired = circuit.expire(&policy(give_up_after), "503", now)?;
        assert_eq!(
            expired.reason,
            "503; no message was delivered there within 1m"
        );
        Some(expired.waiting_since)
    }

    #[test]
    fn the_pause_doubles_up_to_the_longest_and_ends_when_the_first_time_is_up() {
        let (mut circuit, mut now) = (UNKNOWN, START);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            circuit = circuit
                .after(&failure(now, None), &policy(60), now)
                .unwrap();
            pauses.push(circuit.paused_until.since(now).as_millis());
            now = circuit.paused_until;
        }
        assert_eq!(
            pauses,
            [
                50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000, 4450
            ]
        );
        assert_eq!(now, START + Span::from_secs(60));
        assert_eq!(expiry(&circuit, 60, now), Some(START));
        circuit = circuit
            .after(&failure(now, None), &policy(60), now)
            .unwrap();
        assert_eq!(circuit.paused_until.since(now), LONGEST_PAUSE.duration());
        assert_eq!(circuit.failing_since, Some(START));
    }

    #[test]
    fn messages_that_were_in_flight_together_count_once() {
        let later = START + Span::from_secs(1);
        let circuit = UNKNOWN
            .after(&failure(START, None), &policy(60), later)
            .unwrap();
        assert_eq!(
            circuit.after(&failure(START, None), &policy(60), later),
            None
        );
        let again = circuit.after(&failure(later, None), &policy(60), later);
        assert_eq!(again.unwrap().failures, 2);
        // An attempt that began before the destination responded is no evidence for its present state.
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
    fn the_pause_is_as_long_as_the_receiver_asks_for_within_bounds() {
        let paused = |asked, give_up_after| {
            let circuit =
                UNKNOWN.after(&failure(START, Some(asked)), &policy(give_up_after), START);
            circuit.unwrap().paused_until.since(START).as_secs()
        };
        assert_eq!(paused(120, 86_400), 120);
        assert_eq!(paused(u64::MAX, 86_400), 3600);
        assert_eq!(paused(120, 60), 60, "no message waits beyond its time");
    }

    #[test]
    fn nothing_expires_before_the_destination_has_failed_for_all_of_its_time() {
        let policy = policy(60);
        let late = START + Span::from_secs(59);
        let circuit = UNKNOWN
            .after(&failure(START, None), &policy, START)
            .unwrap();
        let circuit = circuit.after(&failure(late, None), &policy, late).unwrap();
        assert_eq!(expiry(&circuit, 60, late), None);
        let end = START + Span::from_secs(61);
        let since = START + Span::from_secs(1);
        assert_eq!(expiry(&circuit, 60, end), Some(since));
        let recovered = Circuit::recovered(end);
        assert_eq!(expiry(&recovered, 60, end + Span::from_secs(90)), None);
    }

    #[test]
    fn a_failing_destination_gets_one_probe_and_one_that_answers_all_that_has_a_slot() {
        let now = START + Span::from_secs(1);
        let failing = UNKNOWN.after(&failure(START, None), &policy(60), now);
        let probe = failing.unwrap().claim(16);
        assert!(probe.is_probe && probe.only_due);
        assert_eq!(probe.limit, 1);
        assert_eq!(probe.after(1), BacklogState::Remains);
        assert_eq!(probe.after(0), BacklogState::Idle, "its record says when");
        let claim = Circuit::recovered(now).claim(16);
        assert!(!claim.is_probe && !claim.only_due);
        assert_eq!(claim.limit, 16);
        assert_eq!(claim.after(16), BacklogState::Remains);
        assert_eq!(claim.after(15), BacklogState::Empty);
    }
}

//! Delivery: the decisions about a message. Its states are in [`MESSAGE_TRANSITIONS`]. This file decides about a
//! message after an attempt, [`queue`] decides which changes the outbox saves at the end of a claim, and
//! [`dead_letter`] decides if a receiver has an alert.

mod dead_letter;
mod queue;
mod status;

use std::time::Duration;

pub use dead_letter::{ReceiverAlert, undeliverable};
pub use queue::{MessageAction, MessageEnd, QueueDecision, QueueWait, ReleaseReason};
pub use status::{
    MESSAGE_TRANSITIONS, MessageChange, MessageEvent, MessageStatus, StoredMessage, allows_message,
};

use crate::values::{
    backoff::Backoff,
    time::{Span, Timestamp},
};

/// The times and the number of attempts to deliver a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeliveryPolicy {
    /// The longest wait after the first failure.
    pub initial: Span,
    /// The longest of all waits.
    pub max: Span,
    /// A message is dead after this time without success, counted from its first attempt.
    pub give_up_after: Span,
}

/// The longest wait that a receiver can request (`Retry-After`).
pub const LONGEST_ASKED: Duration = Duration::from_secs(3600);

impl Default for DeliveryPolicy {
    fn default() -> Self {
        Self {
            initial: Span::from_secs(5),
            max: Span::from_secs(15 * 60),
            give_up_after: Span::from_secs(24 * 60 * 60),
        }
    }
}

/// The result of one attempt.
#[derive(Clone, PartialEq, Debug)]
pub enum DeliveryResult {
    Delivered,
    Failed {
        reason: String,
        /// The wait that the receiver requested.
        retry_after: Option<Duration>,
        /// True if other messages to the receiver would probably fail too.
        receiver_failing: bool,
    },
    /// The receiver refused the message permanently: no later attempt can succeed.
    Refused {
        reason: String,
    },
}

/// The response of a destination to one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DestinationResponse {
    Accepted,
    /// It responded, and did not accept the message.
    Rejected,
    Failed,
    Unknown,
}

impl DestinationResponse {
    /// Returns whether the destination responded.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::Accepted | Self::Rejected)
    }
}

impl DeliveryResult {
    pub fn response(&self) -> DestinationResponse {
        match self {
            DeliveryResult::Delivered => DestinationResponse::Accepted,
            DeliveryResult::Failed {
                receiver_failing: true,
                ..
            } => DestinationResponse::Failed,
            DeliveryResult::Failed { .. } | DeliveryResult::Refused { .. } => {
                DestinationResponse::Rejected
            }
        }
    }
}

/// The decision on a message after an attempt.
#[derive(Clone, PartialEq, Debug)]
pub enum DeliveryDecision {
    Delivered,
    Retry {
        /// Not before this time, unless its destination recovers earlier and it waits in the backlog.
        at: Timestamp,
        reason: String,
        /// True if it waits in the backlog of its destination.
        in_backlog: bool,
    },
    /// It becomes a dead letter; the messages after it continue.
    Dead {
        reason: String,
    },
}

/// The times of an attempt to deliver a message, and the status of the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeliveryTry {
    pub began: Timestamp,
    pub ended: Timestamp,
    /// `None`: no response of HTTP came.
    pub status: Option<u16>,
}

/// The most failed attempts of a message that are kept, the latest ones.
pub const KEPT_TRIES: u32 = 20;

/// One attempt to deliver a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageAttempt {
    /// The number of attempts, including this one.
    pub tries: u32,
    pub first_tried_at: Timestamp,
    pub is_probe: bool,
}

impl DeliveryDecision {
    /// Returns the reason of a failure, and the time of the next attempt, if one follows.
    pub fn failure(&self) -> Option<(&str, Option<Timestamp>)> {
        match self {
            DeliveryDecision::Delivered => None,
            DeliveryDecision::Retry { at, reason, .. } => Some((reason, Some(*at))),
            DeliveryDecision::Dead { reason } => Some((reason, None)),
        }
    }
}

impl DeliveryPolicy {
    /// Decides on a message after an attempt. `chance` is drawn from 0 to 1. The last attempt is made when
    /// `give_up_after` is over, so that no message dies between two attempts.
    pub fn decide(
        &self,
        attempt: MessageAttempt,
        result: DeliveryResult,
        now: Timestamp,
        chance: f64,
    ) -> DeliveryDecision {
        let tries = attempt.tries;
        // A message that failed because its destination did is attempted again with the destination. One that fails
        // again although the destination has responded to others gets a wait of its own: it may be the cause of the
        // failures.
        let in_backlog =
            result.response() == DestinationResponse::Failed && (attempt.is_probe || tries == 1);
        match result {
            DeliveryResult::Delivered => DeliveryDecision::Delivered,
            DeliveryResult::Refused { reason } => DeliveryDecision::Dead { reason },
            DeliveryResult::Failed {
                reason,
                retry_after,
                ..
            } => {
                let end = attempt.first_tried_at + self.give_up_after;
                if now >= end {
                    let within = self.give_up_after;
                    return DeliveryDecision::Dead {
                        reason: format!("{reason}; {tries} attempts within {within}"),
                    };
                }
                let wait = self.wait(tries, retry_after, chance);
                DeliveryDecision::Retry {
                    at: (now + wait.into()).min(end),
                    reason,
                    in_backlog,
                }
            }
        }
    }

    /// Returns the latest time since which a message must have waited to be expired by `now`.
    pub fn expired_since(&self, now: Timestamp) -> Timestamp {
        let millis = now.as_millis() - self.give_up_after.as_millis();
        Timestamp::from_millis(millis)
    }

    /// Returns the wait: full jitter, added to the wait that the receiver requested.
    fn wait(&self, tries: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
        let backoff = Backoff::doubling(self.initial.duration(), self.max.duration());
        let asked = retry_after.unwrap_or_default().min(LONGEST_ASKED);
        asked.saturating_add(backoff.full_jitter(tries, chance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: DeliveryPolicy = DeliveryPolicy {
        initial: Span::from_secs(5),
        max: Span::from_secs(900),
        give_up_after: Span::from_secs(86_400),
    };
    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn failed(retry_after: Option<u64>) -> DeliveryResult {
        DeliveryResult::Failed {
            reason: "500".to_owned(),
            retry_after: retry_after.map(Duration::from_secs),
            receiver_failing: true,
        }
    }

    fn attempt(tries: u32) -> MessageAttempt {
        MessageAttempt {
            tries,
            first_tried_at: START,
            is_probe: false,
        }
    }

    fn wait(tries: u32, retry_after: Option<u64>, chance: f64) -> u64 {
        match DAY.decide(attempt(tries), failed(retry_after), START, chance) {
            DeliveryDecision::Retry { at, .. } => at.since(START).as_secs(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_wait_is_random_up_to_a_bound_that_doubles_up_to_the_longest() {
        let longest = [1, 2, 3, 8, 9, u32::MAX].map(|tries| wait(tries, None, 1.0));
        assert_eq!(longest, [5, 10, 20, 640, 900, 900]);
        assert_eq!(wait(3, None, 0.0), 0);
        assert_eq!(wait(3, None, 0.5), 10);
    }

    #[test]
    fn the_wait_is_as_long_as_the_receiver_asked_for_at_least() {
        assert_eq!(wait(1, Some(120), 0.0), 120);
        assert_eq!(wait(1, Some(120), 1.0), 125);
        assert_eq!(wait(1, Some(u64::MAX), 1.0), 3605);
    }

    #[test]
    fn the_last_attempt_is_made_when_the_time_is_over_and_then_the_message_is_dead() {
        let late = START + Span::from_secs(86_399);
        let end = START + DAY.give_up_after;
        let again = DAY.decide(attempt(100), failed(None), late, 1.0);
        assert!(
            matches!(again, DeliveryDecision::Retry { at, .. } if at == end),
            "{again:?}"
        );
        let dead = DAY.decide(attempt(101), failed(None), end, 1.0);
        let reason = "500; 101 attempts within 24h".to_owned();
        assert_eq!(dead, DeliveryDecision::Dead { reason });
    }

    #[test]
    fn a_receiver_that_refuses_for_good_gets_the_message_no_more() {
        let reason = "410 Gone".to_owned();
        let gone = DeliveryResult::Refused {
            reason: reason.clone(),
        };
        assert_eq!(gone.response(), DestinationResponse::Rejected);
        let dead = DAY.decide(attempt(1), gone, START, 0.5);
        assert_eq!(dead, DeliveryDecision::Dead { reason });
        let delivered = DAY.decide(attempt(1), DeliveryResult::Delivered, START, 0.5);
        assert_eq!(delivered, DeliveryDecision::Delivered);
    }

    #[test]
    fn a_message_waits_in_the_backlog_unless_it_fails_again_while_others_are_accepted() {
        let in_backlog = |tries, is_probe, receiver_failing| {
            let result = DeliveryResult::Failed {
                reason: "500".to_owned(),
                retry_after: None,
                receiver_failing,
            };
            let attempt = MessageAttempt {
                is_probe,
                ..attempt(tries)
            };
            let decision = DAY.decide(attempt, result, START, 0.5);
            matches!(
                decision,
                DeliveryDecision::Retry {
                    in_backlog: true,
                    ..
                }
            )
        };
        assert!(in_backlog(1, false, true) && in_backlog(7, true, true));
        assert!(!in_backlog(2, false, true), "it may be the cause");
        assert!(!in_backlog(1, false, false), "the destination answered");
    }
}

//! The changes of a queue and its first message that the outbox saves when a claim ends.

use uuid::Uuid;

use super::{DeliveryDecision, DeliveryTry, MessageAttempt};
use crate::values::time::Timestamp;

/// The reason why the claim of a queue ends.
#[derive(Clone, PartialEq, Debug)]
pub enum ReleaseReason {
    Attempted {
        message: Uuid,
        decision: DeliveryDecision,
        /// `None`: nothing was sent, because the record of the message is damaged.
        tried: Option<DeliveryTry>,
    },
    /// The queue was empty.
    QueueEmpty,
    /// No attempt was made.
    NotAttempted,
    /// No attempt was made, because all slots of the destination are in use: the queue joins its backlog.
    DestinationBusy,
}

/// An operator's action on an undelivered message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageAction {
    /// Requeue a dead letter with no attempts; attempt a pending message now.
    Redeliver,
    /// Delete a dead letter.
    Discard,
}

impl MessageAction {
    /// The action in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            MessageAction::Redeliver => "redeliver",
            MessageAction::Discard => "discard",
        }
    }
}

/// The end of a message that leaves its queue.
#[derive(Clone, PartialEq, Debug)]
pub enum MessageEnd<'a> {
    Delivered { message: Uuid },
    Dead { message: Uuid, reason: &'a str },
}

/// The queue keeps its first message.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueWait<'a> {
    pub due_at: Timestamp,
    pub in_backlog: bool,
    /// The attempts of the first message. An attempt that was not made does not count.
    pub tries: u32,
    pub first_tried_at: Option<Timestamp>,
    /// `None`: the error of the previous attempt stays.
    pub error: Option<&'a str>,
}

/// The change of a queue that is saved at the end of a claim.
#[derive(Clone, PartialEq, Debug)]
pub enum QueueDecision<'a> {
    /// The first message leaves, if there was one, and the next is the first.
    Advance(Option<MessageEnd<'a>>),
    Wait(QueueWait<'a>),
}

impl ReleaseReason {
    pub fn decide(&self, attempt: MessageAttempt, now: Timestamp) -> QueueDecision<'_> {
        let not_attempted = |in_backlog| {
            QueueDecision::Wait(QueueWait {
                due_at: now,
                in_backlog,
                tries: attempt.tries.saturating_sub(1),
                first_tried_at: (attempt.tries > 1).then_some(attempt.first_tried_at),
                error: None,
            })
        };
        match self {
            ReleaseReason::QueueEmpty => QueueDecision::Advance(None),
            ReleaseReason::NotAttempted => not_attempted(false),
            ReleaseReason::DestinationBusy => not_attempted(true),
            ReleaseReason::Attempted {
                message, decision, ..
            } => match decision {
                DeliveryDecision::Delivered => {
                    QueueDecision::Advance(Some(MessageEnd::Delivered { message: *message }))
                }
                DeliveryDecision::Dead { reason } => {
                    QueueDecision::Advance(Some(MessageEnd::Dead {
                        message: *message,
                        reason,
                    }))
                }
                DeliveryDecision::Retry {
                    at,
                    reason,
                    in_backlog,
                } => QueueDecision::Wait(QueueWait {
                    due_at: *at,
                    in_backlog: *in_backlog,
                    tries: attempt.tries,
                    first_tried_at: Some(attempt.first_tried_at),
                    error: Some(reason),
                }),
            },
        }
    }
}

impl QueueDecision<'_> {
    /// Returns whether the queue joins the backlog of its destination.
    pub fn joins_backlog(&self) -> bool {
        matches!(self, QueueDecision::Wait(wait) if wait.in_backlog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        message::delivery::{MessageEvent, MessageStatus},
        values::time::Span,
    };

    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn attempt(tries: u32) -> MessageAttempt {
        MessageAttempt {
            tries,
            first_tried_at: START,
            is_probe: false,
        }
    }

    fn attempted(decision: DeliveryDecision) -> ReleaseReason {
        ReleaseReason::Attempted {
            message: Uuid::from_u128(1),
            decision,
            tried: None,
        }
    }

    fn retry(in_backlog: bool) -> ReleaseReason {
        attempted(DeliveryDecision::Retry {
            at: START + Span::from_secs(9),
            reason: "503".to_owned(),
            in_backlog,
        })
    }

    #[test]
    fn an_attempt_that_was_not_made_does_not_count() {
        let later = START + Span::from_secs(5);
        let QueueDecision::Wait(first) = ReleaseReason::NotAttempted.decide(attempt(1), later)
        else {
            panic!("it keeps its message");
        };
        assert_eq!((first.tries, first.first_tried_at), (0, None));
        assert_eq!(
            (first.due_at, first.in_backlog, first.error),
            (later, false, None)
        );
        let QueueDecision::Wait(third) = ReleaseReason::DestinationBusy.decide(attempt(3), later)
        else {
            panic!("it keeps its message");
        };
        assert_eq!((third.tries, third.first_tried_at), (2, Some(START)));
        assert!(third.in_backlog);
    }

    #[test]
    fn a_message_that_failed_keeps_its_tries_its_first_attempt_and_its_error() {
        let failed = retry(false);
        let QueueDecision::Wait(wait) = failed.decide(attempt(3), START) else {
            panic!("it keeps its message");
        };
        assert_eq!((wait.tries, wait.first_tried_at), (3, Some(START)));
        assert_eq!(wait.due_at, START + Span::from_secs(9));
        assert_eq!(wait.error, Some("503"));
    }

    #[test]
    fn the_queue_advances_exactly_when_its_first_message_leaves() {
        let dead = attempted(DeliveryDecision::Dead {
            reason: "410".to_owned(),
        });
        let reasons = [
            attempted(DeliveryDecision::Delivered),
            dead,
            retry(true),
            retry(false),
            ReleaseReason::NotAttempted,
            ReleaseReason::DestinationBusy,
        ];
        for reason in reasons {
            let decision = reason.decide(attempt(1), START);
            let to = MessageStatus::Delivering
                .after(MessageEvent::Released(&reason))
                .unwrap()
                .to;
            let advances = matches!(decision, QueueDecision::Advance(Some(_)));
            assert_eq!(advances, !to.is_pending(), "{reason:?}");
            let in_backlog = to == MessageStatus::Backlogged;
            assert_eq!(decision.joins_backlog(), in_backlog, "{reason:?}");
        }
        let empty = ReleaseReason::QueueEmpty.decide(attempt(1), START);
        assert_eq!(empty, QueueDecision::Advance(None));
    }
}

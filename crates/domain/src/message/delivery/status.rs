//! The states of a message and all changes between them. `docs/state-machine.md` is drawn from this table.

use super::{DeliveryDecision, MessageAction, ReleaseReason};
use crate::{task::transitions::Transition, values::time::Timestamp};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MessageStatus {
    /// Due, or after another message of its queue.
    Queued,
    /// The first message of a claimed queue.
    Delivering,
    /// Waits for the time of its next attempt.
    Retrying,
    /// Waits in the backlog of its destination.
    Backlogged,
    /// A dead letter: it waits for an operator.
    Dead,
    /// Deleted, because the receiver has it.
    Delivered,
    /// Deleted, because it is no longer wanted.
    Discarded,
}

impl MessageStatus {
    pub const ALL: [MessageStatus; 7] = {
        use MessageStatus::{Backlogged, Dead, Delivered, Delivering, Discarded, Queued, Retrying};
        [
            Queued, Delivering, Retrying, Backlogged, Dead, Delivered, Discarded,
        ]
    };

    pub fn as_str(self) -> &'static str {
        match self {
            MessageStatus::Queued => "queued",
            MessageStatus::Delivering => "delivering",
            MessageStatus::Retrying => "retrying",
            MessageStatus::Backlogged => "backlogged",
            MessageStatus::Dead => "dead",
            MessageStatus::Delivered => "delivered",
            MessageStatus::Discarded => "discarded",
        }
    }

    /// Returns whether the message is kept and is not a dead letter: the API's state `pending`.
    pub fn is_pending(self) -> bool {
        use MessageStatus::{Backlogged, Delivering, Queued, Retrying};
        matches!(self, Queued | Delivering | Retrying | Backlogged)
    }
}

/// A message as the outbox stores it, with its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredMessage {
    pub is_dead: bool,
    /// True if it is the next message of its queue.
    pub is_first: bool,
    pub is_claimed: bool,
    pub in_backlog: bool,
    /// The time from which its queue is due.
    pub due_at: Timestamp,
}

impl StoredMessage {
    pub fn status(&self, now: Timestamp) -> MessageStatus {
        match () {
            () if self.is_dead => MessageStatus::Dead,
            () if !self.is_first => MessageStatus::Queued,
            () if self.is_claimed => MessageStatus::Delivering,
            () if self.in_backlog => MessageStatus::Backlogged,
            () if self.due_at > now => MessageStatus::Retrying,
            () => MessageStatus::Queued,
        }
    }
}

/// An event that may change the state of a message.
#[derive(Clone, Copy, Debug)]
pub enum MessageEvent<'a> {
    /// An instance claimed its queue.
    Claimed,
    /// Its destination fails, or has no free slot.
    Postponed,
    /// A claim ended, perhaps one that had expired.
    Released(&'a ReleaseReason),
    /// Its destination has failed for all of the time in which the message is retried.
    Expired,
    Action(MessageAction),
    /// The retention time of dead letters is over.
    Purged,
}

/// One change of a message: a row of [`MESSAGE_TRANSITIONS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageChange {
    pub from: MessageStatus,
    pub event: &'static str,
    pub to: MessageStatus,
}

impl MessageStatus {
    /// Returns the change that an event makes, `None` if the event does not apply to this state.
    pub fn after(self, event: MessageEvent<'_>) -> Option<MessageChange> {
        use MessageStatus::{Backlogged, Dead, Delivered, Delivering, Discarded, Queued, Retrying};
        let (event, to) = match (event, self) {
            (_, Delivered | Discarded) => return None,
            (MessageEvent::Claimed, Queued | Delivering | Retrying | Backlogged) => {
                ("message.claimed", Delivering)
            }
            (MessageEvent::Postponed, Queued | Retrying) => ("message.postponed", Backlogged),
            (MessageEvent::Released(reason), _) => self.after_release(reason)?,
            (MessageEvent::Expired, Queued | Backlogged) => ("message.expired", Dead),
            (MessageEvent::Action(MessageAction::Redeliver), Dead) => {
                ("message.redelivered", Queued)
            }
            (MessageEvent::Action(MessageAction::Redeliver), Queued | Retrying) => {
                ("message.expedited", Queued)
            }
            (MessageEvent::Action(MessageAction::Redeliver), Backlogged) => {
                ("message.expedited", Backlogged)
            }
            (MessageEvent::Action(MessageAction::Discard), Dead) => {
                ("message.discarded", Discarded)
            }
            (MessageEvent::Purged, Dead) => ("message.purged", Discarded),
            _ => return None,
        };
        debug_assert!(allows_message(self, event, to), "{self:?} {event} {to:?}");
        Some(MessageChange {
            from: self,
            event,
            to,
        })
    }

    /// Returns the event and the state after a release. A message that was delivered is delivered, even if the claim
    /// had expired; a failure counts only under the claim.
    fn after_release(self, reason: &ReleaseReason) -> Option<(&'static str, Self)> {
        use MessageStatus::{Backlogged, Dead, Delivered, Delivering, Queued, Retrying};
        let decision = match reason {
            ReleaseReason::Attempted { decision, .. } => decision,
            ReleaseReason::NotAttempted if self == Delivering => {
                return Some(("message.released", Queued));
            }
            ReleaseReason::DestinationBusy if self == Delivering => {
                return Some(("message.postponed", Backlogged));
            }
            _ => return None,
        };
        match decision {
            DeliveryDecision::Delivered => Some(("message.delivered", Delivered)),
            DeliveryDecision::Dead { .. } if self.is_pending() => Some(("message.died", Dead)),
            DeliveryDecision::Retry { in_backlog, .. } if self == Delivering => {
                let to = match in_backlog {
                    true => Backlogged,
                    false => Retrying,
                };
                Some(("message.failed", to))
            }
            _ => None,
        }
    }
}

const fn message(
    from: MessageStatus,
    event: &'static str,
    to: MessageStatus,
    why: &'static str,
) -> Transition<MessageStatus> {
    Transition {
        from,
        event,
        to,
        why,
    }
}

const LATE_DELIVERY: &str = "an attempt whose claim had expired delivered it";
const LATE_DEATH: &str =
    "the receiver refused it permanently in an attempt whose claim had expired";
const EXPIRED: &str =
    "its destination has accepted no message for the whole time (`courier.give_up_after`)";

pub const MESSAGE_TRANSITIONS: &[Transition<MessageStatus>] = {
    use MessageStatus::{Backlogged, Dead, Delivered, Delivering, Discarded, Queued, Retrying};
    &[
        message(
            Queued,
            "message.claimed",
            Delivering,
            "it is the first of its queue, and an instance claimed that",
        ),
        message(
            Retrying,
            "message.claimed",
            Delivering,
            "its wait is over, and an instance claimed its queue",
        ),
        message(
            Backlogged,
            "message.claimed",
            Delivering,
            "its destination responds again, or it is the probe",
        ),
        message(
            Delivering,
            "message.claimed",
            Delivering,
            "the claim expired, and an instance claimed its queue again",
        ),
        message(
            Queued,
            "message.postponed",
            Backlogged,
            "its destination fails, or has more messages than slots",
        ),
        message(
            Retrying,
            "message.postponed",
            Backlogged,
            "its destination fails, or has more messages than slots",
        ),
        message(
            Delivering,
            "message.postponed",
            Backlogged,
            "it was not sent, because its destination had no free slot",
        ),
        message(
            Delivering,
            "message.released",
            Queued,
            "it was not sent, because the instance stopped or restarted",
        ),
        message(
            Delivering,
            "message.delivered",
            Delivered,
            "the receiver responded with 2xx",
        ),
        message(
            Delivering,
            "message.failed",
            Retrying,
            "the receiver did not accept it; it is retried after a backoff",
        ),
        message(
            Delivering,
            "message.failed",
            Backlogged,
            "its destination failed; it is retried with the others in the backlog",
        ),
        message(
            Delivering,
            "message.died",
            Dead,
            "the receiver refused it permanently, its time is over (`courier.give_up_after`), or its record is damaged",
        ),
        message(Backlogged, "message.expired", Dead, EXPIRED),
        message(Queued, "message.expired", Dead, EXPIRED),
        message(Queued, "message.delivered", Delivered, LATE_DELIVERY),
        message(Retrying, "message.delivered", Delivered, LATE_DELIVERY),
        message(Backlogged, "message.delivered", Delivered, LATE_DELIVERY),
        message(Dead, "message.delivered", Delivered, LATE_DELIVERY),
        message(Queued, "message.died", Dead, LATE_DEATH),
        message(Retrying, "message.died", Dead, LATE_DEATH),
        message(Backlogged, "message.died", Dead, LATE_DEATH),
        message(
            Dead,
            "message.redelivered",
            Queued,
            "an operator redelivered it; its attempts and its time start from the beginning",
        ),
        message(
            Queued,
            "message.expedited",
            Queued,
            "an operator requested its next attempt at once",
        ),
        message(
            Retrying,
            "message.expedited",
            Queued,
            "an operator requested its next attempt at once",
        ),
        message(
            Backlogged,
            "message.expedited",
            Backlogged,
            "an operator requested its next attempt at once; its destination is probed with it",
        ),
        message(
            Dead,
            "message.discarded",
            Discarded,
            "an operator discarded it",
        ),
        message(
            Dead,
            "message.purged",
            Discarded,
            "its retention time is over (`retention.keep`)",
        ),
    ]
};

/// Returns whether the table has this change of a message.
pub fn allows_message(from: MessageStatus, event: &str, to: MessageStatus) -> bool {
    MESSAGE_TRANSITIONS
        .iter()
        .any(|row| row.from == from && row.event == event && row.to == to)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;
    use crate::task::transitions::tests::{DOCUMENT, drawn};

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn releases() -> Vec<ReleaseReason> {
        let retry = |in_backlog| DeliveryDecision::Retry {
            at: NOW,
            reason: "503".to_owned(),
            in_backlog,
        };
        let dead = DeliveryDecision::Dead {
            reason: "410".to_owned(),
        };
        let decisions = [DeliveryDecision::Delivered, retry(true), retry(false), dead];
        let attempted = decisions.map(|decision| ReleaseReason::Attempted {
            message: Uuid::nil(),
            decision,
            tried: None,
        });
        let others = [
            ReleaseReason::QueueEmpty,
            ReleaseReason::NotAttempted,
            ReleaseReason::DestinationBusy,
        ];
        attempted.into_iter().chain(others).collect()
    }

    /// On a difference, the expected text is in the message: copy it over.
    #[test]
    fn the_document_draws_exactly_this_table() {
        let messages = drawn(
            MESSAGE_TRANSITIONS,
            MessageStatus::as_str,
            "queued",
            &["delivered", "discarded"],
        );
        assert!(
            DOCUMENT.contains(&messages),
            "docs/state-machine.md lacks:\n{messages}"
        );
    }

    #[test]
    fn every_event_in_every_state_makes_a_change_of_the_table_and_all_of_the_table_happens() {
        let releases = releases();
        let mut events = vec![
            MessageEvent::Claimed,
            MessageEvent::Postponed,
            MessageEvent::Expired,
            MessageEvent::Purged,
            MessageEvent::Action(MessageAction::Redeliver),
            MessageEvent::Action(MessageAction::Discard),
        ];
        events.extend(releases.iter().map(MessageEvent::Released));
        let mut happened = BTreeSet::new();
        for from in MessageStatus::ALL {
            for event in &events {
                if let Some(change) = from.after(*event) {
                    assert!(allows_message(change.from, change.event, change.to));
                    happened.insert((change.from, change.event, change.to));
                }
            }
        }
        let table: BTreeSet<_> = MESSAGE_TRANSITIONS
            .iter()
            .map(|row| (row.from, row.event, row.to))
            .collect();
        assert_eq!(happened, table);
    }

    #[test]
    fn nothing_changes_a_deleted_message_and_only_a_dead_letter_is_discarded() {
        for row in MESSAGE_TRANSITIONS {
            let ended = [MessageStatus::Delivered, MessageStatus::Discarded];
            assert!(!ended.contains(&row.from), "{row:?}");
            if row.to == MessageStatus::Discarded {
                assert_eq!(row.from, MessageStatus::Dead, "{row:?}");
            }
        }
    }

    #[test]
    fn a_failure_counts_only_under_the_claim() {
        for reason in releases() {
            for from in [MessageStatus::Queued, MessageStatus::Retrying] {
                let change = from.after(MessageEvent::Released(&reason));
                let is_final = |change: MessageChange| !change.to.is_pending();
                assert!(change.is_none_or(is_final), "{reason:?}");
            }
        }
    }

    #[test]
    fn the_state_follows_from_the_row_and_its_queue() {
        let stored = StoredMessage {
            is_dead: false,
            is_first: true,
            is_claimed: false,
            in_backlog: false,
            due_at: NOW,
        };
        let status = |message: StoredMessage| message.status(NOW);
        assert_eq!(status(stored), MessageStatus::Queued);
        let later = StoredMessage {
            due_at: NOW + crate::values::time::Span::from_secs(1),
            ..stored
        };
        assert_eq!(status(later), MessageStatus::Retrying);
        let backlogged = StoredMessage {
            in_backlog: true,
            ..later
        };
        assert_eq!(status(backlogged), MessageStatus::Backlogged);
        let claimed = StoredMessage {
            is_claimed: true,
            ..later
        };
        assert_eq!(status(claimed), MessageStatus::Delivering);
        let second = StoredMessage {
            is_first: false,
            ..claimed
        };
        assert_eq!(status(second), MessageStatus::Queued);
        let dead = StoredMessage {
            is_dead: true,
            ..claimed
        };
        assert_eq!(status(dead), MessageStatus::Dead);
    }
}

//! Messages to receivers: alerts and questions, their delivery, and dead letters.
//!
//! `envelope` is a message and its sender, `alert` and `ask` are what messages say, `alert_webhook` is who gets alerts. `delivery` decides when a message is
//! sent again and when it is a dead letter, `circuit` how often a failing destination is probed. The messages about a
//! task show the task, so they are composed in [`crate::view`].

pub(crate) mod alert;
pub(crate) mod alert_webhook;
pub(crate) mod ask;
pub(crate) mod broker_alert;
pub(crate) mod circuit;
pub(crate) mod delivery;
pub(crate) mod envelope;
mod schedule_alert;
pub(crate) mod signature;
pub(crate) mod waiting_bytes;

pub use alert::{ALERT_EVENTS, AlertData, AlertNotice, CauseVersion};
pub use alert_webhook::{AlertFormat, AlertWebhook};
pub use ask::{ASK_EVENT, AskData, AskNotice, LinkForm, ask_queue_of, with_complete_links};
pub use broker_alert::{BROKER_ALERT_AFTER, alert_subject, broker_unreachable};
pub use circuit::{BacklogClaim, BacklogState, Circuit, DestinationFailure, ExpiredMessages};
pub use delivery::{
    DeliveryDecision, DeliveryPolicy, DeliveryResult, DeliveryTry, DestinationResponse, KEPT_TRIES,
    LONGEST_ASKED, MESSAGE_TRANSITIONS, MessageAction, MessageAttempt, MessageChange, MessageEnd,
    MessageEvent, MessageStatus, QueueDecision, QueueWait, ReceiverAlert, ReleaseReason,
    StoredMessage, allows_message, undeliverable,
};
pub use envelope::{Message, Sender, SlackText, destination_of};
pub use schedule_alert::{schedule_alert_subject, schedule_failing};
pub use signature::{SECRET_FORM, Secret, signatures};
pub use waiting_bytes::{full_receivers, too_many_waiting, waiting_subject};

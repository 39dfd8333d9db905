//! Delivery of messages: replies to submitters and alerts to webhooks. The transaction of a change writes its
//! messages to the outbox; the delivery loop claims queues whose first message is due, posts that message, and
//! saves the result. Failures and pauses are kept for each destination, and slots are bounded for each
//! destination, receiver and kind of destination: a slow or dead receiver delays no other.
//!
//! This module contains the URL and signature of a message, the slots and the loop. It does not contain the choice of
//! the messages of a change, the meaning of a result and the pause of a failing destination ([`crate::domain`]); or
//! SQL.

mod attempt;
mod broker_alerts;
mod meters;
mod receivers;
mod request;
mod run;
mod slots;
mod store_alerts;
mod unsaved;

pub use broker_alerts::BrokerAlerts;
pub use receivers::Receivers;
pub use run::{DeliveryLoop, DeliverySettings};
pub use store_alerts::StoreAlerts;

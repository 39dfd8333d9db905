//! Delivery of messages: replies to submitters and alerts to webhooks. The transaction of a change writes its
//! messages to the outbox; the delivery loop claims queues whose first message is due, posts that message, and
//! saves the result. Failures and pauses are kept for each destination, and slots are bounded for each
//! destination, receiver and kind of destination: a slow or dead receiver delays no other.
//!
//! In here: which URL and signature a message gets, the slots, the loop. Not in here: which messages a change
//! makes, what a result means and how long a failing destination is left alone ([`crate::domain`]); and SQL.

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

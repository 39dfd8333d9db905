//! The broker, which the simulation does not have.

use serde_json::Value;

pub const AGENT: &str = "queued";
pub const ORDERS: &str = "orders";
pub const TOLD: &str = "told";
pub const REPLY_QUEUE: &str = "reply-queue";

/// A connection for publishing. There is none.
pub enum Publisher {}

#[derive(Clone, Default)]
pub struct Properties {
    pub message_id: Option<String>,
    pub correlation_id: Option<String>,
}

impl Publisher {
    pub fn new(url: &str) -> Self {
        panic!("the simulation has no broker at {url}")
    }

    #[expect(
        clippy::unused_async,
        reason = "the publisher of the chaos tests waits for the broker"
    )]
    pub async fn publish(&self, _queue: &str, _body: &Value, _properties: Properties) {
        match *self {}
    }
}

//! Message brokers: publishing to queues and reading from them. [`Broker`] is the interface that Provost needs;
//! another kind of broker is one more file that implements it. [`Brokers`] are the configured brokers, by name.
//!
//! In here: connections, publisher confirms, consumers. Not in here: the meaning of a message (`crate::intake`,
//! `crate::delivery`, `crate::agent`).

mod amqp;
mod frames;
mod health;
mod stream;
mod tls;

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

pub use health::BrokerHealth;

use crate::{
    config::{BrokerUrl, Config},
    domain::values::{MAIN_BROKER, QueueAddress},
};

/// A message to publish. It is durable, and one that reaches no queue is an error.
#[derive(Clone, Debug, Default)]
pub struct OutgoingMessage {
    /// Empty: the default exchange, which delivers to the queue that the routing key names.
    pub exchange: String,
    pub routing_key: String,
    /// True: the queue that the routing key names is declared first, durable, if it does not exist.
    pub declare: bool,
    pub content_type: &'static str,
    pub message_id: String,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    /// True: the queue in `reply_to` is declared first, durable, if it does not exist: a reply to no queue would be
    /// lost.
    pub declare_reply_to: bool,
    /// The property `type`: the subject of the message.
    pub kind: String,
    /// The broker drops the message after this time if no consumer has read it.
    pub expires_in: Option<Duration>,
    pub headers: Vec<(Cow<'static, str>, String)>,
    pub body: Bytes,
}

/// A received message. Text that is not UTF-8 was replaced, and `unreadable` says so.
#[derive(Clone, Debug, Default)]
pub struct ReceivedMessage {
    pub body: Bytes,
    pub message_id: Option<String>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    /// The property `type`.
    pub kind: Option<String>,
    /// Its headers whose values are text.
    pub headers: HashMap<String, String>,
    /// The reason why its properties or headers cannot be read.
    pub unreadable: Option<String>,
}

impl ReceivedMessage {
    /// Returns a header by its name; names of headers are compared without regard to case, as in HTTP.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// The reason why the broker did not take a message, or why no message can be read from it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BrokerError {
    #[error("the broker {broker} cannot be reached: {reason}")]
    Unreachable { broker: String, reason: String },
    /// The connection broke off while a message was on its way: the broker may have it.
    #[error("the connection to the broker {broker} broke off: {reason}")]
    Interrupted { broker: String, reason: String },
    /// No confirm came in time: the broker may have the message.
    #[error("the broker {broker} did not confirm the message within {within:?}")]
    Unconfirmed { broker: String, within: Duration },
    /// The broker protects itself: an alarm for memory or disk.
    #[error("the broker {broker} blocks publishers: an alarm for its memory or disk is on")]
    Blocked { broker: String },
    #[error(
        "the message reached no queue: the broker returned it with \"{reason}\"; declare the queue {queue:?}"
    )]
    Unroutable { queue: String, reason: String },
    /// A negative confirm: a queue is full and rejects, or the broker could not store it.
    #[error(
        "the broker refused the message for the queue {queue:?}: the queue may have reached its length limit"
    )]
    Rejected { queue: String },
    /// The broker closed the channel because it refuses the request.
    #[error("the broker refused it: {0}")]
    Refused(String),
    #[error("no broker {0:?} is configured: add it to the configuration again")]
    Unknown(String),
}

impl BrokerError {
    /// Returns whether the broker may have the message.
    pub fn leaves_effect_unknown(&self) -> bool {
        matches!(
            self,
            BrokerError::Interrupted { .. } | BrokerError::Unconfirmed { .. }
        )
    }
}

/// A broker. Its implementation connects by itself, and again after it lost the connection.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Publishes a message, and returns when the broker has confirmed it.
    async fn publish(&self, message: &OutgoingMessage, within: Duration)
    -> Result<(), BrokerError>;

    /// Starts to read a queue, which is declared durable if it does not exist. The broker sends at most `prefetch`
    /// messages that are not yet acknowledged.
    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Box<dyn Consumer>, BrokerError>;

    /// Keeps the connection for publishing until it is dropped.
    async fn keep(&self);
}

/// The messages of one queue. When the consumer is dropped, the broker delivers the unacknowledged messages again.
#[async_trait]
pub trait Consumer: Send {
    /// Returns the next message. After an error the consumer returns no more messages.
    async fn next(&mut self) -> Result<Box<dyn Delivery>, BrokerError>;

    /// Ends the consumer at once, without an orderly close: messages that the broker is about to send are not read
    /// any more.
    fn cut_off(self: Box<Self>);
}

/// A message that was read from a queue.
#[async_trait]
pub trait Delivery: Send + Sync {
    fn message(&self) -> &ReceivedMessage;

    /// Removes the message from its queue.
    async fn acknowledge(&self) -> Result<(), BrokerError>;

    /// Publishes the same message to another queue, with all its properties that have a meaning there, and the
    /// headers of `to`.
    async fn forward(&self, to: &OutgoingMessage, within: Duration) -> Result<(), BrokerError>;
}

/// The configured brokers by name.
#[derive(Default)]
pub struct Brokers {
    known: HashMap<String, Arc<dyn Broker>>,
    pub health: BrokerHealth,
}

impl Brokers {
    pub fn new(config: &Config, instance: &str) -> Self {
        metrics::describe_gauge!(
            "provost_broker_up",
            "1 if every connection to the message broker works, 0 if one does not"
        );
        metrics::describe_counter!(
            "provost_broker_published_total",
            "Messages that were published, by outcome: confirmed, unroutable, rejected or unconfirmed"
        );
        let health = BrokerHealth::default();
        let main = config.broker.url.iter().map(|url| (MAIN_BROKER, url));
        let intakes = config.intake.iter();
        let own = intakes.filter_map(|intake| Some((intake.name.as_str(), intake.url.as_ref()?)));
        let connect_timeout = config.calls.connect_timeout.duration();
        let broker = |(name, url): (&str, &BrokerUrl)| {
            let settings = amqp::AmqpSettings {
                name: name.to_owned(),
                url: url.clone(),
                client: format!("provost {instance}"),
                connect_timeout,
            };
            let broker: Arc<dyn Broker> = Arc::new(amqp::Amqp::new(settings, health.clone()));
            (name.to_owned(), broker)
        };
        let known = main.chain(own).map(broker).collect();
        Self { known, health }
    }

    pub fn get(&self, name: &str) -> Result<&Arc<dyn Broker>, BrokerError> {
        let known = self.known.get(name);
        known.ok_or_else(|| BrokerError::Unknown(name.to_owned()))
    }

    pub fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Publishes to a queue of the broker that its address names.
    pub async fn publish_to(
        &self,
        address: &QueueAddress,
        message: OutgoingMessage,
        within: Duration,
    ) -> Result<(), BrokerError> {
        let message = OutgoingMessage {
            routing_key: address.queue.to_string(),
            ..message
        };
        self.get(&address.broker)?.publish(&message, within).await
    }

    pub fn all(&self) -> impl Iterator<Item = (&String, &Arc<dyn Broker>)> {
        self.known.iter()
    }
}

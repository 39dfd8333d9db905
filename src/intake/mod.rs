//! Intakes: queues whose messages are submissions. A message is acknowledged only after its task is committed, or after
//! the broker has confirmed it as a dead letter; until then the broker keeps it, and delivers it again if this process
//! dies. Its message id is its idempotency key, so that a message that is delivered again creates nothing again.
//!
//! In here: the loop that reads a queue, and the handling of each message. Not in here: connections
//! ([`crate::broker`]), and the rules for submissions ([`crate::api`]).

mod dead_letter;
mod later_replies;
mod meters;
mod reader;
mod refusal_notice;

use std::sync::Arc;

use async_trait::async_trait;
use http::StatusCode;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use self::later_replies::LaterReplies;
use self::{
    meters::IntakeMeters,
    reader::{MessageHandler, QueueReader},
    refusal_notice::{RefusalNotice, SUBMISSION_REFUSED},
};
use crate::{
    api::{self, App},
    broker::{Brokers, Delivery, ReceivedMessage},
    chance,
    config::IntakeConfig,
    store::Submitted,
};

/// The longest `Idempotency-Key`.
const LONGEST_KEY: usize = 255;

/// A queue whose messages are submissions.
pub struct Intake {
    app: Arc<App>,
    reader: QueueReader,
    meters: IntakeMeters,
}

impl Intake {
    pub fn new(app: Arc<App>, brokers: Arc<Brokers>, config: IntakeConfig) -> Self {
        Self {
            meters: IntakeMeters::new(&config.name),
            reader: QueueReader {
                brokers,
                config,
                max_message: app.config.limits.max_request.as_usize(),
            },
            app,
        }
    }

    pub async fn run(self, stop: CancellationToken) {
        let this = Arc::new(self);
        this.reader.run(this.clone(), stop).await;
    }

    async fn accept(&self, delivery: &dyn Delivery, submitted: &Submitted) {
        let intake = &self.reader.config.name;
        match submitted {
            Submitted::New(task) => {
                self.meters.accepted.increment(1);
                debug!(%intake, task = %task.id(), "a message submitted a task");
            }
            Submitted::Replayed(task) => {
                self.meters.replayed.increment(1);
                debug!(%intake, %task, "a message had submitted its task before");
            }
        }
        self.reader.acknowledge(delivery).await;
    }
}

#[async_trait]
impl MessageHandler for Intake {
    async fn handle(&self, delivery: &dyn Delivery) {
        let message = delivery.message();
        let key = idempotency_key(message);
        let (app, config) = (&self.app, &self.reader.config);
        let mut tries = 0_u32;
        let problem = loop {
            match api::submit_message(app, config, message, key.clone()).await {
                Ok(submitted) => return self.accept(delivery, &submitted).await,
                // The same message may be accepted later.
                Err(problem) if problem.kind().status() == StatusCode::SERVICE_UNAVAILABLE => {
                    tries += 1;
                    self.meters.retried.increment(1);
                    self.reader.wait(tries, &problem).await;
                }
                Err(problem) => break problem,
            }
        };
        self.meters.refused.increment(1);
        self.reader.make_dead_letter(delivery, &problem).await;
        if let Some(to) = api::refusal_address(app, config, message) {
            let kind = SUBMISSION_REFUSED;
            let notice = RefusalNotice::new(config, to, kind, message, &key, &problem);
            notice.publish(&self.reader).await;
        }
        self.reader.acknowledge(delivery).await;
    }
}

/// Returns the header `Idempotency-Key`, or the message id. A message without either gets a key for this delivery, so
/// that it creates one task in all attempts to handle it; if it is delivered again, it creates another.
fn idempotency_key(message: &ReceivedMessage) -> String {
    let given = message.header("idempotency-key");
    let given = given.or(message.message_id.as_deref());
    match given.filter(|key| !key.is_empty()) {
        None => format!("delivery:{}", chance::id()),
        Some(key) if key.len() <= LONGEST_KEY && key.bytes().all(|b| b.is_ascii_graphic()) => {
            key.to_owned()
        }
        // Over HTTP a key is visible ASCII; queues have no such rule.
        Some(key) => {
            let hash = Sha256::digest(key.as_bytes());
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("sha256:{hash}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: Option<&str>, header: Option<&str>) -> ReceivedMessage {
        let headers = header.map(|key| ("Idempotency-Key".to_owned(), key.to_owned()));
        ReceivedMessage {
            message_id: id.map(str::to_owned),
            headers: headers.into_iter().collect(),
            ..ReceivedMessage::default()
        }
    }

    #[test]
    fn a_key_is_the_header_or_the_message_id_whatever_it_contains() {
        assert_eq!(idempotency_key(&message(Some("m-1"), None)), "m-1");
        assert_eq!(idempotency_key(&message(Some("m-1"), Some("k"))), "k");
        let odd = idempotency_key(&message(Some("ID: ünd 7"), None));
        assert!(odd.starts_with("sha256:") && !odd.contains(' '), "{odd}");
        assert_eq!(odd, idempotency_key(&message(Some("ID: ünd 7"), None)));
        let none = idempotency_key(&message(None, None));
        assert_ne!(none, idempotency_key(&message(Some(""), None)));
    }
}

//! The notice to the sender of a refused message, a submitter or a service that replies: the problem, in the queue
//! that the message named for replies. It is published after the dead letter and before the acknowledgement, so it
//! arrives at least once. The intake does not wait for a queue that does not exist, is full or never confirms:
//! operators find the same problem in the dead letter.

use sha2::{Digest, Sha256};
use tracing::{debug, warn};

use super::reader::{CONFIRM_WITHIN, QueueReader, RETRY_BACKOFF};
use crate::{
    api::Problem,
    broker::{BrokerError, OutgoingMessage, ReceivedMessage},
    chance,
    clock::sleep,
    config::IntakeConfig,
    domain::values::{QueueAddress, shortened},
};

/// The `type` of the message.
pub const SUBMISSION_REFUSED: &str = "submission.refused";
pub const REPLY_REFUSED: &str = "reply.refused";
/// The most attempts to publish to a queue that exists and does not take the message.
const MOST_ATTEMPTS: u32 = 3;
/// The largest body, in bytes: a fault for each field of a large submission would be longer than the submission.
const LONGEST_BODY: usize = 64 << 10;
/// The longest detail of a problem in a header, in bytes: AMQP has no property for it.
const LONGEST_DETAIL: usize = 2 << 10;

pub struct RefusalNotice {
    to: QueueAddress,
    message: OutgoingMessage,
}

impl RefusalNotice {
    /// `key` must be the same if the message is delivered again: the message id is derived from it.
    pub fn new(
        intake: &IntakeConfig,
        to: QueueAddress,
        kind: &str,
        message: &ReceivedMessage,
        key: &str,
        problem: &Problem,
    ) -> Self {
        let slug = problem.kind().slug();
        let mut body = problem.clone().document();
        let detail = shortened(problem.detail(), LONGEST_DETAIL);
        if body.len() > LONGEST_BODY {
            body = Problem::new(problem.kind(), detail.clone()).document();
        }
        let mut headers = vec![
            ("provost-problem-type".into(), slug.to_owned()),
            ("provost-problem-detail".into(), detail),
            ("provost-intake".into(), intake.name.clone()),
            ("provost-queue".into(), intake.queue.clone()),
        ];
        if let Some(id) = &message.message_id {
            headers.push(("provost-message-id".into(), id.clone()));
        }
        let id = Sha256::digest(format!("{}\t{key}\t{slug}", intake.name));
        let id: String = id
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            to,
            message: OutgoingMessage {
                content_type: "application/problem+json",
                // The id is the same if the message is delivered again.
                message_id: id,
                correlation_id: message.correlation_id.clone(),
                kind: kind.to_owned(),
                headers,
                body: body.into(),
                ..OutgoingMessage::default()
            },
        }
    }

    /// Publishes the notice, and returns when the broker has confirmed it or will not.
    pub async fn publish(self, reader: &QueueReader) {
        let (intake, queue) = (&reader.config.name, &self.to.queue);
        let mut tries = 0_u32;
        let error = loop {
            let message = self.message.clone();
            let published = reader.brokers.publish_to(&self.to, message, CONFIRM_WITHIN);
            let error = match published.await {
                Ok(()) => return debug!(%intake, %queue, "told the sender of a refused message"),
                Err(error) => error,
            };
            tries += 1;
            let is_over = match error {
                // The whole broker fails, so the message could not be acknowledged either.
                BrokerError::Unreachable { .. } | BrokerError::Blocked { .. } => false,
                // The error may be caused by this message, so the number of attempts is limited.
                BrokerError::Rejected { .. } | BrokerError::Interrupted { .. } => {
                    tries >= MOST_ATTEMPTS
                }
                BrokerError::Unconfirmed { .. }
                | BrokerError::Unroutable { .. }
                | BrokerError::Refused(_)
                | BrokerError::Unknown(_) => true,
            };
            if is_over {
                break error;
            }
            sleep(RETRY_BACKOFF.full_jitter(tries, chance::random())).await;
        };
        warn!(
            %intake, %queue, %error,
            "could not tell the sender that a message was refused; the dead letter has the problem"
        );
    }
}

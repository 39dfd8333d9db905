//! One message under way: from its first byte to what is saved of it.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::{
    Receivers,
    request::send,
    slots::{DestinationResponse, Slot},
};
use crate::{
    agent::Post,
    domain::{DeliveryDecision, DeliveryPolicy, DeliveryResult, DestinationFailure, Span},
    store::{Head, Held, Settled, Settlement, SharedReader},
};

/// What every try needs.
#[derive(Clone)]
pub struct DeliveryAttempt {
    pub receivers: Arc<Receivers>,
    pub post: Post,
    pub reader: SharedReader,
    pub policy: DeliveryPolicy,
}

/// A try that has ended.
pub struct CompletedAttempt {
    pub settled: Settled,
    pub slot: Slot,
    pub response: DestinationResponse,
    pub failure: Option<DestinationFailure>,
    pub took: Duration,
    pub lag: Duration,
}

impl CompletedAttempt {
    fn untried(held: Held, slot: Slot) -> Self {
        let how = Settlement::HandedBack;
        Self {
            settled: Settled { held, how },
            slot,
            response: DestinationResponse::Unknown,
            failure: None,
            took: Duration::ZERO,
            lag: Duration::ZERO,
        }
    }
}

impl DeliveryAttempt {
    pub async fn deliver(self, held: Held, head: Head, slot: Slot) -> CompletedAttempt {
        let start = Instant::now();
        let (message, kind, created_at) = (head.id, head.kind.clone(), head.created_at);
        let Ok(began) = self.reader.now().await else {
            return CompletedAttempt::untried(held, slot);
        };
        let delivery = AssertUnwindSafe(send(&self.receivers, &self.post, &held, head, began));
        // A try that panics has failed like any other: its slot is free again, and the message waits.
        let delivery = delivery.catch_unwind().await.unwrap_or_else(|_| {
            error!(message_id = %message, receiver = %held.receiver, "the service panicked at a delivery");
            DeliveryResult::Failed {
                reason: "the service failed because of a fault of its own; its log says more"
                    .to_owned(),
                retry_after: None,
                receiver_failing: false,
            }
        });
        let chance = rand::random();
        let (response, failure) = match &delivery {
            DeliveryResult::Delivered => (DestinationResponse::Accepted, None),
            DeliveryResult::Failed {
                receiver_failing: true,
                reason,
                retry_after,
            } => {
                let failure = DestinationFailure {
                    destination: held.destination.clone(),
                    receiver: held.receiver.clone(),
                    began,
                    retry_after: *retry_after,
                    reason: reason.clone(),
                    chance,
                };
                (DestinationResponse::Failed, Some(failure))
            }
            DeliveryResult::Failed { .. } | DeliveryResult::Refused { .. } => {
                (DestinationResponse::Rejected, None)
            }
        };
        let took = start.elapsed();
        let now = began + Span::from_millis(took.as_millis() as u64);
        let policy = self.policy;
        let decision = policy.decide(delivery, held.tries, held.since, now, rand::random());
        report(&held, &kind, message, &decision);
        // What failed with its destination is tried again with that. What fails again when that has answered
        // others has a time of its own: it may be what makes the destination fail.
        let waits = response == DestinationResponse::Failed && (held.is_probe || held.tries == 1);
        CompletedAttempt {
            settled: Settled {
                held,
                how: Settlement::Tried {
                    message,
                    decision,
                    waits,
                },
            },
            slot,
            response,
            failure,
            took,
            lag: now.since(created_at),
        }
    }
}

pub fn report(held: &Held, kind: &str, message: uuid::Uuid, decision: &DeliveryDecision) {
    let (receiver, subject, tries) = (&held.receiver, held.subject, held.tries);
    match decision {
        DeliveryDecision::Delivered => {
            debug!(message_id = %message, kind, %receiver, %subject, tries, "a message was delivered")
        }
        DeliveryDecision::Retry { at, reason } => {
            info!(message_id = %message, kind, %receiver, %subject, tries, %at, reason, "a message could not be delivered; it is tried again");
        }
        DeliveryDecision::Dead { reason } => {
            warn!(message_id = %message, kind, %receiver, %subject, tries, reason, "a message is dead: GET /v1/messages?state=dead lists it");
        }
    }
}

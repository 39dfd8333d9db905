//! One attempt to deliver one message: from its first byte to the result that is saved.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tracing::{debug, error, info, warn};

use super::{Receivers, request::send, slots::DeliverySlot};
use crate::{
    agent::Post,
    chance, clock,
    domain::{
        message::{
            DeliveryDecision, DeliveryPolicy, DeliveryResult, DeliveryTry, DestinationFailure,
            DestinationResponse, ReleaseReason,
        },
        values::Span,
    },
    store::{NextMessage, QueueClaim, QueueRelease, SharedReader},
};

/// The parts that every attempt uses.
#[derive(Clone)]
pub struct DeliveryAttempt {
    pub receivers: Arc<Receivers>,
    pub post: Post,
    pub reader: SharedReader,
    pub policy: DeliveryPolicy,
}

pub struct CompletedAttempt {
    pub release: QueueRelease,
    pub slot: DeliverySlot,
    pub response: DestinationResponse,
    pub failure: Option<DestinationFailure>,
    pub took: Duration,
    pub lag: Duration,
}

impl CompletedAttempt {
    fn not_attempted(claim: QueueClaim, slot: DeliverySlot) -> Self {
        let reason = ReleaseReason::NotAttempted;
        Self {
            release: QueueRelease { claim, reason },
            slot,
            response: DestinationResponse::Unknown,
            failure: None,
            took: Duration::ZERO,
            lag: Duration::ZERO,
        }
    }
}

impl DeliveryAttempt {
    pub async fn deliver(
        self,
        claim: QueueClaim,
        next: NextMessage,
        slot: DeliverySlot,
    ) -> CompletedAttempt {
        let start = clock::instant();
        let (message, kind, created_at) = (next.id, next.kind.clone(), next.created_at);
        let Ok(began) = self.reader.now().await else {
            return CompletedAttempt::not_attempted(claim, slot);
        };
        let sent = AssertUnwindSafe(send(&self.receivers, &self.post, &claim, next, began));
        // An attempt that panics has failed like any other: its slot is freed, and the message waits.
        let (result, status) = sent.catch_unwind().await.unwrap_or_else(|_| {
            error!(message_id = %message, receiver = %claim.receiver, "the service panicked during a delivery");
            let result = DeliveryResult::Failed {
                reason: "the delivery failed because of an internal error; the service's log has the details"
                    .to_owned(),
                retry_after: None,
                receiver_failing: false,
            };
            (result, None)
        });
        let chance = chance::random();
        let response = result.response();
        let failure = match &result {
            DeliveryResult::Failed {
                receiver_failing: true,
                reason,
                retry_after,
            } => Some(DestinationFailure {
                destination: claim.destination.clone(),
                receiver: claim.receiver.clone(),
                began,
                retry_after: *retry_after,
                reason: reason.clone(),
                chance,
            }),
            _ => None,
        };
        let took = start.elapsed();
        let now = began + Span::from_millis(took.as_millis() as u64);
        let attempt = claim.attempt();
        let decision = self.policy.decide(attempt, result, now, chance::random());
        report(&claim, &kind, message, &decision);
        let reason = ReleaseReason::Attempted {
            message,
            decision,
            tried: Some(DeliveryTry {
                began,
                ended: now,
                status,
            }),
        };
        CompletedAttempt {
            release: QueueRelease { claim, reason },
            slot,
            response,
            failure,
            took,
            lag: now.since(created_at),
        }
    }
}

pub fn report(claim: &QueueClaim, kind: &str, message: uuid::Uuid, decision: &DeliveryDecision) {
    let (receiver, subject, tries) = (&claim.receiver, claim.subject, claim.tries);
    match decision {
        DeliveryDecision::Delivered => {
            debug!(message_id = %message, kind, %receiver, %subject, tries, "delivered a message")
        }
        DeliveryDecision::Retry { at, reason, .. } => {
            info!(message_id = %message, kind, %receiver, %subject, tries, %at, reason, "could not deliver a message; it will be retried");
        }
        DeliveryDecision::Dead { reason } => {
            warn!(message_id = %message, kind, %receiver, %subject, tries, reason, "a message became a dead letter: GET /v1/messages?state=dead lists it");
        }
    }
}

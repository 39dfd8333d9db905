//! One message under way: from its first byte to what is saved of it.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::{
    Receivers,
    delivery::deliver,
    slots::{Fared, Slot},
};
use crate::{
    agent::Post,
    domain::{Delivery, Failure, Fate, Persistence, Span},
    store::{Head, Held, Settled, Settlement, SharedReader},
};

/// What every try needs.
#[derive(Clone)]
pub struct Flight {
    pub receivers: Arc<Receivers>,
    pub post: Post,
    pub reader: SharedReader,
    pub persistence: Persistence,
}

/// A try that has ended.
pub struct Ended {
    pub settled: Settled,
    pub slot: Slot,
    pub fared: Fared,
    pub failure: Option<Failure>,
    pub took: Duration,
    pub lag: Duration,
}

impl Ended {
    fn untried(held: Held, slot: Slot) -> Self {
        let how = Settlement::HandedBack;
        Self {
            settled: Settled { held, how },
            slot,
            fared: Fared::Unknown,
            failure: None,
            took: Duration::ZERO,
            lag: Duration::ZERO,
        }
    }
}

impl Flight {
    pub async fn fly(self, held: Held, head: Head, slot: Slot) -> Ended {
        let start = Instant::now();
        let (message, kind, created_at) = (head.id, head.kind.clone(), head.created_at);
        let Ok(began) = self.reader.now().await else {
            return Ended::untried(held, slot);
        };
        let delivery = AssertUnwindSafe(deliver(&self.receivers, &self.post, &held, head, began));
        // A try that panics has failed like any other: its slot is free again, and the message waits.
        let delivery = delivery.catch_unwind().await.unwrap_or_else(|_| {
            error!(message_id = %message, receiver = %held.receiver, "the service panicked at a delivery");
            Delivery::Failed {
                reason: "the service failed because of a fault of its own; its log says more"
                    .to_owned(),
                retry_after: None,
                receiver_failing: false,
            }
        });
        let chance = rand::random();
        let (fared, failure) = match &delivery {
            Delivery::Taken => (Fared::Took, None),
            Delivery::Failed {
                receiver_failing: true,
                reason,
                retry_after,
            } => {
                let failure = Failure {
                    destination: held.destination.clone(),
                    receiver: held.receiver.clone(),
                    began,
                    retry_after: *retry_after,
                    reason: reason.clone(),
                    chance,
                };
                (Fared::Failed, Some(failure))
            }
            Delivery::Failed { .. } | Delivery::Refused { .. } => (Fared::Answered, None),
        };
        let took = start.elapsed();
        let now = began + Span::from_millis(took.as_millis() as u64);
        let persistence = self.persistence;
        let fate = persistence.fate(delivery, held.tries, held.since, now, rand::random());
        report(&held, &kind, message, &fate);
        // What failed with its destination is tried again with that. What fails again when that has answered
        // others has a time of its own: it may be what makes the destination fail.
        let waits = fared == Fared::Failed && (held.is_probe || held.tries == 1);
        Ended {
            settled: Settled {
                held,
                how: Settlement::Tried {
                    message,
                    fate,
                    waits,
                },
            },
            slot,
            fared,
            failure,
            took,
            lag: now.since(created_at),
        }
    }
}

pub fn report(held: &Held, kind: &str, message: uuid::Uuid, fate: &Fate) {
    let (receiver, subject, tries) = (&held.receiver, held.subject, held.tries);
    match fate {
        Fate::Delivered => {
            debug!(message_id = %message, kind, %receiver, %subject, tries, "a message was delivered")
        }
        Fate::Again { at, reason } => {
            info!(message_id = %message, kind, %receiver, %subject, tries, %at, reason, "a message could not be delivered; it is tried again");
        }
        Fate::Dead { reason } => {
            warn!(message_id = %message, kind, %receiver, %subject, tries, reason, "a message is dead: GET /v1/messages?state=dead lists it");
        }
    }
}

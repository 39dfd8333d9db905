//! Alerts about the store itself: posted to the alert webhooks at once and without the outbox, because the outbox
//! is in the store. They are kept in memory only, and lost with the process.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Receivers, request::send};
use crate::{
    agent::Post,
    chance,
    clock::{self, sleep, timeout},
    domain::{
        message::{AlertNotice, DeliveryResult, Message, Sender},
        values::Backoff,
    },
    store::{Diagnosis, Health, NextMessage, QueueClaim, StoreFault},
};

/// The most attempts of one alert at one webhook.
const MOST_ATTEMPTS: u32 = 8;
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_secs(32));
/// The timeout of one attempt: a receiver whose response never ends delays later alerts by no more.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(20);

/// Posts the changes of the store's health.
pub struct StoreAlerts {
    pub health: Health,
    pub sender: Arc<ArcSwap<Sender>>,
    pub receivers: Arc<ArcSwap<Receivers>>,
    pub post: Post,
}

impl StoreAlerts {
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.post_changes()).await;
    }

    async fn post_changes(self) {
        let mut changes = self.health.subscribe();
        let mut open: Vec<(StoreFault, AlertNotice)> = Vec::new();
        loop {
            let faults = self.health.faults();
            let is_over = |fault| !faults.iter().any(|found| found.fault == fault);
            for (_, notice) in open.extract_if(.., |(fault, _)| is_over(*fault)) {
                self.publish(&notice.closed(clock::wall())).await;
            }
            for found in &faults {
                if !open.iter().any(|(fault, _)| *fault == found.fault) {
                    let notice = notice(found);
                    self.publish(&notice).await;
                    open.push((found.fault, notice));
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn publish(&self, notice: &AlertNotice) {
        // The clock of the store, which is used elsewhere, may be unavailable now.
        let now = clock::wall();
        let messages = self.sender.load().alert(notice, 0, now, chance::id);
        let deliveries = messages.into_iter().map(|message| self.deliver(message));
        futures::future::join_all(deliveries).await;
    }

    async fn deliver(&self, message: Message) {
        for tries in 1..=MOST_ATTEMPTS {
            let reason = match self.attempt_delivery(&message, tries).await {
                DeliveryResult::Delivered => {
                    info!(receiver = %message.receiver, kind = message.kind, "delivered an alert about the store");
                    return;
                }
                DeliveryResult::Failed { .. } if tries < MOST_ATTEMPTS => {
                    sleep(BACKOFF.wait(tries)).await;
                    continue;
                }
                DeliveryResult::Failed { reason, .. } | DeliveryResult::Refused { reason } => {
                    reason
                }
            };
            warn!(receiver = %message.receiver, kind = message.kind, tries, reason, "could not deliver an alert about the store");
            return;
        }
    }

    async fn attempt_delivery(&self, message: &Message, tries: u32) -> DeliveryResult {
        let claim = QueueClaim {
            receiver: message.receiver.clone(),
            subject: message.subject,
            destination: message.destination(),
            is_probe: false,
            tries,
            since: message.at,
        };
        let head = NextMessage {
            id: message.id,
            kind: message.kind.clone(),
            url: message.url.clone(),
            body: message.body.clone(),
            created_at: message.at,
        };
        let receivers = self.receivers.load_full();
        let tried = send(&receivers, &self.post, &claim, head, clock::wall());
        match timeout(ATTEMPT_WITHIN, tried).await {
            Ok((result, _)) => result,
            Err(_) => DeliveryResult::Failed {
                reason: format!("it took longer than {ATTEMPT_WITHIN:?}"),
                retry_after: None,
                receiver_failing: true,
            },
        }
    }
}

fn notice(found: &Diagnosis) -> AlertNotice {
    let kind = format!("store.{}", found.fault.as_str());
    AlertNotice::raised(chance::id(), &kind, &found.detail, clock::wall())
}

//! Alerts about the store itself: posted to the alert webhooks at once and past the outbox, because the outbox
//! is in the store. They are kept in memory only: a process that ends has told what it could.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::{Receivers, request::send};
use crate::{
    agent::Post,
    domain::{AlertNotice, DeliveryResult, Message, Sender, Timestamp},
    store::{Diagnosis, Head, Health, Held, StoreFault},
};

/// How often a webhook is asked to take one alert, with waits that double from the first.
const TRIES: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// A receiver that drips its answer holds up later alerts for no longer.
const TRY_WITHIN: Duration = Duration::from_secs(20);

/// Posts what becomes of the store's health.
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
                self.tell(&notice.closed(now())).await;
            }
            for found in &faults {
                if !open.iter().any(|(fault, _)| *fault == found.fault) {
                    let notice = notice(found);
                    self.tell(&notice).await;
                    open.push((found.fault, notice));
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn tell(&self, notice: &AlertNotice) {
        let messages = self.sender.load().alert(notice, 0, now(), Uuid::now_v7);
        let told = messages.into_iter().map(|message| self.insist(message));
        futures::future::join_all(told).await;
    }

    async fn insist(&self, message: Message) {
        let mut wait = FIRST_WAIT;
        for tries in 1..=TRIES {
            let reason = match self.try_once(&message, tries).await {
                DeliveryResult::Delivered => {
                    info!(receiver = %message.receiver, kind = message.kind, "an alert about the store was delivered");
                    return;
                }
                DeliveryResult::Failed { .. } if tries < TRIES => {
                    sleep(wait).await;
                    wait *= 2;
                    continue;
                }
                DeliveryResult::Failed { reason, .. } | DeliveryResult::Refused { reason } => {
                    reason
                }
            };
            warn!(receiver = %message.receiver, kind = message.kind, tries, reason, "an alert about the store could not be delivered");
            return;
        }
    }

    async fn try_once(&self, message: &Message, tries: u32) -> DeliveryResult {
        let held = Held {
            receiver: message.receiver.clone(),
            subject: message.subject,
            destination: message.destination(),
            is_probe: false,
            tries,
            since: message.at,
        };
        let head = Head {
            id: message.id,
            kind: message.kind.clone(),
            url: message.url.clone(),
            body: message.body.clone(),
            created_at: message.at,
        };
        let receivers = self.receivers.load_full();
        let tried = send(&receivers, &self.post, &held, head, now());
        timeout(TRY_WITHIN, tried)
            .await
            .unwrap_or_else(|_| DeliveryResult::Failed {
                reason: format!("it took longer than {TRY_WITHIN:?}"),
                retry_after: None,
                receiver_failing: true,
            })
    }
}

fn notice(found: &Diagnosis) -> AlertNotice {
    let kind = format!("store.{}", found.fault.as_str());
    AlertNotice::raised(Uuid::now_v7(), &kind, &found.detail, now())
}

/// The store, whose clock counts elsewhere, may not be asked now.
fn now() -> Timestamp {
    Timestamp::from_millis(jiff::Timestamp::now().as_millisecond())
}

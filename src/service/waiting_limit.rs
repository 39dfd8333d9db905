//! Counts the bytes of messages that wait for each receiver. Where they are too many, this instance writes the next ones without
//! payloads, and an alert says so. Every instance counts for itself, and the alert is the same for all.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    config::DeliveryConfig,
    domain::{ReceiverName, Sender, full_receivers},
    instance::Hold,
    store::{Store, StoreError},
};

/// The number of polls between two counts.
const POLLS: u32 = 10;
/// A count takes longer the more messages wait: it takes one part in so many of the time.
const REST: u32 = 20;

pub(super) struct WaitingLimit {
    store: Store,
    sender: Arc<ArcSwap<Sender>>,
    hold: Arc<Hold>,
    most: u64,
    interval: Duration,
    /// Alerts of an earlier process may be open.
    is_new: bool,
}

impl WaitingLimit {
    pub fn new(
        config: &DeliveryConfig,
        store: &Store,
        sender: &Arc<ArcSwap<Sender>>,
        hold: &Arc<Hold>,
    ) -> Self {
        Self {
            store: store.clone(),
            sender: sender.clone(),
            hold: hold.clone(),
            most: config.max_waiting_bytes.as_u64(),
            interval: config.poll.duration() * POLLS,
            is_new: true,
        }
    }

    async fn report(
        &mut self,
        before: &BTreeSet<ReceiverName>,
        full: &BTreeSet<ReceiverName>,
    ) -> Result<(), StoreError> {
        if self.hold.is_held() {
            return Ok(());
        }
        let mut closed: BTreeSet<_> = before.difference(full).cloned().collect();
        if self.is_new {
            let open = self.store.housekeeping.alerts_of_waiting().await?;
            closed.extend(open.into_iter().filter(|receiver| !full.contains(receiver)));
        }
        for receiver in full.difference(before) {
            let most = Some(self.most);
            self.store.report_waiting(receiver.clone(), most).await?;
        }
        for receiver in closed {
            self.store.report_waiting(receiver, None).await?;
        }
        self.is_new = false;
        Ok(())
    }
}

impl PeriodicLoop for WaitingLimit {
    const NAME: &'static str = "waiting messages";

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let begun = Instant::now();
        // Only receivers that may be full are counted: at half of the bound one ceases to be.
        let counted = self.store.housekeeping.waiting_bytes(self.most / 2).await?;
        let waiting: BTreeMap<_, _> = counted.into_iter().collect();
        let took = begun.elapsed();
        let before = self.sender.load().full.clone();
        let full = full_receivers(&waiting, &before, self.most);
        if full != *before || self.is_new {
            self.report(&before, &full).await?;
            let full = Arc::new(full);
            self.sender.rcu(|sender| Sender {
                full: full.clone(),
                ..Sender::clone(sender)
            });
        }
        Ok(NextRound::After(self.interval.max(took * REST)))
    }
}

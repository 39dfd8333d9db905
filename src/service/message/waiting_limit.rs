//! Counts the bytes of messages that wait for each receiver. If they are too many, this instance writes further ones
//! without payloads, and an alert reports that. Every instance counts on its own, and the alert is the same for all.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    clock,
    config::DeliveryConfig,
    domain::{
        message::{Sender, full_receivers},
        values::ReceiverName,
    },
    instance::Hold,
    store::{Store, StoreError},
};

/// The number of polls between two counts.
const POLLS: u32 = 10;
/// The minimum rest after a count, as a multiple of its duration, because a count takes longer the more messages wait.
const REST: u32 = 20;

pub(in crate::service) struct WaitingLimit {
    store: Store,
    sender: Arc<ArcSwap<Sender>>,
    hold: Arc<Hold>,
    most: u64,
    interval: Duration,
    /// True until the first report, because alerts of an earlier process may be open.
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
        let begun = clock::instant();
        // Only receivers that may be full are counted. A full receiver ceases to be full at half of the bound.
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

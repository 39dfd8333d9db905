//! Requests of the delivery loop and of operators, each in a transaction of its own: it locks queues, which a batch of
//! commands locks only after its tasks, and waits for no task.

use std::sync::Arc;

use futures::FutureExt;

use super::Store;
use crate::{
    domain::{
        message::MessageAction,
        task::AttemptExchange,
        values::{Attempt, InstanceId, ReceiverName, Span, StepRef, Timestamp},
    },
    store::{ClaimRequest, ClaimResponse, MessageId, StoreError},
};

impl Store {
    /// Releases queues and claims others, for at most `hold`.
    pub async fn claim_queues(
        &self,
        request: ClaimRequest,
        by: InstanceId,
        hold: Span,
    ) -> Result<ClaimResponse, StoreError> {
        let (claim, sender) = (Arc::new((request, by)), self.sender.clone());
        self.send_write(true, None, move |tx| {
            let (claim, sender) = (claim.clone(), sender.load_full());
            async move {
                let (request, by) = &*claim;
                let until = tx.now() + hold;
                tx.claim_queues(request, by, until, &sender).await
            }
            .boxed()
        })
        .await
    }

    /// Raises the alert of a message broker that cannot be used, with the reason, or closes it.
    pub async fn report_broker(
        &self,
        broker: String,
        reason: Option<String>,
    ) -> Result<(), StoreError> {
        let (report, sender) = (Arc::new((broker, reason)), self.sender.clone());
        let wakes = Some(self.outbox.clone());
        self.send_write(true, wakes, move |tx| {
            let (report, sender) = (report.clone(), sender.load_full());
            async move {
                let (broker, reason) = &*report;
                tx.report_broker(broker, reason.as_deref(), &sender).await
            }
            .boxed()
        })
        .await
    }

    /// Raises the alert of a receiver for which more than `most` bytes wait, or closes it.
    pub async fn report_waiting(
        &self,
        receiver: ReceiverName,
        most: Option<u64>,
    ) -> Result<(), StoreError> {
        let (receiver, sender) = (Arc::new(receiver), self.sender.clone());
        let wakes = Some(self.outbox.clone());
        self.send_write(true, wakes, move |tx| {
            let (receiver, sender) = (receiver.clone(), sender.load_full());
            async move { tx.report_waiting(&receiver, most, &sender).await }.boxed()
        })
        .await
    }

    /// Returns the messages that exist and whose state allows the action.
    pub async fn apply_message_action(
        &self,
        action: MessageAction,
        ids: Vec<MessageId>,
    ) -> Result<Vec<MessageId>, StoreError> {
        // Redelivered messages are due, and if no dead letters are left, their alert is closed.
        let wakes = Some(self.outbox.clone());
        let origin = self.origin();
        self.send_write(true, wakes, move |tx| {
            let (ids, origin) = (ids.clone(), origin.clone());
            async move { tx.apply_message_action(action, &ids, &origin).await }.boxed()
        })
        .await
    }

    /// Releases the queues that `by` claimed, or all queues if the process that claimed them has ended.
    pub async fn release_queues(&self, by: Option<InstanceId>) -> Result<u64, StoreError> {
        self.send_write(true, None, move |tx| {
            let by = by.clone();
            async move { tx.release_queues(by.as_ref()).await }.boxed()
        })
        .await
    }

    /// Deletes up to `limit` dead letters that died before `died_before`.
    pub async fn purge_dead_letters(
        &self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            tx.purge_dead_letters(died_before, limit).boxed()
        })
        .await
    }

    /// Saves the samples of attempts that have succeeded since the last time.
    pub async fn save_samples(&self) -> Result<(), StoreError> {
        let samples: Arc<[_]> = self.samples.take().into();
        if samples.is_empty() {
            return Ok(());
        }
        let limits = self.record.while_stored_in(&self.health);
        self.send_write(true, None, move |tx| {
            let samples = samples.clone();
            async move { tx.save_samples(&samples, limits).await }.boxed()
        })
        .await
    }

    /// Adds what its instance has sent to the record of an attempt that has ended without a response. Returns false if
    /// the attempt is not recorded yet.
    pub async fn complete_attempt(
        &self,
        step: StepRef,
        attempt: Attempt,
        exchange: Box<AttemptExchange>,
    ) -> Result<bool, StoreError> {
        let limits = self.record.while_stored_in(&self.health);
        let exchange = Arc::new(*exchange);
        self.send_write(true, None, move |tx| {
            let exchange = exchange.clone();
            async move { tx.complete_attempt(step, attempt, &exchange, limits).await }.boxed()
        })
        .await
    }

    /// Deletes up to `limit` recorded attempts that ended before a time; with `succeeded`, only those that succeeded.
    pub async fn purge_attempts(
        &self,
        ended_before: Timestamp,
        succeeded: bool,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.send_write(true, None, move |tx| {
            tx.purge_attempts(ended_before, succeeded, limit).boxed()
        })
        .await
    }

    /// Deletes up to `limit` destinations without a backlog that last failed before `failed_before`.
    pub async fn purge_destinations(
        &self,
        failed_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.send_write(true, None, move |tx| {
            tx.purge_destinations(failed_before, limit).boxed()
        })
        .await
    }
}

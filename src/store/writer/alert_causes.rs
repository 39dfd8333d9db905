//! Keeps the alerts of causes up to date: [`Store::maintain_causes`].

use std::sync::Arc;

use futures::FutureExt;
use tracing::info;

use crate::{
    domain::task::{announcement, recount_after},
    store::{COUNTED_AT_ONCE, CausesSeen, FailuresSeen, Store, StoreError, UnclosedCause},
};

impl Store {
    /// Closes alerts of causes that have no step left and were locked when the last one was closed, counts the steps of
    /// other causes, and notifies webhooks of those that have grown. Reads the next alerts that are not closed, and
    /// returns how many it has found.
    pub async fn maintain_causes(&self, seen: &mut CausesSeen) -> Result<usize, StoreError> {
        let reader = &self.housekeeping;
        if !reader.has_unclosed_cause().await? {
            seen.begin_again();
            return Ok(0);
        }
        let (causes, now) = reader.unclosed_causes(seen).await?;
        let unclosed = causes.len();
        for mut cause in causes {
            if cause.count == 0 {
                self.close_cause(cause).await?;
                continue;
            }
            let counted = cause
                .counted_at
                .is_some_and(|counted_at| now < counted_at + recount_after(cause.members).into());
            let is_large = cause.count >= COUNTED_AT_ONCE;
            if is_large && counted {
                continue;
            }
            if is_large {
                cause.count = reader.count_of_cause(cause.id).await?;
            }
            let announce = announcement(cause.count, cause.announced);
            if announce.is_some() || is_large {
                self.update_cause(cause, announce).await?;
            }
        }
        Ok(unclosed)
    }

    /// Deletes those of the next closed alerts of causes whose tasks have all been deleted. Returns how many.
    pub async fn purge_causes(&self, seen: &mut CausesSeen) -> Result<u64, StoreError> {
        let causes: Arc<[_]> = self.housekeeping.causes_to_purge(seen).await?.into();
        if causes.is_empty() {
            return Ok(0);
        }
        self.send_write(true, None, move |tx| {
            let causes = causes.clone();
            async move { tx.purge_causes(&causes).await }.boxed()
        })
        .await
    }

    /// Gives causes to the next alerts that have none, because an earlier release raised them. Returns how many it has
    /// found.
    pub async fn name_failures(&self, seen: &mut FailuresSeen) -> Result<usize, StoreError> {
        let unnamed: Arc<[_]> = self.housekeeping.unnamed_failures(seen).await?.into();
        if unnamed.is_empty() {
            return Ok(0);
        }
        let found = unnamed.len();
        self.send_write(true, None, move |tx| {
            let unnamed = unnamed.clone();
            async move { tx.name_failures(&unnamed).await }.boxed()
        })
        .await?;
        Ok(found)
    }

    /// Moves the counts of old quarters to their causes, and deletes causes that have not occurred for a long time.
    /// Returns the number of rows that it deleted, at most `limit` of each table.
    pub async fn purge_failures(&self, limit: usize) -> Result<u64, StoreError> {
        if !self.housekeeping.has_old_failures().await? {
            return Ok(0);
        }
        self.send_write(true, None, move |tx| tx.purge_failures(limit).boxed())
            .await
    }

    async fn close_cause(&self, cause: UnclosedCause) -> Result<(), StoreError> {
        let sender = self.sender.clone();
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let sender = sender.load_full();
            async move { tx.close_cause(cause.id, &sender).await }.boxed()
        })
        .await
    }

    async fn update_cause(
        &self,
        cause: UnclosedCause,
        announce: Option<u64>,
    ) -> Result<(), StoreError> {
        if announce.is_some() {
            info!(alert = %cause.id, steps = cause.count, "more steps are in error for the cause of an alert");
        }
        let sender = self.sender.clone();
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (cause, sender) = (cause.clone(), sender.load_full());
            async move { tx.update_cause(&cause, announce, &sender).await }.boxed()
        })
        .await
    }
}

//! The supervisor finds steps that have passed their complete-by, and steps that a lost instance held, and requests
//! their recovery. It decides nothing: the domain decides the consequences of an expiry. Every instance has a
//! supervisor; only the one that holds the lease looks.

use std::sync::Arc;

use futures::future::join_all;
use tracing::debug;

use crate::{
    clock,
    domain::{
        task::{Actor, Command},
        values::{InstanceId, TaskId, Term},
    },
    instance::LocalLease,
    store::{Apply, CommandError, DueSummary, ExpiredStep, Store, StoreError, Submitted},
};

pub struct Supervisor {
    store: Store,
    instance: InstanceId,
    local_lease: Arc<LocalLease>,
    /// The most steps, and the most tasks, in one batch.
    batch: usize,
}

impl Supervisor {
    pub fn new(
        store: Store,
        instance: InstanceId,
        local_lease: Arc<LocalLease>,
        batch: usize,
    ) -> Self {
        Self {
            store,
            instance,
            local_lease,
            batch,
        }
    }

    /// Returns the work that is due in the store, or `None` if this instance does not supervise.
    pub async fn due(&self) -> Result<Option<DueSummary>, StoreError> {
        if self.local_lease.term(clock::instant()).is_none() {
            return Ok(None);
        }
        let due = self.store.housekeeping.due_summary(&self.instance);
        due.await.map(Some)
    }

    /// Looks once, in batches: a full batch is followed by another one while this instance supervises. Returns how
    /// many recoveries were requested.
    pub async fn recover_expired(&self) -> Result<usize, StoreError> {
        let mut recovered = 0;
        while let Some(term) = self.local_lease.term(clock::instant()) {
            let expired = self.find().await?;
            let full = expired.len() >= self.batch;
            let done = self.recover(term, expired).await?;
            recovered += done;
            if !full || done == 0 {
                break;
            }
        }
        while let Some(term) = self.local_lease.term(clock::instant()) {
            let most = self.batch + self.store.resting();
            let mut overdue = self.store.housekeeping.overdue(most).await?;
            overdue.retain(|task| !self.store.rests(*task));
            let full = overdue.len() >= self.batch;
            let asked = overdue.into_iter().map(|task| (task, Command::Overdue));
            let done = self.ask(term, asked).await?;
            recovered += done;
            if !full || done == 0 {
                break;
            }
        }
        if recovered > 0 {
            debug!(recovered, "requested a recovery");
        }
        Ok(recovered)
    }

    /// Returns the steps that must be recovered now.
    pub async fn find(&self) -> Result<Vec<ExpiredStep>, StoreError> {
        let most = self.batch + self.store.resting();
        let found = self.store.housekeeping.expired(&self.instance, most);
        let mut expired = found.await?;
        expired.retain(|expired| !self.store.rests(expired.step.task));
        Ok(expired)
    }

    /// Requests the recovery of the attempts that were found. If an attempt is over by now, because another supervisor
    /// was faster or its reply came, the request changes nothing.
    pub async fn recover(
        &self,
        term: Term,
        expired: Vec<ExpiredStep>,
    ) -> Result<usize, StoreError> {
        let asked = expired.into_iter().map(|expired| {
            let command = Command::Expire {
                step: expired.step.step,
                attempt: expired.attempt,
                cause: expired.cause,
            };
            (expired.step.task, command)
        });
        self.ask(term, asked).await
    }

    /// Sends the commands. Returns how many were accepted.
    async fn ask(
        &self,
        term: Term,
        commands: impl Iterator<Item = (TaskId, Command)>,
    ) -> Result<usize, StoreError> {
        let by = Actor::supervisor(self.instance.as_str(), term);
        let asked =
            commands.map(|(task, command)| self.store.apply(Apply::new(task, command, by.clone())));
        succeeded(join_all(asked).await)
    }
}

/// Returns how many commands were accepted. A refusal is no fault, because the step may have changed since it was
/// found. A decision that panicked, or a task that cannot be read, has an alert, and must not delay the others.
fn succeeded(outcomes: Vec<Result<Submitted, CommandError>>) -> Result<usize, StoreError> {
    let mut accepted = 0;
    for outcome in outcomes {
        match outcome {
            Ok(_) => accepted += 1,
            Err(CommandError::Store(error)) if !error.is_of_one_task() => {
                return Err(error);
            }
            Err(refused) => debug!(%refused, "a recovery was no longer needed"),
        }
    }
    Ok(accepted)
}

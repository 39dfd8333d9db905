//! The supervisor: finds what timed out and asks for it to be recovered (P22 to P26). It decides
//! nothing: what an expiry means is the domain's to say.

use futures::future::join_all;
use tracing::{debug, warn};

use crate::{
    domain::{Actor, Command, InstanceId, TaskId},
    store::{Accepted, Apply, CommandError, Store, StoreError},
};

pub struct Supervisor {
    store: Store,
    by: Actor,
    /// The most steps, and the most tasks, looked at in one go.
    batch: usize,
}

impl Supervisor {
    pub fn new(store: Store, instance: &InstanceId, batch: usize) -> Self {
        Self {
            store,
            by: Actor::supervisor(instance.as_str()),
            batch,
        }
    }

    /// Looks once, batch after batch while there is a full one; answers how many were recovered.
    pub async fn look(&self) -> Result<usize, StoreError> {
        let mut recovered = 0;
        loop {
            let expired = self.store.reader.expired(self.batch).await?;
            let full = expired.len() == self.batch;
            let asked = expired.into_iter().map(|(step, attempt)| {
                self.ask(
                    step.task,
                    Command::Expire {
                        step: step.step,
                        attempt,
                    },
                )
            });
            let done = succeeded(join_all(asked).await)?;
            recovered += done;
            if !full || done == 0 {
                break;
            }
        }
        loop {
            let overdue = self.store.reader.overdue(self.batch).await?;
            let full = overdue.len() == self.batch;
            let asked = overdue
                .into_iter()
                .map(|task| self.ask(task, Command::Overdue));
            let done = succeeded(join_all(asked).await)?;
            recovered += done;
            if !full || done == 0 {
                break;
            }
        }
        if recovered > 0 {
            debug!(recovered, "asked for recovery");
        }
        Ok(recovered)
    }

    async fn ask(&self, task: TaskId, command: Command) -> Result<Accepted, CommandError> {
        let asked = self.store.apply(Apply {
            task,
            command,
            by: self.by.clone(),
            if_version: None,
            idempotency: None,
        });
        asked.await
    }
}

/// How many were accepted. A refusal is no fault: the step moved on between the look and the ask.
fn succeeded(outcomes: Vec<Result<Accepted, CommandError>>) -> Result<usize, StoreError> {
    let mut accepted = 0;
    for outcome in outcomes {
        match outcome {
            Ok(_) => accepted += 1,
            Err(CommandError::Store(error)) => return Err(error),
            Err(refused) => warn!(%refused, "a recovery was no longer needed"),
        }
    }
    Ok(accepted)
}

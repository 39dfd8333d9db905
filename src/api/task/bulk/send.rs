//! Sends the commands of a job. Each has an idempotency key of the job and the task: an instance that repeats a batch,
//! because another one was killed in it or has lost its lease, changes no task twice, and learns which tasks had accepted
//! the command.

use futures::future::join_all;

use super::outcome::outcome;
use crate::{
    api::App,
    domain::{
        task::{Actor, BulkOutcome, Command},
        values::TaskId,
    },
    store::{Apply, BulkJobId, CommandError, Idempotency, Store, StoreError},
};

/// A job at an instance.
pub(super) struct JobRun<'r> {
    pub app: &'r App,
    /// The store for the loops, whose requests wait as long as necessary.
    pub store: &'r Store,
    pub job: BulkJobId,
    /// The operator in the history of each task.
    pub by: Actor,
}

impl JobRun<'_> {
    /// Sends the commands to the writer, which saves them together. If another instance or operator has changed a task
    /// first, its state refuses the command. After an error of the store some of the commands may have been saved.
    pub async fn send(
        &self,
        commands: Vec<(TaskId, Command)>,
    ) -> Result<Vec<BulkOutcome>, StoreError> {
        let sent = commands.into_iter().map(async |(task, command)| {
            let key = Idempotency {
                key: self.job.key_of(task),
                fingerprint: "bulk".to_owned(),
            };
            let apply = Apply::new(task, command, self.by.clone()).under_key(Some(key));
            // Tasks may be large: each one is dropped at once.
            (task, self.store.apply(apply).await.map(drop))
        });
        let mut outcomes = Vec::new();
        for (task, result) in join_all(sent).await {
            match result {
                Err(CommandError::Store(error)) if !error.is_of_one_task() => return Err(error),
                result => outcomes.push(outcome(task, result)),
            }
        }
        Ok(outcomes)
    }
}

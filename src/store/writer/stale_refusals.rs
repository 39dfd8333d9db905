//! Refusals by cached tasks that may be stale, where other instances share the store. A save compares the
//! version of a cached task that accepts a command with the record. A refusal is saved nowhere, and a stale task
//! would refuse the same command for ever: so its version is compared with the record before the caller is answered.

use crate::{
    domain::TaskId,
    store::{Batch, StoreError, Transaction},
};

/// Cached tasks that refused something, with the versions they were cached at.
#[derive(Default)]
pub(super) struct StaleRefusals(Vec<(TaskId, u64)>);

impl StaleRefusals {
    pub fn add(&mut self, task: TaskId, version: u64) {
        self.0.push((task, version));
    }

    /// The tasks that another instance has changed or deleted.
    pub async fn stale_tasks(
        &self,
        batch: &Batch,
        tx: &mut Transaction<'_>,
    ) -> Result<Vec<TaskId>, StoreError> {
        let saved = |id| batch.changes.binary_search_by_key(id, |c| c.task.id());
        let unsaved = self.0.iter().filter(|(id, _)| saved(id).is_err());
        let mut suspects: Vec<_> = unsaved.copied().collect();
        suspects.sort_unstable();
        suspects.dedup();
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = suspects.iter().map(|(id, _)| *id).collect();
        // A task that cannot be read is not stale.
        let loaded = tx.load(&ids).await?;
        let (record, unreadable) = (loaded.tasks, loaded.unreadable);
        let as_cached = |(id, version): &(TaskId, u64)| {
            let task = record.iter().find(|task| task.id() == *id);
            task.is_some_and(|task| task.version == *version)
                || unreadable.iter().any(|unreadable| unreadable.task == *id)
        };
        let moved = suspects.into_iter().filter(|suspect| !as_cached(suspect));
        Ok(moved.map(|(id, _)| id).collect())
    }
}

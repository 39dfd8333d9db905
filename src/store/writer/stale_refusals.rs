//! Refusals by cached tasks that may be stale because other instances share the store. When a cached task accepts a
//! command, the save compares its version with the record. A refusal saves nothing, and a stale task would refuse the
//! same command for ever. So its version is compared with the record before the caller gets the refusal.

use crate::{
    domain::values::TaskId,
    store::{Batch, StoreError, Transaction},
};

/// Cached tasks that refused a command, with the versions at which they were cached.
#[derive(Default)]
pub(super) struct StaleRefusals(Vec<(TaskId, u64)>);

impl StaleRefusals {
    pub fn add(&mut self, task: TaskId, version: u64) {
        self.0.push((task, version));
    }

    /// Returns the tasks that another instance has changed or deleted.
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

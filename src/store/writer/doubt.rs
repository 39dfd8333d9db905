//! Refusals that cannot be believed where others share the store. What a cached task accepts is held against
//! the record when it is saved. What it refuses is saved nowhere, and a task that another instance has
//! moved on would refuse the same for ever: so it is held against the record before anybody hears of it.

use crate::{
    domain::TaskId,
    store::{Batch, StoreError, Transaction},
};

/// Cached tasks that refused something, with the versions they were cached at.
#[derive(Default)]
pub(super) struct Doubts(Vec<(TaskId, u64)>);

impl Doubts {
    pub fn add(&mut self, task: TaskId, version: u64) {
        self.0.push((task, version));
    }

    /// Those that have moved on by the record, or are gone.
    pub async fn justified(
        &self,
        batch: &Batch,
        tx: &mut dyn Transaction,
    ) -> Result<Vec<TaskId>, StoreError> {
        let saved = |id| batch.changes.binary_search_by_key(id, |c| c.task.id());
        let unsaved = self.0.iter().filter(|(id, _)| saved(id).is_err());
        let mut doubted: Vec<_> = unsaved.copied().collect();
        doubted.sort_unstable();
        doubted.dedup();
        if doubted.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = doubted.iter().map(|(id, _)| *id).collect();
        // One that cannot be read does not move on either.
        let loaded = tx.load(&ids).await?;
        let (record, unreadable) = (loaded.tasks, loaded.unreadable);
        let as_cached = |(id, version): &(TaskId, u64)| {
            let task = record.iter().find(|task| task.id() == *id);
            task.is_some_and(|task| task.version == *version)
                || unreadable.iter().any(|unreadable| unreadable.task == *id)
        };
        let moved = doubted.into_iter().filter(|doubt| !as_cached(doubt));
        Ok(moved.map(|(id, _)| id).collect())
    }
}

//! The store that ended tasks are deleted from: that of a running instance, a database without one, or none (a dry
//! run).

use std::collections::HashMap;

use async_trait::async_trait;

use crate::{
    domain::{
        task::TaskStatus,
        values::{TaskId, Timestamp, WorkflowName},
    },
    store::{
        Backend, EndedTask, Purged, SharedReader, Store, StoreConnections, StoreError,
        purge_and_commit,
    },
};

#[async_trait]
pub trait PurgeStore: Send {
    fn reader(&self) -> SharedReader;

    /// Deletes the tasks in `tasks` that ended before `ended_before`.
    async fn purge(
        &mut self,
        tasks: &[EndedTask],
        ended_before: Timestamp,
    ) -> Result<Purged, StoreError>;

    /// Deletes up to `limit` dead letters that died before `died_before`.
    async fn purge_dead_letters(
        &mut self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError>;
}

#[async_trait]
impl PurgeStore for Store {
    fn reader(&self) -> SharedReader {
        self.housekeeping.clone()
    }

    async fn purge(
        &mut self,
        tasks: &[EndedTask],
        ended_before: Timestamp,
    ) -> Result<Purged, StoreError> {
        Store::purge(self, ids(tasks), ended_before).await
    }

    async fn purge_dead_letters(
        &mut self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        Store::purge_dead_letters(self, died_before, limit).await
    }
}

/// A database without a writer in this process.
pub struct DirectStore {
    writers: Vec<Box<dyn Backend>>,
    pub reader: SharedReader,
}

impl DirectStore {
    pub fn new(connections: StoreConnections) -> Self {
        Self {
            writers: connections.writers,
            reader: connections.readers.housekeeping,
        }
    }

    fn writer(&mut self) -> Result<&mut Box<dyn Backend>, StoreError> {
        // The list of writers is never empty.
        self.writers.last_mut().ok_or(StoreError::Stopping)
    }
}

#[async_trait]
impl PurgeStore for DirectStore {
    fn reader(&self) -> SharedReader {
        self.reader.clone()
    }

    async fn purge(
        &mut self,
        tasks: &[EndedTask],
        ended_before: Timestamp,
    ) -> Result<Purged, StoreError> {
        purge_and_commit(self.writer()?.as_mut(), &ids(tasks), ended_before).await
    }

    async fn purge_dead_letters(
        &mut self,
        died_before: Timestamp,
        limit: usize,
    ) -> Result<u64, StoreError> {
        let mut tx = self.writer()?.begin().await?;
        let count = tx.purge_dead_letters(died_before, limit).await?;
        tx.commit().await?;
        Ok(count)
    }
}

/// The workflow of a task, if it has one, and how the task ended.
pub type EndedKind = (Option<WorkflowName>, TaskStatus);

/// Counts the tasks that would be deleted.
pub struct DryRun {
    pub reader: SharedReader,
    pub kinds: HashMap<EndedKind, u64>,
}

#[async_trait]
impl PurgeStore for DryRun {
    fn reader(&self) -> SharedReader {
        self.reader.clone()
    }

    async fn purge(&mut self, tasks: &[EndedTask], _: Timestamp) -> Result<Purged, StoreError> {
        for task in tasks {
            if let Some(kind) = &task.kind {
                *self.kinds.entry(kind.clone()).or_default() += 1;
            }
        }
        Ok(Purged {
            tasks: tasks.len() as u64,
            ..Purged::default()
        })
    }

    async fn purge_dead_letters(&mut self, _: Timestamp, _: usize) -> Result<u64, StoreError> {
        Ok(0)
    }
}

fn ids(tasks: &[EndedTask]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.ended.task).collect()
}

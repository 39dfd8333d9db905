//! The state store: loads aggregates, applies commands through [`crate::domain`], saves the changes.
//! SQL lives in this room and nowhere else; rules of the pattern never do.
//!
//! All changes go through one writer that saves whatever has arrived in one transaction
//! ([`writer`]); reads go around it ([`Reader`]). A backend is the SQL of one database behind
//! [`Backend`], [`Transaction`] and [`Reader`].

mod batch;
#[cfg(test)]
pub mod conformance;
mod definitions;
mod ended;
mod error;
mod health;
mod leases;
mod local;
mod looks;
mod metrics;
mod open;
mod outbox;
mod pages;
pub mod postgres;
mod query;
mod reading;
mod record;
mod rows;
mod salvage;
pub mod sqlite;
mod watch;
mod writer;

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use tokio::time::Instant;

pub use batch::{Batch, Saved};
pub use definitions::Definitions;
pub use ended::EndedCount;
pub use error::{CommandError, StoreError, UnreadableTask};
pub use health::{Diagnosis, Health, StoreFault};
pub use local::{Dispatch, LocalScheduler, Permit};
pub use looks::Look;
pub use open::OpenError;
pub use outbox::{
    BacklogExpiry, ClaimRequest, ClaimResponse, DueWork, MessageAction, NextMessage, Outbox,
    QueueClaim, QueueHead, QueueRelease, ReleaseReason,
};
pub use pages::{MOST_LOOKED_AT, TaskPage};
pub use query::*;
pub use rows::Loaded;
pub use salvage::Salvage;
pub use watch::{Interest, Watch, Watchers};
pub use writer::{
    Apply, CacheLimits, Idempotency, RegisterError, Registered, Renewed, Store, Submitted,
    WriterSettings, purge_and_commit,
};

use crate::domain::{
    AgentName, AgentSpec, Attempt, FileSpace, InstanceId, Leases, StepIndex, StepRef, Task, TaskId,
    Timestamp, WorkflowName,
};

/// One database, opened for writing by this process.
#[async_trait]
pub trait Backend: Send + 'static {
    /// Begins a transaction that may write. Its time is the store's clock.
    async fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, StoreError>;

    /// A transaction failed for this reason, and nothing tries it again: the store's health may have changed.
    fn failed(&self, _error: &StoreError) {}

    /// Whether other processes may use the same database meanwhile. If not, whatever other instances
    /// left behind is over, and what they held is an orphan.
    fn is_shared(&self) -> bool;

    /// The same database on another connection, for batches that are saved beside the others: once, where
    /// there can be two writers.
    fn beside(&mut self) -> Option<Box<dyn Backend>> {
        None
    }

    /// The same database on another connection, for leases: once, where there can be two.
    fn for_leases(&mut self) -> Option<Box<dyn Backend>> {
        None
    }

    /// The same database on another connection, for deleting what ended: once, where there can be two. It connects
    /// when it is first used.
    fn for_purging(&mut self) -> Option<Box<dyn Backend>> {
        None
    }

    /// Closes the connection, where it can be made again when it is used next.
    async fn disconnect(&mut self) {}
}

/// One transaction of the writer. Dropped without [`Transaction::commit`], it changes nothing.
#[async_trait]
pub trait Transaction: Outbox + Salvage {
    fn now(&self) -> Timestamp;

    /// A moment of this process's clock at which the store's had not gone beyond `now`: what is counted
    /// from here ends no later than what is counted from there.
    fn instant(&self) -> Instant;

    /// The tasks among `ids` that exist, in any order.
    async fn load(&mut self, ids: &[TaskId]) -> Result<Loaded, StoreError>;

    /// What each of the tasks among `ids` that exist takes once it is loaded, in bytes, as far as that can be said
    /// without reading it.
    async fn sizes(&mut self, ids: &[TaskId]) -> Result<HashMap<TaskId, usize>, StoreError>;

    /// The tasks that the idempotency keys among `keys` stand for.
    async fn idempotency(&mut self, keys: &[&str]) -> Result<Vec<KnownKey>, StoreError>;

    /// Up to `limit` steps at the head of an agent's queue, most important first.
    async fn queued(&mut self, agent: &AgentName, limit: usize)
    -> Result<Vec<StepRef>, StoreError>;

    /// Lets delayed steps whose time has come join their agents' queues, [`Promoted::MOST`] at once. Answers
    /// which agents have queued steps then, and when the next delayed step is due.
    async fn promote(&mut self) -> Result<Promoted, StoreError>;

    /// Lets one delayed step join its agent's queue, if its time has come.
    async fn promote_one(&mut self, step: StepRef) -> Result<(), StoreError>;

    /// Saves a batch, each task by compare-and-set on its version.
    async fn save(&mut self, batch: &Batch) -> Result<Saved, StoreError>;

    /// The latest version. What is decided by it here and put afterwards fails, or is decided anew, where
    /// another instance puts one at the same time.
    async fn latest_workflow(
        &mut self,
        name: &WorkflowName,
    ) -> Result<Option<WorkflowRecord>, StoreError>;
    /// Adds a version, of which there is none yet.
    async fn add_workflow(
        &mut self,
        name: &WorkflowName,
        version: u32,
        body: &str,
    ) -> Result<(), StoreError>;
    /// The specification that is registered under this name, as it is stored; locked until the transaction
    /// ends.
    async fn agent(&mut self, name: &AgentName) -> Result<Option<String>, StoreError>;
    async fn put_agent(&mut self, name: &AgentName, spec: &AgentSpec) -> Result<(), StoreError>;
    /// [`Transaction::put_agent`] where there is none; [`StoreError::Retryable`] where there is.
    async fn add_agent(&mut self, name: &AgentName, spec: &AgentSpec) -> Result<(), StoreError>;
    async fn delete_agent(&mut self, name: &AgentName) -> Result<bool, StoreError>;
    /// `None` where there is no such alert.
    async fn acknowledge(&mut self, alert: AlertId, by: &str) -> Result<Option<Alert>, StoreError>;
    /// Deletes those of these tasks that ended before `ended_before`, with all that belongs to them. Those that
    /// somebody else has locked are left for another time. Answers how many were deleted.
    async fn purge(&mut self, tasks: &[TaskId], ended_before: Timestamp)
    -> Result<u64, StoreError>;
    /// The record of one instance, and the supervisors' lease; neither has to be there yet. Read
    /// without locks: [`Transaction::save_leases`] compares. These three calls come in transactions
    /// of their own, so that what they lock is held for no longer than they take.
    async fn leases(&mut self, instance: &InstanceId) -> Result<Leases, StoreError>;

    /// Saves what differs between `before`, as it was read in this transaction, and `after`: each
    /// of the two by compare-and-set on the incarnation, the term and the end of its lease, or, where
    /// there was none, on there being none yet. If either does not match, [`Saved::Conflict`]: all is
    /// read and decided again, in a new transaction.
    async fn save_leases(&mut self, before: &Leases, after: &Leases) -> Result<Saved, StoreError>;

    /// Deletes the records of instances whose lease ended before `ended_before`.
    async fn forget_instances(&mut self, ended_before: Timestamp) -> Result<(), StoreError>;

    /// Gives up to so many free pages of a database file back to the disk, where the file was made for it. The file
    /// gets shorter when `-wal` is folded back. A server does this by itself.
    async fn give_back(&mut self, _pages: u32) -> Result<(), StoreError> {
        Ok(())
    }

    /// Writes something of no meaning, to show that the store can commit.
    async fn heartbeat(&mut self) -> Result<(), StoreError>;

    async fn commit(self: Box<Self>) -> Result<(), StoreError>;

    /// Saves a batch and commits. On [`Saved::Conflict`] nothing was committed.
    async fn save_and_commit(mut self: Box<Self>, batch: &Batch) -> Result<Saved, StoreError> {
        if self.save(batch).await? == Saved::Conflict {
            return Ok(Saved::Conflict);
        }
        self.commit().await?;
        Ok(Saved::All)
    }
}

/// Reads, each a consistent view of its own, never waiting for the writer.
#[async_trait]
pub trait Reader: Send + Sync + 'static {
    async fn now(&self) -> Result<Timestamp, StoreError>;
    /// As [`Reader::now`] was when the store was asked last, read on by this process's own clock: never waits,
    /// and is good to the second or better. `None` before the first time.
    fn estimated_now(&self) -> Option<Timestamp>;
    async fn task(&self, id: TaskId) -> Result<Option<Task>, StoreError>;
    /// The tasks among `ids` that exist, in any order.
    async fn tasks_of(&self, ids: &[TaskId]) -> Result<Loaded, StoreError>;
    /// Those of these tasks that another instance has moved beyond the version given.
    async fn newer(&self, known: &[(TaskId, u64)]) -> Result<Vec<Task>, StoreError>;
    async fn tasks(&self, query: &TaskQuery) -> Result<TaskPage, StoreError>;
    /// Ids only, oldest first: up to `limit` of what a bulk command works through. Looks at `most` tasks at most, and
    /// at [`MOST_LOOKED_AT`].
    async fn task_ids(
        &self,
        filter: &TaskFilter,
        after: Option<TaskId>,
        limit: usize,
        most: usize,
    ) -> Result<Look<Vec<TaskId>>, StoreError>;
    /// Counts them, as far as one look goes.
    async fn count_tasks(
        &self,
        filter: &TaskFilter,
        after: Option<TaskId>,
        most: usize,
    ) -> Result<Look<u64>, StoreError>;
    /// `None` where there is no such task; else the changes after version `after`, in order.
    async fn history(
        &self,
        id: TaskId,
        after: u64,
        limit: usize,
    ) -> Result<Option<Vec<Change>>, StoreError>;
    /// Delayed steps whose time has come, [`Promoted::MOST`] at once.
    async fn due(&self) -> Result<Vec<StepRef>, StoreError>;
    /// What a promotion would answer that moves nothing.
    async fn backlog(&self) -> Result<Promoted, StoreError>;
    /// The agents with queued steps.
    async fn queued_agents(&self) -> Result<Vec<AgentName>, StoreError>;
    /// How many steps of other tasks the queue of each of these agents holds before those of this task.
    /// The count of a queue ends at `limit`, and reads no more of it.
    async fn ahead(
        &self,
        task: &Task,
        agents: &[AgentName],
        limit: usize,
    ) -> Result<Vec<u64>, StoreError>;

    /// Running steps that are to be recovered, longest overdue first: those whose complete-by has
    /// passed, and those whose instance is lost: its lease has ended, or it has no record. Both are
    /// judged at one `now`; where both hold, the instance is lost. `asker` lives, or it could not
    /// ask: its own steps only expire by their complete-by.
    async fn expired(
        &self,
        asker: &InstanceId,
        limit: usize,
    ) -> Result<Vec<ExpiredStep>, StoreError>;
    /// Up to `limit` tasks that ended before `before`, longest ended first, beginning behind `after`. What they are
    /// is read only where it is asked for, as that needs more than an index.
    async fn ended(
        &self,
        after: Option<EndedAt>,
        before: Timestamp,
        limit: usize,
        with_kind: bool,
    ) -> Result<Vec<EndedTask>, StoreError>;
    /// Tasks whose own complete-by has passed.
    async fn overdue(&self, limit: usize) -> Result<Vec<TaskId>, StoreError>;
    /// Running steps in batches by id: those that `locked_by` holds, or where it is left out, all.
    async fn processing(
        &self,
        locked_by: Option<&InstanceId>,
        after: Option<StepRef>,
        limit: usize,
    ) -> Result<Vec<HeldStep>, StoreError>;
    /// An attempt, while its step is processing under it. Cheap: it comes before every retry of a call.
    async fn held(&self, step: StepRef, attempt: Attempt) -> Result<Option<HeldStep>, StoreError>;

    /// Every instance on record, by id, with how many steps it holds; and who supervises.
    async fn instances(&self) -> Result<Instances, StoreError>;

    async fn workflows(&self) -> Result<Vec<WorkflowRecord>, StoreError>;
    /// The latest version, or the one named.
    async fn workflow(
        &self,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<Option<WorkflowRecord>, StoreError>;
    async fn agents(&self) -> Result<Vec<AgentRecord>, StoreError>;
    async fn alerts(&self, query: &AlertQuery) -> Result<Vec<Alert>, StoreError>;
    /// The tasks that have an alert because the service could not decide on them, at a step, or not read them.
    async fn faults(&self) -> Result<Vec<(TaskId, Option<StepIndex>)>, StoreError>;

    /// What the delivery loop can do now, at most so many destinations of each kind, and when it can do more; with
    /// the receivers whose alert can be closed, if they are asked for.
    async fn due_work(&self, most: usize, with_resolved: bool) -> Result<DueWork, StoreError>;
    /// The first message of each of these queues.
    async fn next_messages(&self, claims: &[QueueClaim]) -> Result<Vec<QueueHead>, StoreError>;
    async fn messages(&self, query: &MessageQuery) -> Result<Vec<MessageRecord>, StoreError>;
    async fn counts(&self) -> Result<Counts, StoreError>;
    /// Counts one more page of ended tasks: so many at most.
    async fn count_ended(&self, so_far: EndedCount, limit: usize)
    -> Result<EndedCount, StoreError>;

    /// What a database file has; `None` of a server.
    async fn file_space(&self) -> Result<Option<FileSpace>, StoreError>;
    /// Writes what is in `-wal` into the database file, as far as nobody has to wait for it.
    async fn fold(&self) -> Result<(), StoreError>;
}

pub type SharedReader = Arc<dyn Reader>;

/// Who reads, each on connections of their own: however much callers ask for, and however long that takes,
/// it holds up nothing that keeps tasks moving.
#[derive(Clone)]
pub struct Readers {
    /// Of those who ask through the API, or wait there for a task.
    pub callers: SharedReader,
    /// Of the scheduler, the supervisor, the delivery loop and what else goes on by itself.
    pub housekeeping: SharedReader,
}

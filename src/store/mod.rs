//! The state store: loads aggregates, applies commands through [`crate::domain`], saves the changes. All SQL is in this
//! module; rules of the pattern never are.
//!
//! All changes go through one writer, which saves all commands that have arrived in one transaction ([`writer`]). Reads
//! do not go through it ([`Reader`]). A backend is the SQL of one database for [`Backend`], [`Transaction`] and
//! [`Reader`].

mod agent;
mod definition;
mod message;
mod queue;
mod schedule;
mod task;
mod upkeep;
mod view;

mod batch;
#[cfg(test)]
pub mod conformance;
mod error;
pub mod examine;
mod local;
mod metrics;
mod migrations;
mod multiply;
mod open;
pub mod postgres;
mod queries;
mod query;
mod record;
mod rows;
mod shared_feature;
mod source;
pub mod sqlite;
mod statement;
mod transaction;
mod writer;

use std::sync::Arc;

pub use agent::controls::{ControlRecord, ControlRequest, ControlResponse};
pub use agent::counted_steps::StepCounter;
pub use agent::missing::MOST_COUNTED;
pub use agent::operations::Operations;
use async_trait::async_trait;
pub use batch::{Batch, Saved};
pub use definition::activations::{Activation, ActivationError, ActivationRequest, ActiveWorkflow};
pub use definition::compiled::CompiledDefinitions;
pub use definition::inline::Validation;
pub use definition::stored_workflow::StoredWorkflow;
pub use error::{CommandError, StoreError, UnreadableTask};
pub use local::{Dispatch, LocalScheduler, SlotPermit};
pub use message::outbox::{
    BacklogExpiry, ClaimRequest, ClaimResponse, DueWork, NextMessage, QueueClaim, QueueHead,
    QueueRelease,
};
pub use multiply::{MANY_VALUES, MultiplyPlan};
pub use open::{OpenError, RECONNECT};
pub use queries::Reader;
pub use query::*;
pub use queue::lanes::may_begin;
pub use rows::Loaded;
pub use schedule::{
    CommandedSchedule, ScheduleCommand, ScheduleError, SchedulePut, ScheduleRecord, ScheduleSave,
};
pub use shared_feature::{SharedFeature, SharedFeatures};
pub use sqlite::StoreClock;
pub use task::alert_cause::{CausesSeen, UnclosedCause};
pub use task::ask::{AskQuery, ListedAsk};
pub use task::attempts::{AttemptQuery, RecordLimits};
pub use task::bulk_jobs::{BulkJobError, BulkJobRecord, DueBulkJob, NewBulkJob};
pub use task::bulk_tasks::{BulkTaskQuery, BulkTaskRow};
pub use task::child::ChildMark;
pub use task::due::DueSummary;
pub use task::ended::EndedCount;
pub use task::failure::{FAILURES_COUNTED, Failure, FailuresSeen};
pub use task::pages::{MOST_LOOKED_AT, TaskSummaries};
pub use task::search::Look;
pub use task::watch::{Follow, Watch, Watchers};
pub use transaction::{CommitError, Transaction};
pub use upkeep::console_sessions::ConsoleSession;
pub use upkeep::health::{Diagnosis, Health, StoreFault};
pub use upkeep::peers::Peers;
pub use view::activity::{ActivityMeter, HourActivity, hour_of};
pub use view::ledger::{LedgerContent, LedgerEntries, LedgerEntry, UnreadablePosition};
pub use view::ledger_readers::{LedgerReaderRecord, MOST_READERS, ReaderMove, ReaderMoved};
pub use view::ledger_retention::LedgerCutoff;
pub use view::ledger_watch::{LedgerFollow, LedgerWatch};
pub use view::overview::{CappedCount, MOST_IN_OVERVIEW};
pub use view::predictions::{CountedSteps, LimitedEnd, MOST_AT_RISK, PredictionChanges};
pub use view::workflow_usage::{MOST_OF_WORKFLOW, VersionCount, WorkflowUsage};
pub use writer::{
    Apply, CacheLimits, Idempotency, RegisterError, RegisteredVersion, Renewed, Store, Submitted,
    WaitingTasks, WriterSettings, purge_and_commit,
};

/// One database, opened for writing by this process.
#[async_trait]
pub trait Backend: Send + 'static {
    /// Begins a transaction that may write. Its time is the store's clock.
    async fn begin(&mut self) -> Result<Box<Transaction<'_>>, StoreError>;

    /// Notes that a transaction failed for this reason and is not retried: the store's health may have changed.
    fn failed(&self, _error: &StoreError) {}

    /// Closes the connection, if it can be made again at its next use.
    async fn disconnect(&mut self) {}
}

/// The connections of one opened database.
pub struct StoreConnections {
    /// At least one. Several committers save batches at the same time.
    pub writers: Vec<Box<dyn Backend>>,
    /// For leases, if they can have a connection of their own.
    pub leases: Option<Box<dyn Backend>>,
    /// For deleting ended tasks, if that can have a connection of its own. The connection is made when it is first
    /// used.
    pub purging: Option<Box<dyn Backend>>,
    pub readers: Readers,
    /// True if other processes may use the same database in the meantime. If false, all other instances have ended, and
    /// the steps that they held are orphans.
    pub is_shared: bool,
}

pub type SharedReader = Arc<Reader>;

/// The readers of callers and of the background loops, each on connections of their own, so that many or slow reads of
/// callers never delay the loops that keep tasks moving.
#[derive(Clone)]
pub struct Readers {
    /// For requests through the API, including those that wait for a task.
    pub callers: SharedReader,
    /// For the scheduler, the supervisor, the delivery loop and the other background loops.
    pub housekeeping: SharedReader,
}

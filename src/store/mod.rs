//! The state store: loads aggregates, applies commands through [`crate::domain`], saves the changes.
//! SQL lives in this room and nowhere else; rules of the pattern never do.
//!
//! All changes go through one writer that saves whatever has arrived in one transaction
//! ([`writer`]); reads go around it ([`Reader`]). A backend is the SQL of one database for
//! [`Backend`], [`Transaction`] and [`Reader`].

mod activations;
mod agent_checks;
mod agent_controls;
mod alert_causes;
mod alerts;
mod asks;
mod batch;
mod children;
mod clock;
#[cfg(test)]
pub mod conformance;
mod counted_steps;
mod counts;
mod definitions;
mod due;
mod ended;
mod error;
mod health;
mod inline_definitions;
mod lanes;
mod leases;
mod local;
mod looks;
mod metrics;
mod migrations;
mod missing_agents;
mod moved_tasks;
mod multiply;
mod open;
mod operations;
mod outbox;
mod pages;
mod peers;
pub mod postgres;
mod predictions;
mod progress;
mod queries;
mod query;
mod rate_buckets;
mod record;
mod rows;
mod salvage;
mod schedules;
mod shared_feature;
mod signalled;
mod slot_shares;
mod source;
pub mod sqlite;
mod statement;
mod step_limits;
mod stored_workflow;
mod task_limits;
mod transaction;
mod unusable_secrets;
mod watch;
mod workers;
mod workflow_meters;
mod writer;

use std::sync::Arc;

pub use activations::{Activation, ActivationError, ActivationRequest, ActiveWorkflow};
pub use agent_controls::{ControlRecord, ControlRequest, ControlResponse};
pub use alert_causes::{CausesSeen, UnclosedCause};
pub use asks::{AskQuery, ListedAsk};
use async_trait::async_trait;
pub use batch::{Batch, Saved};
pub use children::ChildMark;
pub use counted_steps::StepCounter;
pub use definitions::Definitions;
pub use due::DueSummary;
pub use ended::EndedCount;
pub use error::{CommandError, StoreError, UnreadableTask};
pub use health::{Diagnosis, Health, StoreFault};
pub use inline_definitions::Validation;
pub use lanes::may_begin;
pub use local::{Dispatch, LocalScheduler, SlotPermit};
pub use looks::Look;
pub use missing_agents::MOST_COUNTED;
pub use multiply::{MANY_VALUES, MultiplyPlan};
pub use open::{OpenError, RECONNECT};
pub use operations::Operations;
pub use outbox::{
    BacklogExpiry, ClaimRequest, ClaimResponse, DueWork, NextMessage, QueueClaim, QueueHead,
    QueueRelease,
};
pub use pages::{MOST_LOOKED_AT, TaskSummaries};
pub use peers::Peers;
pub use predictions::{CountedSteps, LimitedEnd, MOST_AT_RISK, PredictionChanges};
pub use queries::Reader;
pub use query::*;
pub use rows::Loaded;
pub use schedules::{
    CommandedSchedule, ScheduleCommand, ScheduleError, SchedulePut, ScheduleRecord, ScheduleSave,
};
pub use shared_feature::{SharedFeature, SharedFeatures};
pub use sqlite::StoreClock;
pub use stored_workflow::StoredWorkflow;
pub use transaction::{CommitError, Transaction};
pub use watch::{Follow, Watch, Watchers};
pub use writer::{
    Apply, CacheLimits, Idempotency, RegisterError, RegisteredVersion, Renewed, Store, Submitted,
    WaitingTasks, WriterSettings, purge_and_commit,
};

/// One database, opened for writing by this process.
#[async_trait]
pub trait Backend: Send + 'static {
    /// Begins a transaction that may write. Its time is the store's clock.
    async fn begin(&mut self) -> Result<Box<Transaction<'_>>, StoreError>;

    /// A transaction failed for this reason, and nothing tries it again: the store's health may have changed.
    fn failed(&self, _error: &StoreError) {}

    /// Closes the connection, where it can be made again when it is used next.
    async fn disconnect(&mut self) {}
}

/// The connections of one opened database.
pub struct StoreConnections {
    /// At least one. Several save batches at the same time.
    pub writers: Vec<Box<dyn Backend>>,
    /// For leases, where they can have a connection of their own.
    pub leases: Option<Box<dyn Backend>>,
    /// For deleting ended tasks, where that can have a connection of its own. It connects when it is first used.
    pub purging: Option<Box<dyn Backend>>,
    pub readers: Readers,
    /// Whether other processes may use the same database meanwhile. If not, all other instances have ended, and the
    /// steps that they held are orphans.
    pub is_shared: bool,
}

pub type SharedReader = Arc<Reader>;

/// Who reads, each on connections of their own: however much callers ask for, and however long that takes,
/// it holds up nothing that keeps tasks moving.
#[derive(Clone)]
pub struct Readers {
    /// Of those who ask through the API, or wait there for a task.
    pub callers: SharedReader,
    /// Of the scheduler, the supervisor, the delivery loop and the other background loops.
    pub housekeeping: SharedReader,
}

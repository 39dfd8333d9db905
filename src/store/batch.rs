//! The changes that one transaction saves.

use std::sync::Arc;

use tracing::info;
use uuid::Uuid;

use super::task::attempts::RecordLimits;

use crate::domain::{
    message::{AlertNotice, Message, Sender},
    task::{AlertChange, AskChange, AttemptRecord, Event, FailureCause, StepState, Task},
    values::{StepIndex, TaskId, Timestamp},
    view::LedgerRecord,
};

#[derive(Debug, Default)]
pub struct Batch {
    pub changes: Vec<TaskChange>,
    pub keys: Vec<NewKey>,
    /// The steps that must be compared with their children, in order and without duplicates.
    pub marks: Vec<(TaskId, StepIndex)>,
    /// The messages to submitters about the changes.
    pub messages: Vec<Message>,
    /// Makes the messages about alerts that are raised or closed.
    pub sender: Arc<Sender>,
    /// The limits of the record of attempts that have ended.
    pub record: RecordLimits,
    /// The commands of people on tasks, for the ledger.
    pub commands: Vec<LedgerRecord>,
}

/// All changes of one task in this batch.
#[derive(Debug)]
pub struct TaskChange {
    /// The task after the change; its version is `base` plus one.
    pub task: Arc<Task>,
    /// The version that must still be in the database. `None` if the task is new.
    pub base: Option<u64>,
    /// True if only the version of the task's own row changes.
    pub is_row_kept: bool,
    /// The number of steps that have rows. The steps after them are new.
    pub known_rows: usize,
    pub steps: Vec<StepIndex>,
    /// The changed steps that had no row before, in order.
    pub first_touched: Vec<StepIndex>,
    /// The number of steps before, if the task has moved to another version of its workflow.
    pub had_steps: Option<usize>,
    /// The lanes of the changed steps that are queued or running in a lane of their agent.
    pub lanes: Vec<(StepIndex, String)>,
    pub events: Vec<Event>,
    /// The changes of alerts, each with the id that a raised alert gets.
    pub alerts: Vec<(Uuid, AlertChange)>,
    pub asks: Vec<AskChange>,
    /// The attempts that have ended and are recorded.
    pub attempts: Vec<AttemptRecord>,
    /// True if calls of other instances must be dropped.
    pub drops_elsewhere: bool,
    pub at: Timestamp,
}

impl Batch {
    /// Returns whether the batch changes more than the rows of tasks and messages, which is rare. The only rule of it: each
    /// database has a short way for the other batches.
    pub fn needs_more_statements(&self) -> bool {
        let mut changes = self.changes.iter();
        let has_more = |change: &TaskChange| {
            !change.alerts.is_empty() || !change.asks.is_empty() || !change.attempts.is_empty()
        };
        changes.any(has_more) || self.has_moves()
    }
}

impl TaskChange {
    /// Returns whether the step has a row already.
    pub fn has_row(&self, step: StepIndex) -> bool {
        self.base.is_some()
            && step.at() < self.known_rows
            && self.first_touched.binary_search(&step).is_err()
    }

    /// Returns the steps whose rows are written. A claim in the task's own record has no such row.
    pub fn step_rows(&self) -> impl Iterator<Item = StepIndex> {
        let claimed = self.task.own_claim().map(|(step, ..)| step);
        let steps = self.steps.iter().copied();
        steps.filter(move |step| claimed != Some(*step))
    }

    /// Returns the lane of a step, which is empty if the agent's queue is not divided.
    pub fn lane(&self, step: StepIndex) -> &str {
        let lane = self.lanes.iter().find(|(index, _)| *index == step);
        lane.map_or("", |(_, lane)| lane)
    }

    /// Writes a log entry for each step that entered the state error, for any cause.
    pub fn log_errors(&self) {
        for event in self
            .events
            .iter()
            .filter(|event| event.kind == "step.error")
        {
            let Some(name) = &event.step else { continue };
            let mut steps = self.steps.iter();
            let step = steps.find(|step| self.task.definition(**step).name == *name);
            let failed = step.and_then(|step| match &self.task.step(*step).state {
                StepState::Error(fault) => Some((*step, fault)),
                // The step has continued within the same commit.
                _ => None,
            });
            let fault = failed.map(|(_, fault)| fault);
            let cause = failed.map(|(step, fault)| FailureCause::of_step(&self.task, step, fault));
            let details = &self.task.details;
            let trace = self.task.trace_id();
            info!(
                task = %self.task.id(),
                key = details.key.as_deref(),
                workflow = details.workflow.as_ref().map(|workflow| workflow.name.as_str()),
                step = %name,
                attempt = event.attempt.map(|attempt| attempt.0),
                kind = fault.map(|fault| fault.kind.as_str()),
                status = fault.and_then(|fault| fault.status),
                trace_id = %format_args!("{trace:032x}"),
                cause = cause.map(|cause| tracing::field::display(cause.fingerprint())),
                reason = fault.map(|fault| fault.message.as_str()),
                "a step is in error"
            );
        }
    }

    /// Returns the alert of a step, as messages contain it.
    pub fn notice(&self, step: StepIndex, alert: AlertNotice) -> AlertNotice {
        let details = &self.task.details;
        let workflow = details.workflow.as_ref();
        AlertNotice {
            task: Some(self.task.id()),
            key: details.key.clone(),
            workflow: workflow.map(|workflow| workflow.name.to_string()),
            step: Some(self.task.definition(step).name.clone()),
            ..alert
        }
    }
}

#[derive(Debug)]
pub struct NewKey {
    pub key: String,
    pub fingerprint: String,
    pub task: TaskId,
}

/// The result of a save.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    All,
    /// Another instance has changed a task: nothing may be committed, and the batch is decided again.
    Conflict,
}

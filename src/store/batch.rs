//! What one transaction saves.

use std::sync::Arc;

use tracing::info;
use uuid::Uuid;

use crate::domain::{
    AlertChange, AlertNotice, AskChange, Event, Message, Sender, StepIndex, StepState, Task,
    TaskId, Timestamp,
};

#[derive(Debug, Default)]
pub struct Batch {
    pub changes: Vec<TaskChange>,
    pub keys: Vec<NewKey>,
    /// The steps that are to be compared with their children, in order and without repeats.
    pub marks: Vec<(TaskId, StepIndex)>,
    /// The messages about the changes to submitters.
    pub messages: Vec<Message>,
    /// Makes the messages about alerts that are raised or closed.
    pub sender: Arc<Sender>,
}

/// All that happened to one task in this batch.
#[derive(Debug)]
pub struct TaskChange {
    /// After the change; its version is one above `base`.
    pub task: Arc<Task>,
    /// The version that must still be in the database; `None`: the task is new.
    pub base: Option<u64>,
    /// Nothing of the task's own row changes but its version.
    pub is_row_kept: bool,
    /// So many of the steps have rows: those after them are new.
    pub known_rows: usize,
    pub steps: Vec<StepIndex>,
    /// Those of them that had no row before, in order.
    pub first_touched: Vec<StepIndex>,
    /// How many steps it had before, if it has moved to another version of its workflow.
    pub had_steps: Option<usize>,
    /// Those of them that stand or run in a lane of their agent.
    pub lanes: Vec<(StepIndex, String)>,
    pub events: Vec<Event>,
    /// Each with the id that a raised alert gets.
    pub alerts: Vec<(Uuid, AlertChange)>,
    pub asks: Vec<AskChange>,
    /// Whether calls of other instances are to be dropped.
    pub drops_elsewhere: bool,
    pub at: Timestamp,
}

impl TaskChange {
    /// Whether the step has a row already.
    pub fn has_row(&self, step: StepIndex) -> bool {
        self.base.is_some()
            && step.at() < self.known_rows
            && self.first_touched.binary_search(&step).is_err()
    }

    /// The steps whose rows are written. Of a claim in the task's own record there is none.
    pub fn step_rows(&self) -> impl Iterator<Item = StepIndex> {
        let claimed = self.task.own_claim().map(|(step, ..)| step);
        let steps = self.steps.iter().copied();
        steps.filter(move |step| claimed != Some(*step))
    }

    /// Empty where the agent's queue is not divided.
    pub fn lane(&self, step: StepIndex) -> &str {
        let lane = self.lanes.iter().find(|(index, _)| *index == step);
        lane.map_or("", |(_, lane)| lane)
    }

    /// One line of the log for each step that came to be in error, whatever the cause.
    pub fn log_errors(&self) {
        for event in self
            .events
            .iter()
            .filter(|event| event.kind == "step.error")
        {
            let Some(name) = &event.step else { continue };
            let mut steps = self.steps.iter();
            let step = steps.find(|step| self.task.definition(**step).name == *name);
            let fault = match step.map(|step| &self.task.step(*step).state) {
                Some(StepState::Error(fault)) => Some(fault),
                // It has gone on within the same commit.
                _ => None,
            };
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
                reason = fault.map(|fault| fault.message.as_str()),
                "a step is in error"
            );
        }
    }

    /// The alert of a step, as messages contain it.
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

/// How a save went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    All,
    /// Another instance moved a task on: nothing may be committed, and all is decided again.
    Conflict,
}

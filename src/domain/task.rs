//! The aggregate: a task with all its steps. Whoever holds one can decide any command on it.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Definition, Fault, Payload, Priority, ReplyTo, Span, Step, StepDefinition, StepIndex,
    StepState, TaskId, Timestamp, WorkflowName, template::Scope,
};

#[derive(Clone, PartialEq, Debug)]
pub struct Task {
    pub details: Arc<Details>,
    pub created_at: Timestamp,
    /// How many changes have been saved: the ETag, and what a save compares and sets.
    pub version: u64,
    pub state: TaskState,
    /// An operator holds the task: running calls finish, nothing is claimed.
    pub paused: bool,
    /// `complete_within` counted from submission, or from the retry of an overdue task.
    pub complete_by: Option<Timestamp>,
    pub steps: Vec<Step>,
}

/// What was submitted. It never changes.
#[derive(Debug)]
pub struct Details {
    pub id: TaskId,
    /// The caller's own id (the pattern's order id).
    pub key: Option<Arc<str>>,
    pub workflow: Option<WorkflowRef>,
    pub definition: Arc<Definition>,
    pub input: Payload,
    pub labels: BTreeMap<String, String>,
    pub priority: Priority,
    pub complete_within: Option<Span>,
    /// The W3C trace the submitter is part of; without one the task's id is the trace id.
    pub trace_id: Option<u128>,
    /// Where the submitter is told what becomes of the task (P34).
    pub reply_to: Option<Box<ReplyTo>>,
}

/// A task is the same submission exactly when its id is.
impl PartialEq for Details {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WorkflowRef {
    pub name: WorkflowName,
    pub version: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub enum TaskState {
    /// No step has been claimed.
    Pending,
    Processing,
    Paused,
    Processed {
        at: Timestamp,
    },
    /// A step is in error and an operator is needed. Branches that do not depend on it go on.
    Error(Fault),
    Cancelled {
        at: Timestamp,
    },
}

/// The name of a task's state, as it is stored and shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum TaskStatus {
    Pending,
    Processing,
    Paused,
    Processed,
    Error,
    Cancelled,
}

impl TaskStatus {
    pub const ALL: [TaskStatus; 6] = [
        TaskStatus::Pending,
        TaskStatus::Processing,
        TaskStatus::Paused,
        TaskStatus::Processed,
        TaskStatus::Error,
        TaskStatus::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TaskStatus::Pending => "pending",
            TaskStatus::Processing => "processing",
            TaskStatus::Paused => "paused",
            TaskStatus::Processed => "processed",
            TaskStatus::Error => "error",
            TaskStatus::Cancelled => "cancelled",
        }
    }

    /// The event that tells of a task's arrival in this state.
    pub const fn event(self) -> &'static str {
        match self {
            TaskStatus::Pending => "task.pending",
            TaskStatus::Processing => "task.processing",
            TaskStatus::Paused => "task.paused",
            TaskStatus::Processed => "task.processed",
            TaskStatus::Error => "task.error",
            TaskStatus::Cancelled => "task.cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// An ended task never changes again.
    pub fn is_ended(self) -> bool {
        matches!(self, TaskStatus::Processed | TaskStatus::Cancelled)
    }
}

impl Task {
    pub fn id(&self) -> TaskId {
        self.details.id
    }

    pub fn status(&self) -> TaskStatus {
        match self.state {
            TaskState::Pending => TaskStatus::Pending,
            TaskState::Processing => TaskStatus::Processing,
            TaskState::Paused => TaskStatus::Paused,
            TaskState::Processed { .. } => TaskStatus::Processed,
            TaskState::Error(_) => TaskStatus::Error,
            TaskState::Cancelled { .. } => TaskStatus::Cancelled,
        }
    }

    pub fn is_ended(&self) -> bool {
        self.status().is_ended()
    }

    /// Ended, or in need of an operator: nothing more comes by waiting.
    pub fn is_settled(&self) -> bool {
        match self.state {
            TaskState::Error(_) => !self.steps.iter().any(Step::is_live),
            _ => self.is_ended(),
        }
    }

    pub fn ended_at(&self) -> Option<Timestamp> {
        match self.state {
            TaskState::Processed { at } | TaskState::Cancelled { at } => Some(at),
            _ => None,
        }
    }

    pub fn error(&self) -> Option<&Fault> {
        match &self.state {
            TaskState::Error(fault) => Some(fault),
            _ => None,
        }
    }

    pub fn step(&self, index: StepIndex) -> &Step {
        &self.steps[index.at()]
    }

    pub fn definition(&self, index: StepIndex) -> &StepDefinition {
        &self.details.definition.steps[index.at()]
    }

    pub fn indexes(&self) -> impl Iterator<Item = StepIndex> + use<> {
        (0..self.steps.len() as u16).map(StepIndex)
    }

    pub fn find(&self, name: &str) -> Option<StepIndex> {
        self.indexes()
            .find(|index| self.definition(*index).name.as_str() == name)
    }

    /// From when a step may be claimed. Nothing of a task that is paused or ended may be.
    pub fn due_at(&self, index: StepIndex) -> Option<Timestamp> {
        match self.step(index).state {
            StepState::Pending { ready_at } if !self.paused && !self.is_ended() => Some(ready_at),
            _ => None,
        }
    }

    /// When the supervisor must look at the task as a whole: its complete-by, while anything is live.
    pub fn overdue_at(&self) -> Option<Timestamp> {
        self.complete_by
            .filter(|_| self.steps.iter().any(Step::is_live))
    }

    /// The key that every attempt of a step carries (P17): a function of the task and the step alone.
    pub fn idempotency_key(&self, index: StepIndex) -> String {
        format!("{}:{}", self.id(), self.definition(index).name)
    }

    /// What the templates of a step see.
    pub fn scope(&self, index: StepIndex) -> Scope<'_> {
        Scope {
            task_id: self.id(),
            key: self.details.key.as_deref(),
            labels: &self.details.labels,
            input: &self.details.input,
            steps: self
                .definition(index)
                .reads
                .iter()
                .map(|read| (&self.definition(*read).name, self.step(*read).output()))
                .collect(),
            output: None,
        }
    }
}

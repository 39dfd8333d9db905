//! What one transaction saves.

use std::sync::Arc;

use uuid::Uuid;

use crate::domain::{AlertChange, Event, StepIndex, Task, TaskId, Timestamp};

#[derive(Debug, Default)]
pub struct Batch {
    pub changes: Vec<TaskChange>,
    pub keys: Vec<NewKey>,
}

/// All that happened to one task in this batch.
#[derive(Debug)]
pub struct TaskChange {
    /// After the change; its version is one above `base`.
    pub task: Arc<Task>,
    /// The version that must still be in the database; `None`: the task is new.
    pub base: Option<u64>,
    pub steps: Vec<StepIndex>,
    pub events: Vec<Event>,
    /// Each with the id that a raised alert gets.
    pub alerts: Vec<(Uuid, AlertChange)>,
    pub at: Timestamp,
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
    Stale,
}

//! What one transaction saves.

use std::sync::Arc;

use uuid::Uuid;

use crate::domain::{
    AlertChange, AlertNotice, Event, Message, ReceiverName, Sender, StepIndex, Task, TaskId,
    Timestamp,
};

#[derive(Debug, Default)]
pub struct Batch {
    pub changes: Vec<TaskChange>,
    pub keys: Vec<NewKey>,
    /// What submitters are told of the changes.
    pub messages: Vec<Message>,
    /// Tells of the alerts that turn out to be raised or closed.
    pub sender: Arc<Sender>,
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
    /// Whether calls of other instances are to be dropped.
    pub drops_elsewhere: bool,
    pub at: Timestamp,
}

impl TaskChange {
    /// An alert of a step, as it is told.
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

impl Batch {
    /// The queues of these messages, each once and in the order in which every instance locks them.
    pub fn queues<'m>(messages: &[&'m Message]) -> Vec<(&'m ReceiverName, Uuid, Timestamp)> {
        let queues = messages.iter();
        let mut queues: Vec<_> = queues.map(|m| (&m.receiver, m.subject, m.at)).collect();
        queues.sort_unstable();
        queues.dedup_by_key(|(receiver, subject, _)| (*receiver, *subject));
        queues
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
    Stale,
}

//! The records that a task and its child keep of each other, and the reports of a child to its parent.

use serde::{Deserialize, Serialize};

use crate::{
    task::status::TaskStatus,
    template::payload::Payload,
    values::ids::{Attempt, StepIndex, StepName, TaskId},
};

/// The step that a child is done for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParentStep {
    pub task: TaskId,
    pub step: StepName,
    pub index: StepIndex,
    /// The attempt of the step that made the child: each attempt has a child of its own.
    pub attempt: Attempt,
    /// The submitted task above all of them.
    pub root: TaskId,
    /// The number of tasks that are above the child.
    pub depth: u32,
}

/// The child of a step, as the step was last informed of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Child {
    pub id: TaskId,
    #[serde(with = "status")]
    pub state: TaskStatus,
}

mod status {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::task::status::TaskStatus;

    pub fn serialize<S: Serializer>(status: &TaskStatus, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(status.as_str())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<TaskStatus, D::Error> {
        let word = String::deserialize(from)?;
        TaskStatus::parse(&word).ok_or_else(|| D::Error::custom(format!("no state is {word:?}")))
    }
}

/// The content of a report to a parent.
#[derive(Clone, PartialEq, Debug)]
pub enum ChildReport {
    /// The child needs an operator, or continues after it did.
    State(Child),
    /// The child has ended. For an undo: all children of the step are undone.
    Ended { child: Option<Child>, end: ChildEnd },
    /// No child will be made or, for an undo, the child cannot be undone. The text is the reason, for an operator.
    Refused(String),
}

#[derive(Clone, PartialEq, Debug)]
pub enum ChildEnd {
    Processed(Payload),
    /// The child was undone, for this reason if there is one.
    Undone(Option<String>),
    Cancelled,
}

/// The record of one of the tasks that were made for a step.
#[derive(Clone, PartialEq, Debug)]
pub struct ChildRecord {
    pub id: TaskId,
    pub attempt: Attempt,
    pub state: TaskStatus,
    /// True if its undo was requested.
    pub is_undo_requested: bool,
    pub version: u64,
}

impl Child {
    /// Returns whether the step is informed of this state: that the child has ended, or needs an operator.
    pub fn is_reported(&self) -> bool {
        self.state.is_ended() || self.state == TaskStatus::Error
    }
}

impl ChildRecord {
    pub(crate) fn child(&self) -> Child {
        Child {
            id: self.id,
            state: self.state,
        }
    }
}

//! Names and numbers that must not be mixed up.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::values::time::Timestamp;

/// A task's id: a UUIDv7, so that ids sort by the time of submission. Ten of its random bits are the number of a cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub Uuid);

/// The place of the number of the cell in an id: after the bits that order the ids of one millisecond, and before the last 22,
/// which stay random.
const CELL_SHIFT: u32 = 22;
/// The bits of the number of a cell: ten.
const CELL_MASK: u128 = 0x3ff << CELL_SHIFT;

impl TaskId {
    /// Returns the id of a new task from a fresh UUIDv7. A cell is a database of tasks. There is one today, with the number
    /// zero; the bits are reserved so that the tasks of several can be distinguished. Ids of versions before this rule have random
    /// bits there.
    pub fn of_new_task(fresh: Uuid) -> Self {
        Self(Uuid::from_u128(fresh.as_u128() & !CELL_MASK))
    }

    /// Returns the time that the id begins with: the time of the submission, unless a clock was wrong then.
    pub fn made_at(self) -> Timestamp {
        let millis = self.0.as_u128() >> 80;
        Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Declares a cheaply cloned string that has one meaning only.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(name: impl Into<Arc<str>>) -> Self {
                Self(name.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns the text itself, for callers that keep it without a copy.
            #[allow(dead_code, reason = "this name is not stored in this form")]
            pub fn shared(&self) -> &Arc<str> {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// One running `provost serve`: the value of `locked_by`.
    InstanceId
}
name! {
    /// A registered agent, or the origin of a step that names a URL (`http://host:port`).
    /// Registered names cannot contain `:` or `/`, so the two never collide.
    AgentName
}
name! {
    /// A secret of the configuration file: the name is shown, never the value.
    SecretName
}
name! {
    /// A step's name, unique within its task.
    StepName
}
name! {
    /// A registered workflow.
    WorkflowName
}
name! {
    /// The receiver of messages: a configured receiver, or the origin of an address that a submitter named. Configured
    /// names cannot contain `:` or `/`, so the two never collide.
    ReceiverName
}
name! {
    /// The program that fetches steps of an agent that is not called; workers choose their names themselves.
    WorkerName
}
name! {
    /// The destination that messages are posted to: the URL that a submitter named, or the name of a configured
    /// receiver, whose URL is in the configuration. Failures and pauses are kept for each destination, so that one
    /// never delays another.
    Destination
}

/// The index of a step in its definition. Steps are stored and compared by index, not by name.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StepIndex(pub u16);

impl StepIndex {
    pub fn at(self) -> usize {
        usize::from(self.0)
    }
}

/// The number of a claim, counted from 1 for each step: the fence that late replies fail.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Attempt(pub u32);

/// The bit that no number of an attempt has.
const ANY_AFTER: u32 = 1 << 31;

impl Attempt {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the name of all attempts after this one, up to the next whose reply is accepted.
    #[must_use]
    pub fn any_after(self) -> Self {
        Self(self.0 | ANY_AFTER)
    }

    /// Returns the attempt of which [`Attempt::any_after`] made this name, if it did.
    pub fn named_after(self) -> Option<Self> {
        (self.0 & ANY_AFTER != 0).then_some(Self(self.0 & !ANY_AFTER))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The importance of a task, -100 to 100; tasks with a higher priority are claimed first.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Priority(i8);

impl Priority {
    pub const MIN: i64 = -100;
    pub const MAX: i64 = 100;

    /// Returns `None` if the value is not within -100 to 100.
    pub fn new(value: i64) -> Option<Self> {
        (Self::MIN..=Self::MAX)
            .contains(&value)
            .then_some(Self(value as i8))
    }

    pub fn get(self) -> i64 {
        i64::from(self.0)
    }
}

/// One step of one task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepRef {
    pub task: TaskId,
    pub step: StepIndex,
}

/// A version of a workflow.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WorkflowRef {
    pub name: WorkflowName,
    pub version: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_new_task_has_no_bit_of_a_cell_and_keeps_its_order_and_its_last_bits() {
        let fresh = Uuid::from_u128(u128::MAX);
        let id = TaskId::of_new_task(fresh);
        assert_eq!(
            id.0.as_u128().count_zeros(),
            10,
            "ten bits are the number of the cell: {id}"
        );
        let text = "ffffffff-ffff-ffff-ffff-ffff003fffff";
        assert_eq!(id.to_string(), text);
        assert_eq!(id.made_at(), TaskId(fresh).made_at());
    }
}

//! The effect of a bulk command on each task, and the states of the tasks that it is for.

use serde::{Deserialize, Serialize};

use crate::task::status::TaskStatus;

/// The effect of a bulk command on each task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    Retry,
    Undo,
    Cancel,
    Skip,
    Resolve,
    Pause,
    Resume,
    Migrate,
    Clone,
}

impl BulkAction {
    pub const fn as_str(self) -> &'static str {
        match self {
            BulkAction::Retry => "retry",
            BulkAction::Undo => "undo",
            BulkAction::Cancel => "cancel",
            BulkAction::Skip => "skip",
            BulkAction::Resolve => "resolve",
            BulkAction::Pause => "pause",
            BulkAction::Resume => "resume",
            BulkAction::Migrate => "migrate",
            BulkAction::Clone => "clone",
        }
    }

    /// Returns the states whose tasks are searched if no state is named. The command itself still decides on each task.
    pub fn states(self) -> Vec<TaskStatus> {
        let states = TaskStatus::ALL.iter().copied();
        states.filter(|state| self.is_for(*state)).collect()
    }

    /// Returns the states that may be named. Processed tasks are undone only if that state is named, because there may
    /// be many of them.
    pub fn named_states(self) -> Vec<TaskStatus> {
        if self == BulkAction::Clone {
            return TaskStatus::ALL.to_vec();
        }
        let mut states = self.states();
        states.extend((self == BulkAction::Undo).then_some(TaskStatus::Processed));
        states
    }

    /// Returns whether the command is about failed steps, and its tasks are all in error.
    pub fn is_for_failures(self) -> bool {
        matches!(
            self,
            BulkAction::Retry | BulkAction::Skip | BulkAction::Resolve
        )
    }

    fn is_for(self, state: TaskStatus) -> bool {
        match self {
            BulkAction::Retry | BulkAction::Skip | BulkAction::Resolve => {
                state == TaskStatus::Error
            }
            BulkAction::Pause => !state.is_ended() && state != TaskStatus::Paused,
            BulkAction::Resume => state == TaskStatus::Paused,
            BulkAction::Undo | BulkAction::Migrate => {
                !state.is_ended() && state != TaskStatus::Undoing
            }
            BulkAction::Cancel => !state.is_ended(),
            // A clone is the remedy for a task that cannot succeed as it is.
            BulkAction::Clone => matches!(
                state,
                TaskStatus::Error | TaskStatus::Cancelled | TaskStatus::Undone
            ),
        }
    }
}

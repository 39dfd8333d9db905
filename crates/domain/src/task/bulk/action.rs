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
    Rerun,
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
            BulkAction::Rerun => "rerun",
        }
    }

    /// Returns the states whose tasks are searched if no state is named. The command itself still decides on each task.
    pub fn states(self) -> Vec<TaskStatus> {
        let states = TaskStatus::ALL.iter().copied();
        states.filter(|state| self.is_for(*state)).collect()
    }

    /// Returns the states that may be named. Processed tasks are undone only if that state is named, because there may
    /// be many of them; and tasks that run are rerun only then, because what they have done is done again.
    pub fn named_states(self) -> Vec<TaskStatus> {
        let is_named = |state: TaskStatus| match self {
            BulkAction::Clone => true,
            BulkAction::Rerun => !state.is_ended() && state != TaskStatus::Undoing,
            BulkAction::Undo => self.is_for(state) || state == TaskStatus::Processed,
            _ => self.is_for(state),
        };
        let states = TaskStatus::ALL.iter().copied();
        states.filter(|state| is_named(*state)).collect()
    }

    fn is_for(self, state: TaskStatus) -> bool {
        match self {
            BulkAction::Retry | BulkAction::Skip | BulkAction::Resolve | BulkAction::Rerun => {
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

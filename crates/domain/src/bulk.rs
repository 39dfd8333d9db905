//! Commands for many tasks at once, and the states of the tasks that they are for.

use crate::task::TaskStatus;

/// What a bulk command does to each task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkAction {
    Retry,
    Undo,
    Cancel,
    Skip,
    Migrate,
}

impl BulkAction {
    pub const fn as_str(self) -> &'static str {
        match self {
            BulkAction::Retry => "retry",
            BulkAction::Undo => "undo",
            BulkAction::Cancel => "cancel",
            BulkAction::Skip => "skip",
            BulkAction::Migrate => "migrate",
        }
    }

    /// Tasks in these states are searched where none is named. The command itself still decides on each task.
    pub fn states(self) -> Vec<TaskStatus> {
        let states = TaskStatus::ALL.iter().copied();
        states.filter(|state| self.is_for(*state)).collect()
    }

    /// One of these states may be named. What is done is undone only if that was asked for, and there may be many such tasks.
    pub fn named_states(self) -> Vec<TaskStatus> {
        let mut states = self.states();
        states.extend((self == BulkAction::Undo).then_some(TaskStatus::Processed));
        states
    }

    fn is_for(self, state: TaskStatus) -> bool {
        match self {
            BulkAction::Retry | BulkAction::Skip => state == TaskStatus::Error,
            BulkAction::Undo | BulkAction::Migrate => {
                !state.is_ended() && state != TaskStatus::Undoing
            }
            BulkAction::Cancel => !state.is_ended(),
        }
    }
}

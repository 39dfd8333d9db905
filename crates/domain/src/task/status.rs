//! The names of the states of tasks.

/// The name of a task's state, as it is stored and shown.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum TaskStatus {
    Pending,
    Processing,
    Paused,
    Processed,
    Error,
    Undoing,
    Undone,
    Cancelled,
}

impl TaskStatus {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The states of tasks that have ended.
    pub const ENDED: [TaskStatus; 3] = [
        TaskStatus::Processed,
        TaskStatus::Undone,
        TaskStatus::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Returns the state as the complement of a sentence.
    pub const fn in_words(self) -> &'static str {
        match self {
            TaskStatus::Error => "in error",
            TaskStatus::Undoing => "being undone",
            status => status.as_str(),
        }
    }

    /// Returns the event that reports that a task has reached this state.
    pub const fn event(self) -> &'static str {
        match self {
            TaskStatus::Pending => "task.pending",
            TaskStatus::Processing => "task.processing",
            TaskStatus::Paused => "task.paused",
            TaskStatus::Processed => "task.processed",
            TaskStatus::Error => "task.error",
            TaskStatus::Undoing => "task.undoing",
            TaskStatus::Undone => "task.undone",
            TaskStatus::Cancelled => "task.cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// Returns whether the task has ended. An ended task never changes again, except one that is processed and then
    /// undone.
    pub fn is_ended(self) -> bool {
        matches!(
            self,
            TaskStatus::Processed | TaskStatus::Undone | TaskStatus::Cancelled
        )
    }
}

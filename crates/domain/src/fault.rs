//! What went wrong with a step or a task, in the words an operator reads.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ids::StepName, time::Timestamp};

/// The longest excerpt of a remote answer that a fault keeps, in bytes.
pub const BODY_EXCERPT: usize = 4096;

/// What kind of fault it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Worth another try: 408, 425, 429, 5xx, a refused or broken connection. Never ends a step.
    Transient,
    /// The service refused for good, or the request could not be made.
    Permanent,
    /// More failures than the step allows.
    Exhausted,
    /// The task's own complete-by passed.
    Deadline,
    /// On a task: a step that undoes another is in error.
    UndoFailed,
}

impl FaultKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Exhausted => "exhausted",
            Self::Deadline => "deadline",
            Self::UndoFailed => "undo_failed",
        }
    }
}

/// Whether it is known what a call did at the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Outcome)]
pub enum Effect {
    #[default]
    #[serde(skip)]
    Known,
    /// It may have taken effect, or not.
    Unknown,
}

impl Effect {
    pub fn is_known(&self) -> bool {
        *self == Self::Known
    }

    pub fn unknown_if(unknown: bool) -> Self {
        match unknown {
            true => Self::Unknown,
            false => Self::Known,
        }
    }
}

/// `error` of a task or step in an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub kind: FaultKind,
    pub message: String,
    /// The HTTP status that the remote service answered, if it answered.
    pub status: Option<u16>,
    /// The first [`BODY_EXCERPT`] bytes of the remote answer, as text.
    pub body: Option<String>,
    pub at: Timestamp,
    /// Whether it is known what the step did. Stored and shown as `outcome`, where it is unknown.
    #[serde(rename = "outcome", default, skip_serializing_if = "Effect::is_known")]
    pub effect: Effect,
    /// On a task: the step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
}

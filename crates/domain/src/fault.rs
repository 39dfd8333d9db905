//! What went wrong with a step or a task, in terms that an operator understands.

use serde::{Deserialize, Serialize};

use crate::{ids::StepName, time::Timestamp};

/// The longest excerpt of a remote response that a fault keeps, in bytes.
pub const BODY_EXCERPT: usize = 4096;

/// The kind of fault.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum FaultKind {
    /// Worth a retry: 408, 425, 429, 5xx, a refused or broken connection. Never ends a step.
    Transient,
    /// The service refused permanently, or the request could not be made.
    Permanent,
    /// More failures than the step allows.
    Exhausted,
    /// The task's own complete-by passed.
    Deadline,
    /// On a task: an undo step is in error.
    UndoFailed,
}

impl FaultKind {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// Whether it is known what a call did at the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

    /// The word for it where it is shown; a known effect is not.
    pub fn word(self) -> Option<&'static str> {
        (self == Self::Unknown).then_some("unknown")
    }

    pub fn unknown_if(unknown: bool) -> Self {
        match unknown {
            true => Self::Unknown,
            false => Self::Known,
        }
    }
}

/// `error` of a task or step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub kind: FaultKind,
    pub message: String,
    /// The HTTP status of the remote service, if it responded.
    pub status: Option<u16>,
    /// The first [`BODY_EXCERPT`] bytes of the remote response, as text.
    pub body: Option<String>,
    pub at: Timestamp,
    /// Whether it is known what the step did. Stored and shown as `outcome`, where it is unknown.
    #[serde(rename = "outcome", default, skip_serializing_if = "Effect::is_known")]
    pub effect: Effect,
    /// On a task: the step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    /// On a step: its policy is undo, an operator has paused the task, and the undo begins when the task is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo_on_resume: bool,
}

//! A fault of a step or a task, in terms that an operator understands.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::values::{ids::StepName, time::Timestamp};

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
    /// A fault that is retried: 408, 425, 429, 5xx, a refused or broken connection. It never ends a step.
    Transient,
    /// The service refused permanently, or the request could not be made.
    Permanent,
    /// The step has failed more often than it may.
    Exhausted,
    /// The task's own complete-by has passed.
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

/// Says if it is known whether a call took effect at the service.
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

    /// Returns the word for an unknown effect. A known effect is not shown.
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

// A fault is made by the constructor of its kind; its other fields are set afterwards.
/// The fault of a task or a step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    pub kind: FaultKind,
    #[schema(example = "the service refused: 402 Payment Required")]
    pub message: String,
    /// The HTTP status of the remote service, if it responded.
    #[schema(required, example = 402)]
    pub status: Option<u16>,
    /// The first 4096 bytes of the remote response, as text.
    #[schema(required, example = "{\"error\":\"card declined\"}")]
    pub body: Option<String>,
    pub at: Timestamp,
    /// `unknown`: the step may have taken effect all the same. Absent if it has not.
    #[serde(rename = "outcome", default, skip_serializing_if = "Effect::is_known")]
    pub effect: Effect,
    /// On a task: the step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "charge")]
    pub step: Option<StepName>,
    /// On a step: its policy is undo, an operator has paused the task, and the undo begins when the task is resumed.
    /// Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(example = true)]
    pub undo_on_resume: bool,
    /// On a step that runs: an operator has cancelled it, or it is not needed any more, and its call is being dropped, or its
    /// service is asked to cancel the work. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(example = true)]
    pub cancelled: bool,
    /// On a step that is being cancelled: it is not needed any more, and is `cancelled`, or `skipped` by its `while`, once its call
    /// has ended. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(example = true)]
    pub unwanted: bool,
}

impl Fault {
    /// A fault of which nothing but its words is known: no service responded, and no effect is in doubt.
    pub fn new(kind: FaultKind, message: impl Into<String>, at: Timestamp) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            body: None,
            at,
            effect: Effect::Known,
            step: None,
            undo_on_resume: false,
            cancelled: false,
            unwanted: false,
        }
    }

    /// Another attempt may succeed.
    pub fn transient(message: impl Into<String>, at: Timestamp) -> Self {
        Self::new(FaultKind::Transient, message, at)
    }

    /// Another attempt would fail as well.
    pub fn permanent(message: impl Into<String>, at: Timestamp) -> Self {
        Self::new(FaultKind::Permanent, message, at)
    }

    /// The step has failed more often, or waited for longer, than it may.
    pub fn exhausted(message: impl Into<String>, at: Timestamp) -> Self {
        Self::new(FaultKind::Exhausted, message, at)
    }

    /// The task has passed its own complete-by.
    pub fn deadline(message: impl Into<String>, at: Timestamp) -> Self {
        Self::new(FaultKind::Deadline, message, at)
    }
}

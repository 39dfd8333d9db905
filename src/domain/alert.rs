//! Alerts: what a person must be told (P3, P12, P32).

use super::StepIndex;

/// A change to the alerts of a task, saved with the change that caused it.
#[derive(Clone, PartialEq, Debug)]
pub enum AlertChange {
    /// A step went to error. While an alert for the step is open, no second one is raised.
    Raise { step: StepIndex, message: String },
    /// What raised it is mended, or no longer matters.
    Close { step: StepIndex },
}

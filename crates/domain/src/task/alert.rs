//! The changes of the alerts of a task.

use crate::{
    task::{alert_cause::AlertCause, alert_kind::AlertKind, failure_cause::FailureCause},
    values::ids::StepIndex,
};

/// A change to the alerts of a task, saved with the change that caused it.
#[derive(Clone, PartialEq, Debug)]
pub enum AlertChange {
    /// A step went to error, or could not be decided. While an alert for the step is open, no second one is raised.
    Raise {
        step: StepIndex,
        kind: AlertKind,
        message: String,
        /// Steps with one cause share one alert.
        cause: Option<AlertCause>,
        failure: Box<FailureCause>,
    },
    /// The cause of the alert is resolved, or no longer matters.
    Close { step: StepIndex },
}

//! The alert of a schedule that cannot submit its task.

use std::fmt;

use uuid::Uuid;

use crate::{
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{ids::ReceiverName, time::Timestamp},
};

/// Returns the subject of a schedule's alert: at most one alert with it is open. No configured receiver and no origin
/// has such a name.
pub fn schedule_alert_subject(schedule: &str) -> ReceiverName {
    ReceiverName::new(format!("schedule:{schedule}"))
}

/// Makes the alert of a schedule whose run cannot be submitted for this reason.
pub fn schedule_failing(
    id: Uuid,
    schedule: &str,
    reason: &dyn fmt::Display,
    at: Timestamp,
) -> AlertNotice {
    let kind = AlertKind::ScheduleFailing.as_str();
    let message = format!("schedule {schedule} cannot submit its task: {reason}");
    AlertNotice {
        receiver: Some(schedule_alert_subject(schedule)),
        ..AlertNotice::raised(id, kind, &message, at)
    }
}

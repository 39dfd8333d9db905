//! The alert of a message broker that cannot be used: one alert, however many messages and instances wait for the
//! broker.

use std::time::Duration;

use uuid::Uuid;

use crate::{
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{ids::ReceiverName, time::Timestamp},
};

/// The time for which a broker must fail before its alert is raised. A broker that restarts is back earlier.
pub const BROKER_ALERT_AFTER: Duration = Duration::from_secs(10);

/// Returns the subject of a broker's alert: at most one alert with it is open. No configured receiver and no origin has
/// such a name.
pub fn alert_subject(broker: &str) -> ReceiverName {
    ReceiverName::new(format!("broker:{broker}"))
}

pub fn broker_unreachable(id: Uuid, broker: &str, reason: &str, at: Timestamp) -> AlertNotice {
    let kind = AlertKind::BrokerUnreachable.as_str();
    let message = format!("the message broker {broker} cannot be used: {reason}");
    AlertNotice {
        receiver: Some(alert_subject(broker)),
        ..AlertNotice::raised(id, kind, &message, at)
    }
}

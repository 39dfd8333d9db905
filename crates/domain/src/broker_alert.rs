//! The alert of a message broker that cannot be used: one, however many messages and instances wait for it.

use std::time::Duration;

use uuid::Uuid;

use crate::{alert::AlertKind, alert_message::AlertNotice, ids::ReceiverName, time::Timestamp};

/// How long a broker must fail before its alert is raised. A broker that restarts is back before.
pub const BROKER_ALERT_AFTER: Duration = Duration::from_secs(10);

/// Under which the alert of a broker is open at most once. No configured receiver and no origin has such a name.
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

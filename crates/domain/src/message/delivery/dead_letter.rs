//! The alert of a receiver with dead letters: one alert for any number of them.

use uuid::Uuid;

use crate::{
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{ids::ReceiverName, time::Timestamp},
};

/// A change of the alert of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiverAlert {
    Raise,
    Close,
}

impl ReceiverAlert {
    /// An alert is open exactly while the receiver has dead letters.
    pub fn decide(is_open: bool, dead_letters: u64) -> Option<Self> {
        match (is_open, dead_letters) {
            (false, 1..) => Some(ReceiverAlert::Raise),
            (true, 0) => Some(ReceiverAlert::Close),
            _ => None,
        }
    }
}

/// The alert that the first dead letter of a receiver raises.
pub fn undeliverable(
    id: Uuid,
    receiver: &ReceiverName,
    reason: &str,
    at: Timestamp,
) -> AlertNotice {
    let kind = AlertKind::MessageUndeliverable.as_str();
    let message = format!("messages to {receiver} cannot be delivered: {reason}");
    AlertNotice {
        receiver: Some(receiver.clone()),
        ..AlertNotice::raised(id, kind, &message, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_is_open_exactly_while_there_are_dead_letters() {
        assert_eq!(ReceiverAlert::decide(false, 0), None);
        assert_eq!(ReceiverAlert::decide(false, 3), Some(ReceiverAlert::Raise));
        assert_eq!(ReceiverAlert::decide(true, 3), None, "one, however many");
        assert_eq!(ReceiverAlert::decide(true, 0), Some(ReceiverAlert::Close));
    }

    #[test]
    fn the_alert_names_the_receiver_and_the_reason() {
        let at = Timestamp::from_millis(1_000_000);
        let shop = ReceiverName::new("shop");
        let alert = undeliverable(Uuid::nil(), &shop, "410 Gone", at);
        assert_eq!(alert.kind, "message.undeliverable");
        assert_eq!(
            alert.message,
            "messages to shop cannot be delivered: 410 Gone"
        );
        assert_eq!((alert.receiver, alert.state), (Some(shop), "open"));
    }
}

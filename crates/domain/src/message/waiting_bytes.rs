//! The bytes of messages that wait for one receiver. Above a bound, further messages to it are written without
//! payloads, until far fewer bytes wait.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::{
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{ids::ReceiverName, time::Timestamp},
};

/// Returns the receivers for which too many bytes wait, by the bytes that wait for each now. A receiver that was `full`
/// before stays full until half of the bound is free: otherwise every delivery would change that.
pub fn full_receivers(
    waiting: &BTreeMap<ReceiverName, u64>,
    full: &BTreeSet<ReceiverName>,
    most: u64,
) -> BTreeSet<ReceiverName> {
    let too_many = waiting.iter().filter(|(receiver, bytes)| {
        let most = match full.contains(*receiver) {
            true => most / 2,
            false => most,
        };
        **bytes > most
    });
    too_many.map(|(receiver, _)| receiver.clone()).collect()
}

/// Returns the subject of a receiver's alert: at most one alert with it is open. No configured receiver and no origin
/// has such a name.
pub fn waiting_subject(receiver: &ReceiverName) -> ReceiverName {
    ReceiverName::new(format!("waiting:{receiver}"))
}

/// Makes the alert of a receiver for which too many bytes wait.
pub fn too_many_waiting(
    id: Uuid,
    receiver: &ReceiverName,
    most: u64,
    at: Timestamp,
) -> AlertNotice {
    let message = format!(
        "more than {most} bytes of messages wait for {receiver} (courier.max_waiting_bytes): new messages for it have no inputs and outputs until half of that is delivered or discarded; see that it accepts messages, or discard them (POST /v1/messages/discard)"
    );
    AlertNotice {
        receiver: Some(waiting_subject(receiver)),
        ..AlertNotice::raised(id, AlertKind::MessagesWaiting.as_str(), &message, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_full_beyond_the_bound_until_half_of_it_is_free() {
        let shop = ReceiverName::new("shop");
        let mut full = BTreeSet::new();
        for (waiting, is_full) in [
            (100, false),
            (101, true),
            (51, true),
            (50, false),
            (51, false),
        ] {
            let waiting = BTreeMap::from([(shop.clone(), waiting)]);
            full = full_receivers(&waiting, &full, 100);
            assert_eq!(full.contains(&shop), is_full, "{waiting:?}");
        }
        let full = BTreeSet::from([shop]);
        assert!(full_receivers(&BTreeMap::new(), &full, 100).is_empty());
    }
}

//! Which brokers cannot be used now, for metrics and the log.

use std::{collections::BTreeMap, sync::Arc};

use metrics::gauge;
use parking_lot::Mutex;
use tracing::{info, warn};

/// The reasons by broker and use; a broker with any cannot be used.
#[derive(Clone, Default)]
pub struct BrokerHealth(Arc<Mutex<BTreeMap<(String, String), String>>>);

impl BrokerHealth {
    /// `part` is what is used of the broker: publishing, or one queue.
    pub fn failed(&self, broker: &str, part: &str, reason: &str) {
        let key = (broker.to_owned(), part.to_owned());
        let before = self.0.lock().insert(key, reason.to_owned());
        // One line for each kind of failure, not one for each try.
        if before.as_deref() != Some(reason) {
            warn!(
                broker,
                part, reason, "a broker cannot be used; it is tried again until it can"
            );
        }
        self.report(broker);
    }

    pub fn works(&self, broker: &str, part: &str) {
        let key = (broker.to_owned(), part.to_owned());
        if self.0.lock().remove(&key).is_some() {
            info!(broker, part, "a broker can be used again");
        }
        self.report(broker);
    }

    fn report(&self, broker: &str) {
        let fails = self.0.lock().keys().any(|(failing, _)| failing == broker);
        let up = if fails { 0.0 } else { 1.0 };
        gauge!("provost_broker_up", "broker" => broker.to_owned()).set(up);
    }
}

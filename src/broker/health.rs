//! The brokers that cannot be used now, for metrics, alerts and the log.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use metrics::gauge;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::clock::{self, Instant};

/// The failing uses of brokers, by broker and use. A broker cannot be used if any use of it fails.
#[derive(Clone, Default)]
pub struct BrokerHealth(Arc<Mutex<BTreeMap<(String, String), BrokerFault>>>);

#[derive(Debug)]
struct BrokerFault {
    since: Instant,
    reason: String,
}

impl BrokerHealth {
    /// Records a failure. `part` is the use of the broker: publishing, or one queue.
    pub fn failed(&self, broker: &str, part: &str, reason: &str) {
        let key = (broker.to_owned(), part.to_owned());
        let mut faults = self.0.lock();
        let fault = faults.entry(key).or_insert_with(|| BrokerFault {
            since: clock::instant(),
            reason: String::new(),
        });
        // The log has one line for each kind of failure, not one for each attempt.
        if fault.reason != reason {
            warn!(
                broker,
                part, reason, "a broker cannot be used; it is tried again until it can"
            );
            fault.reason = reason.to_owned();
        }
        drop(faults);
        self.report(broker);
    }

    pub fn works(&self, broker: &str, part: &str) {
        let key = (broker.to_owned(), part.to_owned());
        if self.0.lock().remove(&key).is_some() {
            info!(broker, part, "a broker can be used again");
        }
        self.report(broker);
    }

    /// Returns how long the broker has failed, and the reason; `None` if it does not fail.
    pub fn failing(&self, broker: &str) -> Option<(Duration, String)> {
        let faults = self.0.lock();
        let of_broker = faults.iter().filter(|((failing, _), _)| failing == broker);
        let longest = of_broker.min_by_key(|(_, fault)| fault.since)?;
        let ((_, part), fault) = longest;
        Some((fault.since.elapsed(), format!("{part}: {}", fault.reason)))
    }

    fn report(&self, broker: &str) {
        let up = if self.failing(broker).is_some() {
            0.0
        } else {
            1.0
        };
        gauge!("provost_broker_up", "broker" => broker.to_owned()).set(up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_fails_from_its_first_fault_until_the_last_is_over() {
        let health = BrokerHealth::default();
        let reason = |broker| health.failing(broker).map(|(_, reason)| reason);
        assert_eq!(reason("a"), None);
        health.failed("a", "publishing", "refused");
        health.failed("a", "publishing", "reset");
        health.failed("a", "reading", "reset");
        health.failed("b", "reading", "reset");
        assert_eq!(reason("a").unwrap(), "publishing: reset");
        health.works("a", "publishing");
        assert_eq!(reason("a").unwrap(), "reading: reset");
        health.works("a", "reading");
        assert_eq!(reason("a"), None);
        assert!(reason("b").is_some());
    }
}

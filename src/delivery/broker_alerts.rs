//! The alert of each message broker that cannot be used: raised when the broker has failed for a while, closed when it
//! works.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{broker::Brokers, clock::sleep, domain::message::BROKER_ALERT_AFTER, store::Store};

const CHECK_EVERY: Duration = Duration::from_secs(1);

pub struct BrokerAlerts {
    pub brokers: Arc<Brokers>,
    pub store: Store,
}

impl BrokerAlerts {
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.watch()).await;
    }

    async fn watch(self) {
        // The value is true while the alert of the broker is open. It is unknown after the start, because an earlier
        // process may have raised the alert.
        let mut open: HashMap<String, bool> = HashMap::new();
        loop {
            for (broker, _) in self.brokers.all() {
                let failing = self.brokers.health.failing(broker);
                let reason = match failing {
                    Some((lasts, _)) if lasts < BROKER_ALERT_AFTER => continue,
                    Some((_, reason)) => Some(reason),
                    None => None,
                };
                let is_open = reason.is_some();
                if open.get(broker) == Some(&is_open) {
                    continue;
                }
                match self.store.report_broker(broker.clone(), reason).await {
                    Ok(()) => drop(open.insert(broker.clone(), is_open)),
                    Err(error) => {
                        warn!(broker, %error, "could not save the alert of a broker; trying again");
                    }
                }
            }
            sleep(CHECK_EVERY).await;
        }
    }
}

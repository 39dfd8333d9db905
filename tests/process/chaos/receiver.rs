//! The receiver of the messages about the tasks: it is mostly well, and now and then overloaded, slow, or breaks the
//! connection.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::super::{
    audit::{At, Delivery},
    harness::{Act, Hook, Remote},
};
use super::services::ServiceFault;

#[derive(Clone)]
pub struct Receiver {
    remote: Remote,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
    well: Arc<AtomicBool>,
}

impl Receiver {
    pub async fn start(seed: u64, faults: BTreeSet<ServiceFault>) -> Self {
        let deliveries: Arc<Mutex<Vec<Delivery>>> = Arc::default();
        let well = Arc::new(AtomicBool::new(false));
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let (kept, is_well) = (Arc::clone(&deliveries), Arc::clone(&well));
        let remote = Remote::with(move |seen| {
            let chance = match is_well.load(Ordering::Relaxed) {
                true => 99,
                false => random.lock().unwrap().random_range(0..100),
            };
            let fault = match chance {
                0..6 => Some(ServiceFault::Overload),
                6..10 => Some(ServiceFault::Cut),
                10..14 => Some(ServiceFault::Silence),
                _ => None,
            };
            let fault = fault.filter(|fault| faults.contains(fault));
            let is_taken = !matches!(fault, Some(ServiceFault::Overload | ServiceFault::Cut));
            let id = seen.header("webhook-id");
            let taken = delivery(id, &seen.body, &seen.raw, is_taken);
            kept.lock().unwrap().push(taken);
            match fault {
                Some(ServiceFault::Overload) => Act::status(503),
                Some(ServiceFault::Cut) => Act::Close,
                Some(ServiceFault::Silence) => Act::Then(
                    Duration::from_millis(50),
                    Arc::new(|| {}) as Hook,
                    Box::new(Act::status(200)),
                ),
                _ => Act::status(200),
            }
        })
        .await;
        Self {
            remote,
            deliveries,
            well,
        }
    }

    /// Notes a message that came, and whether it is taken.
    pub fn take(&self, id: &str, body: &Value, raw: &str, is_taken: bool) {
        let taken = delivery(id, body, raw, is_taken);
        self.deliveries.lock().unwrap().push(taken);
    }

    pub fn url(&self) -> String {
        format!("{}/replies", self.remote.url())
    }

    pub fn is_well(&self) -> bool {
        self.well.load(Ordering::Relaxed)
    }

    pub fn be_well(&self) {
        self.well.store(true, Ordering::Relaxed);
    }

    pub fn deliveries(&self) -> Vec<Delivery> {
        self.deliveries.lock().unwrap().clone()
    }
}

fn delivery(id: &str, body: &Value, raw: &str, taken: bool) -> Delivery {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let data = &body["data"];
    Delivery {
        at: At::now(),
        id: id.to_owned(),
        task: text(&body["subject"]),
        kind: text(&body["type"]),
        step: data["step"].as_str().map(str::to_owned),
        version: data["task"]["version"].as_u64().unwrap_or_default(),
        body: raw.to_owned(),
        taken,
    }
}

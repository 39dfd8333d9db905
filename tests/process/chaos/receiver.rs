//! The receiver of the messages about the tasks: it is mostly well, and now and then overloaded, slow, or breaks the
//! connection.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::broker;

use crate::{
    audit::{At, Delivery},
    harness::{Act, Hook, Queued, Remote},
};

#[derive(Clone)]
pub struct Receiver {
    remote: Remote,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
    well: Arc<AtomicBool>,
}

impl Receiver {
    pub async fn start(seed: u64) -> Self {
        let deliveries: Arc<Mutex<Vec<Delivery>>> = Arc::default();
        let well = Arc::new(AtomicBool::new(false));
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let (kept, is_well) = (Arc::clone(&deliveries), Arc::clone(&well));
        let remote = Remote::with(move |seen| {
            let chance = match is_well.load(Ordering::Relaxed) {
                true => 99,
                false => random.lock().unwrap().random_range(0..100),
            };
            let take = delivery(
                seen.header("webhook-id"),
                &seen.body,
                &seen.raw,
                chance >= 10,
            );
            kept.lock().unwrap().push(take);
            match chance {
                0..6 => Act::status(503),
                6..10 => Act::Close,
                10..14 => Act::Then(
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

    /// Also reads the receiver's queue, one message after another.
    pub fn read(&self, seed: u64, broker: &str) {
        let (kept, is_well) = (Arc::clone(&self.deliveries), Arc::clone(&self.well));
        let mut random = StdRng::seed_from_u64(seed);
        let take = move |message: Queued| {
            let is_taken = is_well.load(Ordering::Relaxed) || !random.random_ratio(1, 20);
            let id = message.message_id();
            let taken = delivery(&id, &message.body, &message.raw, is_taken);
            kept.lock().unwrap().push(taken);
            is_taken
        };
        tokio::spawn(broker::read(broker.to_owned(), broker::TOLD, 1, take));
    }

    pub fn url(&self) -> String {
        format!("{}/replies", self.remote.url())
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

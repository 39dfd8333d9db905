//! The workers of the operated chaos: they fetch steps from random instances, close the connection now and then, and
//! have the services do the steps.

use std::{sync::Arc, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    super::{
        audit::Fetched,
        harness::{Api, Seen},
    },
    operators::Odd,
    promises::promised_by,
    services::Services,
};

/// The agent whose steps are fetched.
pub const AGENT: &str = "workers";

/// Starts so many workers that work until the test is over.
pub fn start(seed: u64, count: u64, apis: &Arc<Vec<Api>>, services: &Services, odd: &Odd) {
    for number in 0..count {
        let worker = Worker {
            name: format!("w-{number}"),
            apis: Arc::clone(apis),
            services: services.clone(),
            odd: odd.clone(),
        };
        tokio::spawn(worker.work(StdRng::seed_from_u64(seed ^ (number << 32))));
    }
}

struct Worker {
    name: String,
    apis: Arc<Vec<Api>>,
    services: Services,
    odd: Odd,
}

impl Worker {
    async fn work(self, mut random: StdRng) {
        loop {
            match self.fetch(&mut random).await {
                Some(steps) => steps.iter().for_each(|step| self.carry_out(step)),
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Returns the steps. `None`: there was no response, or the worker did not wait for it.
    async fn fetch(&self, random: &mut StdRng) -> Option<Vec<Value>> {
        let wait = ["0s", "200ms", "2s", "2s"][random.random_range(0..4)];
        let max = random.random_range(1..8);
        let body = json!({ "worker": self.name, "max": max, "wait": wait });
        let patience = match random.random_ratio(1, 10) {
            true => Duration::from_millis(random.random_range(1..200)),
            false => Duration::from_secs(4),
        };
        let api = &self.apis[random.random_range(0..self.apis.len())];
        let claim = api.post(&format!("/v1/agents/{AGENT}/claim"), &body);
        let answer = timeout(patience, claim.attempt()).await.ok()?.ok()?;
        match answer.status {
            200 if answer.body["steps"].as_array()?.len() <= max => {
                Some(answer.body["steps"].as_array()?.clone())
            }
            503 => None,
            _ => {
                self.odd.add(format!("to {}: {answer:?}", self.name));
                None
            }
        }
    }

    fn carry_out(&self, step: &Value) {
        let request = &step["request"];
        let headers = request["headers"].as_object().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut seen = Seen {
            at: Instant::now().into_std(),
            method: text(&request["method"]),
            path: text(&request["path"]),
            headers: headers
                .map(|(name, value)| (name.clone(), text(value)))
                .collect(),
            body: request["body"].clone(),
            raw: request["body"].to_string(),
        };
        let reply_to = format!("http://any/v1/replies/{}", text(&step["token"]));
        seen.headers.insert("provost-reply-to".to_owned(), reply_to);
        self.services.fetched(
            &seen,
            Fetched {
                of: promised_by(&seen),
                worker: self.name.clone(),
            },
        );
    }
}

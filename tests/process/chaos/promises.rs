//! How the services of the operated chaos send the replies that they promised: to random instances, again and again
//! until one responds, some twice, some with heartbeats. What they were told is written down.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    audit::{At, Heartbeat, Promised, Reply},
    harness::{Api, Seen},
};

/// Longer than a network that hangs for a moment.
const PATIENCE: Duration = Duration::from_secs(2);

/// The way to Provost, and what came of it.
#[derive(Default)]
pub struct Outbox {
    apis: OnceLock<Arc<Vec<Api>>>,
    sent: Mutex<Sent>,
}

#[derive(Default)]
struct Sent {
    open: usize,
    replies: Vec<Reply>,
    heartbeats: Vec<Heartbeat>,
}

/// One promise: to which attempt, and where its reply goes.
#[derive(Clone)]
pub struct Promise {
    pub attempt: Promised,
    path: String,
    seed: u64,
}

impl Promise {
    pub fn of(seen: &Seen, seed: u64) -> Self {
        let address = seen.header("provost-reply-to");
        let at = address.find("/v1/replies/").expect("an address of the API");
        Self {
            attempt: Promised::by(seen),
            path: address[at..].to_owned(),
            seed,
        }
    }
}

impl Outbox {
    pub fn reaches(&self, apis: Arc<Vec<Api>>) {
        assert!(self.apis.set(apis).is_ok(), "it is set once");
    }

    pub fn is_busy(&self) -> bool {
        self.sent.lock().unwrap().open > 0
    }

    pub fn replies(&self) -> Vec<Reply> {
        self.sent.lock().unwrap().replies.clone()
    }

    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        self.sent.lock().unwrap().heartbeats.clone()
    }

    /// To be called before the promise is given, and [`Outbox::closed`] once nothing is sent for it any more.
    pub fn opened(&self) {
        self.sent.lock().unwrap().open += 1;
    }

    pub fn closed(&self) {
        self.sent.lock().unwrap().open -= 1;
    }

    /// Until an instance has it. Then perhaps once more, to whichever.
    pub async fn reply(&self, promise: &Promise, body: &Value) {
        let mut random = StdRng::seed_from_u64(promise.seed);
        let status = self.insist(&mut random, &promise.path, body).await;
        let answered = At::now();
        let mut again = Vec::new();
        while random.random_ratio(1, 3) {
            sleep(Duration::from_millis(random.random_range(0..1_500))).await;
            again.push(self.insist(&mut random, &promise.path, body).await);
        }
        self.sent.lock().unwrap().replies.push(Reply {
            of: promise.attempt.clone(),
            answered,
            status,
            again,
        });
    }

    /// One heartbeat. Whether the service is to go on.
    pub async fn beat(&self, promise: &Promise, progress: f64) -> bool {
        let mut random = StdRng::seed_from_u64(promise.seed ^ progress.to_bits());
        let body = json!({ "progress": progress, "message": "at work" });
        let path = format!("{}/heartbeat", promise.path);
        let sent = At::now();
        let answer = self.try_once(&mut random, &path, &body).await;
        if let Some(status) = answer {
            self.sent.lock().unwrap().heartbeats.push(Heartbeat {
                of: promise.attempt.clone(),
                sent,
                answered: At::now(),
                status,
            });
        }
        answer != Some(409)
    }

    async fn insist(&self, random: &mut StdRng, path: &str, body: &Value) -> u16 {
        loop {
            match self.try_once(random, path, body).await {
                Some(status) if status != 503 => return status,
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn try_once(&self, random: &mut StdRng, path: &str, body: &Value) -> Option<u16> {
        let apis = self.apis.get().expect("the instances were started first");
        let call = apis[random.random_range(0..apis.len())].post(path, body);
        let answer = timeout(PATIENCE, call.attempt()).await;
        Some(answer.ok()?.ok()?.status)
    }
}

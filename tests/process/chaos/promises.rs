//! Sends the replies that the services of the operated chaos promised: to random instances, again and again until one
//! responds, some twice, some with heartbeats; or to the queue for replies, until the broker confirms. The responses
//! are recorded.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    super::{
        audit::{At, Heartbeat, Promised, QueuedReply, Reply},
        harness::{Api, Seen},
    },
    broker::{self, Properties, Publisher},
};

/// The time to wait for a response. It is longer than the time for which a network hangs for a moment.
const PATIENCE: Duration = Duration::from_secs(2);
/// The number of connections to the broker.
const PUBLISHERS: usize = 4;

/// Returns the attempt of a request.
pub fn promised_by(seen: &Seen) -> Promised {
    Promised {
        task: seen.header("provost-task").to_owned(),
        step: seen.header("provost-step").to_owned(),
        attempt: seen.attempt() as usize,
    }
}

/// The connections to Provost, and the record of what was sent.
#[derive(Default)]
pub struct Outbox {
    apis: OnceLock<Arc<Vec<Api>>>,
    broker: OnceLock<Vec<Publisher>>,
    sent: Mutex<Sent>,
}

#[derive(Default)]
struct Sent {
    open: usize,
    replies: Vec<Reply>,
    queued_replies: Vec<QueuedReply>,
    heartbeats: Vec<Heartbeat>,
}

/// A promise: its attempt, and the address of its reply.
#[derive(Clone)]
pub struct Promise {
    pub attempt: Promised,
    path: String,
    /// The queue to which the reply can also be sent.
    queue: Option<String>,
    seed: u64,
}

impl Promise {
    pub fn of(seen: &Seen, seed: u64) -> Self {
        let address = seen.header("provost-reply-to");
        let at = address.find("/v1/replies/").expect("an address of the API");
        Self {
            attempt: promised_by(seen),
            path: address[at..].to_owned(),
            queue: seen.headers.get(broker::REPLY_QUEUE).cloned(),
            seed,
        }
    }
}

impl Outbox {
    pub fn reaches(&self, apis: Arc<Vec<Api>>) {
        assert!(self.apis.set(apis).is_ok(), "it is set once");
    }

    pub fn reaches_broker(&self, url: &str) {
        let publishers = (0..PUBLISHERS).map(|_| Publisher::new(url)).collect();
        assert!(self.broker.set(publishers).is_ok(), "it is set once");
    }

    pub fn is_busy(&self) -> bool {
        self.sent.lock().unwrap().open > 0
    }

    pub fn replies(&self) -> Vec<Reply> {
        self.sent.lock().unwrap().replies.clone()
    }

    pub fn queued_replies(&self) -> Vec<QueuedReply> {
        self.sent.lock().unwrap().queued_replies.clone()
    }

    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        self.sent.lock().unwrap().heartbeats.clone()
    }

    /// Must be called before the promise is given, and [`Outbox::closed`] once nothing is sent for it any more.
    pub fn opened(&self) {
        self.sent.lock().unwrap().open += 1;
    }

    pub fn closed(&self) {
        self.sent.lock().unwrap().open -= 1;
    }

    /// Sends the reply until an instance has accepted it, and sometimes once more to any instance.
    pub async fn reply(&self, promise: &Promise, body: &Value) {
        let mut random = StdRng::seed_from_u64(promise.seed);
        if let Some(queue) = &promise.queue
            && random.random_ratio(3, 4)
        {
            return self.reply_to_queue(&mut random, promise, queue, body).await;
        }
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

    /// Sends the reply until the broker has confirmed it, and sometimes once more.
    async fn reply_to_queue(
        &self,
        random: &mut StdRng,
        promise: &Promise,
        queue: &str,
        body: &Value,
    ) {
        let publishers = self.broker.get().expect("the broker was started first");
        let token = promise.path.rsplit('/').next().unwrap_or_default();
        loop {
            let properties = Properties {
                correlation_id: Some(token.to_owned()),
                ..Properties::default()
            };
            let publisher = &publishers[random.random_range(0..publishers.len())];
            publisher.publish(queue, body, properties).await;
            self.sent.lock().unwrap().queued_replies.push(QueuedReply {
                of: promise.attempt.clone(),
                confirmed: At::now(),
            });
            if !random.random_ratio(1, 4) {
                return;
            }
            sleep(Duration::from_millis(random.random_range(0..1_500))).await;
        }
    }

    /// Sends one heartbeat. Returns whether the service should continue.
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

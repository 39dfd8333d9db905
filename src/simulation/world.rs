//! The surroundings of the instances: services, a receiver, submitters and operators, with the record that they keep. They have
//! a runtime of their own, whose clock is that of the simulation.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    audit::{Accepted, At, Delivery, Found, Ledger},
    client::{self, Answer},
    event_log::EventLog,
    network,
    plan::Plan,
};
use crate::host::{EPOCH, Surroundings};

/// The time that a client waits for a response.
pub const PATIENCE: Duration = Duration::from_secs(3);

pub struct SimulatedWorld {
    pub plan: Plan,
    pub surroundings: Arc<Surroundings>,
    pub events: EventLog,
    began: Instant,
    /// True once there are no more faults.
    is_well: AtomicBool,
    pub books: Mutex<Books>,
    pub accepted: Mutex<Vec<Accepted>>,
    /// The responses of the API that no caller should get.
    pub odd: Mutex<Vec<String>>,
}

/// The records of the services and of the receiver.
#[derive(Default)]
pub struct Books {
    pub entries: BTreeMap<String, Entry>,
    pub ledger: Ledger,
    pub deliveries: Vec<Delivery>,
}

/// The state of a work at its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    Absent,
    /// The work is being done or undone. Other calls are asked to retry.
    UnderWay(Found),
    Done,
    Undone,
    /// The undo came before the work, which will never be done.
    Withdrawn,
}

impl SimulatedWorld {
    /// Begins the world in its runtime.
    pub fn begin(plan: Plan, surroundings: Arc<Surroundings>, keeps_events: bool) -> Arc<Self> {
        Arc::new(Self {
            plan,
            surroundings,
            events: EventLog::new(keeps_events),
            began: Instant::now(),
            is_well: AtomicBool::new(false),
            books: Mutex::default(),
            accepted: Mutex::default(),
            odd: Mutex::default(),
        })
    }

    /// Returns a generator for one role.
    pub fn random(&self, role: u64) -> StdRng {
        StdRng::seed_from_u64(self.plan.seed.rotate_left(20) ^ role)
    }

    pub fn time(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn at(&self) -> At {
        let since_epoch = EPOCH + self.time();
        At(i64::try_from(since_epoch.as_micros()).unwrap())
    }

    pub fn note(&self, event: fmt::Arguments<'_>) {
        self.events.note(self.time(), event);
    }

    pub fn is_well(&self) -> bool {
        self.is_well.load(Ordering::Relaxed)
    }

    pub fn be_well(&self) {
        self.note(format_args!("no more faults"));
        self.is_well.store(true, Ordering::Relaxed);
    }

    pub async fn call(
        &self,
        to: SocketAddr,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Option<Answer> {
        let sent = client::send(&self.surroundings, to, method, path, key, body, PATIENCE);
        sent.await
    }

    pub fn instance(&self, number: usize) -> SocketAddr {
        network::instance(number % self.plan.instances)
    }

    /// Sends a request to one instance after the other until there is a response other than 503.
    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        for number in 0.. {
            let to = self.instance(number);
            match self.call(to, method, path, None, body).await {
                Some(answer) if answer.status != 503 => return answer,
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        unreachable!("it asks without end")
    }

    /// Returns all items of a list, page by page.
    pub async fn items(&self, list: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.ask("GET", &format!("{list}{cursor}"), None).await;
            assert_eq!(page.status, 200, "{list}: {}", page.body);
            all.extend(page.body["items"].as_array().unwrap().iter().cloned());
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }
}

//! The submitters of the tasks of the operated chaos: they submit over HTTP and through a queue, each task under its
//! key until it is accepted.

use std::{sync::Arc, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::{
    super::{
        audit::{At, Plan},
        harness::Api,
    },
    STUCK_AFTER,
    agents::BY_LOT,
    broker::{self, Properties, Publisher},
    operators::{Odd, PATIENCE, Tasks},
    orders::{self, Mix},
    workflows::Workflows,
};

/// The largest number of running tasks. More would fill the services' sockets and the machine, and test nothing more.
const MOST_LIVE: usize = 150;

/// A submitter, which uses random instances or a queue.
pub struct Submitter {
    pub number: u64,
    pub seed: u64,
    pub mix: Mix,
    pub workflows: Workflows,
    /// The workflows of which steps can have children.
    pub parts: Vec<String>,
    pub apis: Arc<Vec<Api>>,
    pub tasks: Tasks,
    pub odd: Odd,
    pub receiver: String,
    /// The largest number of its tasks.
    pub most: u32,
    pub longest_pause: Duration,
    /// The connection for the submissions that go to a queue, if there is one.
    pub publisher: Option<Arc<Publisher>>,
}

/// The workflow whose tasks run one at a time for each lot.
pub const TURNS: &str = "turns";

/// The number of lots in which tasks run one at a time.
const LOTS_WITH_TURNS: usize = 4;

fn has_children(order: &Value) -> bool {
    let steps = order["steps"].as_array().into_iter().flatten();
    let mut steps = steps.flat_map(|step| [step, &step["repeat"]]);
    steps.any(|step| !step["task"].is_null() || !step["steps"].is_null())
}

impl Submitter {
    /// Submits until the test is over, each task under its Idempotency-Key until it is accepted.
    pub async fn work(self, over: watch::Receiver<bool>) {
        let this = Arc::new(self);
        let mut queued = JoinSet::new();
        this.submit_all(&over, &mut queued).await;
        queued.join_all().await;
    }

    async fn submit_all(self: &Arc<Self>, over: &watch::Receiver<bool>, queued: &mut JoinSet<()>) {
        let mut random = StdRng::seed_from_u64(self.seed + self.number);
        for turn in 0..self.most {
            if *over.borrow() {
                return;
            }
            let mut key = format!("order-{}-{turn}", self.number);
            let mut order = orders::order(&mut random, self.mix, &self.parts, &key, &self.receiver);
            if self.mix.has_kind(&mut random, 8, 15) {
                let later = Duration::from_millis(random.random_range(0..4_000));
                order["start_at"] = json!(At::now().plus(later).to_rfc3339());
            }
            let moving = match self.mix.has_kind(&mut random, 3, 8) {
                true => self.workflows.moving(&mut random),
                false => None,
            };
            if let Some((name, _, workflow)) = &moving {
                key = format!("{key}-{name}");
                let order = order.as_object_mut().unwrap();
                order.insert("key".to_owned(), json!(key));
                order.remove("on_deadline");
                // Operators take the steps of the task from this plan; the auditor takes them from the record at the
                // end.
                order.extend(workflow.as_object().unwrap().clone());
            }
            let one_in = if self.mix == Mix::Queues { 2 } else { 4 };
            if moving.is_none() && self.publisher.is_some() && random.random_ratio(1, one_in) {
                let times = random.random_range(0..5) / 4 + 1;
                queued.spawn(Arc::clone(self).publish(times, key, order));
                sleep(self.pause(&mut random)).await;
                continue;
            }
            let registered = match &moving {
                Some((name, ..)) => Self::of_workflow(&order, name),
                None if self.mix == Mix::Protected && random.random_ratio(1, 3) => {
                    let name = format!("orders-{}", random.random_range(0..3));
                    let limit = json!({ "by": BY_LOT, "max_in_flight": 3, "rate": "30/s" });
                    self.register(&mut random, &order, &name, limit).await
                }
                // A child that needs an operator would keep its parent running, and so the tasks that wait for the
                // parent.
                None if self.mix.has_kind(&mut random, 4, 12) && !has_children(&order) => {
                    // The lots are so few that most tasks wait.
                    let lot = format!("lot-{}", random.random_range(0..LOTS_WITH_TURNS));
                    order["labels"]["lot"] = json!(lot);
                    let limit = json!({ "by": BY_LOT, "max_running": 1 });
                    self.register(&mut random, &order, TURNS, limit).await
                }
                None => order.clone(),
            };
            let id = self.submit(&mut random, &key, &registered).await;
            let Some(id) = id else { return };
            self.tasks.add(id.clone(), key, Plan::of(&order));
            if registered["workflow"] == TURNS && random.random_ratio(1, 2) {
                self.skip_first(&mut random, &id, &order).await;
            }
            // Most often the task has begun when the next one comes.
            let until = Instant::now() + self.pause(&mut random);
            let api = &self.apis[random.random_range(0..self.apis.len())];
            let wait = api.get(&format!("/v1/tasks/{id}?wait=1s")).attempt();
            let _ = timeout_at(until, wait).await;
            sleep_until(until).await;
            while turn % 20 == 19 && self.live().await > MOST_LIVE && !*over.borrow() {
                sleep(Duration::from_millis(200)).await;
            }
        }
    }

    fn pause(&self, random: &mut StdRng) -> Duration {
        self.longest_pause.mul_f64(random.random_range(0.02..1.0))
    }

    /// Skips the first step, most often of a task that waits for admission, so that a step has begun before the task is
    /// admitted.
    async fn skip_first(&self, random: &mut StdRng, id: &str, order: &Value) {
        let step = order["steps"][0]["name"].as_str().unwrap();
        let path = format!("/v1/tasks/{id}/steps/{step}/skip");
        let api = &self.apis[random.random_range(0..self.apis.len())];
        let body = json!({ "reason": "chaos" });
        let _ = timeout(PATIENCE, api.post(&path, &body).attempt()).await;
    }

    /// Returns the submission of a task of the version that is active at that time.
    fn of_workflow(order: &Value, name: &str) -> Value {
        let mut submission = order.clone();
        for field in ["steps", "on_permanent", "on_exhausted", "on_deadline"] {
            submission.as_object_mut().unwrap().remove(field);
        }
        submission["workflow"] = json!(name);
        submission
    }

    /// Registers a version of a workflow that limits the tasks or their steps by keys. Returns the submission of a task
    /// of it.
    async fn register(
        &self,
        random: &mut StdRng,
        order: &Value,
        name: &str,
        limit: Value,
    ) -> Value {
        let mut submission = order.clone();
        let mut workflow = json!({ "limits": [limit] });
        for field in ["steps", "on_permanent", "on_exhausted", "on_deadline"] {
            let field_value = submission.as_object_mut().unwrap().remove(field);
            workflow[field] = field_value.unwrap_or_default();
        }
        loop {
            let api = &self.apis[random.random_range(0..self.apis.len())];
            let put = api.put(&format!("/v1/workflows/{name}"), &workflow);
            match timeout(Duration::from_secs(3), put.attempt()).await {
                Ok(Ok(answer)) if answer.status < 300 => {
                    let version = answer.body["version"].as_u64().unwrap();
                    // An operator may move the task to another of these versions.
                    let version = u32::try_from(version).unwrap();
                    self.workflows.add(name, version, workflow);
                    submission["workflow"] = json!(name);
                    submission["workflow_version"] = answer.body["version"].clone();
                    return submission;
                }
                Ok(Ok(answer)) if answer.status != 503 => {
                    self.odd
                        .add(format!("{} to {name}: {}", answer.status, answer.body));
                    return order.clone();
                }
                Ok(Ok(_) | Err(_)) | Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn submit(&self, random: &mut StdRng, key: &str, order: &Value) -> Option<String> {
        loop {
            let api = &self.apis[random.random_range(0..self.apis.len())];
            let submitted = api.post("/v1/tasks", order).header("idempotency-key", key);
            let patience = Duration::from_millis(random.random_range(300..4_000));
            match timeout(patience, submitted.attempt()).await {
                Ok(Ok(answer)) if answer.status == 202 => {
                    return Some(answer.body["id"].as_str().unwrap().to_owned());
                }
                // The submission was refused, or its result is unclear: it is repeated at any instance.
                Ok(Ok(answer)) if answer.status != 503 => {
                    self.odd
                        .add(format!("{} to {key}: {}", answer.status, answer.body));
                    return None;
                }
                Ok(Ok(_) | Err(_)) | Err(_) => {}
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Submits through a queue, sometimes twice under one id, like a caller that lost the confirm, and finds the task.
    async fn publish(self: Arc<Self>, times: usize, key: String, order: Value) {
        let publisher = self.publisher.as_ref().unwrap();
        for _ in 0..times {
            let properties = Properties {
                message_id: Some(key.clone()),
                ..Properties::default()
            };
            publisher.publish(broker::ORDERS, &order, properties).await;
        }
        let until = Instant::now() + STUCK_AFTER;
        let list = format!("/v1/tasks?key={key}");
        let mut turn = 0;
        let id = loop {
            turn += 1;
            let list = self.apis[turn % self.apis.len()].get(&list).attempt();
            let found = match timeout(Duration::from_secs(1), list).await {
                Ok(Ok(answer)) => answer.body["items"][0]["id"].as_str().map(str::to_owned),
                _ => None,
            };
            match found {
                Some(id) => break id,
                // The auditor will not find the task either, and reports that.
                None if Instant::now() > until => break format!("queued-{key}"),
                None => sleep(Duration::from_millis(100)).await,
            }
        };
        self.tasks.add(id, key, Plan::of(&order));
    }

    /// Returns the approximate number of running tasks; 0 if no instance responds.
    async fn live(&self) -> usize {
        let list = self.apis[0].get("/v1/tasks?state=processing&limit=500");
        match timeout(Duration::from_secs(1), list.attempt()).await {
            Ok(Ok(answer)) => answer.body["items"].as_array().map_or(0, Vec::len),
            _ => 0,
        }
    }
}

//! Operators who give any command for any task at any instance at any moment, also for undos.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    super::{
        audit::{Accepted, Plan},
        harness::{Answer, Api},
    },
    kinds,
    orders::Mix,
    schedules::Schedules,
    workflows::Workflows,
};

/// The tasks that were accepted so far, from which all operators choose.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    all: Vec<Accepted>,
    /// The indices in `all` of the tasks that are not known to have ended.
    open: Vec<usize>,
    /// The tasks that no submitter made: children, and tasks of schedules.
    found: Vec<Accepted>,
}

impl Tasks {
    pub fn add(&self, id: String, key: String, plan: Plan) {
        let mut known = self.0.lock().unwrap();
        let at = known.all.len();
        known.open.push(at);
        let task = Accepted {
            id,
            key,
            plan,
            ..Accepted::default()
        };
        known.all.push(task);
    }

    /// Returns the tasks that have not ended and whose key contains the name of the workflow.
    fn of_workflow(&self, name: &str) -> Vec<String> {
        let known = self.0.lock().unwrap();
        let open = known.open.iter().map(|at| &known.all[*at]);
        let own = open.filter(|task| task.key.contains(name));
        own.map(|task| task.id.clone()).collect()
    }

    pub fn all(&self) -> Vec<Accepted> {
        self.0.lock().unwrap().all.clone()
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().all.len()
    }

    /// Adds a task that no submitter made.
    pub fn find(&self, id: &str, key: &str, plan: Plan) {
        let mut known = self.0.lock().unwrap();
        if known.found.iter().all(|task| task.id != id) {
            let (id, key) = (id.to_owned(), key.to_owned());
            let task = Accepted {
                id,
                key,
                plan,
                ..Accepted::default()
            };
            known.found.push(task);
        }
    }

    fn has_ended(&self, id: &str) {
        let mut known = self.0.lock().unwrap();
        let Known { all, open, found } = &mut *known;
        open.retain(|at| all[*at].id != id);
        found.retain(|task| task.id != id);
    }

    /// Returns any task, most often one that has not ended.
    fn any(&self, random: &mut StdRng) -> Option<Accepted> {
        let known = self.0.lock().unwrap();
        if !known.found.is_empty() && random.random_ratio(1, 4) {
            let at = random.random_range(0..known.found.len());
            return known.found.get(at).cloned();
        }
        let of_all = random.random_ratio(1, 20);
        let count = match of_all {
            true => known.all.len(),
            false => known.open.len(),
        };
        let at = random.random_range(0..count.max(1));
        match of_all {
            true => known.all.get(at).cloned(),
            false => known.open.get(at).map(|at| known.all[*at].clone()),
        }
    }
}

/// The responses of the API that it should never return.
#[derive(Clone, Default)]
pub struct Odd(Arc<Mutex<Vec<String>>>);

impl Odd {
    pub fn add(&self, answer: String) {
        self.0.lock().unwrap().push(answer);
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// The time after which an operator uses another instance, if there is no response.
pub const PATIENCE: Duration = Duration::from_millis(700);
/// The same on a machine on which instances respond slowly: each time without a response doubles it up to here.
const MOST_PATIENCE: Duration = Duration::from_secs(10);

/// Returns the patience after a response, or after a time without one.
fn patience_after(patience: Duration, is_answered: bool) -> Duration {
    match is_answered {
        true => PATIENCE,
        false => (patience * 2).min(MOST_PATIENCE),
    }
}

pub struct Operator {
    pub number: u64,
    pub seed: u64,
    pub apis: Arc<Vec<Api>>,
    pub tasks: Tasks,
    pub odd: Odd,
    pub mix: Mix,
    pub workflows: Workflows,
    pub schedules: Schedules,
    /// The longest time between two commands.
    pub longest_pause: Duration,
    /// The number of commands of all operators that were carried out.
    pub carried_out: Arc<AtomicUsize>,
}

/// A command: its path, and its body.
struct Asked {
    path: String,
    body: Value,
}

/// Encodes the name of a step or of an item for a path.
fn in_path(step: &str) -> String {
    step.replace('[', "%5B").replace(']', "%5D")
}

impl Operator {
    /// Works until the test is over. Returns how often each status was returned; 0 means no response.
    pub async fn work(self, over: watch::Receiver<bool>) -> BTreeMap<u16, usize> {
        // The seed must differ from that of a submitter.
        let mut random = StdRng::seed_from_u64(self.seed.rotate_left(17) + self.number);
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        let (mut clones, mut triggers) = (0, 0);
        let mut commands = JoinSet::new();
        let mut patience = PATIENCE;
        while !*over.borrow() {
            sleep(self.longest_pause.mul_f64(random.random_range(0.04..1.0))).await;
            let Some(task) = self.tasks.any(&mut random) else {
                continue;
            };
            if random.random_ratio(1, 30) {
                clones += 1;
                self.clone_task(&mut random, &task, clones, &over).await;
                continue;
            }
            if self.mix.has_kind(&mut random, 12, 40) {
                triggers += 1;
                let key = format!("trigger-{}-{triggers}", self.number);
                let schedules = self.schedules.clone();
                let random = StdRng::seed_from_u64(random.random());
                let (apis, odd) = (Arc::clone(&self.apis), self.odd.clone());
                commands.spawn(schedules.command(random, apis, key, odd));
                continue;
            }
            if self.mix.has_kind(&mut random, 10, 40) {
                self.version(&mut random, &over).await;
                continue;
            }
            let asked = match self.mix.has_kind(&mut random, 6, 20) {
                true => match self.move_tasks(&mut random, &task) {
                    Some(asked) => asked,
                    None => continue,
                },
                false => self.ask(&mut random, &task).await,
            };
            let api = self.api(&mut random);
            let call = api.post(&asked.path, &asked.body).attempt();
            let called = timeout(patience, call).await;
            patience = patience_after(patience, called.is_ok());
            let Ok(Ok(answer)) = called else {
                *statuses.entry(0).or_default() += 1;
                continue;
            };
            *statuses.entry(answer.status).or_default() += 1;
            // A command for many tasks is accepted as a job.
            if [200, 202].contains(&answer.status) {
                self.carried_out.fetch_add(1, Ordering::Relaxed);
            }
            self.judge(&asked.path, &answer);
            let ended = answer.body["ended_at"].is_string()
                || answer.body["type"] == "/problems/task-ended";
            if ended && asked.path.contains(&task.id) {
                self.tasks.has_ended(&task.id);
            }
        }
        commands.join_all().await;
        statuses
    }

    /// Registers a new version of a workflow, or activates another.
    async fn version(&self, random: &mut StdRng, over: &watch::Receiver<bool>) {
        let Some((name, latest, workflow)) = self.workflows.moving(random) else {
            return;
        };
        if random.random_ratio(1, 2) {
            let body = json!({ "version": random.random_range(1..=latest), "reason": "chaos" });
            let path = format!("/v1/workflows/{name}/activate");
            let call = self.api(random).post(&path, &body).attempt();
            if let Ok(Ok(answer)) = timeout(PATIENCE, call).await {
                self.judge(&path, &answer);
                self.carried_out.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let next = kinds::next_version(random, latest + 1, workflow);
        let activate = ["", "?activate=true", "?activate=false"][random.random_range(0..3)];
        let path = format!("/v1/workflows/{name}{activate}");
        let mut patience = PATIENCE;
        while !*over.borrow() {
            let call = self.api(random).put(&path, &next).attempt();
            let called = timeout(patience, call).await;
            patience = patience_after(patience, called.is_ok());
            match called {
                Ok(Ok(answer)) if [200, 201].contains(&answer.status) => {
                    let version = answer.body["version"].as_u64().unwrap();
                    let version = u32::try_from(version).unwrap();
                    return self.workflows.add(&name, version, next);
                }
                Ok(Ok(answer)) if answer.status != 503 => return self.judge(&path, &answer),
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Moves one task, even if it cannot move, or all tasks of a version.
    fn move_tasks(&self, random: &mut StdRng, task: &Accepted) -> Option<Asked> {
        let (name, latest, _) = self.workflows.moving(random)?;
        let to = match random.random_range(0..4) {
            0 => json!("active"),
            1 => json!("latest"),
            _ => json!(random.random_range(1..=latest)),
        };
        if random.random_ratio(1, 3) {
            let from = random.random_range(1..=latest);
            return Some(Asked {
                path: "/v1/tasks/migrate".to_owned(),
                body: json!({ "workflow": name, "from_version": from, "to_version": to }),
            });
        }
        // Most often the task belongs to a workflow that has this version.
        let mut ids = self.tasks.of_workflow(&name);
        ids.push(task.id.clone());
        let id = &ids[random.random_range(0..ids.len())];
        Some(Asked {
            path: format!("/v1/tasks/{id}/migrate"),
            body: json!({ "to_version": to, "reason": "chaos" }),
        })
    }

    fn api(&self, random: &mut StdRng) -> &Api {
        &self.apis[random.random_range(0..self.apis.len())]
    }

    fn judge(&self, path: &str, answer: &Answer) {
        let no_step = answer.body["type"] == "/problems/no-such-step";
        // The task may belong to another workflow than this operator knows.
        let no_version =
            path.ends_with("/migrate") && answer.body.to_string().contains("has no such version");
        if !([200, 202, 409, 412, 503].contains(&answer.status) || no_step || no_version) {
            self.odd
                .add(format!("{} to {path}: {}", answer.status, answer.body));
        }
    }

    async fn ask(&self, random: &mut StdRng, task: &Accepted) -> Asked {
        let id = &task.id;
        let of_task = |command: &str| Asked {
            path: format!("/v1/tasks/{id}/{command}"),
            body: json!({ "reason": "chaos" }),
        };
        match random.random_range(0..100) {
            0..20 => of_task("undo"),
            20..25 => of_task("cancel"),
            25..27 => of_task("start"),
            27..34 => of_task("pause"),
            34..46 => of_task("resume"),
            46..50 => {
                let steps = task.plan.steps.iter();
                let steps: Vec<_> = steps.filter(|step| step.uncalled).collect();
                let step = match steps.is_empty() {
                    true => &task.plan.steps[0],
                    false => steps[random.random_range(0..steps.len())],
                };
                of_task(&format!("signals/{}", in_path(&step.name)))
            }
            50..58 => of_task("retry"),
            58..64 => {
                let at = random.random_range(0..task.plan.steps.len());
                Asked {
                    path: format!("/v1/tasks/{id}/retry"),
                    body: json!({ "from": task.plan.steps[at].name }),
                }
            }
            64..67 => {
                let (step, _) = self.step(random, task, &["processing"]).await;
                of_task(&format!("steps/{}/cancel", in_path(&step)))
            }
            67..90 => {
                let (step, is_pending) = self.step(random, task, &["error", "pending"]).await;
                let command = match random.random_range(0..10) {
                    // A pending step has rarely failed; it may be the first of a task that waits for admission.
                    0..6 if !is_pending => "retry",
                    0..2 => "retry",
                    2..8 => "skip",
                    _ => "resolve",
                };
                of_task(&format!("steps/{}/{command}", in_path(&step)))
            }
            chance => {
                let command = match chance {
                    90..94 => "undo",
                    94..97 => "retry",
                    97..99 => "skip",
                    _ => "cancel",
                };
                Asked {
                    path: format!("/v1/tasks/{command}"),
                    body: self.many(random),
                }
            }
        }
    }

    /// Returns a selection: some of the last tasks, or all tasks of a lot.
    fn many(&self, random: &mut StdRng) -> Value {
        let is_of_lot = random.random_ratio(1, 3);
        let lot = random.random_range(0..20);
        let count = random.random_range(1..5);
        let ids: Vec<_> = (0..count)
            .filter_map(|_| Some(self.tasks.any(random)?.id))
            .collect();
        if is_of_lot || ids.is_empty() {
            return json!({ "labels": { "lot": format!("lot-{lot}") }, "first": 20 });
        }
        json!({ "ids": ids })
    }

    /// Returns a step in one of these states, as some instance shows the task, and whether it is pending. Sometimes
    /// returns any step or any undo instead.
    async fn step(&self, random: &mut StdRng, task: &Accepted, states: &[&str]) -> (String, bool) {
        let at = random.random_range(0..task.plan.steps.len());
        let name = &task.plan.steps[at].name;
        let any = match random.random_ratio(1, 2) {
            true => format!("{name}.undo"),
            false => name.clone(),
        };
        if random.random_ratio(1, 4) {
            return (any, false);
        }
        let read = format!("/v1/tasks/{}/steps?limit=500", task.id);
        let read = self.api(random).get(&read);
        let Ok(Ok(answer)) = timeout(Duration::from_millis(500), read.attempt()).await else {
            return (any, false);
        };
        if answer.status == 404 {
            self.odd
                .add(format!("the accepted {} is not found", task.id));
        }
        let steps = answer.body["items"].as_array().into_iter().flatten();
        let open: Vec<_> = steps
            .filter(|step| states.iter().any(|state| step["state"] == *state))
            .filter_map(|step| Some((step["name"].as_str()?, step["state"] == "pending")))
            .collect();
        if open.is_empty() {
            return (any, false);
        }
        let (name, is_pending) = open[random.random_range(0..open.len())];
        (name.to_owned(), is_pending)
    }

    /// Clones a task. The request is repeated until it is accepted, like any submission.
    async fn clone_task(
        &self,
        random: &mut StdRng,
        task: &Accepted,
        count: u32,
        over: &watch::Receiver<bool>,
    ) {
        let key = format!("clone-{}-{count}", self.number);
        let path = format!("/v1/tasks/{}/clone", task.id);
        let mut patience = Duration::from_secs(3);
        loop {
            let clone = self.api(random).post(&path, &json!({ "key": key }));
            let clone = clone.header("idempotency-key", &key).attempt();
            let called = timeout(patience, clone).await;
            patience = patience.max(patience_after(patience, called.is_ok()));
            match called {
                Ok(Ok(answer)) if answer.status == 202 => {
                    let id = answer.body["id"].as_str().unwrap().to_owned();
                    // The clone begins at once.
                    let plan = Plan {
                        start_at: None,
                        ..task.plan.clone()
                    };
                    self.tasks.add(id, key, plan);
                    return;
                }
                Ok(Ok(answer)) if answer.status != 503 => return self.judge(&path, &answer),
                Ok(Ok(_) | Err(_)) | Err(_) => {}
            }
            // The request is repeated even when all is over, because it may have been accepted.
            let pause = if *over.borrow() { 200 } else { 20 };
            sleep(Duration::from_millis(pause)).await;
        }
    }
}

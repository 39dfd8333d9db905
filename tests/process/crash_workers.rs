//! SIGKILL at any moment while workers fetch steps, work, reply one by one or in bulk, close connections, and die:
//! every attempt goes to one worker, and only once its claim is in the record; and a reply counts exactly if its
//! attempt had not ended in another way.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    cluster,
    harness::{Api, PATIENCE, Provost, Setup, kill_count, step},
};

const KILLS: u64 = 6;
const LEAST_TASKS: usize = 80;
const SUBMITTERS: usize = 16;
const WORKERS: u64 = 8;
/// The last two steps become ready at the same time.
const STEPS: [&str; 4] = ["cut", "render", "check", "publish"];
/// A step is retried if its worker is silent for this time.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(1);
const COMPLETE_WITHIN: Duration = Duration::from_secs(3);

fn submission(key: &str) -> Value {
    let steps = STEPS.iter().enumerate().map(|(at, name)| {
        let after: &[&str] = match at {
            0 => &[],
            1 => &STEPS[..1],
            _ => &STEPS[1..2],
        };
        let mut step = json!({ "name": name, "agent": "video", "after": after, "max_failures": 100,
            "complete_within": "3s", "request": { "body": { "order": "{{ task.key }}" } } });
        if at % 2 == 1 {
            step["heartbeat_within"] = json!("1s");
        }
        step
    });
    json!({ "key": key, "steps": steps.collect::<Vec<_>>() })
}

/// The id of a task, the name of a step, and the number of an attempt.
type Attempt = (String, String, u64);

struct Fetched {
    worker: String,
    at: Timestamp,
}

/// The response to the first reply of an attempt.
struct Replied {
    at: Timestamp,
    status: u64,
    is_output: bool,
}

#[derive(Default)]
struct Ledger {
    fetched: HashMap<Attempt, Fetched>,
    /// The keys of the steps.
    keys: HashMap<(String, String), String>,
    replied: HashMap<Attempt, Replied>,
}

/// The state that the workers share.
struct Workers {
    api: Api,
    seed: u64,
    ledger: Mutex<Ledger>,
    fetches: watch::Sender<usize>,
    /// The number of workers that stopped their heartbeats and may still reply.
    late: watch::Sender<usize>,
    are_done: AtomicBool,
}

fn attempt_of(fetched: &Value) -> Attempt {
    let text = |name: &str| fetched[name].as_str().unwrap().to_owned();
    (
        text("task"),
        text("step"),
        fetched["attempt"].as_u64().unwrap(),
    )
}

impl Workers {
    async fn work(self: Arc<Self>, number: u64) {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(number));
        let mut life = 0;
        while !self.are_done.load(Ordering::Relaxed) {
            let name = format!("w-{number}-{life}");
            let Some(steps) = self.fetch(&name, &mut random).await else {
                sleep(Duration::from_millis(5)).await;
                continue;
            };
            if steps.is_empty() {
                continue;
            }
            let mut millis = |range| Duration::from_millis(random.random_range(range));
            let (work, silence) = (millis(0..300), millis(500..4_500));
            match random.random_range(0..40) {
                // The worker dies.
                0 => life += 1,
                // The worker is silent, as if it had died, and replies later.
                1..3 => {
                    life += 1;
                    self.late.send_modify(|late| *late += 1);
                    let workers = Arc::clone(&self);
                    let mut random = StdRng::seed_from_u64(random.random());
                    tokio::spawn(async move {
                        sleep(silence).await;
                        workers.reply(&name, steps, &mut random).await;
                        workers.late.send_modify(|late| *late -= 1);
                    });
                }
                3..5 => {
                    self.beat(&steps).await;
                    self.reply(&name, steps, &mut random).await;
                }
                _ => {
                    sleep(work).await;
                    self.reply(&name, steps, &mut random).await;
                }
            }
        }
    }

    /// Returns the steps. `None`: there was no response, or the worker did not wait for it.
    async fn fetch(&self, worker: &str, random: &mut StdRng) -> Option<Vec<Value>> {
        let wait = ["0s", "50ms", "2s", "2s"][random.random_range(0..4)];
        let max = random.random_range(1..6);
        let body = json!({ "worker": worker, "max": max, "wait": wait });
        let patience = match random.random_ratio(1, 10) {
            true => Duration::from_millis(random.random_range(1..100)),
            false => PATIENCE,
        };
        let claim = self.api.post("/v1/agents/video/claim", &body).attempt();
        let answer = timeout(patience, claim).await.ok()?.ok()?;
        if answer.status == 503 {
            return None;
        }
        let at = Timestamp::now();
        let answer = answer.expect(200);
        let steps = answer["steps"].as_array().unwrap();
        assert!(steps.len() <= max, "{max} at most: {answer:#}");
        let mut ledger = self.ledger.lock().unwrap();
        for step in steps {
            let attempt = attempt_of(step);
            let key = step["idempotency_key"].as_str().unwrap();
            let of_step = ledger.keys.entry((attempt.0.clone(), attempt.1.clone()));
            assert_eq!(of_step.or_insert_with(|| key.to_owned()), key, "{step:#}");
            let worker = worker.to_owned();
            let before = ledger.fetched.insert(attempt, Fetched { worker, at });
            let before = before.map(|before| before.worker);
            assert_eq!(before, None, "this attempt was given to two: {step:#}");
        }
        drop(ledger);
        self.fetches.send_modify(|fetches| *fetches += steps.len());
        Some(steps.clone())
    }

    /// Sends heartbeats for longer than a worker may be silent.
    async fn beat(&self, steps: &[Value]) {
        for beat in 0..5 {
            for step in steps {
                let path = format!("/v1/replies/{}/heartbeat", step["token"].as_str().unwrap());
                let progress = json!({ "progress": f64::from(beat) / 5.0 });
                if let Ok(answer) = self.api.post(&path, &progress).attempt().await {
                    assert!([204, 409, 503].contains(&answer.status), "{answer:?}");
                }
            }
            sleep(HEARTBEAT_WITHIN / 4).await;
        }
    }

    /// Replies to all steps until there are responses, and then once more.
    async fn reply(&self, worker: &str, steps: Vec<Value>, random: &mut StdRng) {
        let mut replies = Vec::new();
        for step in &steps {
            let output = json!({ "worker": worker, "attempt": step["attempt"] });
            let body = match random.random_ratio(1, 12) {
                true => json!({ "error": { "message": "no disk" } }),
                false => json!({ "output": output }),
            };
            replies.push((step, body));
        }
        let in_bulk = random.random_ratio(1, 2);
        let first = match in_bulk {
            true => self.send_all(&replies).await,
            false => self.send_each(&replies).await,
        };
        let second = match random.random_ratio(1, 2) {
            true => self.send_all(&replies).await,
            false => self.send_each(&replies).await,
        };
        let mut ledger = self.ledger.lock().unwrap();
        for (((step, body), first), second) in replies.iter().zip(first).zip(second) {
            let attempt = attempt_of(step);
            let (at, status) = first;
            assert!([204, 409].contains(&status), "{status}: {attempt:?}");
            assert_eq!(
                status, second.1,
                "the same reply again: {attempt:?} {body}, in bulk: {in_bulk}"
            );
            let is_output = body["error"].is_null();
            let replied = Replied {
                at,
                status,
                is_output,
            };
            ledger.replied.insert(attempt, replied);
        }
    }

    async fn send_each(&self, replies: &[(&Value, Value)]) -> Vec<(Timestamp, u64)> {
        let mut statuses = Vec::new();
        for (step, body) in replies {
            let path = format!("/v1/replies/{}", step["token"].as_str().unwrap());
            let status = loop {
                match self.api.post(&path, body).attempt().await {
                    Ok(answer) if answer.status != 503 => break u64::from(answer.status),
                    _ => sleep(Duration::from_millis(5)).await,
                }
            };
            statuses.push((Timestamp::now(), status));
        }
        statuses
    }

    async fn send_all(&self, replies: &[(&Value, Value)]) -> Vec<(Timestamp, u64)> {
        let bodies = replies.iter().map(|(step, body)| {
            let mut body = body.clone();
            body["token"] = step["token"].clone();
            body
        });
        let body = json!({ "replies": bodies.collect::<Vec<_>>() });
        let mut statuses = vec![None; replies.len()];
        while statuses.contains(&None) {
            match self.api.post("/v1/replies", &body).attempt().await {
                Ok(answer) if answer.status == 200 => {
                    let results = answer.body["results"].as_array().unwrap();
                    assert_eq!(results.len(), statuses.len(), "{answer:?}");
                    for (status, result) in statuses.iter_mut().zip(results) {
                        let new = result["status"].as_u64().unwrap();
                        if status.is_none() && new != 503 {
                            *status = Some((Timestamp::now(), new));
                        }
                    }
                }
                Ok(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
                Err(_) => {}
            }
            if statuses.contains(&None) {
                sleep(Duration::from_millis(5)).await;
            }
        }
        statuses.into_iter().flatten().collect()
    }
}

/// Submits tasks one after another, each until it is accepted. Returns their ids.
async fn submitter(
    number: usize,
    api: Api,
    accepted: Arc<AtomicUsize>,
    enough: watch::Receiver<bool>,
) -> Vec<String> {
    let mut ids = Vec::new();
    while !*enough.borrow() || accepted.load(Ordering::Relaxed) < LEAST_TASKS {
        let key = format!("order-{number}-{}", ids.len());
        let submission = submission(&key);
        let id = loop {
            let submitted = api.post("/v1/tasks", &submission);
            let submitted = submitted.header("idempotency-key", &key);
            match submitted.attempt().await {
                Ok(answer) if answer.status == 202 => {
                    break answer.body["id"].as_str().unwrap().to_owned();
                }
                _ => sleep(Duration::from_millis(5)).await,
            }
        };
        accepted.fetch_add(1, Ordering::Relaxed);
        let wait = api.get(&format!("/v1/tasks/{id}?wait=1s"));
        let _ = wait.attempt().await;
        ids.push(id);
    }
    ids
}

/// Returns the times of the kills.
async fn killer(provost: &mut Provost, workers: &Workers, random: &mut StdRng) -> Vec<Timestamp> {
    let mut kills = Vec::new();
    for kill in 0..kill_count(KILLS) {
        let mut fetches = workers.fetches.subscribe();
        // The process is killed after some steps were fetched, during a fetch, or sometimes during its start.
        if random.random_ratio(4, 5) {
            provost.ready().await;
            let count = *fetches.borrow() + random.random_range(1..80);
            let fetched = timeout(PATIENCE, fetches.wait_for(|fetched| *fetched >= count)).await;
            assert!(fetched.is_ok(), "nothing is fetched");
        }
        sleep(Duration::from_micros(random.random_range(0..30_000))).await;
        provost.kill().await;
        println!("kill {kill}: {} steps were fetched", *fetches.borrow());
        kills.push(Timestamp::now());
        provost.launch();
    }
    provost.ready().await;
    kills
}

async fn fetched_steps_survive(setup: Setup) {
    let seed = match std::env::var("PROVOST_TEST_SEED") {
        Ok(seed) => seed.parse().expect("PROVOST_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("PROVOST_TEST_SEED={seed} replays the kill points");
    // The tokens stay valid, and so does the address.
    let setup = setup.listen(&format!("127.0.0.1:{}", cluster::free_port()));
    let mut provost = setup.set("INSTANCE_ID", "node-1").start().await;
    let agent = json!({ "mode": "pull" });
    provost.put("/v1/agents/video", &agent).await.expect(201);
    let workers = Arc::new(Workers {
        api: provost.api().clone(),
        seed,
        ledger: Mutex::default(),
        fetches: watch::Sender::new(0),
        late: watch::Sender::new(0),
        are_done: AtomicBool::new(false),
    });
    let mut working = JoinSet::new();
    for number in 0..WORKERS {
        working.spawn(Arc::clone(&workers).work(number));
    }
    let (enough, is_enough) = watch::channel(false);
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut submitters = JoinSet::new();
    for number in 0..SUBMITTERS {
        let (api, accepted) = (provost.api().clone(), Arc::clone(&accepted));
        submitters.spawn(submitter(number, api, accepted, is_enough.clone()));
    }
    let mut random = StdRng::seed_from_u64(seed);
    let kills = killer(&mut provost, &workers, &mut random).await;
    enough.send_replace(true);
    let tasks: Vec<String> = submitters.join_all().await.into_iter().flatten().collect();
    println!("{} tasks were accepted", tasks.len());

    let mut ended = Vec::new();
    for id in &tasks {
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        ended.push(task);
    }
    workers.are_done.store(true, Ordering::Relaxed);
    working.join_all().await;
    let mut late = workers.late.subscribe();
    let all_sent = timeout(PATIENCE, late.wait_for(|late| *late == 0)).await;
    assert!(all_sent.is_ok(), "not all replies were taken");
    let mut histories = BTreeMap::new();
    for task in ended {
        let id = task["id"].as_str().unwrap().to_owned();
        let history = provost.history(&id).await;
        histories.insert(id, (task, history));
    }
    judge(&histories, &workers.ledger.lock().unwrap(), &kills);
}

/// One attempt by the record.
struct Recorded<'h> {
    claimed: &'h Value,
    ended: &'h Value,
}

fn at(entry: &Value) -> Timestamp {
    entry["at"].as_str().unwrap().parse().unwrap()
}

fn is_by_service(entry: &Value) -> bool {
    entry["by"] == "service"
}

fn attempts(histories: &BTreeMap<String, (Value, Vec<Value>)>) -> HashMap<Attempt, Recorded<'_>> {
    let mut recorded = HashMap::new();
    for (id, (_, history)) in histories {
        for name in STEPS {
            let of_step = history.iter().filter(|entry| entry["step"] == name);
            let of_step: Vec<&Value> = of_step.collect();
            let claims = of_step.iter().filter(|e| e["type"] == "step.claimed");
            for (number, claimed) in (1..).zip(claims) {
                let ends: Vec<_> = of_step
                    .iter()
                    .filter(|entry| entry["attempt"] == number)
                    .filter(|entry| entry["from"] == "processing" && entry["to"] != "processing")
                    .collect();
                assert_eq!(ends.len(), 1, "attempt {number} of {name}: {history:#?}");
                let (claimed, ended) = (*claimed, *ends[0]);
                let attempt = (id.clone(), name.to_owned(), number);
                recorded.insert(attempt, Recorded { claimed, ended });
            }
        }
    }
    recorded
}

/// Returns whether the end is a failure. The end by a crash is not a failure.
fn is_failure(end: &Value) -> bool {
    let kind = end["type"].as_str().unwrap();
    !["step.processed", "step.released", "step.retrying"].contains(&kind)
}

/// Returns the earliest time at which the attempt may expire: when its worker was silent for too long, or when the time
/// to complete was over, which does not become longer if a worker replies with an error.
fn may_expire(recorded: &HashMap<Attempt, Recorded<'_>>, attempt: &Attempt) -> Timestamp {
    let (task, name, number) = attempt;
    let of = |number| &recorded[&(task.clone(), name.clone(), number)];
    let same_time = (1..*number)
        .rev()
        .take_while(|number| !is_failure(of(*number).ended));
    let began = at(of(same_time.last().unwrap_or(*number)).claimed);
    let complete_by = began + COMPLETE_WITHIN;
    let silent = at(of(*number).claimed) + HEARTBEAT_WITHIN;
    let has_heartbeat = ["render", "publish"].contains(&name.as_str());
    let earliest = if has_heartbeat {
        complete_by.min(silent)
    } else {
        complete_by
    };
    // The recorded times have milliseconds.
    earliest - Duration::from_millis(1)
}

fn judge(histories: &BTreeMap<String, (Value, Vec<Value>)>, ledger: &Ledger, kills: &[Timestamp]) {
    let recorded = attempts(histories);
    let story = |attempt: &Attempt| format!("{attempt:?}: {:#?}", histories[&attempt.0].1);
    for (attempt, fetched) in &ledger.fetched {
        let Some(record) = recorded.get(attempt) else {
            panic!("fetched, and not in the record: {}", story(attempt));
        };
        let by = format!("fetched by worker {}", fetched.worker);
        assert_eq!(record.claimed["reason"], by, "{}", story(attempt));
        assert!(at(record.claimed) <= fetched.at, "{}", story(attempt));
    }
    let (mut survived, mut late) = (0, 0);
    for (attempt, replied) in &ledger.replied {
        let ended = recorded[attempt].ended;
        let is_taken = replied.status == 204;
        assert_eq!(is_by_service(ended), is_taken, "{}", story(attempt));
        late += usize::from(!is_taken);
        if is_taken {
            let is_done = ended["type"] == "step.processed";
            assert_eq!(is_done, replied.is_output, "{}", story(attempt));
            let open = ledger.fetched[attempt].at..replied.at;
            survived += usize::from(kills.iter().any(|kill| open.contains(kill)));
        }
    }
    let (mut expired, mut never_fetched) = (0, 0);
    for (attempt, record) in &recorded {
        let is_fetched = ledger.fetched.contains_key(attempt);
        never_fetched += usize::from(!is_fetched);
        if is_by_service(record.ended) {
            let is_taken = |replied: &Replied| replied.status == 204;
            let replied = ledger.replied.get(attempt);
            assert!(replied.is_some_and(is_taken), "{}", story(attempt));
        } else if record.ended["type"] == "step.released" {
            assert!(!is_fetched, "it was given out: {}", story(attempt));
        } else {
            assert_eq!(record.ended["type"], "step.expired", "{}", story(attempt));
            assert!(
                at(record.ended) >= may_expire(&recorded, attempt),
                "{}",
                story(attempt)
            );
            expired += 1;
        }
    }
    for (id, (task, history)) in histories {
        for name in STEPS {
            let step = step(task, name);
            let ends =
                (1..).map_while(|number| recorded.get(&(id.clone(), name.to_owned(), number)));
            let ends: Vec<&Value> = ends.map(|record| record.ended).collect();
            let (last, before) = ends.split_last().expect("it was processed");
            assert_eq!(last["type"], "step.processed", "{name}: {history:#?}");
            assert_eq!(
                step["output"]["attempt"],
                ends.len(),
                "{name}: {history:#?}"
            );
            let failures = before.iter().filter(|end| is_failure(end)).count();
            assert_eq!(step["failure_count"], failures, "{name}: {history:#?}");
        }
    }
    println!(
        "{} attempts, {never_fetched} of them reached no worker, {expired} expired; {} replies, {late} of them late; \
         {survived} were held at a kill and counted",
        recorded.len(),
        ledger.replied.len(),
    );
    assert!(survived > 0, "no kill met a step that was held");
    assert!(expired > 0 && late > 0, "no worker died");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetched_steps_survive_kills_at_any_moment_on_sqlite() {
    fetched_steps_survive(Provost::setup()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetched_steps_survive_kills_at_any_moment_on_postgres() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let setup = Provost::setup().database_url(&url.unwrap());
    fetched_steps_survive(setup).await;
}

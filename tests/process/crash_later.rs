//! SIGKILL at any moment while services reply later or are polled: no service is called again once its promise is in
//! the record, and every reply either counts or came after the end of its attempt.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    cluster,
    harness::{Act, Api, PATIENCE, Provost, Remote, Seen, Setup, kill_count, step},
};

const KILLS: u64 = 6;
const LEAST_TASKS: usize = 80;
const SUBMITTERS: usize = 24;
/// The service of one step replies at once. Of another the step says that the reply comes later, of another the service
/// says so, and one is polled.
const STEPS: [&str; 4] = ["reserve", "print", "bind", "ship"];

fn submission(url: &str, key: &str) -> Value {
    let steps = STEPS.iter().enumerate().map(|(at, name)| {
        let mut step = json!({ "name": name, "url": url, "complete_within": "1h",
            "request": { "path": format!("/{name}") } });
        if at > 0 {
            step["after"] = json!([STEPS[at - 1]]);
        }
        step
    });
    let mut steps: Vec<Value> = steps.collect();
    steps[1]["reply"] = json!("callback");
    steps[1]["heartbeat_within"] = json!("1h");
    steps[3]["reply"] = json!({ "poll": { "until": "response.body.status == 'done'", "every": "1s",
        "output": "response.body.pages" } });
    json!({ "key": key, "steps": steps })
}

/// The status of the first response to each reply, by the task, the step and the attempt.
type Replies = Arc<Mutex<HashMap<(String, String, u32), u16>>>;

/// Services that keep their promises after a while. Some replies come before the promise.
struct Services {
    seed: u64,
    requests: AtomicUsize,
    replies: Replies,
    /// The times when the polled operations are done.
    done_at: Mutex<HashMap<String, Instant>>,
    open: watch::Sender<usize>,
}

impl Services {
    fn serve(self: &Arc<Self>, seen: &Seen) -> Act {
        let request = self.requests.fetch_add(1, Ordering::Relaxed) as u64;
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(request));
        let mut millis = |most| Duration::from_millis(random.random_range(0..most));
        let promise = match seen.path.as_str() {
            "/print" => Act::status(202),
            "/bind" => Act::answer(202, &[("provost-async", "true")], ""),
            "/ship" => {
                let done_at = Instant::now() + millis(1_500);
                let mut all = self.done_at.lock().unwrap();
                all.entry(seen.key().to_owned()).or_insert(done_at);
                let address = format!("/jobs/{}", seen.key());
                return Act::answer(202, &[("location", &address)], "");
            }
            "/reserve" => return Act::Ok(json!({})),
            job => {
                let key = job.strip_prefix("/jobs/").expect("a job");
                let done = self.done_at.lock().unwrap()[key] <= Instant::now();
                let status = if done { "done" } else { "running" };
                return Act::Ok(json!({ "status": status, "pages": 3 }));
            }
        };
        self.open.send_modify(|open| *open += 1);
        let (services, seen, wait) = (Arc::clone(self), seen.clone(), millis(400));
        tokio::spawn(async move {
            sleep(wait).await;
            services.reply(&seen).await;
            services.open.send_modify(|open| *open -= 1);
        });
        Act::Then(millis(40), Arc::new(|| {}), Box::new(promise))
    }

    /// Sends a reply until there is a response, and then once more.
    async fn reply(&self, seen: &Seen) {
        let address = seen.header("provost-reply-to");
        let (host, path) = address
            .strip_prefix("http://")
            .and_then(|address| address.split_once('/'))
            .expect("an address");
        let api = Api::new(host);
        let beat = format!("/{path}/heartbeat");
        let _ = api.post(&beat, &json!({ "progress": 0.5 })).attempt().await;
        let body = json!({ "output": { "attempt": seen.attempt() } });
        let (first, second) = (send(&api, path, &body).await, send(&api, path, &body).await);
        assert!([204, 409].contains(&first), "{first} for {seen:?}");
        assert_eq!(first, second, "the same reply again: {seen:?}");
        let attempt = (
            seen.header("provost-task").to_owned(),
            seen.header("provost-step").to_owned(),
            seen.attempt(),
        );
        self.replies.lock().unwrap().insert(attempt, first);
    }
}

async fn send(api: &Api, path: &str, body: &Value) -> u16 {
    loop {
        match api.post(&format!("/{path}"), body).attempt().await {
            Ok(answer) if answer.status != 503 => return answer.status,
            _ => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Submits tasks one after another, each until it is accepted. Returns their ids.
async fn submitter(
    number: usize,
    url: String,
    api: Api,
    accepted: Arc<AtomicUsize>,
    enough: watch::Receiver<bool>,
) -> Vec<String> {
    let mut ids = Vec::new();
    while !*enough.borrow() || accepted.load(Ordering::Relaxed) < LEAST_TASKS {
        let key = format!("order-{number}-{}", ids.len());
        let submission = submission(&url, &key);
        let id = loop {
            let submitted = api
                .post("/v1/tasks", &submission)
                .header("idempotency-key", &key);
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
async fn killer(provost: &mut Provost, remote: &Remote, random: &mut StdRng) -> Vec<Timestamp> {
    let mut kills = Vec::new();
    for kill in 0..kill_count(KILLS) {
        // The process is killed after some requests, while requests come in, or sometimes during its start.
        if random.random_ratio(4, 5) {
            provost.ready().await;
            remote
                .requests(remote.count() + random.random_range(1..80))
                .await;
        }
        sleep(Duration::from_micros(random.random_range(0..30_000))).await;
        provost.kill().await;
        println!("kill {kill}: {} requests", remote.count());
        kills.push(Timestamp::now());
        provost.launch();
    }
    provost.ready().await;
    kills
}

async fn promised_replies_survive(setup: Setup) {
    let seed = match std::env::var("PROVOST_TEST_SEED") {
        Ok(seed) => seed.parse().expect("PROVOST_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("PROVOST_TEST_SEED={seed} replays the kill points");
    let services = Arc::new(Services {
        seed,
        requests: AtomicUsize::default(),
        replies: Replies::default(),
        done_at: Mutex::default(),
        open: watch::Sender::new(0),
    });
    let serving = Arc::clone(&services);
    let remote = Remote::with(move |seen| serving.serve(seen)).await;
    // The addresses for later replies stay valid, because the port stays the same.
    let setup = setup.listen(&format!("127.0.0.1:{}", cluster::free_port()));
    let mut provost = setup.set("INSTANCE_ID", "node-1").start().await;
    let (enough, is_enough) = watch::channel(false);
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut submitters = JoinSet::new();
    for number in 0..SUBMITTERS {
        let (api, accepted) = (provost.api().clone(), Arc::clone(&accepted));
        submitters.spawn(submitter(
            number,
            remote.url(),
            api,
            accepted,
            is_enough.clone(),
        ));
    }
    let mut random = StdRng::seed_from_u64(seed);
    let kills = killer(&mut provost, &remote, &mut random).await;
    enough.send_replace(true);
    let tasks: Vec<String> = submitters.join_all().await.into_iter().flatten().collect();
    println!("{} tasks were accepted", tasks.len());

    let mut histories = BTreeMap::new();
    for id in &tasks {
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "ship")["output"], 3);
        for name in STEPS {
            let failures = &step(&task, name)["failure_count"];
            assert_eq!(*failures, 0, "a crash is no failure: {task:#}");
        }
        histories.insert(id.clone(), provost.history(id).await);
    }
    let mut open = services.open.subscribe();
    let all_sent = timeout(PATIENCE, open.wait_for(|open| *open == 0)).await;
    assert!(all_sent.is_ok(), "not all replies were taken");
    let survived = promised_once_each(&histories, &kills);
    assert!(survived > 0, "no kill met a promised reply");
    every_reply_counts_or_is_late(&histories, &services.replies.lock().unwrap());
    called_under_recorded_attempts(&histories, &remote.ledger());
}

/// Checks that a recorded promise is kept or broken by its service, and by no restart. Returns the number of promises
/// that were open at a kill.
fn promised_once_each(histories: &BTreeMap<String, Vec<Value>>, kills: &[Timestamp]) -> usize {
    let mut survived = 0;
    for history in histories.values() {
        for name in &STEPS[1..] {
            let of_step = history.iter().filter(|entry| entry["step"] == *name);
            let after_promise = of_step.skip_while(|entry| entry["type"] != "step.deferred");
            let entries: Vec<&Value> = after_promise
                .filter(|entry| !["step.progress", "step.late_reply"].contains(&kind(entry)))
                .collect();
            // A reply that came before the promise was recorded needs no promise.
            let Some(promised) = entries.first() else {
                continue;
            };
            let kinds: Vec<_> = entries.iter().map(|entry| &entry["type"]).collect();
            assert_eq!(
                kinds,
                ["step.deferred", "step.processed"],
                "{name}: {history:#?}"
            );
            let at = |entry: &Value| entry["at"].as_str().unwrap().parse::<Timestamp>().unwrap();
            let open = at(promised)..at(entries[1]);
            survived += usize::from(kills.iter().any(|kill| open.contains(kill)));
        }
    }
    println!("{survived} promised replies were open at a kill");
    survived
}

fn kind(entry: &Value) -> &str {
    entry["type"].as_str().expect("an entry has a type")
}

/// Returns the attempt that made the step done.
fn processed(history: &[Value], name: &str) -> u64 {
    let of_step = history.iter().filter(|entry| entry["step"] == name);
    let mut done = of_step.filter(|entry| entry["type"] == "step.processed");
    let attempt = done.next().and_then(|entry| entry["attempt"].as_u64());
    assert!(
        done.next().is_none(),
        "{name} was processed twice: {history:#?}"
    );
    attempt.unwrap_or_else(|| panic!("{name} was not processed: {history:#?}"))
}

fn every_reply_counts_or_is_late(
    histories: &BTreeMap<String, Vec<Value>>,
    replies: &HashMap<(String, String, u32), u16>,
) {
    let mut late = 0;
    for ((task, name, attempt), status) in replies {
        let done = processed(&histories[task], name);
        let counts = u64::from(*attempt) == done;
        assert_eq!(
            counts,
            *status == 204,
            "{status} for attempt {attempt} of {name}, and {done} is in the record: {:#?}",
            histories[task]
        );
        late += usize::from(!counts);
    }
    println!("{} replies, {late} of them late", replies.len());
    for (task, history) in histories {
        for name in &STEPS[1..3] {
            let done = u32::try_from(processed(history, name)).unwrap();
            let reply = replies.get(&(task.clone(), (*name).to_owned(), done));
            assert_eq!(reply, Some(&204), "attempt {done} of {name}: {history:#?}");
        }
    }
}

fn called_under_recorded_attempts(histories: &BTreeMap<String, Vec<Value>>, ledger: &[Seen]) {
    let mut again = 0;
    for seen in ledger.iter().filter(|seen| seen.method == "POST") {
        let name = seen.header("provost-step");
        let history = &histories[seen.header("provost-task")];
        let done = processed(history, name);
        assert!(u64::from(seen.attempt()) <= done, "{seen:?}: {history:#?}");
        again += usize::from(seen.attempt() > 1);
    }
    assert!(again > 0, "no kill met a call under way: nothing was shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promised_replies_survive_kills_at_any_moment_on_sqlite() {
    promised_replies_survive(Provost::setup()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promised_replies_survive_kills_at_any_moment_on_postgres() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let setup = Provost::setup().database_url(&url.unwrap());
    promised_replies_survive(setup).await;
}

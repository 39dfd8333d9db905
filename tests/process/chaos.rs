//! Chaos by a seed: four instances on one PostgreSQL run under load. They are killed and suspended, and their
//! connections to the database are cut or hang; the database crashes too. At the end every accepted task has ended, and
//! the record of each is whole: [`crate::record`] says what is checked.
//!
//!     PROVOST_TEST_SEED=…           replays the schedule of a run (but not the order in which the system runs threads)
//!     PROVOST_TEST_CHAOS_SECONDS=…  the time with faults in seconds, 15 by default
//!     PROVOST_TEST_LOGS=folder      keeps the logs of all processes

mod agents;
mod broker;
mod closing;
mod commit_times;
mod harm;
mod kinds;
mod operated;
mod operators;
mod orders;
mod people;
mod planted;
mod promises;
mod receiver;
mod schedule;
mod schedules;
mod services;
mod submitters;
mod summary;
mod unsubmitted;
mod workers;
mod workflows;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::{
    harm::Harm,
    schedule::{Pace, Schedule},
};
use crate::{
    cluster::Server,
    harness::{Act, Api, Remote},
    record::Records,
};

const INSTANCES: usize = 4;
const SUBMITTERS: u64 = 16;
/// The time for the end after the last fault: leases expire, the backoff after a failure is up to a minute, and a busy
/// machine takes longer.
const END_WITHIN: Duration = Duration::from_secs(300);
/// Every wait of a task is shorter than this, also on a busy machine.
const STUCK_AFTER: Duration = Duration::from_secs(90);
const LEAST_TASKS: usize = 50;

fn of_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Returns a service that is mostly well and quick; now and then it is slow, overloaded or silent, or breaks the
/// connection. Its response says which call it was, so that the record can be compared with the calls.
async fn mostly_well(seed: u64) -> Remote {
    let random = std::sync::Mutex::new(StdRng::seed_from_u64(seed));
    Remote::with(move |seen| {
        let output = json!({ "attempt": seen.attempt(), "answer": rand::random::<u32>() });
        let mut random = random.lock().unwrap();
        match random.random_range(0..100) {
            0..5 => Act::status(503),
            5..9 => Act::CloseHalfway,
            // Only complete-by ends such a call, so it does not happen where complete-by is long.
            9 if seen.path == "/short" => Act::Hang,
            10..40 => Act::After(Duration::from_millis(random.random_range(1..300)), output),
            40..46 => Act::After(
                Duration::from_millis(random.random_range(300..2_500)),
                output,
            ),
            _ => Act::Ok(output),
        }
    })
    .await
}

/// Returns a pipeline, or a graph with a join. Some steps wait in the queue of an agent with few slots. Some have a
/// complete-by that is longer than a fault, and some have a short one that passes.
fn submission(kind: u32, url: &str, key: &str) -> Value {
    let step = |name: &str, within: &str, after: Value| {
        let path = if within == "1h" { "/long" } else { "/short" };
        json!({
            "name": name, "url": url, "after": after, "complete_within": within, "max_failures": 50,
            "request": { "path": path },
        })
    };
    let mut steps = if kind.is_multiple_of(2) {
        json!([
            step("one", "1h", json!([])),
            step("two", "4s", json!(["one"])),
            step("three", "1h", json!(["two"])),
        ])
    } else {
        let mut join = step("join", "1h", json!(["left", "right"]));
        join["request"]["body"] = json!({
            "left": "{{ steps.left.output.answer }}", "right": "{{ steps.right.output.answer }}",
        });
        json!([
            step("root", "4s", json!([])),
            step("left", "1h", json!(["root"])),
            step("right", "5s", json!(["root"])),
            join,
        ])
    };
    if kind.is_multiple_of(3) {
        let step = steps[1].as_object_mut().unwrap();
        step.remove("url");
        step.insert("agent".to_owned(), json!("narrow"));
    }
    json!({ "key": key, "steps": steps })
}

/// Submits tasks one after another to any instance, each under its Idempotency-Key until it is accepted, and then reads
/// the task at any other instance. Returns the ids by their keys.
async fn submitter(
    number: u64,
    seed: u64,
    apis: Arc<Vec<Api>>,
    url: String,
    over: watch::Receiver<bool>,
    count: Arc<AtomicUsize>,
) -> BTreeMap<String, String> {
    let mut random = StdRng::seed_from_u64(seed + number);
    let mut accepted = BTreeMap::new();
    // On a busy machine the faults may be over before enough was tested.
    while !*over.borrow() || count.load(Ordering::Relaxed) < LEAST_TASKS {
        let key = format!("order-{number}-{}", accepted.len());
        let submission = submission(random.random_range(0..6), &url, &key);
        let id = loop {
            let api = &apis[random.random_range(0..INSTANCES)];
            let submitted = api
                .post("/v1/tasks", &submission)
                .header("idempotency-key", &key);
            let patience = Duration::from_millis(random.random_range(300..4_000));
            match timeout(patience, submitted.attempt()).await {
                Ok(Ok(answer)) if answer.status == 202 => {
                    break answer.body["id"].as_str().unwrap().to_owned();
                }
                // The submission was refused, or its result is unclear: it is repeated at any instance.
                Ok(Ok(answer)) => assert_eq!(answer.status, 503, "{answer:?}"),
                Ok(Err(_)) | Err(_) => {}
            }
            sleep(Duration::from_millis(20)).await;
        };
        if random.random_ratio(2, 3) {
            let api = &apis[random.random_range(0..INSTANCES)];
            let wait = api.get(&format!("/v1/tasks/{id}?wait=1s")).attempt();
            let _ = timeout(Duration::from_secs(1), wait).await;
        }
        accepted.insert(key, id);
        count.fetch_add(1, Ordering::Relaxed);
    }
    accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_every_accepted_task_ends_and_its_record_is_whole() {
    let seed =
        of_environment("PROVOST_TEST_SEED").unwrap_or_else(|| rand::random_range(0..1 << 32));
    println!("PROVOST_TEST_SEED={seed} replays the schedule");
    let length = Duration::from_secs(of_environment("PROVOST_TEST_CHAOS_SECONDS").unwrap_or(15));
    let schedule = Schedule::of(seed, INSTANCES, length, Pace::Quick);

    let server = Arc::new(Server::start().await);
    let remote = mostly_well(seed).await;
    let harm = Harm::start(&server, None, INSTANCES, "debug").await;
    let apis = harm.apis();
    apis[0].register("narrow", &remote.url(), 2).await;

    let (end, over) = watch::channel(false);
    let count = Arc::new(AtomicUsize::new(0));
    let mut submitters = JoinSet::new();
    for number in 0..SUBMITTERS {
        let (apis, count) = (apis.clone(), Arc::clone(&count));
        let submitter = submitter(number, seed, apis, remote.url(), over.clone(), count);
        submitters.spawn(submitter);
    }
    let harm = harm.done(schedule, length, over).await;

    // There are no more faults: every submission is accepted, and every accepted task ends.
    end.send_replace(true);
    let harm = harm.ends().await;
    assert!(
        harm.exits.is_empty(),
        "ended by themselves: {:?}",
        harm.exits
    );
    let tasks: BTreeMap<String, String> =
        submitters.join_all().await.into_iter().flatten().collect();
    println!("{} tasks were accepted", tasks.len());
    let mut records = Records::open(&server.url()).await;
    let until = Instant::now() + END_WITHIN;
    while let Some(open) = records.unended().await {
        assert!(Instant::now() < until, "did not end:\n{open}");
        sleep(Duration::from_millis(200)).await;
    }
    harm.clock.say("all have ended");

    let again = records.judge(&tasks, &remote.ledger()).await;
    assert!(again > 0, "no fault met a step: nothing was shown");
    for (number, (key, id)) in tasks.iter().enumerate() {
        let task = apis[number % INSTANCES].task(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(task["key"], *key);
    }
}

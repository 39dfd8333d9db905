//! SIGKILL at any moment: no accepted task is lost, and no step that is done is done again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
    time::{sleep, timeout},
};

use crate::{
    cluster,
    harness::{
        Act, Api, Database, PATIENCE, Provost, Remote, Seen, Setup, kill_count, kinds, pipeline,
    },
};

const KILLS: u64 = 12;
const LEAST_TASKS: usize = 200;
const SUBMITTERS: usize = 12;
const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

/// One step of one task.
type StepId = (String, String);

fn seed() -> u64 {
    let seed = match std::env::var("PROVOST_TEST_SEED") {
        Ok(seed) => seed.parse().expect("PROVOST_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("PROVOST_TEST_SEED={seed} replays the kill points");
    seed
}

fn step_of(seen: &Seen) -> StepId {
    let task = seen.header("provost-task").to_owned();
    (task, seen.header("provost-step").to_owned())
}

/// Returns a service that is mostly well; now and then it is overloaded or breaks the connection.
async fn mostly_well() -> Remote {
    let requests = AtomicUsize::new(0);
    let behaviour = move |seen: &Seen| match requests.fetch_add(1, Ordering::Relaxed) % 23 {
        7 => Act::status(503),
        19 => Act::CloseHalfway,
        _ => Act::Ok(json!({ "done": seen.path })),
    };
    Remote::with(behaviour).await
}

/// Submits tasks one after another, each until it is accepted, and waits for the end of each unless the process is
/// killed before. Returns the ids of the accepted tasks by their Idempotency-Key.
async fn submitter(
    number: usize,
    remote: Remote,
    mut api: watch::Receiver<Api>,
    accepted: Arc<AtomicUsize>,
    enough: watch::Receiver<bool>,
) -> BTreeMap<String, String> {
    let mut ids = BTreeMap::new();
    for order in 0.. {
        if *enough.borrow() && accepted.load(Ordering::Relaxed) >= LEAST_TASKS {
            break;
        }
        let key = format!("order-{number}-{order}");
        let mut submission = pipeline(&remote.url(), &STEPS);
        submission["key"] = json!(key);
        let id = loop {
            let current = api.borrow_and_update().clone();
            let submitted = current.post("/v1/tasks", &submission);
            match submitted.header("idempotency-key", &key).attempt().await {
                Ok(answer) => {
                    let task = answer.expect(202);
                    break task["id"].as_str().unwrap().to_owned();
                }
                // It is not known whether the task was accepted, so the same key is sent again to the next process.
                Err(_) => timeout(PATIENCE, api.changed()).await.unwrap().unwrap(),
            }
        };
        accepted.fetch_add(1, Ordering::Relaxed);
        let current = api.borrow().clone();
        let _ = current
            .get(&format!("/v1/tasks/{id}?wait=30s"))
            .attempt()
            .await;
        ids.insert(key, id);
    }
    ids
}

/// Kills and restarts, and reads after each kill which steps are recorded in the file as processed. Returns those steps
/// with the number of requests that had been made by then.
async fn killer(
    provost: &mut Provost,
    remote: &Remote,
    random: &mut StdRng,
    api: &watch::Sender<Api>,
) -> HashMap<StepId, usize> {
    let mut recorded = HashMap::new();
    for kill in 0..kill_count(KILLS) {
        // The process is killed after some requests, while requests come in, or sometimes during its start.
        if random.random_ratio(4, 5) {
            provost.ready().await;
            api.send_replace(provost.api().clone());
            let requests = random.random_range(1..60);
            remote.requests(remote.count() + requests).await;
        }
        sleep(Duration::from_micros(random.random_range(0..30_000))).await;
        provost.kill().await;
        let made = remote.count();
        let database = Database::copy_of(&provost.database());
        for step in database.steps() {
            if step.state == "processed" {
                recorded.entry((step.task, step.name)).or_insert(made);
            }
        }
        println!(
            "kill {kill}: {made} requests, {} steps recorded",
            recorded.len()
        );
        provost.launch();
    }
    provost.ready().await;
    api.send_replace(provost.api().clone());
    recorded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_ends_every_accepted_task_and_repeats_nothing_recorded() {
    let mut random = StdRng::seed_from_u64(seed());
    let remote = mostly_well().await;
    let mut provost = Provost::start().await;
    let (api, current) = watch::channel(provost.api().clone());
    let (enough, is_enough) = watch::channel(false);
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut submitters = JoinSet::new();
    for number in 0..SUBMITTERS {
        submitters.spawn(submitter(
            number,
            remote.clone(),
            current.clone(),
            Arc::clone(&accepted),
            is_enough.clone(),
        ));
    }
    let recorded = killer(&mut provost, &remote, &mut random, &api).await;
    enough.send_replace(true);
    let tasks: BTreeMap<String, String> =
        submitters.join_all().await.into_iter().flatten().collect();
    println!("{} tasks were accepted", tasks.len());
    assert!(tasks.len() >= LEAST_TASKS);

    for (key, id) in &tasks {
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(task["key"], *key);
        for step in task["steps"].as_array().unwrap() {
            assert_eq!(step["failure_count"], 0, "a crash is no failure: {task:#}");
        }
        processed_once_each(&provost.history(id).await);
    }
    one_task_for_each_submission(&provost, &tasks).await;
    one_key_for_each_step(&remote.ledger(), &tasks);
    nothing_recorded_was_called_again(&remote.ledger(), &recorded);
}

fn processed_once_each(history: &[Value]) {
    let kinds = kinds(history);
    assert_eq!(kinds.last(), Some(&"task.processed"), "{kinds:?}");
    for name in STEPS {
        let of_step = history.iter().filter(|entry| entry["step"] == name);
        let processed = of_step.filter(|entry| entry["type"] == "step.processed");
        assert_eq!(processed.count(), 1, "{name}: {history:#?}");
    }
}

/// Checks that a submission whose response was lost was repeated, and made no second task.
async fn one_task_for_each_submission(provost: &Provost, tasks: &BTreeMap<String, String>) {
    let mut found = BTreeMap::new();
    let mut page = provost.get("/v1/tasks?limit=500").await.expect(200);
    loop {
        for task in page["items"].as_array().unwrap() {
            let key = task["key"].as_str().unwrap().to_owned();
            let other = found.insert(key, task["id"].as_str().unwrap().to_owned());
            assert_eq!(other, None, "two tasks for one submission: {task:#}");
        }
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        let next = format!("/v1/tasks?limit=500&cursor={cursor}");
        page = provost.get(&next).await.expect(200);
    }
    assert_eq!(found, *tasks);
}

fn one_key_for_each_step(ledger: &[Seen], tasks: &BTreeMap<String, String>) {
    let mut keys: BTreeMap<StepId, BTreeSet<&str>> = BTreeMap::new();
    let mut attempts: BTreeMap<StepId, BTreeSet<u32>> = BTreeMap::new();
    for seen in ledger {
        keys.entry(step_of(seen)).or_default().insert(seen.key());
        attempts
            .entry(step_of(seen))
            .or_default()
            .insert(seen.attempt());
    }
    assert_eq!(keys.len(), tasks.len() * STEPS.len());
    let mut all = BTreeSet::new();
    for (step, keys) in &keys {
        assert_eq!(
            keys.len(),
            1,
            "{step:?} was called with several keys: {keys:?}"
        );
        let new = keys.iter().all(|key| all.insert(*key));
        assert!(new, "{step:?} shares its key with another");
    }
    let again = attempts.values().filter(|attempts| attempts.len() > 1);
    assert!(
        again.count() > 0,
        "no kill met a call under way: nothing was shown"
    );
}

fn nothing_recorded_was_called_again(ledger: &[Seen], recorded: &HashMap<StepId, usize>) {
    assert!(
        !recorded.is_empty(),
        "no kill came after a step: nothing was shown"
    );
    for (at, seen) in ledger.iter().enumerate() {
        if let Some(made) = recorded.get(&step_of(seen)) {
            assert!(at < *made, "called again after it was recorded: {seen:?}");
        }
    }
}

/// The undo of the step is claimed in the commit that releases the step, and comes after the release in the record.
async fn what_a_restart_claims_it_does_not_hand_back(setup: Setup) {
    let remote = Remote::with(|seen| match seen.header("provost-step") {
        "book" => Act::Ok(json!({})),
        _ => Act::Hang,
    })
    .await;
    let mut provost = setup.set("INSTANCE_ID", "node-1").start().await;
    let mut submission = pipeline(&remote.url(), &["book", "charge"]);
    for step in submission["steps"].as_array_mut().unwrap() {
        step["undo"] = json!({ "request": { "path": "/undo" } });
    }
    let id = provost.submit(&submission).await;
    remote.requests(2).await;
    provost
        .api()
        .command(&format!("/v1/tasks/{id}/undo"))
        .await
        .expect(200);
    provost.kill().await;
    provost.restart().await;
    let seen = remote.requests(3).await;
    assert_eq!(seen[2].header("provost-step"), "charge.undo");
    assert_eq!(seen[2].attempt(), 1);
    // The log names the resumed steps only when all of them are released.
    provost.says("resumed the steps").await;
    assert!(provost.log().contains("\"steps\":1,"), "{}", provost.log());
    let task = provost.task(&id).await;
    let steps = task["steps"].as_array().unwrap();
    let undo = steps.iter().find(|step| step["name"] == "charge.undo");
    let undo = undo.unwrap();
    assert_eq!(
        (&undo["state"], &undo["attempt"]),
        (&json!("processing"), &json!(1))
    );
    assert_eq!(remote.count(), 3);
}

#[tokio::test]
async fn what_a_restart_claims_it_does_not_hand_back_on_sqlite() {
    what_a_restart_claims_it_does_not_hand_back(Provost::setup()).await;
}

#[tokio::test]
async fn what_a_restart_claims_it_does_not_hand_back_on_postgres() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let setup = Provost::setup().database_url(&url.unwrap());
    what_a_restart_claims_it_does_not_hand_back(setup).await;
}

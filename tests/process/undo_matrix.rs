//! Undo, with a fault at every step in turn: whatever fails, forward or during the undo, the services' own ledgers are
//! at the end as if the task had completely happened or had never happened. Hundreds of tasks, each with its own fault,
//! run in parallel in one Provost, on each store.

mod cases;
mod graph;
mod judge;
mod progress;
mod services;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};

use self::{
    cases::{Case, Turn},
    judge::{Run, Verdict, judge, report},
    progress::Progress,
    services::Services,
};
use crate::{
    cluster,
    harness::{Api, Call, PATIENCE, Provost, Setup},
};

/// The number of tasks at a time. It leaves each enough of a small machine.
const SIDE_BY_SIDE: usize = 100;
/// The largest number of retries by the operator. One is needed; more are needed if the machine is so busy that the
/// retried call is late again.
const MOST_RETRIES: usize = 60;

async fn on_postgres() -> Setup {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    Provost::setup()
        .database_url(&url.unwrap())
        .set("POSTGRES__MAX_CONNECTIONS", "24")
}

async fn register(provost: &Api, services: &Services) {
    provost.register("services", &services.url(), 1000).await;
}

/// Tests faults of services and connections. The process is not killed.
async fn matrix(setup: Setup) {
    let provost = setup.start().await;
    let services = Services::start().await;
    let progress = Progress::start();
    register(&provost, &services).await;
    let places = Arc::new(Semaphore::new(SIDE_BY_SIDE));
    let mut running = JoinSet::new();
    let mut all = cases::forward();
    all.extend(cases::left_behind());
    all.extend(cases::backward());
    all.extend(cases::probes());
    for case in all {
        let (api, services) = (provost.api().clone(), services.clone());
        let (places, progress) = (Arc::clone(&places), progress.clone());
        running.spawn(async move {
            let _place = places.acquire().await;
            progress.begins(&case);
            let id = submit(&api, &services, &case).await;
            progress.goes_on(&case, &id, "waits for the calls to hold");
            meanwhile(&api, &services, &case, &id).await;
            progress.goes_on(&case, &id, "waits for the end of the task");
            let verdict = settle(&api, &services, &case, &id).await;
            progress.ends(&case);
            verdict
        });
    }
    let verdicts = progress.all(running, &provost, &services).await;
    report(&verdicts);
    nothing_is_open(&provost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_step_leaves_all_or_nothing_on_sqlite() {
    matrix(Provost::setup()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_step_leaves_all_or_nothing_on_postgres() {
    matrix(on_postgres().await).await;
}

/// Sends SIGKILL while a call of every kind, of every step, is running. Then the same instance starts again, or another
/// takes over.
async fn killed(setup: Setup, heir: &str) {
    let mut provost = setup
        .set("INSTANCE_ID", "node-1")
        .set("INSTANCE__LEASE", "2s")
        .start()
        .await;
    let services = Services::start().await;
    let progress = Progress::start();
    register(&provost, &services).await;
    let mut running = JoinSet::new();
    for case in cases::kills() {
        let (api, services) = (provost.api().clone(), services.clone());
        let progress = progress.clone();
        running.spawn(async move {
            progress.begins(&case);
            let id = submit(&api, &services, &case).await;
            progress.goes_on(&case, &id, "waits for its call");
            let held = services.held(&case.name, 1).await;
            if case.turn == Turn::Ask {
                ask(&api, &id).await;
            }
            progress.goes_on(&case, &id, "waits for the kill");
            (case, id, held[0])
        });
    }
    let under_way = progress.all(running, &provost, &services).await;
    // The requests are made one after another, so that they are no additional load.
    for (_, id, held) in &under_way {
        only_held_calls_run(&provost, id, held).await;
    }
    provost.kill().await;
    provost
        .restart_with(|setup| setup.set("INSTANCE_ID", heir))
        .await;
    let mut running = JoinSet::new();
    for (case, id, _) in under_way {
        let (api, services) = (provost.api().clone(), services.clone());
        let progress = progress.clone();
        running.spawn(async move {
            progress.goes_on(&case, &id, "waits for the end of the task");
            let verdict = settle(&api, &services, &case, &id).await;
            progress.ends(&case);
            verdict
        });
    }
    let verdicts = progress.all(running, &provost, &services).await;
    report(&verdicts);
    nothing_is_open(&provost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_call_leaves_all_or_nothing_on_sqlite() {
    killed(Provost::setup(), "node-1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_call_leaves_all_or_nothing_on_postgres() {
    killed(on_postgres().await, "node-1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_takes_over_from_a_killed_instance_leaves_all_or_nothing() {
    killed(on_postgres().await, "node-2").await;
}

async fn submit(api: &Api, services: &Services, case: &Case) -> String {
    services.expect(&case.name, &case.plans);
    let submission = json!({
        "key": case.name,
        "input": { "amount": 30 },
        "on_exhausted": "undo",
        "on_permanent": "undo",
        "steps": graph::steps(&case.tuning),
    });
    let call = || {
        let call = api.post("/v1/tasks", &submission);
        call.header("idempotency-key", &case.name.replace(' ', "-"))
    };
    let task = patiently(202, call).await;
    task["id"].as_str().unwrap().to_owned()
}

async fn ask(api: &Api, id: &str) {
    command(api, &format!("/v1/tasks/{id}/undo")).await;
}

/// Sends a command under a key, so that it can be repeated.
async fn command(api: &Api, path: &str) {
    let key = format!("{path}{}", rand::random::<u64>());
    let call = || api.command(path).header("idempotency-key", &key);
    patiently(200, call).await;
}

/// Does the part of the test itself during the task.
async fn meanwhile(api: &Api, services: &Services, case: &Case, id: &str) {
    let name = &case.name;
    match case.turn {
        Turn::None => {}
        Turn::Ask => {
            let held = services.held(name, 1).await;
            ask(api, id).await;
            services.release(name, held[0]);
        }
        Turn::Behind(trigger) => {
            let held = services.held(name, 2).await;
            services.release(name, trigger);
            // The task may be undone already, because the undo does not wait for a call that it drops.
            until(api, id, |task| task["state"] != "processing").await;
            for step in held {
                services.release(name, step);
            }
        }
    }
}

/// Returns the response. The request is repeated if a busy machine does not respond.
async fn patiently(status: u16, call: impl Fn() -> Call) -> Value {
    let started = Instant::now();
    loop {
        let answer = call().await;
        if answer.status != 503 || started.elapsed() > PATIENCE * 2 {
            return answer.expect(status);
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Waits until `holds` is true. The task is read only now and then, so `holds` must be true of every later state too.
async fn until(api: &Api, id: &str, holds: impl Fn(&Value) -> bool) {
    let started = Instant::now();
    loop {
        let task = patiently(200, || api.get(&format!("/v1/tasks/{id}"))).await;
        if holds(&task) {
            return;
        }
        assert!(
            started.elapsed() < PATIENCE * 3,
            "what is waited for never came: {task}"
        );
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until only the held call of a task is running.
async fn only_held_calls_run(api: &Api, id: &str, held: &str) {
    until(api, id, |task| {
        let steps = task["steps"].as_array().unwrap().iter();
        let mut live = steps
            .filter(|step| ["pending", "processing"].contains(&step["state"].as_str().unwrap()));
        live.all(|step| {
            let name = step["name"].as_str().unwrap();
            step["state"] == "processing" && name.strip_suffix(".undo").unwrap_or(name) == held
        })
    })
    .await;
}

/// Waits for the end of a task, as an operator who retries the steps in error.
async fn settle(api: &Api, services: &Services, case: &Case, id: &str) -> Verdict {
    let started = Instant::now();
    let mut faults = Vec::new();
    let mut stopped = Vec::new();
    let task = loop {
        let task = patiently(200, || api.get(&format!("/v1/tasks/{id}?wait=60s"))).await;
        let moves = ["processing", "undoing"].contains(&task["state"].as_str().unwrap());
        if moves && started.elapsed() < PATIENCE * 3 {
            continue;
        }
        let step = task["error"]["step"].as_str().unwrap_or_default();
        // Only the step that the case is about is retried: any other error is a failure of the test.
        if case.stops.as_deref() != Some(step) || stopped.len() == MOST_RETRIES {
            break task;
        }
        let step = step.to_owned();
        faults.extend(unlike_an_error(api, &task, &step).await);
        services.repair(&case.name);
        let retry = format!("/v1/tasks/{id}/steps/{step}/retry");
        command(api, &retry).await;
        stopped.push(step);
    };
    let run = Run {
        task,
        stopped,
        faults,
    };
    judge(case, run, services.book(&case.name))
}

/// Checks that a task in error names the step, and that an alert does so.
async fn unlike_an_error(api: &Api, task: &Value, step: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let undoing = step.ends_with(".undo");
    let kind = task["error"]["kind"].as_str().unwrap_or_default();
    if (kind == "undo_failed") != undoing {
        faults.push(format!(
            "{step} is in error, and the task's error is {kind}"
        ));
    }
    let of_task = format!(
        "/v1/alerts?state=open&task={}",
        task["id"].as_str().unwrap()
    );
    let alerts = patiently(200, || api.get(&of_task)).await;
    let alerts = alerts["items"].as_array().unwrap();
    let expected = match undoing {
        true => "task.undo_failed",
        false => "task.error",
    };
    let right = |alert: &&Value| {
        let message = alert["message"].as_str().unwrap();
        alert["step"] == step && alert["kind"] == expected && message.contains(step)
    };
    if alerts.iter().filter(right).count() != 1 {
        faults.push(format!("no alert names {step}: {alerts:?}"));
    }
    faults
}

/// Checks that every alert closed when its cause was fixed.
async fn nothing_is_open(api: &Api) {
    let alerts = api.get("/v1/alerts?state=open").await.expect(200);
    assert_eq!(alerts["items"], json!([]));
}

//! Undo of items of lists, with a fault at one step or item of each of many tasks: at a step before the lists or after
//! them, at an item that calls a service, and in the child of an item. By the services' own ledgers each task has
//! completely happened at the end, or not at all.

mod cases;
mod judge;
mod services;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use self::{
    cases::{Case, Operator, Turn},
    judge::judge,
    services::Services,
};
use crate::harness::{Api, PATIENCE, Provost, Setup, new_database};

/// The number of tasks at a time. It leaves each enough of a small machine.
const SIDE_BY_SIDE: usize = 50;
/// The time limit for all cases of a test together.
const DEADLINE: Duration = Duration::from_secs(300);

async fn on_postgres() -> Setup {
    let setup = Provost::setup().database_url(&new_database().await);
    setup.set("POSTGRES__MAX_CONNECTIONS", "24")
}

async fn start(setup: Setup) -> (Provost, Services) {
    let provost = setup.start().await;
    let services = Services::start().await;
    provost.register("services", &services.url(), 1000).await;
    for (name, workflow) in cases::workflows() {
        let path = format!("/v1/workflows/{name}");
        provost.put(&path, &workflow).await.expect(201);
    }
    (provost, services)
}

/// Waits for all cases, and fails with the faults of each.
async fn report(mut running: JoinSet<(String, Vec<String>)>) {
    let mut failed = Vec::new();
    let mut count = 0;
    let all = async {
        while let Some(ended) = running.join_next().await {
            let (name, faults) = ended.unwrap();
            count += 1;
            if !faults.is_empty() {
                failed.push(format!("{name}\n    {}", faults.join("\n    ")));
            }
        }
    };
    let in_time = timeout(DEADLINE, all).await.is_ok();
    println!("{count} cases, {} failed", failed.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(in_time, "not every case ended");
}

async fn matrix(setup: Setup) {
    let (provost, services) = start(setup).await;
    let places = Arc::new(Semaphore::new(SIDE_BY_SIDE));
    let mut running = JoinSet::new();
    for case in cases::faults() {
        let (api, services, places) = (provost.api().clone(), services.clone(), places.clone());
        running.spawn(async move {
            let _place = places.acquire().await;
            let id = submit(&api, &services, &case).await;
            if case.turn == Turn::Ask {
                services.held(&case.name).await;
                command(&api, &id, "undo").await;
                services.release(&case.name);
            }
            (case.name.clone(), settle(&api, &services, &case, &id).await)
        });
    }
    report(running).await;
    nothing_is_open(&provost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_item_leaves_all_or_nothing_on_sqlite() {
    matrix(Provost::setup()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_item_leaves_all_or_nothing_on_postgres() {
    matrix(on_postgres().await).await;
}

/// Sends SIGKILL while a call of every kind is running. Then the same instance starts again, or another takes over.
async fn killed(setup: Setup, heir: &str) {
    let setup = setup
        .set("INSTANCE_ID", "node-1")
        .set("INSTANCE__LEASE", "2s");
    let (mut provost, services) = start(setup).await;
    let mut running = JoinSet::new();
    for case in cases::kills() {
        let (api, services) = (provost.api().clone(), services.clone());
        running.spawn(async move {
            let id = submit(&api, &services, &case).await;
            services.held(&case.name).await;
            if case.turn == Turn::Ask {
                command(&api, &id, "undo").await;
            }
            (case, id)
        });
    }
    let under_way = running.join_all().await;
    provost.kill().await;
    provost
        .restart_with(|setup| setup.set("INSTANCE_ID", heir))
        .await;
    let mut running = JoinSet::new();
    for (case, id) in under_way {
        let (api, services) = (provost.api().clone(), services.clone());
        running
            .spawn(async move { (case.name.clone(), settle(&api, &services, &case, &id).await) });
    }
    report(running).await;
    nothing_is_open(&provost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_call_of_items_leaves_all_or_nothing_on_sqlite() {
    killed(Provost::setup(), "node-1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_call_of_items_leaves_all_or_nothing_on_postgres() {
    killed(on_postgres().await, "node-1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_takes_over_lists_from_a_killed_instance_leaves_all_or_nothing() {
    killed(on_postgres().await, "node-2").await;
}

async fn submit(api: &Api, services: &Services, case: &Case) -> String {
    services.expect(&case.name, case.plan.clone());
    let task = api.post("/v1/tasks", &case.submission());
    let task = task.header("idempotency-key", &case.name.replace(' ', "-"));
    let task = task.await.expect(202);
    task["id"].as_str().unwrap().to_owned()
}

async fn command(api: &Api, id: &str, command: &str) -> Value {
    let answer = api.command(&format!("/v1/tasks/{id}/{command}"));
    answer.await.expect(200)
}

fn state(task: &Value) -> &str {
    task["state"].as_str().unwrap()
}

/// Waits for the end of a task, as an operator who acts on errors in the task or in the children of its items.
async fn settle(api: &Api, services: &Services, case: &Case, id: &str) -> Vec<String> {
    let began = Instant::now();
    let mut faults = Vec::new();
    let mut acted = 0;
    let mut undoes = case.turn == Turn::Afterwards;
    let task = loop {
        // An error of the child of an item does not change its parent.
        let looks = case.operator != Operator::None && case.is_at_task();
        let wait = if looks { "250ms" } else { "10s" };
        let task = api.get(&format!("/v1/tasks/{id}?wait={wait}"));
        let task = task.await.expect(200);
        let mut failing = Value::Null;
        if looks {
            let children = format!("/v1/tasks?parent={id}&state=error");
            failing = api.get(&children).await.expect(200)["items"][0]["id"].clone();
        }
        let failed = match (state(&task), failing.as_str()) {
            ("error", _) => Some(id),
            ("processing" | "undoing", Some(child)) => Some(child),
            ("processed", _) if undoes => {
                undoes = false;
                command(api, id, "undo").await;
                continue;
            }
            ("processing" | "undoing" | "pending", _) if began.elapsed() < PATIENCE * 3 => {
                continue;
            }
            _ => break task,
        };
        let (Some(failed), true) = (failed, acted < 40) else {
            break task;
        };
        acted += 1;
        services.repair(&case.name);
        match case.operator {
            Operator::None => break task,
            Operator::Retries => command(api, failed, "retry").await,
            Operator::Undoes => command(api, failed, "undo").await,
        };
    };
    if (acted > 0) != (case.operator != Operator::None) {
        faults.push(format!(
            "an operator acted {acted} times: {}",
            task["error"]
        ));
    }
    faults.extend(judge(api, case, &task, &services.book(&case.name)).await);
    if !faults.is_empty() {
        faults.push(format!("{:?}", services.book(&case.name).log));
    }
    faults
}

/// Checks that every alert closed when its cause was fixed.
async fn nothing_is_open(api: &Api) {
    let alerts = api.get("/v1/alerts?state=open").await.expect(200);
    assert_eq!(alerts["items"], json!([]));
}

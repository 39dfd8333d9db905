//! A service with a limited rate of calls is down for a while, under more load than its rate, and recovers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::{Act, PATIENCE, Provost, Remote, new_database, step};

/// Returns a setting: scripts/storm runs this test for longer, and with more load, than CI.
fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |given| given.parse().expect("a number"))
}

/// Returns the number of calls that the service takes in a second.
fn rate() -> u64 {
    number("PROVOST_TEST_STORM_RATE", 50)
}

fn load() -> u64 {
    rate() * 5 / 2
}

fn down_for() -> Duration {
    Duration::from_secs(number("PROVOST_TEST_STORM_SECONDS", 4))
}

const BURST: u64 = 5;
const CANARIES: u64 = 2;
const MIN_CALLS: u64 = 10;

fn spec(remote: &Remote) -> Value {
    json!({
        "endpoints": [{ "url": remote.url() }],
        "rate_limit": { "rate": format!("{}/s", rate()), "burst": BURST },
        "retry": { "initial": "100ms", "max": "2s", "budget_percent": 20 },
        "breaker": { "min_calls": MIN_CALLS, "window": "1s", "open_for": "1s", "canaries": CANARIES }
    })
}

/// Returns the largest number of calls that begin within any second.
fn most_in_a_second(calls: &[Instant]) -> usize {
    let mut first = 0;
    let counts = calls.iter().enumerate().map(|(at, call)| {
        while call.duration_since(calls[first]) > Duration::from_secs(1) {
            first += 1;
        }
        at - first + 1
    });
    counts.max().unwrap_or_default()
}

async fn storm(instances: &[Provost]) {
    let is_down = Arc::new(AtomicBool::new(false));
    let succeeded = Arc::new(AtomicU64::new(0));
    let (down, counted) = (is_down.clone(), succeeded.clone());
    let remote = Remote::with(move |_| {
        if down.load(Ordering::SeqCst) {
            return Act::status(503);
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Act::Ok(json!({}))
    });
    let remote = remote.await;
    let put = instances[0]
        .put("/v1/agents/payments", &spec(&remote))
        .await;
    assert_eq!(put.status, 201, "{put:?}");
    let task =
        json!({ "steps": [{ "name": "charge", "agent": "payments", "complete_within": "1h" }] });
    let before = instances[0].peak_memory();
    let mut callers = Vec::new();
    let interval = Duration::from_secs(1) * instances.len() as u32 / load() as u32;
    let lasts = down_for() + Duration::from_secs(2);
    for provost in instances {
        let (api, task) = (provost.api().clone(), task.clone());
        callers.push(tokio::spawn(async move {
            let (mut ids, start) = (Vec::new(), Instant::now());
            while start.elapsed() < lasts {
                let due = interval * ids.len() as u32;
                sleep(due.saturating_sub(start.elapsed())).await;
                ids.push(api.submit(&task).await);
            }
            ids
        }));
    }
    sleep(Duration::from_secs(1)).await;
    is_down.store(true, Ordering::SeqCst);
    let went_down = Instant::now();
    sleep(down_for()).await;
    is_down.store(false, Ordering::SeqCst);
    let came_back = Instant::now();
    let done = succeeded.load(Ordering::SeqCst);
    let mut ids = Vec::new();
    for caller in callers {
        ids.extend(caller.await.unwrap());
    }
    let mut known = (0, Instant::now());
    while known.0 < ids.len() as u64 {
        let now = succeeded.load(Ordering::SeqCst);
        if now > known.0 {
            known = (now, Instant::now());
        }
        assert!(
            known.1.elapsed() < PATIENCE,
            "{now} of {} after a minute without a call",
            ids.len()
        );
        sleep(Duration::from_millis(20)).await;
    }
    let recovered = came_back.elapsed().as_secs_f64();
    for id in &ids {
        let task = instances[0].settled(id).await;
        assert_eq!(task["state"], "processed", "{task}");
        assert_eq!(
            step(&task, "charge")["failure_count"],
            0,
            "it had time: {task}"
        );
    }
    let calls: Vec<Instant> = remote.ledger().iter().map(|seen| seen.at).collect();
    let while_down = calls
        .iter()
        .filter(|at| **at > went_down && **at < came_back);
    let while_down = while_down.count() as u64;
    let most = most_in_a_second(&calls);
    let worked_off = ids.len() as u64 - done;
    eprintln!(
        "{} tasks, {while_down} calls in {:?} without the service, at most {most} calls in a second of {}; \
         then {worked_off} in {recovered:.1} s, {:.0} a second; memory grew by {:?} KiB",
        ids.len(),
        down_for(),
        rate(),
        worked_off as f64 / recovered,
        instances[0]
            .peak_memory()
            .zip(before)
            .map(|(peak, before)| (peak - before) / 1024),
    );
    // Calls are made until half of those in a window have failed; after that only canaries are made, by one instance at
    // a time.
    let looks = down_for().as_secs() + 1;
    let until_open = rate() + BURST + MIN_CALLS * instances.len() as u64;
    assert!(
        while_down <= until_open + looks * CANARIES * 2,
        "{while_down} calls"
    );
    // This number of calls of the second before may come late, because this machine was busy for a moment.
    let slack = rate() / 2;
    assert!(most as u64 <= rate() + BURST + slack, "{most} in a second");
    assert_eq!(succeeded.load(Ordering::SeqCst), ids.len() as u64);
}

#[tokio::test]
async fn a_service_that_comes_back_is_asked_no_more_than_it_takes_and_all_is_worked_off() {
    storm(&[Provost::start().await]).await;
}

#[tokio::test]
async fn so_it_is_with_several_instances() {
    let url = new_database().await;
    let start = || Provost::setup().database_url(&url).start();
    storm(&[start().await, start().await]).await;
}

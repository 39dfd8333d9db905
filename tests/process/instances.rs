//! Instances and the supervisor, over restarts, suspensions and stops.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::{Act, Database, Gate, Provost, Remote, Setup, kinds, one_step, step, until};

fn named(lease: &str) -> Setup {
    Provost::setup()
        .set("INSTANCE_ID", "node-1")
        .set("INSTANCE__LEASE", lease)
}

/// Returns the only instance.
async fn instance(provost: &Provost) -> Value {
    let answer = provost.get("/v1/instances").await.expect(200);
    let items = answer["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{answer:#}");
    items[0].clone()
}

/// Waits until the instance has renewed its lease twice. With a lease of 5 s it renews it after 1.5 s each time, less
/// the time that the database takes; a loop without a pause would renew it after some milliseconds.
async fn renews_twice_and_rests_between(provost: &Provost) {
    let until = async || -> jiff::Timestamp {
        let until = instance(provost).await["lease_until"].clone();
        until.as_str().unwrap().parse().unwrap()
    };
    let mut last = until().await;
    for _ in 0..2 {
        let mut next = until().await;
        while next == last {
            sleep(Duration::from_millis(5)).await;
            next = until().await;
        }
        let rested = next.as_millisecond() - last.as_millisecond();
        assert!(rested >= 300, "renewed again after {rested} ms");
        last = next;
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn an_instance_renews_its_lease_and_says_what_it_holds() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = named("1s").start().await;
    let before = instance(&provost).await;
    assert_eq!(before["id"], "node-1");
    assert_eq!(before["alive"], true);
    assert_eq!(before["supervising"], true);
    assert_eq!(before["term"], 1);
    assert_eq!(before["in_flight"], 0);

    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    let mut after = instance(&provost).await;
    assert_eq!(after["in_flight"], 1);
    while after["lease_until"] == before["lease_until"] {
        sleep(Duration::from_millis(20)).await;
        after = instance(&provost).await;
    }
    assert_eq!(after["started_at"], before["started_at"]);
    assert_eq!(after["term"], 1, "it is the same supervisor all the time");
    gate.open();
    provost.settled(&id).await;
    assert_eq!(instance(&provost).await["in_flight"], 0);
}

#[tokio::test]
async fn killed_and_started_under_its_own_id_it_goes_on_at_once_under_a_new_term() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("done")), Act::Hang]).await;
    // A process that waited for this lease would wait longer than the test.
    let mut provost = named("1h").start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    provost.kill().await;
    provost.restart().await;
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "done");
    assert_eq!(step(&task, "only")["attempt"], 2);
    assert_eq!(step(&task, "only")["failure_count"], 0);
    assert_eq!(instance(&provost).await["term"], 2);

    // The history names the supervisor.
    let mut short = one_step(&remote.url(), "/work");
    short["steps"][0]["complete_within"] = json!("200ms");
    short["steps"][0]["max_failures"] = json!(0);
    let id = provost.submit(&short).await;
    provost.settled(&id).await;
    let history = provost.history(&id).await;
    let failed = history.iter().find(|entry| entry["type"] == "step.error");
    assert_eq!(failed.unwrap()["by"], "supervisor:node-1#2", "{history:#?}");
}

#[tokio::test]
async fn suspended_for_longer_than_its_lease_it_neither_loses_its_steps_nor_its_place() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("first")), Act::Ok(json!("second"))]).await;
    let provost = named("1s").start().await;
    let first = provost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    provost.suspend();
    let database = Database::copy_of(&provost.database());
    let ends = database.lease_ends();
    assert_eq!(ends.len(), 2, "its own and the supervisors'");
    while ends.iter().any(|end| *end >= now()) {
        sleep(Duration::from_millis(20)).await;
    }
    provost.resume();
    // The instance claims again, which it does only with a lease, and its supervisor has looked more than once.
    let second = provost.submit(&one_step(&remote.url(), "/work")).await;
    let second = provost.settled(&second).await;
    assert_eq!(step(&second, "only")["output"], "second");
    assert_eq!(instance(&provost).await["alive"], true);
    assert_eq!(instance(&provost).await["supervising"], true);
    gate.open();
    let task = provost.settled(&first).await;
    assert_eq!(step(&task, "only")["output"], "first");
    assert_eq!(step(&task, "only")["attempt"], 1);
    assert_eq!(step(&task, "only")["failure_count"], 0);
    let history = provost.history(&first).await;
    assert!(!kinds(&history).contains(&"step.expired"), "{history:#?}");
}

#[tokio::test]
async fn stopped_in_order_it_gives_its_leases_up() {
    let mut provost = named("1h").start().await;
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    let database = Database::copy_of(&provost.database());
    let ends = database.lease_ends();
    assert_eq!(ends.len(), 2, "its own and the supervisors'");
    assert!(ends.iter().all(|end| *end <= now()), "{ends:?}");
}

#[tokio::test]
async fn one_that_is_held_rests_between_two_renewals_although_nobody_supervises() {
    let mut provost = named("5s").start().await;
    provost.terminate();
    provost.ended().await;
    provost.restart_with(|setup| setup.argument("--hold")).await;
    renews_twice_and_rests_between(&provost).await;
    assert_eq!(instance(&provost).await["supervising"], false);
}

#[tokio::test]
async fn one_that_was_held_supervises_at_once_when_it_is_released() {
    let mut provost = named("1h").start().await;
    provost.terminate();
    provost.ended().await;
    provost.restart_with(|setup| setup.argument("--hold")).await;
    assert_eq!(instance(&provost).await["supervising"], false);
    provost.command("/v1/hold/release").await.expect(200);
    // This is long before the lease must be renewed.
    until(json!(true), || async {
        instance(&provost).await["supervising"].clone()
    })
    .await;
}

#[tokio::test]
async fn while_its_last_calls_end_it_stays_alive_and_does_not_supervise() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let mut provost = named("5s").start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    remote.requests(1).await;
    provost.terminate();
    provost
        .says("this instance is no longer the supervisor")
        .await;
    let stopping = instance(&provost).await;
    assert_eq!(stopping["supervising"], false);
    assert_eq!(stopping["term"], json!(null));
    renews_twice_and_rests_between(&provost).await;
    assert_eq!(instance(&provost).await["alive"], true);
    gate.open();
    assert_eq!(provost.ended().await.code(), Some(0));
    provost.restart().await;
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "only")["attempt"], 1);
}

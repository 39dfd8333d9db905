//! Steps with one cause have one alert, however many tasks fail for it, at whichever instance.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, Setup, alerts, new_database, one_step, until};

const TASKS: usize = 30;

/// Returns a service that refuses everything until it is repaired. Each path has a cause of its own.
async fn service() -> (Remote, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let seen_by_service = works.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        _ if seen_by_service.load(Ordering::Relaxed) => Act::Ok(json!({})),
        "/declined" => Act::status(402),
        _ => Act::status(403),
    });
    (remote.await, works)
}

fn setup(ops: &Remote) -> Setup {
    let config = format!(
        "[[alert_webhooks]]\nname = \"ops\"\nurl = \"{}/ops\"\n",
        ops.url()
    );
    Provost::setup()
        .set("COURIER__RETRY_INITIAL", "20ms")
        .set("COURIER__RETRY_MAX", "200ms")
        .config(&config)
}

async fn fail(instances: &[Provost], remote: &Remote, path: &str, count: usize) -> Vec<String> {
    let tasks = (0..count).map(async |at| {
        let provost = &instances[at % instances.len()];
        let id = provost.submit(&one_step(&remote.url(), path)).await;
        assert_eq!(provost.settled(&id).await["state"], "error");
        id
    });
    join_all(tasks).await
}

async fn retry_all(provost: &Provost) -> Value {
    let all = json!({ "state": "error", "reason": "repaired" });
    provost.bulk("retry", &all).await
}

async fn begins_grows_and_ends(mut instances: Vec<Provost>, ops: &Remote) {
    let (remote, works) = service().await;
    let tasks = fail(&instances, &remote, "/declined", TASKS).await;
    for provost in &instances {
        let [alert] = &alerts(provost, "open").await[..] else {
            panic!("{:#?}", alerts(provost, "open").await)
        };
        assert_eq!(alert["count"], TASKS);
        let cause = format!("agent {}: 402 Payment Required", remote.url());
        assert_eq!(alert["cause"], cause);
        assert_eq!(alert["tasks"].as_array().unwrap().len(), 3);
        let id = alert["id"].as_str().unwrap();
        let parts = provost
            .get(&format!("/v1/alerts?part_of={id}&limit=100"))
            .await;
        let parts = parts.expect(200)["items"].as_array().unwrap().clone();
        let mut found: Vec<_> = parts
            .iter()
            .map(|part| part["task"].as_str().unwrap())
            .collect();
        let mut expected: Vec<_> = tasks.iter().map(String::as_str).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert!(parts.iter().all(|part| part["part_of"] == id));
    }
    let raised = ops.requests(1).await.remove(0);
    assert_eq!(raised.body["type"], "alert.raised");

    fail(&instances, &remote, "/forbidden", 2).await;
    assert_eq!(alerts(&instances[0], "open").await.len(), 2);
    ops.requests(2).await;

    // The process is killed, and its counts are lost.
    instances[0].kill().await;
    instances[0].restart().await;
    assert_eq!(alerts(&instances[0], "open").await.len(), 2);
    works.store(true, Ordering::Relaxed);
    assert_eq!(retry_all(&instances[0]).await["accepted"], TASKS + 2);
    until(0, || async { alerts(&instances[0], "open").await.len() }).await;
    let closed = alerts(&instances[0], "closed").await;
    let counts: Vec<_> = closed.iter().map(|alert| alert["count"].clone()).collect();
    assert_eq!(counts, [json!(2), json!(TASKS)]);
    // The process that was killed may have sent a message that it sends again.
    let kinds = || {
        let seen = ops.ledger().into_iter().map(|seen| seen.body);
        let by_id: BTreeMap<_, _> = seen
            .map(|event| (event["id"].to_string(), event["type"].to_string()))
            .collect();
        let mut kinds: Vec<_> = by_id.into_values().collect();
        kinds.sort_unstable();
        kinds
    };
    let expected = ["closed", "closed", "raised", "raised"];
    let expected = expected.map(|kind| format!("\"alert.{kind}\"")).to_vec();
    until(expected, || async { kinds() }).await;
}

#[tokio::test]
async fn tasks_that_fail_for_one_cause_make_one_alert_and_another_cause_a_second() {
    let ops = Remote::quick().await;
    let instances = vec![setup(&ops).start().await];
    begins_grows_and_ends(instances, &ops).await;
}

#[tokio::test]
async fn two_instances_raise_one_alert_for_one_cause() {
    let ops = Remote::quick().await;
    let setup = setup(&ops).database_url(&new_database().await);
    let instances = vec![setup.clone().start().await, setup.start().await];
    begins_grows_and_ends(instances, &ops).await;
}

#[tokio::test]
async fn webhooks_hear_of_an_alert_that_grows() {
    let ops = Remote::quick().await;
    let provost = setup(&ops).start().await;
    let (remote, _) = service().await;
    let instances = [provost];
    fail(&instances, &remote, "/declined", 1).await;
    assert_eq!(ops.requests(1).await[0].body["data"]["alert"]["count"], 1);
    fail(&instances, &remote, "/declined", 110).await;
    let grown = ops.requests(2).await.remove(1);
    assert_eq!(grown.body["type"], "alert.updated");
    let alert = &grown.body["data"]["alert"];
    assert!(alert["count"].as_u64().unwrap() >= 100, "{alert:#}");
}

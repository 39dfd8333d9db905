//! Between two attempts of a step nothing is held: no slot, no lease, and no operator is kept waiting.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Provost, Remote, kinds, one_step, step},
};

/// Returns a response that asks for no calls for an hour.
fn in_an_hour() -> Act {
    Act::answer(503, &[("retry-after", "3600")], "closed for the day")
}

/// Returns a service that puts off the first request by an hour, and responds to all others.
async fn put_off() -> Remote {
    Remote::script([in_an_hour(), Act::Ok(json!("done"))]).await
}

fn with_time(url: &str) -> Value {
    json!({ "steps": [{ "name": "only", "url": format!("{url}/work"), "complete_within": "2h",
        "undo": { "request": { "path": "/undo" } } }] })
}

/// Submits a task whose step waits for an hour.
async fn waiting(provost: &Provost, remote: &Remote) -> String {
    let id = provost.submit(&with_time(&remote.url())).await;
    provost.events(&id).await.until("step.retrying").await;
    id
}

#[tokio::test]
async fn a_step_that_waits_says_until_when_and_why_and_leaves_its_slot_to_others() {
    let remote = put_off().await;
    let provost = Provost::start().await;
    provost.register("narrow", &remote.url(), 1).await;
    let submission =
        json!({ "steps": [{ "name": "only", "agent": "narrow", "complete_within": "2h" }] });
    let first = provost.submit(&submission).await;
    provost.events(&first).await.until("step.retrying").await;
    let second = provost.run(&submission).await;
    assert_eq!(second["state"], "processed");

    let task = provost.task(&first).await;
    let only = step(&task, "only");
    assert_eq!(only["state"], "pending");
    assert_eq!(only["locked_by"], Value::Null);
    assert_eq!(only["blocked_by"]["reason"], "time");
    assert_eq!(only["blocked_by"]["until"], only["ready_at"]);
    assert_eq!(only["last_fault"]["status"], 503);
    assert_eq!(only["last_fault"]["body"], "closed for the day");
    assert_eq!(only["failure_count"], 0);
    assert_eq!(only["outcome"], Value::Null);
    let agent = provost.get("/v1/agents/narrow").await.expect(200);
    assert_eq!(agent["in_flight"], 0, "{agent:#}");
}

#[tokio::test]
async fn an_operator_has_it_tried_now() {
    let remote = put_off().await;
    let provost = Provost::start().await;
    let id = waiting(&provost, &remote).await;
    let retry = format!("/v1/tasks/{id}/steps/only/retry");
    provost.command(&retry).await.expect(200);
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "done");
    let seen = remote.ledger();
    assert_eq!(seen[0].key(), seen[1].key());
}

#[tokio::test]
async fn an_operator_resolves_it_or_goes_on_without_it() {
    for (command, state) in [("resolve", "processed"), ("skip", "skipped")] {
        let remote = put_off().await;
        let provost = Provost::start().await;
        let id = waiting(&provost, &remote).await;
        let path = format!("/v1/tasks/{id}/steps/only/{command}");
        let answer = provost.post(&path, &json!({ "output": 7 })).await;
        answer.expect(200);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        assert_eq!(step(&task, "only")["state"], state);
        assert_eq!(remote.count(), 1);
    }
}

#[tokio::test]
async fn an_undo_does_not_wait_for_the_next_try() {
    let remote = put_off().await;
    let provost = Provost::start().await;
    let id = waiting(&provost, &remote).await;
    provost
        .command(&format!("/v1/tasks/{id}/undo"))
        .await
        .expect(200);
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "undone");
    assert_eq!(remote.count(), 1, "it had said that it did nothing");
}

#[tokio::test]
async fn a_stop_has_nothing_to_wait_for_and_the_wait_goes_on_after_it() {
    let remote = put_off().await;
    let mut provost = Provost::start().await;
    let id = waiting(&provost, &remote).await;
    let before = provost.task(&id).await;
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    let log = provost.log();
    assert!(!log.contains("waiting for running calls"), "{log}");
    provost.restart().await;
    let after = provost.task(&id).await;
    assert_eq!(step(&after, "only"), step(&before, "only"));
    assert_eq!(after["version"], before["version"]);
    assert_eq!(remote.count(), 1);
}

#[tokio::test]
async fn a_try_is_not_made_before_the_service_wants_it_even_beyond_complete_by() {
    let remote = Remote::script([
        Act::answer(503, &[("retry-after", "2")], ""),
        Act::Ok(json!("done")),
    ])
    .await;
    let provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["steps"][0]["complete_within"] = json!("500ms");
    let task = provost.run(&submission).await;
    let only = step(&task, "only");
    assert_eq!(only["output"], "done");
    assert_eq!(only["failure_count"], 1);
    let seen = remote.ledger();
    let left_alone = seen[1].at - seen[0].at;
    assert!(left_alone >= Duration::from_secs(2), "{left_alone:?}");
    let history = provost.history(task["id"].as_str().unwrap()).await;
    assert!(kinds(&history).contains(&"step.expired"), "{history:?}");
}

/// The time to complete covers all attempts, and waiting in the queue takes none of it.
#[tokio::test]
async fn tries_end_when_the_time_of_the_step_is_over() {
    let remote = Remote::script([Act::status(503)]).await;
    let provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["steps"][0]["complete_within"] = json!("1s");
    submission["steps"][0]["max_failures"] = json!(0);
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "error");
    let only = step(&task, "only");
    assert_eq!(only["error"]["kind"], "exhausted");
    assert_eq!(only["failure_count"], 1);
    // The last attempt may be claimed when the time is over already: it makes no call.
    let (attempts, calls) = (only["attempt"].as_u64().unwrap(), remote.count() as u64);
    assert!(attempts == calls || attempts == calls + 1, "{task:#}");
}

#[tokio::test]
async fn what_one_instance_put_off_another_tries_in_time_once_the_first_is_dead() {
    let url = tokio::task::spawn_blocking(cluster::new_database);
    let url = url.await.unwrap();
    let remote = Remote::script([
        Act::answer(503, &[("retry-after", "1")], ""),
        Act::Ok(json!("done")),
    ])
    .await;
    // The lease is too long for the test to wait for its end.
    let on = || {
        Provost::setup()
            .database_url(&url)
            .set("INSTANCE__LEASE", "1h")
    };
    let mut first = on().start().await;
    let id = first.submit(&with_time(&remote.url())).await;
    first.events(&id).await.until("step.retrying").await;
    first.kill().await;
    let second = on().start().await;
    let task = second.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "done");
    assert_eq!(step(&task, "only")["failure_count"], 0);
    let seen = remote.ledger();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].key(), seen[1].key());
    assert!(seen[1].at - seen[0].at >= Duration::from_secs(1));
}

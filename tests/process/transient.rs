//! Transient errors: the step is retried within the same time to complete, under the same key.

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;

use crate::harness::{Act, Provost, Remote, Seen, kinds, one_step, step};

/// Checks that each request was an attempt of its own, and that all had one key.
#[track_caller]
fn assert_one_key(ledger: &[Seen], tries: usize) {
    assert_eq!(ledger.len(), tries);
    for (seen, attempt) in ledger.iter().zip(1..) {
        assert_eq!(seen.attempt(), attempt);
        assert_eq!(seen.key(), ledger[0].key());
        assert_eq!(seen.body, ledger[0].body);
    }
}

#[tokio::test]
async fn two_503_and_a_200_are_three_attempts_and_no_failure() {
    let remote = Remote::script([
        Act::answer(503, &[], "busy"),
        Act::status(503),
        Act::Ok(json!(7)),
    ])
    .await;
    let provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["input"] = json!({ "sku": "book-7" });
    let task = provost.run(&submission).await;
    let only = step(&task, "only");
    assert_eq!(only["output"], 7);
    assert_eq!(only["attempt"], 3);
    assert_eq!(only["failure_count"], 0);
    assert_one_key(&remote.ledger(), 3);
    assert_eq!(remote.ledger()[0].body, json!({ "sku": "book-7" }));
    let history = provost.history(task["id"].as_str().unwrap()).await;
    assert_eq!(
        kinds(&history),
        [
            "task.accepted",
            "step.ready",
            "step.claimed",
            "task.processing",
            "step.retrying",
            "step.claimed",
            "step.retrying",
            "step.claimed",
            "step.processed",
            "task.processed"
        ]
    );
    assert_eq!(history[4]["error"]["status"], 503);
    assert_eq!(history[4]["error"]["body"], "busy");
}

#[tokio::test]
async fn every_status_that_may_pass_is_tried_again() {
    let may_pass = [408, 425, 429, 500, 502, 504];
    let acts = may_pass.map(Act::status).into_iter();
    let remote = Remote::script(acts.chain([Act::Ok(json!("at last"))])).await;
    let provost = Provost::start().await;
    provost.register("shaky", &remote.url(), 1).await;
    let submission = json!({ "steps": [{ "name": "only", "agent": "shaky" }] });
    let task = provost.run(&submission).await;
    assert_eq!(step(&task, "only")["output"], "at last");
    assert_one_key(&remote.ledger(), may_pass.len() + 1);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_asked_for_again_under_the_same_key() {
    let remote = Remote::script([Act::CloseHalfway, Act::Ok(json!("whole"))]).await;
    let provost = Provost::start().await;
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(step(&task, "only")["output"], "whole");
    assert_eq!(step(&task, "only")["last_fault"]["kind"], "transient");
    assert_one_key(&remote.ledger(), 2);
}

#[tokio::test]
async fn retry_after_is_respected() {
    let remote = Remote::script([
        Act::answer(429, &[("retry-after", "1")], ""),
        Act::Ok(json!("now")),
    ])
    .await;
    let provost = Provost::start().await;
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(step(&task, "only")["output"], "now");
    let seen = remote.ledger();
    assert_one_key(&seen, 2);
    let left_alone = seen[1].at - seen[0].at;
    assert!(left_alone >= Duration::from_secs(1), "{left_alone:?}");
}

#[tokio::test]
async fn a_service_that_is_not_up_yet_is_called_once_it_is() {
    // The port is known, and refuses connections until the service is started on it.
    let address = {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        free.local_addr().unwrap()
    };
    let provost = Provost::start().await;
    let id = provost
        .submit(&one_step(&format!("http://{address}"), "/work"))
        .await;
    provost.events(&id).await.until("step.retrying").await;
    let listener = TcpListener::bind(address).await.unwrap();
    let remote = Remote::on(listener, |_| Act::Ok(json!("up")));
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "only")["output"], "up");
    assert_eq!(step(&task, "only")["failure_count"], 0);
    let fault = step(&task, "only")["last_fault"]["message"]
        .as_str()
        .unwrap();
    assert!(fault.contains("could not connect"), "{fault}");
    assert_eq!(remote.count(), 1);
}

//! More failures than a step allows: an error and an alert, or an extended wait and another attempt.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, kinds, one_step, step};

/// Returns a task of one step that hangs and may fail once.
fn hopeless(url: &str) -> Value {
    let mut task = one_step(url, "/work");
    task["steps"][0]["complete_within"] = json!("500ms");
    task["steps"][0]["max_failures"] = json!(1);
    task
}

#[tokio::test]
async fn a_step_that_fails_more_often_than_it_may_ends_in_error_and_alerts() {
    let remote = Remote::script([Act::Hang]).await;
    let provost = Provost::start().await;
    let task = provost.run(&hopeless(&remote.url())).await;
    assert_eq!(task["state"], "error");
    let only = step(&task, "only");
    assert_eq!(only["state"], "error");
    assert_eq!(only["failure_count"], 2);
    assert_eq!(only["error"]["kind"], "exhausted");
    let message = only["error"]["message"].as_str().unwrap();
    assert!(message.contains("failed 2 times"), "{message}");
    assert!(message.contains("500ms"), "{message}");
    assert_eq!(only["blocked_by"], json!({ "reason": "operator" }));
    assert_eq!(remote.count(), 2);

    let alerts = provost.get("/v1/alerts?state=open").await.expect(200);
    let alerts = alerts["items"].as_array().unwrap();
    assert_eq!(alerts.len(), 1, "{alerts:#?}");
    assert_eq!(alerts[0]["task"], task["id"]);
    assert_eq!(alerts[0]["step"], "only");
}

#[tokio::test]
async fn what_ended_each_try_is_not_called_silence() {
    let provost = Provost::start().await;
    let mut submission = hopeless("http://127.0.0.1:9");
    submission["steps"][0]["max_failures"] = json!(0);
    let task = provost.run(&submission).await;
    let message = step(&task, "only")["error"]["message"].as_str().unwrap();
    let begins = "failed once; it did not succeed within 500ms; its last fault: ";
    assert!(message.starts_with(begins), "{message}");
    assert!(message.contains("refused"), "{message}");
}

#[tokio::test]
async fn extend_grants_another_try_after_an_extended_wait() {
    let remote = Remote::script([Act::Hang, Act::Hang, Act::Ok(json!("at last"))]).await;
    let provost = Provost::start().await;
    let mut submission = hopeless(&remote.url());
    submission["steps"][0]["on_exhausted"] = json!({ "extend": "300ms", "times": 1 });
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "only")["output"], "at last");
    assert_eq!(step(&task, "only")["attempt"], 3);
    let history = provost.history(task["id"].as_str().unwrap()).await;
    let kinds = kinds(&history);
    let recovered = ["step.expired", "step.extended"];
    let recoveries = kinds.iter().filter(|kind| recovered.contains(kind));
    assert!(recoveries.eq(&recovered), "{kinds:?}");
}

#[tokio::test]
async fn extensions_come_to_an_end_too() {
    let remote = Remote::script([Act::Hang]).await;
    let provost = Provost::start().await;
    let mut submission = hopeless(&remote.url());
    submission["steps"][0]["max_failures"] = json!(0);
    submission["steps"][0]["on_exhausted"] = json!({ "extend": "100ms", "times": 2 });
    let task = provost.run(&submission).await;
    assert_eq!(task["error"]["kind"], "exhausted");
    assert_eq!(remote.count(), 3);
}

#[tokio::test]
async fn the_last_fault_of_an_exhausted_step_is_in_its_error() {
    let remote = Remote::script([Act::answer(503, &[], "down for repair")]).await;
    let provost = Provost::start().await;
    let mut submission = hopeless(&remote.url());
    submission["steps"][0]["max_failures"] = json!(0);
    let task = provost.run(&submission).await;
    let error = &step(&task, "only")["error"];
    assert_eq!(error["kind"], "exhausted");
    assert_eq!(error["status"], 503);
    assert_eq!(error["body"], "down for repair");
}

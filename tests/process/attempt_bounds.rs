//! Bounds on the number of attempts, the faults after which calls are made again, and policies by status.

use serde_json::{Value, json};

use crate::harness::{Act, Provost, Remote, Seen, id_of, setups, step};

/// A step that posts to a service, with these fields.
fn charge(url: &str, fields: Value) -> Value {
    let mut charge = json!({ "name": "charge", "url": url, "request": { "path": "/charge" } });
    let fields = fields.as_object().unwrap().clone();
    charge.as_object_mut().unwrap().extend(fields);
    json!({ "steps": [charge, { "name": "ship", "url": url, "request": { "path": "/ship" } }] })
}

fn calls(remote: &Remote, path: &str) -> usize {
    let ledger = remote.ledger();
    ledger.iter().filter(|seen| seen.path == path).count()
}

/// A service that is always unavailable for `/charge`.
async fn unavailable() -> Remote {
    Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/charge" => Act::answer(503, &[], "busy"),
        path => Act::Ok(json!({ "path": path })),
    })
    .await
}

#[tokio::test]
async fn a_service_that_is_always_unavailable_gets_as_many_calls_as_the_step_says() {
    let remote = unavailable().await;
    let provost = Provost::start().await;
    let fields = json!({ "max_attempts": 3, "on_exhausted": { "503": "skip", "else": "error" },
        "retry": { "initial": "10ms", "jitter": false } });
    let task = provost.run(&charge(&remote.url(), fields)).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let charged = step(&task, "charge");
    assert_eq!(charged["state"], "skipped");
    assert_eq!(charged["error"]["kind"], "exhausted");
    assert_eq!(charged["error"]["status"], 503);
    assert_eq!(charged["attempt"], 3);
    assert_eq!(calls(&remote, "/charge"), 3);
}

#[tokio::test]
async fn a_call_that_is_made_at_most_once_is_not_repeated_after_it_broke_off() {
    let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/charge" => Act::Close,
        path => Act::Ok(json!({ "path": path })),
    })
    .await;
    let provost = Provost::start().await;
    let fields = json!({ "max_attempts": 1, "max_failures": 5 });
    let task = provost.run(&charge(&remote.url(), fields)).await;
    assert_eq!(task["state"], "error", "{task:#}");
    let charged = step(&task, "charge");
    assert_eq!(charged["outcome"], "unknown", "{charged:#}");
    let message = charged["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("failed in its only attempt; "),
        "{message}"
    );
    assert_eq!(calls(&remote, "/charge"), 1);
    // An operator may decide otherwise.
    let retry = format!("/v1/tasks/{}/retry", id_of(&task));
    provost.post(&retry, &json!({})).await.expect(200);
    remote.paths("/charge", 2).await;
}

#[tokio::test]
async fn the_attempts_are_counted_on_after_the_instance_was_killed_on_every_database() {
    for setup in setups().await {
        let remote = Remote::with(|seen: &Seen| match (seen.path.as_str(), seen.attempt()) {
            ("/charge", 1) => Act::status(503),
            ("/charge", _) => Act::Hang,
            (path, _) => Act::Ok(json!({ "path": path })),
        })
        .await;
        let mut provost = setup.start().await;
        let fields = json!({ "max_attempts": 2, "complete_within": "1m", "max_failures": 5 });
        let id = provost.submit(&charge(&remote.url(), fields)).await;
        remote.paths("/charge", 2).await;
        provost.kill().await;
        provost.restart().await;
        let task = provost.settled(&id).await;
        let charged = step(&task, "charge");
        assert_eq!(charged["state"], "error", "{charged:#}");
        let message = charged["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("failed in 2 attempts; "), "{message}");
        assert_eq!(calls(&remote, "/charge"), 2);
    }
}

#[tokio::test]
async fn exactly_the_faults_that_the_step_names_are_retried() {
    let remote = Remote::with(|seen: &Seen| match (seen.path.as_str(), seen.attempt()) {
        ("/charge", 1) => Act::status(409),
        ("/charge", _) => Act::status(503),
        (path, _) => Act::Ok(json!({ "path": path })),
    })
    .await;
    let provost = Provost::start().await;
    let fields =
        json!({ "retry": { "initial": "1ms", "on": [409] }, "on_permanent": { "503": "success" } });
    let task = provost.run(&charge(&remote.url(), fields)).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    assert_eq!(calls(&remote, "/charge"), 2);
    assert_eq!(step(&task, "charge")["state"], "processed");
}

#[tokio::test]
async fn an_error_that_counts_as_a_success_gives_its_body() {
    let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/charge" => Act::answer(
            409,
            &[("content-type", "application/json")],
            r#"{"id":"c1"}"#,
        ),
        path => Act::Ok(json!({ "path": path })),
    })
    .await;
    let provost = Provost::start().await;
    let fields = json!({ "on_permanent": { "409": "success", "4xx": "undo" } });
    let task = provost.run(&charge(&remote.url(), fields)).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let charged = step(&task, "charge");
    assert_eq!(charged["output"]["id"], "c1");
    assert_eq!(charged["error"], Value::Null);
}

#[tokio::test]
async fn an_error_in_the_body_of_a_success_is_an_error_with_its_message() {
    let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/charge" => Act::Ok(json!({ "ok": false, "error": "card declined" })),
        path => Act::Ok(json!({ "path": path })),
    })
    .await;
    let provost = Provost::start().await;
    let fields = json!({ "failed": { "when": "output.ok == false", "message": "output.error" } });
    let task = provost.run(&charge(&remote.url(), fields)).await;
    assert_eq!(task["state"], "error", "{task:#}");
    let charged = step(&task, "charge");
    assert_eq!(charged["error"]["kind"], "permanent");
    assert_eq!(
        charged["error"]["message"],
        "the service reported an error: card declined"
    );
    assert_eq!(calls(&remote, "/ship"), 0);
}

#[tokio::test]
async fn a_limit_comes_from_the_input_within_its_maximum() {
    let remote = Remote::with(|seen: &Seen| match seen.path.as_str() {
        "/charge" => Act::Hang,
        path => Act::Ok(json!({ "path": path })),
    })
    .await;
    let provost = Provost::start().await;
    let fields = json!({ "max_failures": 0, "on_exhausted": "skip",
        "complete_within": { "value": "{{ input.millis }}ms", "max": "1m" } });
    let mut submission = charge(&remote.url(), fields);
    submission["input"] = json!({ "millis": 250 });
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "processed", "{task:#}");
    let message = step(&task, "charge")["error"]["message"].as_str().unwrap();
    assert!(message.contains("within 250ms"), "{message}");
    submission["input"] = json!({ "millis": 100_000 });
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "error", "{task:#}");
    let message = step(&task, "charge")["error"]["message"].as_str().unwrap();
    assert!(message.contains("from 100ms to 1m"), "{message}");
}

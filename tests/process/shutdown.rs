//! SIGTERM: running calls may end, all other steps are released, and no call is made twice because of it.

use serde_json::json;

use crate::harness::{Act, Api, Database, Gate, Provost, Remote, kinds, pipeline, step};

/// Returns the recorded states of all steps.
fn recorded(provost: &Provost) -> Vec<String> {
    let steps = Database::copy_of(&provost.database()).steps();
    let words = steps
        .iter()
        .map(|step| format!("{} {}", step.name, step.state));
    words.collect()
}

#[tokio::test]
async fn a_call_that_ends_in_time_is_recorded_before_it_stops() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("first")), Act::Ok(json!("second"))]).await;
    let mut provost = Provost::start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a", "b"])).await;
    remote.requests(1).await;
    provost.terminate();
    // Only the log shows when the stop has begun.
    provost.says("waiting for running calls").await;
    gate.open();
    let status = provost.ended().await;
    assert_eq!(status.code(), Some(0));
    assert_eq!(remote.count(), 1, "nothing new is started while it stops");
    assert_eq!(recorded(&provost), ["a processed", "b pending"]);

    provost.restart().await;
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "a")["output"], "first");
    assert_eq!(step(&task, "a")["attempt"], 1);
    assert_eq!(step(&task, "b")["output"], "second");
    let seen = remote.ledger();
    assert_eq!(seen.len(), 2);
    assert_eq!([seen[0].path.as_str(), seen[1].path.as_str()], ["/a", "/b"]);
}

#[tokio::test]
async fn a_call_that_outlasts_the_grace_is_handed_back_without_counting_a_failure() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("done"))]).await;
    let setup = Provost::setup().set("SHUTDOWN_GRACE", "500ms");
    let mut provost = setup.start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    remote.requests(1).await;
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    assert_eq!(recorded(&provost), ["a pending"]);

    provost.restart().await;
    let task = provost.settled(&id).await;
    let a = step(&task, "a");
    assert_eq!(a["output"], "done");
    assert_eq!(a["failure_count"], 0);
    assert_eq!(a["attempt"], 2);
    let seen = remote.ledger();
    assert_eq!(seen[0].key(), seen[1].key());
    let history = provost.history(&id).await;
    let released = history
        .iter()
        .filter(|entry| entry["type"] == "step.released");
    assert_eq!(released.count(), 1, "{:?}", kinds(&history));
}

#[tokio::test]
async fn a_step_that_was_running_when_it_was_killed_runs_again_at_once() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("done"))]).await;
    let mut provost = Provost::start().await;
    // The complete-by of the step is half a minute away, and is not waited for.
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    remote.requests(1).await;
    provost.kill().await;
    provost.restart().await;
    let task = provost.settled(&id).await;
    assert_eq!(step(&task, "a")["attempt"], 2);
    assert_eq!(step(&task, "a")["failure_count"], 0);
    let history = provost.history(&id).await;
    assert!(!kinds(&history).contains(&"step.expired"));
}

#[tokio::test]
async fn a_caller_who_waits_is_answered_when_it_stops() {
    let remote = Remote::script([Act::Hang]).await;
    let setup = Provost::setup().set("SHUTDOWN_GRACE", "200ms");
    let mut provost = setup.start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    remote.requests(1).await;
    let api = provost.api().clone();
    let mut events = provost.events(&id).await;
    let waiting = tokio::spawn(async move { api.get(&format!("/v1/tasks/{id}?wait=60s")).await });
    events.until("step.claimed").await;
    provost.terminate();
    let task = waiting.await.unwrap().expect(200);
    assert_eq!(step(&task, "a")["state"], "processing");
    events.rest().await;
    assert_eq!(provost.ended().await.code(), Some(0));
}

#[tokio::test]
async fn an_instance_that_drains_is_not_ready_and_does_everything_until_a_second_signal() {
    let remote = Remote::quick().await;
    let setup = Provost::setup().set("SHUTDOWN__DRAIN", "1h");
    let mut provost = setup.start().await;
    provost.get("/readyz").await.expect(200);
    provost.terminate();
    provost.says("draining").await;
    let unready = provost.get("/readyz").await;
    unready.expect_problem(503, "stopping");
    assert_eq!(provost.get("/livez").await.status, 200);
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    assert_eq!(provost.settled(&id).await["state"], "processed");
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_drain_ends_after_its_time() {
    let setup = Provost::setup().set("SHUTDOWN__DRAIN", "10ms");
    let mut provost = setup.start().await;
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    provost.says("draining").await;
}

#[tokio::test]
async fn a_submission_during_the_stop_is_refused_and_all_else_is_answered() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let mut provost = Provost::start().await;
    let submission = pipeline(&remote.url(), &["a"]);
    // This request leaves a connection that is kept alive.
    let id = provost.submit(&submission).await;
    remote.requests(1).await;
    provost.terminate();
    provost.says("waiting for running calls").await;
    let newcomer = Api::new(provost.address());
    for api in [provost.api(), &newcomer] {
        for path in ["/v1/tasks".to_owned(), format!("/v1/tasks/{id}/clone")] {
            let refused = match path.as_str() {
                "/v1/tasks" => api.post(&path, &submission).await,
                _ => api.command(&path).await,
            };
            assert_eq!(refused.header("retry-after"), Some("1"), "{path}");
            refused.expect_problem(503, "stopping");
        }
        let verdict = api.post("/v1/tasks?dry_run=true", &submission).await;
        verdict.expect(200);
        let list = api.get("/v1/tasks").await.expect(200);
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
    }
    let paused = newcomer.command(&format!("/v1/tasks/{id}/pause")).await;
    paused.expect(200);
    gate.open();
    assert_eq!(provost.ended().await.code(), Some(0));
    assert_eq!(remote.count(), 1);
}

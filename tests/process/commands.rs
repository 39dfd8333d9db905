//! The commands that an operator may give for a task, and the states in which they are refused.

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, kinds, new_database, pipeline, step};

/// Returns a task whose first step is being called and held by a gate; the second step waits.
async fn under_way() -> (Provost, Remote, Gate, String) {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a", "b"])).await;
    remote.requests(1).await;
    (provost, remote, gate, id)
}

/// Returns a task whose first step failed permanently. The service succeeds at all further calls.
async fn in_error() -> (Provost, Remote, String) {
    let remote = Remote::script([Act::status(402), Act::Ok(json!("done"))]).await;
    let provost = Provost::start().await;
    let task = provost.run(&pipeline(&remote.url(), &["a", "b"])).await;
    assert_eq!(task["state"], "error");
    let id = task["id"].as_str().unwrap().to_owned();
    (provost, remote, id)
}

#[tokio::test]
async fn a_cancelled_task_ends_where_it_is_and_never_changes_again() {
    let (provost, remote, gate, id) = under_way().await;
    let reason = json!({ "reason": "the customer withdrew" });
    let cancelled = provost
        .post(&format!("/v1/tasks/{id}/cancel"), &reason)
        .await;
    let cancelled = cancelled.expect(200);
    assert_eq!(cancelled["state"], "cancelled");
    for name in ["a", "b"] {
        assert_eq!(step(&cancelled, name)["state"], "cancelled");
    }
    gate.open();
    for command in [
        "cancel",
        "pause",
        "resume",
        "retry",
        "steps/a/retry",
        "steps/a/skip",
    ] {
        let refused = provost.command(&format!("/v1/tasks/{id}/{command}")).await;
        let problem = refused.expect_problem(409, "task-ended");
        assert_eq!(problem["state"], "cancelled", "{command}");
    }
    assert_eq!(provost.task(&id).await, cancelled);
    assert_eq!(remote.count(), 1);
    let history = provost.history(&id).await;
    let last = history.last().unwrap();
    assert_eq!(last["type"], "task.cancelled");
    assert_eq!(last["reason"], "the customer withdrew");
    assert_eq!(last["by"], "operator:anonymous");
}

#[tokio::test]
async fn a_paused_task_lets_its_call_finish_and_starts_nothing_until_it_is_resumed() {
    let (provost, remote, gate, id) = under_way().await;
    let path = |command: &str| format!("/v1/tasks/{id}/{command}");
    provost
        .command(&path("resume"))
        .await
        .expect_problem(409, "wrong-task-state");
    let paused = provost.command(&path("pause")).await.expect(200);
    assert_eq!(paused["state"], "paused");
    provost
        .command(&path("pause"))
        .await
        .expect_problem(409, "wrong-task-state");
    let mut events = provost.events(&id).await;
    gate.open();
    events.until("step.processed").await;
    let task = provost.task(&id).await;
    assert_eq!(task["state"], "paused");
    assert_eq!(step(&task, "a")["output"], "done");
    assert_eq!(step(&task, "b")["state"], "pending");
    assert_eq!(
        step(&task, "b")["blocked_by"],
        json!({ "reason": "paused" })
    );
    assert_eq!(remote.count(), 1);
    provost.command(&path("resume")).await.expect(200);
    assert_eq!(provost.settled(&id).await["state"], "processed");
    let history = provost.history(&id).await;
    let held = kinds(&history)
        .into_iter()
        .filter(|kind| ["task.paused", "task.resumed"].contains(kind));
    assert_eq!(held.collect::<Vec<_>>(), ["task.paused", "task.resumed"]);
}

#[tokio::test]
async fn a_retried_step_continues_the_task() {
    let (provost, remote, id) = in_error().await;
    let retried = provost
        .command(&format!("/v1/tasks/{id}/retry"))
        .await
        .expect(200);
    assert_ne!(retried["state"], "error");
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(task["error"], Value::Null);
    assert_eq!(step(&task, "a")["attempt"], 2);
    let seen = remote.ledger();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].key(), seen[1].key());
    assert_ne!(seen[1].key(), seen[2].key());
}

#[tokio::test]
async fn a_skipped_step_counts_as_done_and_later_steps_see_what_stands_in_for_it() {
    let (provost, remote, id) = in_error().await;
    let body = json!({ "output": { "id": "by hand" }, "reason": "not needed" });
    let skipped = provost
        .post(&format!("/v1/tasks/{id}/steps/a/skip"), &body)
        .await;
    assert_eq!(step(&skipped.expect(200), "a")["state"], "skipped");
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "a")["output"], json!({ "id": "by hand" }));
    assert_eq!(remote.ledger()[1].path, "/b");
}

#[tokio::test]
async fn a_resolved_step_is_processed_with_the_output_given() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/charge" => Act::status(402),
        _ => Act::Ok(json!("shipped")),
    })
    .await;
    let provost = Provost::start().await;
    let submission = json!({ "steps": [
        { "name": "charge", "url": remote.url(), "request": { "path": "/charge" } },
        { "name": "ship", "url": remote.url(),
          "request": { "path": "/ship", "body": { "paid": "{{ steps.charge.output.id }}" } } },
    ] });
    let id = provost.run(&submission).await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let body = json!({ "output": { "id": "ch_1" }, "reason": "charged in the console" });
    let resolved = provost
        .post(&format!("/v1/tasks/{id}/steps/charge/resolve"), &body)
        .await;
    assert_eq!(step(&resolved.expect(200), "charge")["state"], "processed");
    assert_eq!(provost.settled(&id).await["state"], "processed");
    assert_eq!(remote.ledger()[1].body, json!({ "paid": "ch_1" }));
    let history = provost.history(&id).await;
    let entry = history
        .iter()
        .find(|entry| entry["type"] == "step.resolved")
        .unwrap();
    assert_eq!(entry["reason"], "charged in the console");
}

#[tokio::test]
async fn commands_on_a_step_that_is_not_in_error_are_refused_with_its_state() {
    let (provost, remote, _gate, id) = under_way().await;
    for (name, state) in [("a", "processing"), ("b", "waiting")] {
        for command in ["retry", "skip", "resolve"] {
            let path = format!("/v1/tasks/{id}/steps/{name}/{command}");
            let refused = provost.command(&path).await;
            let problem = refused.expect_problem(409, "wrong-step-state");
            assert_eq!(problem["step_state"], state, "{command} {name}");
            assert_eq!(problem["state"], "processing");
        }
    }
    let refused = provost.command(&format!("/v1/tasks/{id}/retry")).await;
    refused.expect_problem(409, "wrong-task-state");
    assert_eq!(remote.count(), 1);
}

#[tokio::test]
async fn a_step_that_waits_for_its_next_try_can_be_tried_at_once() {
    let remote = Remote::script([Act::Hang, Act::Ok(json!("done"))]).await;
    let provost = Provost::start().await;
    let mut submission = pipeline(&remote.url(), &["a"]);
    submission["steps"][0]["complete_within"] = json!("1s");
    submission["steps"][0]["max_failures"] = json!(0);
    submission["steps"][0]["on_exhausted"] = json!({ "extend": "1h", "times": 1 });
    let id = provost.submit(&submission).await;
    provost.events(&id).await.until("step.extended").await;
    let task = provost.task(&id).await;
    assert_eq!(step(&task, "a")["blocked_by"]["reason"], "time");
    assert!(step(&task, "a")["blocked_by"]["until"].is_string());
    provost
        .command(&format!("/v1/tasks/{id}/steps/a/retry"))
        .await
        .expect(200);
    assert_eq!(step(&provost.settled(&id).await, "a")["output"], "done");
}

#[tokio::test]
async fn commands_name_what_is_not_there_and_fields_that_are_not_known() {
    let (provost, _remote, id) = in_error().await;
    let nobody = "019c7a5e-0000-7000-8000-000000000000";
    for command in [
        "cancel",
        "pause",
        "resume",
        "retry",
        "steps/a/retry",
        "steps/a/skip",
    ] {
        let refused = provost
            .command(&format!("/v1/tasks/{nobody}/{command}"))
            .await;
        refused.expect_problem(404, "no-such-task");
    }
    for command in ["retry", "skip", "resolve"] {
        let refused = provost
            .command(&format!("/v1/tasks/{id}/steps/c/{command}"))
            .await;
        let problem = refused.expect_problem(404, "no-such-step");
        assert!(
            problem["detail"].as_str().unwrap().contains("a, b"),
            "{problem}"
        );
        let typo = json!({ "resaon": "typo" });
        let refused = provost
            .post(&format!("/v1/tasks/{id}/steps/a/{command}"), &typo)
            .await;
        assert_eq!(refused.expect_faults(), ["/resaon"]);
    }
    assert_eq!(provost.task(&id).await["state"], "error");
}

#[tokio::test]
async fn a_call_that_hangs_is_ended_and_the_operator_decides() {
    let (provost, remote, gate, id) = under_way().await;
    let reason = json!({ "reason": "the service says nothing" });
    let path = format!("/v1/tasks/{id}/steps/a/cancel");
    provost.post(&path, &reason).await.expect(200);
    let cancelled = provost.settled(&id).await;
    assert_eq!(cancelled["state"], "error");
    let fault = &step(&cancelled, "a")["error"];
    assert_eq!(fault["message"], "an operator has cancelled it");
    assert_eq!(fault["outcome"], "unknown");
    let again = provost.command(&path).await;
    again.expect_problem(409, "wrong-step-state");
    let waiting = provost
        .command(&format!("/v1/tasks/{id}/steps/b/cancel"))
        .await;
    let problem = waiting.expect_problem(409, "wrong-step-state");
    assert_eq!(problem["step_state"], "waiting");
    let history = provost.history(&id).await;
    let entry = { history.iter() }.find(|entry| entry["type"] == "step.dropping");
    let entry = entry.unwrap();
    assert_eq!(entry["by"], "operator:anonymous");
    assert_eq!(entry["reason"], "the service says nothing");
    gate.open();
    provost
        .command(&format!("/v1/tasks/{id}/steps/a/skip"))
        .await
        .expect(200);
    assert_eq!(provost.settled(&id).await["state"], "processed");
    // The second is the call of the step after it.
    assert_eq!(remote.count(), 2);
}

#[tokio::test]
async fn an_instance_drops_a_call_that_was_cancelled_at_another_one() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("late")), Act::Ok(json!("second"))]).await;
    let url = new_database().await;
    let one = Provost::setup().database_url(&url).start().await;
    let mut submission = pipeline(&remote.url(), &["a"]);
    submission["steps"][0]["complete_within"] = json!("1h");
    let id = one.submit(&submission).await;
    remote.requests(1).await;
    let other = Provost::setup().database_url(&url).start().await;
    let path = format!("/v1/tasks/{id}/steps/a/cancel");
    other.command(&path).await.expect(200);
    assert_eq!(other.settled(&id).await["state"], "error");
    let read = format!("/v1/tasks/{id}/steps/a/attempts");
    let attempts = one.get(&read).await.expect(200);
    assert_eq!(attempts["items"][0]["result"], "released");
    gate.open();
    let retried = other.command(&format!("/v1/tasks/{id}/retry")).await;
    retried.expect(200);
    let task = other.settled(&id).await;
    assert_eq!(step(&task, "a")["output"], "second");
    let keys: Vec<_> = { remote.ledger().into_iter() }
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

/// The holder cannot confirm that its call has ended, and could still make it: nothing relies on the drop before its lease is over.
#[tokio::test]
async fn an_undo_waits_for_the_end_of_a_call_that_was_cancelled_at_another_instance() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("late")), Act::Ok(json!("undone"))]).await;
    let url = new_database().await;
    let one = Provost::setup().database_url(&url).start().await;
    let mut submission = pipeline(&remote.url(), &["a"]);
    submission["steps"][0]["complete_within"] = json!("1h");
    submission["steps"][0]["undo"] = json!({ "request": { "path": "/undo" } });
    let id = one.submit(&submission).await;
    remote.requests(1).await;
    let other = Provost::setup().database_url(&url).start().await;
    one.suspend();
    let cancel = format!("/v1/tasks/{id}/steps/a/cancel");
    other.command(&cancel).await.expect(200);
    let undo = format!("/v1/tasks/{id}/undo");
    let task = other.command(&undo).await.expect(200);
    assert_eq!(step(&task, "a")["state"], "processing");
    let blocked = &step(&task, "a.undo")["blocked_by"];
    assert_eq!(blocked["reason"], "drop", "{blocked}");
    assert_eq!(other.settled(&id).await["state"], "undone");
    one.resume();
}

//! One command for many tasks.

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, one_step, setups, step};

/// Checks the counts of a bulk command without refusals.
fn expect_all(answer: &Value, accepted: u32) {
    let counts = ["matched", "accepted", "refused"].map(|name| answer[name].clone());
    assert_eq!(
        counts,
        [json!(accepted), json!(accepted), json!(0)],
        "{answer:#}"
    );
    assert_eq!(answer["refusals"], json!({}), "{answer:#}");
}

#[tokio::test]
async fn many_tasks_are_retried_by_filter_and_a_dry_run_only_counts() {
    let fixed = Gate::closed();
    let held = fixed.clone();
    // The service fails at the first attempts, and is held by the gate at the next.
    let remote = Remote::with(move |seen| match seen.attempt() {
        1 => Act::status(410),
        _ => held.then(json!("done")),
    })
    .await;
    let provost = Provost::start().await;
    provost.register("payments", &remote.url(), 64).await;
    let definition = json!({ "steps": [{ "name": "charge", "agent": "payments" }] });
    provost.put("/v1/workflows/order", &definition).await;
    let mut ids = Vec::new();
    for number in 0..25 {
        let customer = if number < 20 { "acme" } else { "other" };
        let submission = json!({ "workflow": "order", "labels": { "customer": customer } });
        let task = provost.run(&submission).await;
        assert_eq!(task["state"], "error");
        ids.push(task["id"].as_str().unwrap().to_owned());
    }
    let filter =
        json!({ "workflow": "order", "agent": "payments", "labels": { "customer": "acme" } });
    let mut dry = filter.clone();
    dry["dry_run"] = json!(true);
    let answer = provost.bulk("retry", &dry).await;
    expect_all(&answer, 20);
    assert_eq!(
        (&answer["total"], &answer["total_is_at_least"]),
        (&json!(20), &json!(false))
    );
    assert_eq!(answer["next_cursor"], Value::Null);
    let sentence = answer["sentence"].as_str().unwrap();
    let words = "retry 20 tasks of workflow order, with a step that failed at agent payments, with label customer=acme, that failed by 20";
    assert!(sentence.starts_with(words), "{sentence}");
    let examples = answer["examples"].as_array().unwrap();
    assert_eq!(examples.len(), 3, "{answer:#}");
    let charge = |state: &str| json!([{ "name": "charge", "state": state }]);
    assert_eq!(examples[0]["task"], json!(ids[0]));
    assert_eq!(
        examples[0]["before"],
        json!({ "state": "error", "steps": charge("error") })
    );
    assert_eq!(
        examples[0]["after"],
        json!({ "state": "processing", "steps": charge("pending") })
    );
    assert_eq!(remote.count(), 25);
    let answer = provost.bulk("retry", &filter).await;
    expect_all(&answer, 20);
    fixed.open();
    for (number, id) in ids.iter().enumerate() {
        let state = provost.settled(id).await["state"].clone();
        assert_eq!(
            state,
            if number < 20 { "processed" } else { "error" },
            "{number}"
        );
    }
    // A repetition of the command finds no more tasks.
    let answer = provost.bulk("retry", &filter).await;
    expect_all(&answer, 0);

    let nobody = "019c7a5e-0000-7000-8000-000000000000";
    let by_id = json!({ "ids": [ids[20], ids[0], ids[20], nobody] });
    let mut dry = by_id.clone();
    dry["dry_run"] = json!(true);
    for (body, dry_run) in [(dry, true), (by_id, false)] {
        let answer = provost.bulk("retry", &body).await;
        let refusals = json!({ "task-ended": 1, "no-such-task": 1 });
        assert_eq!(answer["accepted"], 1, "{answer}");
        assert_eq!(answer["refused"], 2);
        assert_eq!(answer["refusals"], refusals);
        assert_eq!(answer["dry_run"] == true, dry_run);
    }
    assert_eq!(provost.settled(&ids[20]).await["state"], "processed");
}

/// Returns tasks whose one step is being called and held by the gate.
async fn held(provost: &Provost, remote: &Remote, gate: &Gate, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let before = remote.count();
    for number in 0..count {
        let submission = json!({ "labels": { "batch": "spring" }, "steps": [
            { "name": "a", "url": remote.url(), "pivot": number == 0,
              "on_undo": "drop", "request": { "path": "/a" } },
        ] });
        ids.push(provost.submit(&submission).await);
    }
    remote.requests(before + count).await;
    let _ = gate;
    ids
}

#[tokio::test]
async fn many_tasks_are_undone_piece_by_piece_and_what_is_past_its_pivot_is_refused() {
    let gate = Gate::closed();
    let behind = gate.clone();
    let remote = Remote::with(move |_| behind.then(json!("done"))).await;
    let provost = Provost::start().await;
    let ids = held(&provost, &remote, &gate, 5).await;
    let filter = json!({ "labels": { "batch": "spring" }, "limit": 2 });
    let mut dry = filter.clone();
    dry["dry_run"] = json!(true);
    let answer = provost.bulk("undo", &dry).await;
    assert_eq!(answer["total"], 5, "{answer}");
    assert_eq!(
        (&answer["accepted"], &answer["refused"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(answer["refusals"], json!({ "past-pivot": 1 }));
    // The cursor of a dry run cannot be used for the command itself.
    let mut real = filter.clone();
    real["cursor"] = answer["next_cursor"].clone();
    real.as_object_mut().unwrap().remove("limit");
    let refused = provost.post("/v1/tasks/undo", &real).await;
    assert_eq!(refused.expect_faults(), ["/cursor"]);
    assert_eq!(provost.task(&ids[1]).await["state"], "processing");

    // The job stops after its first two tasks, and continues when it is resumed.
    let first = json!({ "labels": { "batch": "spring" }, "first": 2 });
    let job = provost.bulk("undo", &first).await;
    let counts = |job: &Value| ["matched", "accepted", "refused"].map(|name| job[name].clone());
    assert_eq!(counts(&job), [2, 1, 1], "{job:#}");
    assert_eq!(
        (&job["state"], &job["stop_cause"]),
        (&json!("stopped"), &json!("first"))
    );
    let job = job["id"].as_str().unwrap();
    provost
        .command(&format!("/v1/bulk/{job}/resume"))
        .await
        .expect(200);
    let job = provost.bulk_ended(job).await;
    assert_eq!(counts(&job), [5, 4, 1], "{job:#}");
    assert_eq!(job["refusals"], json!({ "past-pivot": 1 }));
    for id in &ids[1..] {
        // Each running call is dropped, and the drop is confirmed first.
        let task = provost.settled(id).await;
        assert_eq!(task["state"], "undone");
        assert_eq!(task["undo"]["by"], "operator:anonymous");
    }
    // Only the task that cannot be undone is still there.
    let again = json!({ "labels": { "batch": "spring" } });
    let answer = provost.bulk("undo", &again).await;
    assert_eq!(
        (&answer["matched"], &answer["refused"]),
        (&json!(1), &json!(1))
    );
    gate.open();
}

#[tokio::test]
async fn many_tasks_are_cancelled_by_state() {
    let gate = Gate::closed();
    let behind = gate.clone();
    let remote = Remote::with(move |_| behind.then(json!("done"))).await;
    let provost = Provost::start().await;
    let ids = held(&provost, &remote, &gate, 3).await;
    provost
        .command(&format!("/v1/tasks/{}/pause", ids[2]))
        .await
        .expect(200);
    let paused = json!({ "state": "paused", "reason": "given up" });
    let answer = provost.bulk("cancel", &paused).await;
    expect_all(&answer, 1);
    let history = provost.history(&ids[2]).await;
    assert_eq!(history.last().unwrap()["reason"], "given up");
    assert_eq!(provost.task(&ids[1]).await["state"], "processing");
    let all = json!({ "all": true });
    let answer = provost.bulk("cancel", &all).await;
    expect_all(&answer, 2);
    gate.open();
}

/// No index has the processed tasks by their state.
#[tokio::test]
async fn many_processed_tasks_are_selected_by_their_state_alone() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        for _ in 0..3 {
            provost.run(&one_step(&remote.url(), "/charge")).await;
        }
        let waits = json!({ "steps": [{ "name": "a", "wait": { "for": "1h" } }] });
        provost.submit(&waits).await;
        let all = json!({ "state": "processed", "dry_run": true });
        let answer = provost.bulk("undo", &all).await;
        assert_eq!(
            (&answer["matched"], &answer["total"]),
            (&json!(3), &json!(3))
        );
        let answer = provost.bulk("clone", &all).await;
        expect_all(&answer, 3);
    }
}

#[tokio::test]
async fn the_failed_steps_of_many_tasks_are_skipped_by_name_and_no_others() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/bill" | "/notify" => Act::status(410),
        _ => Act::Ok(json!("done")),
    })
    .await;
    let provost = Provost::start().await;
    let mut ids = Vec::new();
    for failing in ["bill", "notify"] {
        let submission = json!({ "labels": { "batch": "spring" }, "steps": [
            { "name": failing, "url": remote.url(), "request": { "path": format!("/{failing}") } },
            { "name": "end", "url": remote.url(), "request": { "path": "/end",
              "body": format!("{{{{ steps.{failing}.output }}}}") } },
        ] });
        let task = provost.run(&submission).await;
        ids.push(task["id"].as_str().unwrap().to_owned());
    }
    let body =
        json!({ "step": "notify", "output": { "sent": false }, "labels": { "batch": "spring" } });
    let answer = provost.bulk("skip", &body).await;
    assert_eq!(answer["accepted"], 1, "{answer}");
    assert_eq!(answer["refusals"], json!({ "wrong-task-state": 1 }));
    let task = provost.settled(&ids[1]).await;
    assert_eq!(step(&task, "notify")["state"], "skipped");
    assert_eq!(task["state"], "processed");
    let end = remote.ledger().into_iter().find(|seen| seen.path == "/end");
    assert_eq!(end.unwrap().body, json!({ "sent": false }));
    let every = json!({ "all": true });
    let answer = provost.bulk("skip", &every).await;
    expect_all(&answer, 1);
    assert_eq!(provost.settled(&ids[0]).await["state"], "processed");
}

#[tokio::test]
async fn a_bulk_command_with_a_fault_touches_nothing() {
    let remote = Remote::script([Act::status(410)]).await;
    let provost = Provost::start().await;
    let task = provost
        .run(&crate::harness::one_step(&remote.url(), "/work"))
        .await;
    let id = task["id"].as_str().unwrap();
    for (command, body, pointer) in [
        (
            "retry",
            json!({ "all": true, "workflw": "order" }),
            "/workflw",
        ),
        ("retry", json!({ "state": "processed" }), "/state"),
        ("retry", json!({ "ids": ["nonsense"] }), "/ids/0"),
        ("retry", json!({ "ids": [id], "workflow": "order" }), "/ids"),
        // A missing field must not apply the command to everything.
        ("retry", json!({}), "/all"),
        ("cancel", json!({}), "/all"),
        ("undo", json!({ "dry_run": true, "labels": {} }), "/all"),
        ("undo", json!({ "state": "undoing" }), "/state"),
        ("skip", json!({ "all": true, "output": 1 }), "/output"),
        ("skip", json!({ "all": true, "cursor": "7" }), "/cursor"),
        ("cancel", json!({ "all": true, "limit": 7 }), "/limit"),
        ("cancel", json!({ "all": true, "first": 0 }), "/first"),
        ("cancel", json!({ "all": true, "rate": "fast" }), "/rate"),
        ("cancel", json!({ "all": true, "rate": "0/s" }), "/rate"),
    ] {
        let refused = provost.post(&format!("/v1/tasks/{command}"), &body).await;
        assert_eq!(refused.expect_faults(), [pointer], "{command} {body}");
    }
    let same: Value = provost.task(id).await;
    assert_eq!(same, task);
    assert_eq!(remote.count(), 1);
}

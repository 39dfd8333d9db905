//! The job of a bulk command: progress, refusals, stop and resume, restarts, other instances.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Gate, Provost, Remote, Setup, id_of, kill_count, new_database, setups, until,
};

/// A service that refuses first attempts, and all attempts at `/never`.
async fn service() -> Remote {
    Remote::with(|seen| match (seen.attempt(), seen.path.as_str()) {
        (1, _) | (_, "/never") => Act::status(410),
        _ => Act::Ok(json!("done")),
    })
    .await
}

/// Returns tasks in error, oldest first.
async fn failed(api: &Api, remote: &Remote, path: &str, count: usize) -> Vec<String> {
    let submission = json!({ "labels": { "batch": "spring" }, "steps": [
        { "name": "charge", "url": remote.url(), "request": { "path": path } },
    ] });
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(api.submit(&submission).await);
    }
    let settled = join_all(ids.iter().map(|id| api.settled(id))).await;
    assert!(settled.iter().all(|task| task["state"] == "error"));
    ids
}

async fn job(api: &Api, id: &str) -> Value {
    api.get(&format!("/v1/bulk/{id}")).await.expect(200)
}

/// Returns the tasks of a job with this result.
async fn listed(api: &Api, id: &str, result: &str) -> Vec<Value> {
    let list = format!("/v1/bulk/{id}/tasks?result={result}&limit=7");
    let (mut items, mut path) = (Vec::new(), list.clone());
    loop {
        let page = api.get(&path).await.expect(200);
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("{list}&cursor={cursor}"),
            None => return items,
        }
    }
}

fn counts(job: &Value) -> [u64; 3] {
    ["matched", "accepted", "refused"].map(|name| job[name].as_u64().unwrap())
}

fn tasks(items: &[Value]) -> Vec<&str> {
    items
        .iter()
        .map(|item| item["task"].as_str().unwrap())
        .collect()
}

/// Waits until a job has processed some tasks, but not all.
async fn until_begun(api: &Api, id: &str) {
    until(true, async || job(api, id).await["matched"] != 0).await;
}

/// Checks that each task was retried exactly once, by the operator and with the reason of the command.
async fn expect_retried_once(api: &Api, ids: &[String]) {
    for id in ids {
        let history = api.history(id).await;
        let retried: Vec<_> = history
            .iter()
            .filter(|entry| entry["type"] == "step.retried")
            .collect();
        assert_eq!(retried.len(), 1, "{history:#?}");
        assert_eq!(retried[0]["by"], "operator:anonymous", "{history:#?}");
        assert_eq!(retried[0]["reason"], "it works again", "{history:#?}");
    }
}

#[tokio::test]
async fn a_job_says_what_was_refused_and_what_failed_again() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        let good = failed(&provost, &remote, "/work", 12).await;
        let bad = failed(&provost, &remote, "/never", 9).await;
        let done = provost.bulk("retry", &json!({ "ids": [good[0]] })).await;
        assert_eq!(counts(&done), [1, 1, 0], "{done:#}");
        assert_eq!(provost.settled(&good[0]).await["state"], "processed");
        let nobody = "019c7a5e-0000-7000-8000-000000000000";
        let mut ids: Vec<_> = good.iter().chain(&bad).map(String::as_str).collect();
        ids.push(nobody);
        let body = json!({ "ids": ids, "reason": "it works again" });
        let answer = provost.post("/v1/tasks/retry", &body).await;
        assert_eq!(answer.headers["retry-after"], "1");
        let location = answer.headers["location"].to_str().unwrap().to_owned();
        let created = answer.expect(202);
        let id = id_of(&created);
        assert_eq!(location, format!("/v1/bulk/{id}"));
        assert_eq!(created["sentence"], "retry 22 tasks by 22 ids");
        let ended = provost.bulk_ended(&id).await;
        assert_eq!(ended["state"], "ended", "{ended:#}");
        assert_eq!(counts(&ended), [22, 20, 2]);
        let refusals = json!({ "task-ended": 1, "no-such-task": 1 });
        assert_eq!(ended["refusals"], refusals);
        assert_eq!(ended["instance"], Value::Null);
        let refused = listed(&provost, &id, "refused").await;
        assert_eq!(tasks(&refused), [nobody, &good[0]]);
        assert_eq!(refused[0]["problem"], "no-such-task");
        assert_eq!(refused[0]["state"], Value::Null);
        assert_eq!(refused[1]["problem"], "task-ended");
        let reason = refused[1]["reason"].as_str().unwrap();
        assert!(reason.contains("has ended"), "{reason}");
        join_all(bad.iter().chain(&good).map(|id| provost.settled(id))).await;
        let again = listed(&provost, &id, "failed_again").await;
        assert_eq!(tasks(&again), bad);
        assert_eq!(again[0]["failed_step"], "charge");
        assert_eq!(again[0]["error"]["status"], 410, "{:#}", again[0]);
        assert_eq!(job(&provost, &id).await["failed_again"], 9);
        assert_eq!(listed(&provost, &id, "accepted").await.len(), 20);
        // Each list is a filter of tasks, and of another bulk command.
        let filter = format!("/v1/tasks?bulk={id}&bulk_result=failed_again&limit=500");
        let page = provost.get(&filter).await.expect(200);
        assert_eq!(page["items"].as_array().unwrap().len(), 9);
        let page = provost
            .get(&format!("/v1/tasks?bulk={id}&state=processed"))
            .await;
        assert_eq!(page.expect(200)["items"].as_array().unwrap().len(), 11);
        let cancel = json!({ "bulk": id, "bulk_result": "failed_again", "dry_run": true });
        let dry = provost.bulk("cancel", &cancel).await;
        assert_eq!(counts(&dry), [9, 9, 0], "{dry:#}");
        expect_retried_once(&provost, &bad).await;
        let jobs = provost.get("/v1/bulk").await.expect(200);
        assert_eq!(jobs["items"][0]["id"], json!(id));
        assert_eq!(jobs["items"].as_array().unwrap().len(), 2);
        let stop = provost.command(&format!("{location}/stop")).await;
        stop.expect_problem(409, "bulk-job-ended");
        let unknown = provost.get(&format!("/v1/bulk/{nobody}")).await;
        unknown.expect_problem(404, "no-such-bulk-job");
    }
}

#[tokio::test]
async fn a_repeated_request_with_its_key_makes_one_job() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        failed(&provost, &remote, "/work", 3).await;
        let body = json!({ "state": "error" });
        let send = |body: &Value| {
            let call = provost.post("/v1/tasks/retry", body);
            call.header("idempotency-key", "once")
                .header("prefer", "wait=60")
        };
        let first = send(&body).await.expect(200);
        let second = send(&body).await;
        assert_eq!(second.headers["idempotency-replayed"], "true");
        assert_eq!(second.headers["preference-applied"], "wait=60");
        assert_eq!(second.expect(200)["id"], first["id"]);
        let other = send(&json!({ "all": true })).await;
        other.expect_problem(422, "idempotency-key-reused");
        assert_eq!(counts(&first), [3, 3, 0]);
    }
}

#[tokio::test]
async fn tasks_that_come_or_fail_after_the_request_are_not_touched() {
    for setup in setups().await {
        let gate = Gate::closed();
        let held = gate.clone();
        let remote = Remote::with(move |seen| match (seen.attempt(), seen.path.as_str()) {
            (1, "/held") => held.then(json!("late")),
            (1, _) => Act::status(410),
            (2, "/held") => Act::status(410),
            _ => Act::Ok(json!("done")),
        })
        .await;
        let provost = setup.start().await;
        let before = failed(&provost, &remote, "/work", 1).await;
        // This task exists when the command is sent, and fails later.
        let steps = json!([
            { "name": "wait", "url": remote.url(), "request": { "path": "/held" } },
            { "name": "charge", "url": remote.url(), "request": { "path": "/work" } },
        ]);
        let late = provost
            .submit(&json!({ "labels": { "batch": "spring" }, "steps": steps }))
            .await;
        remote.paths("/held", 1).await;
        let after = failed(&provost, &remote, "/work", 1).await;
        let body = json!({ "labels": { "batch": "spring" }, "first": 1 });
        let stopped = provost.bulk("retry", &body).await;
        assert_eq!(counts(&stopped), [1, 1, 0], "{stopped:#}");
        let id = id_of(&stopped);
        gate.open();
        assert_eq!(provost.settled(&late).await["state"], "error");
        let new = failed(&provost, &remote, "/work", 2).await;
        let resumed = provost.command(&format!("/v1/bulk/{id}/resume")).await;
        resumed.expect(200);
        let ended = provost.bulk_ended(&id).await;
        assert_eq!(counts(&ended), [2, 2, 0], "{ended:#}");
        for id in before.iter().chain(&after) {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        for id in new.iter().chain([&late]) {
            assert_eq!(provost.task(id).await["state"], "error");
        }
    }
}

#[tokio::test]
async fn what_came_after_a_dry_run_is_not_touched() {
    let remote = Remote::with(|_| Act::status(410)).await;
    for setup in setups().await {
        let provost = setup.start().await;
        let before = failed(&provost, &remote, "/never", 2).await;
        let mut body = json!({ "labels": { "batch": "spring" }, "dry_run": true });
        let preview = provost.post("/v1/tasks/cancel", &body).await.expect(200);
        assert_eq!(preview["total"], 2, "{preview:#}");
        body["as_of"] = preview["as_of"].clone();
        // A task of the same millisecond would count as one of the dry run.
        let time = preview["as_of"].as_str().unwrap();
        let as_of: jiff::Timestamp = time.parse().unwrap();
        let now = || jiff::Timestamp::now().as_millisecond();
        until(true, async || now() > as_of.as_millisecond()).await;
        let after = failed(&provost, &remote, "/never", 1).await;
        for command in ["cancel", "retry"] {
            let path = format!("/v1/tasks/{command}");
            let again = provost.post(&path, &body).await.expect(200);
            assert_eq!(
                (&again["total"], &again["accepted"]),
                (&json!(2), &json!(2))
            );
            assert_eq!(again["as_of"], preview["as_of"]);
            assert!(
                again["sentence"].as_str().unwrap().ends_with(time),
                "{again:#}"
            );
        }
        body.as_object_mut().unwrap().remove("dry_run");
        let ended = provost.bulk("cancel", &body).await;
        assert_eq!(counts(&ended), [2, 2, 0], "{ended:#}");
        assert_eq!(
            ended["selection"],
            json!({ "labels": { "batch": "spring" } })
        );
        for id in before {
            assert_eq!(provost.task(&id).await["state"], "cancelled");
        }
        assert_eq!(provost.task(&after[0]).await["state"], "error");
        body["as_of"] = json!("today");
        let refused = provost.post("/v1/tasks/cancel", &body).await.expect(422);
        assert_eq!(refused["errors"][0]["pointer"], "/as_of");
    }
}

#[tokio::test]
async fn a_job_is_stopped_and_resumed_and_keeps_its_rate() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        let ids = failed(&provost, &remote, "/work", 60).await;
        let body = json!({ "state": "error", "rate": "20/s", "reason": "it works again" });
        let id = id_of(&provost.post("/v1/tasks/retry", &body).await.expect(202));
        until_begun(&provost, &id).await;
        let stop = provost.command(&format!("/v1/bulk/{id}/stop"));
        let stop = stop.header("provost-actor", "ada").await.expect(200);
        assert!(["stopping", "stopped"].contains(&stop["state"].as_str().unwrap()));
        let stopped = provost.bulk_ended(&id).await;
        assert_eq!(
            (&stopped["state"], &stopped["stop_cause"]),
            (&json!("stopped"), &json!("operator"))
        );
        let [matched, ..] = counts(&stopped);
        assert!(matched < 60, "{stopped:#}");
        let errors = provost
            .get("/v1/tasks?state=error&limit=500")
            .await
            .expect(200);
        assert_eq!(
            errors["items"].as_array().unwrap().len() as u64,
            60 - matched
        );
        let faster = json!({ "rate": "40/s" });
        let resume = provost
            .post(&format!("/v1/bulk/{id}/resume"), &faster)
            .await;
        assert_eq!(resume.expect(200)["rate"], "40/s");
        let ended = provost.bulk_ended(&id).await;
        assert_eq!(counts(&ended), [60, 60, 0], "{ended:#}");
        let events = ended["events"].as_array().unwrap().iter();
        let events: Vec<_> = events
            .map(|event| event["event"].as_str().unwrap())
            .collect();
        let expected = ["started", "taken", "stopped", "resumed", "taken", "ended"];
        assert_eq!(events, expected, "{ended:#}");
        assert_eq!(ended["events"][2]["by"], "ada");
        let accepted = listed(&provost, &id, "accepted").await;
        let times: BTreeSet<_> = accepted.iter().map(|task| task["at"].to_string()).collect();
        assert!(times.len() >= 2, "{times:?}");
        expect_retried_once(&provost, &ids).await;
    }
}

#[tokio::test]
async fn a_killed_instance_continues_and_counts_each_task_once() {
    for setup in setups().await {
        let remote = service().await;
        let setup = setup.set("INSTANCE__LEASE", "2s");
        let mut provost = setup.start().await;
        let ids = failed(&provost, &remote, "/work", 250).await;
        let body = json!({ "state": "error", "rate": "50/s", "reason": "it works again" });
        let id = id_of(&provost.post("/v1/tasks/retry", &body).await.expect(202));
        for _ in 0..kill_count(2) {
            let before = job(&provost, &id).await["matched"].clone();
            until(true, async || job(&provost, &id).await["matched"] != before).await;
            provost.kill().await;
            provost.restart().await;
        }
        let ended = provost.bulk_ended(&id).await;
        assert_eq!(ended["state"], "ended", "{ended:#}");
        assert_eq!(counts(&ended), [250, 250, 0], "{ended:#}");
        assert_eq!(listed(&provost, &id, "accepted").await.len(), 250);
        for task in &ids {
            assert_eq!(provost.settled(task).await["state"], "processed");
        }
        expect_retried_once(&provost, &ids).await;
    }
}

/// Starts two instances on one database, and a job. Returns the one that carries it out, and the other.
async fn shared(remote: &Remote, count: usize) -> (Provost, Provost, Vec<String>, String) {
    let url = new_database().await;
    let start = || {
        let setup: Setup = Provost::setup().database_url(&url);
        setup.set("INSTANCE__LEASE", "2s").start()
    };
    let (one, two) = (start().await, start().await);
    let ids = failed(&one, remote, "/work", count).await;
    let body = json!({ "state": "error", "rate": "40/s", "reason": "it works again" });
    let id = id_of(&one.post("/v1/tasks/retry", &body).await.expect(202));
    until_begun(&one, &id).await;
    // The instance that was asked takes the job at once.
    (one, two, ids, id)
}

#[tokio::test]
async fn another_instance_takes_a_job_over_from_one_that_was_killed() {
    let remote = service().await;
    let (mut one, two, ids, id) = shared(&remote, 160).await;
    one.kill().await;
    let ended = two.bulk_ended(&id).await;
    assert_eq!(counts(&ended), [160, 160, 0], "{ended:#}");
    let events = ended["events"].as_array().unwrap();
    assert!(
        events.iter().any(|event| event["event"] == "taken over"),
        "{ended:#}"
    );
    join_all(ids.iter().map(|id| two.settled(id))).await;
    expect_retried_once(&two, &ids).await;
}

#[tokio::test]
async fn an_instance_that_was_suspended_in_a_job_doubles_nothing() {
    let remote = service().await;
    let (one, two, ids, id) = shared(&remote, 160).await;
    one.suspend();
    let ended = two.bulk_ended(&id).await;
    assert_eq!(counts(&ended), [160, 160, 0], "{ended:#}");
    one.resume();
    until(200, async || one.get("/readyz").await.status).await;
    join_all(ids.iter().map(|id| two.settled(id))).await;
    assert_eq!(counts(&job(&one, &id).await), [160, 160, 0]);
    assert_eq!(listed(&one, &id, "accepted").await.len(), 160);
    expect_retried_once(&two, &ids).await;
}

#[tokio::test]
async fn a_job_ends_while_an_instance_stops_in_order() {
    let remote = service().await;
    let (mut one, two, ids, id) = shared(&remote, 120).await;
    one.terminate();
    assert!(one.ended().await.success());
    let ended = two.bulk_ended(&id).await;
    assert_eq!(counts(&ended), [120, 120, 0], "{ended:#}");
    join_all(ids.iter().map(|id| two.settled(id))).await;
    expect_retried_once(&two, &ids).await;
}

#[tokio::test]
async fn the_failed_requests_of_many_tasks_are_patched() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.body["currency"].as_str() {
            Some("EUR") => Act::Ok(json!("done")),
            _ => Act::status(422),
        })
        .await;
        let provost = setup.start().await;
        let mut ids = Vec::new();
        for number in 0..5 {
            let submission = json!({
                "input": { "amount": number, "note": "x" }, "key": format!("order-{number}"),
                "steps": [{ "name": "charge", "url": remote.url(), "request": {
                    "path": "/charge", "body": { "amount": "{{ input.amount }}", "note": "x" } } }],
            });
            let task = provost.run(&submission).await;
            assert_eq!(task["state"], "error");
            ids.push(id_of(&task));
        }
        let patch = json!({ "currency": "EUR", "note": null, "order": "{{ task.key }}" });
        let mut body = json!({ "state": "error", "patch": patch, "dry_run": true });
        let dry = provost.bulk("retry", &body).await;
        assert_eq!(counts(&dry), [5, 5, 0], "{dry:#}");
        let example = &dry["examples"][1];
        let sent = |side: &str| -> Value {
            serde_json::from_str(example[side]["request_body"].as_str().unwrap()).unwrap()
        };
        assert_eq!(sent("before"), json!({ "amount": 1, "note": "x" }));
        let patched = json!({ "amount": 1, "currency": "EUR", "order": "order-1" });
        assert_eq!(sent("after"), patched);
        body["dry_run"] = json!(false);
        let ended = provost.bulk("retry", &body).await;
        assert_eq!(counts(&ended), [5, 5, 0], "{ended:#}");
        assert_eq!(ended["selection"], json!({ "state": "error" }));
        for id in &ids {
            assert_eq!(provost.settled(id).await["state"], "processed");
        }
        let calls = remote.ledger();
        assert!(calls.iter().any(|seen| seen.body == patched));
        for (body, pointer) in [
            (json!({ "all": true, "step": "charge" }), "/step"),
            (
                json!({ "all": true, "patch": { "a": "{{ oops" } }),
                "/patch/a",
            ),
        ] {
            let refused = provost.post("/v1/tasks/retry", &body).await;
            assert_eq!(refused.expect_faults(), [pointer], "{body}");
        }
        let long = json!({ "all": true, "patch": "x".repeat(70_000) });
        let refused = provost.post("/v1/tasks/retry", &long).await;
        assert_eq!(refused.expect_faults(), ["/patch"]);
    }
}

#[tokio::test]
async fn a_held_instance_carries_out_only_what_operators_ask_of_it() {
    for setup in setups().await {
        let remote = service().await;
        let mut provost = setup.start().await;
        let ids = failed(&provost, &remote, "/work", 6).await;
        let body = json!({ "state": "error", "rate": "1/m" });
        let old = id_of(&provost.post("/v1/tasks/retry", &body).await.expect(202));
        until_begun(&provost, &old).await;
        provost.kill().await;
        provost
            .restart_with(|setup| setup.set("HOLD", "true"))
            .await;
        let resumed =
            |rate: &str| provost.post(&format!("/v1/bulk/{old}/resume"), &json!({ "rate": rate }));
        let cancelled = provost.bulk("cancel", &json!({ "ids": [ids[5]] })).await;
        assert_eq!(counts(&cancelled), [1, 1, 0]);
        assert_eq!(job(&provost, &old).await["matched"], 1);
        resumed("1000/s").await.expect(200);
        let ended = provost.bulk_ended(&old).await;
        assert_eq!(counts(&ended), [5, 5, 0], "{ended:#}");
    }
}

#[tokio::test]
async fn a_wait_ends_with_the_job_as_it_is() {
    let remote = service().await;
    let provost = Provost::start().await;
    failed(&provost, &remote, "/work", 3).await;
    let body = json!({ "state": "error", "rate": "1/h" });
    let call = provost.post("/v1/tasks/retry", &body);
    let answer = call.header("prefer", "wait=1").await;
    assert_eq!(answer.headers["preference-applied"], "wait=1");
    assert_eq!(answer.expect(202)["state"], "running");
}

#[tokio::test]
async fn many_tasks_are_cloned_once_each_although_the_instance_is_killed() {
    for setup in setups().await {
        let remote = Remote::with(|seen| match seen.body["card"].as_str() {
            Some("good") => Act::Ok(json!("done")),
            _ => Act::status(422),
        })
        .await;
        let setup = setup.set("INSTANCE__LEASE", "2s");
        let mut provost = setup.start().await;
        let submission = json!({ "input": { "card": "bad" }, "labels": { "batch": "spring" }, "steps": [
            { "name": "charge", "url": remote.url(), "request": { "path": "/charge" } },
        ] });
        let mut ids = Vec::new();
        for _ in 0..60 {
            ids.push(provost.submit(&submission).await);
        }
        join_all(ids.iter().map(|id| provost.settled(id))).await;
        let changes = json!({ "input_patch": { "card": "good" }, "labels": { "batch": "clones" } });
        let mut body = json!({ "state": "error", "labels": { "batch": "spring" }, "changes": changes,
                               "dry_run": true, "reason": "another card" });
        let dry = provost.bulk("clone", &body).await;
        assert_eq!(counts(&dry), [60, 60, 0], "{dry:#}");
        let examples = dry["examples"].as_array().unwrap();
        assert_eq!(examples.len(), 3, "{dry:#}");
        let states = (
            &examples[0]["before"]["state"],
            &examples[0]["after"]["state"],
        );
        assert_eq!(states, (&json!("error"), &json!("pending")), "{dry:#}");
        let words = "clone 60 tasks with label batch=spring, that failed by 20";
        assert!(
            dry["sentence"].as_str().unwrap().starts_with(words),
            "{dry:#}"
        );
        body["dry_run"] = json!(false);
        body["rate"] = json!("20/s");
        let id = id_of(&provost.post("/v1/tasks/clone", &body).await.expect(202));
        until_begun(&provost, &id).await;
        provost.kill().await;
        provost.restart().await;
        let ended = provost.bulk_ended(&id).await;
        assert_eq!(counts(&ended), [60, 60, 0], "{ended:#}");
        let clones = provost.get("/v1/tasks?label=batch:clones&limit=500").await;
        let clones = clones.expect(200)["items"].as_array().unwrap().clone();
        assert_eq!(clones.len(), 60);
        for clone in &clones {
            let id = id_of(clone);
            assert_eq!(provost.settled(&id).await["state"], "processed");
        }
        let history = provost.history(&id_of(&clones[0])).await;
        let reason = history[0]["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("cloned from ") && reason.ends_with(": another card"),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn many_tasks_are_paused_resumed_and_a_step_of_many_is_resolved() {
    for setup in setups().await {
        let remote = Remote::script([Act::status(422)]).await;
        let provost = setup.start().await;
        let submission = |path: &str| {
            json!({ "labels": { "batch": path }, "steps": [
                { "name": "charge", "url": remote.url() },
                { "name": "ship", "url": remote.url(), "request": { "body": "{{ steps.charge.output.id }}" } },
            ] })
        };
        let waiting = json!({ "labels": { "batch": "waiting" }, "steps": [{ "name": "paid", "signal": { "within": "1h" } }] });
        let mut failed = Vec::new();
        let mut held = Vec::new();
        for _ in 0..5 {
            failed.push(provost.submit(&submission("failed")).await);
            held.push(provost.submit(&waiting).await);
        }
        join_all(failed.iter().map(|id| provost.settled(id))).await;

        let select = json!({ "labels": { "batch": "waiting" }, "reason": "the warehouse moves" });
        let paused = provost.bulk("pause", &select).await;
        assert_eq!(counts(&paused), [5, 5, 0], "{paused:#}");
        for id in &held {
            assert_eq!(provost.task(id).await["state"], "paused");
        }
        // Paused tasks are none of its tasks any more.
        assert_eq!(counts(&provost.bulk("pause", &select).await), [0, 0, 0]);
        assert_eq!(counts(&provost.bulk("resume", &select).await), [5, 5, 0]);
        for id in &held {
            assert_eq!(provost.task(id).await["state"], "processing");
        }

        let no_step = json!({ "labels": { "batch": "failed" } });
        let refused = provost.post("/v1/tasks/resolve", &no_step).await;
        assert_eq!(refused.expect_faults(), ["/step", "/output"]);
        let mut body =
            json!({ "labels": { "batch": "failed" }, "step": "ship", "output": { "id": 7 } });
        let other = provost.bulk("resolve", &body).await;
        assert_eq!(counts(&other), [5, 0, 5], "{other:#}");
        body["step"] = json!("charge");
        let resolved = provost.bulk("resolve", &body).await;
        assert_eq!(counts(&resolved), [5, 5, 0], "{resolved:#}");
        let words = "resolve step charge of 5 tasks with label batch=failed, that failed by";
        let sentence = resolved["sentence"].as_str().unwrap();
        assert!(sentence.starts_with(words), "{sentence}");
        for id in &failed {
            let task = provost.task(id).await;
            assert_eq!(task["steps"][0]["output"], json!({ "id": 7 }));
        }
    }
}

#[tokio::test]
async fn many_tasks_are_rerun_from_a_step_that_they_had_completed() {
    for setup in setups().await {
        let reserve = Remote::quick().await;
        let charge = Remote::script([
            Act::status(422),
            Act::status(422),
            Act::status(422),
            Act::Ok(json!({ "id": 7 })),
        ])
        .await;
        let provost = setup.start().await;
        let mut failed = Vec::new();
        for name in ["charge", "charge", "pay"] {
            let submission = json!({ "labels": { "batch": "prices" }, "steps": [
                { "name": "reserve", "url": reserve.url() },
                { "name": name, "url": charge.url() },
                { "name": "notify", "url": charge.url() },
            ] });
            let id = provost.submit(&submission).await;
            assert_eq!(provost.settled(&id).await["state"], "error");
            failed.push(id);
        }
        let waiting = json!({ "labels": { "batch": "prices" }, "steps": [
            { "name": "reserve", "url": reserve.url() },
            { "name": "paid", "signal": { "within": "1h" } },
        ] });
        let waiting = provost.submit(&waiting).await;
        let is_reserved =
            || async { provost.task(&waiting).await["steps"][1]["state"] == "processing" };
        until(true, is_reserved).await;

        let mut body =
            json!({ "labels": { "batch": "prices" }, "reason": "the prices were wrong" });
        let no_step = provost.post("/v1/tasks/rerun", &body).await;
        assert_eq!(no_step.expect_faults(), ["/from"]);
        body["from"] = json!("");
        let empty = provost.post("/v1/tasks/rerun", &body).await;
        assert_eq!(empty.expect_faults(), ["/from"]);
        body["from"] = json!("reserve");
        let retry = provost.post("/v1/tasks/retry", &body).await;
        assert_eq!(retry.expect_faults(), ["/from"]);

        let mut dry = body.clone();
        dry["dry_run"] = json!(true);
        dry["from"] = json!("charge");
        let some = provost.bulk("rerun", &dry).await;
        assert_eq!(counts(&some), [3, 2, 1], "{some:#}");
        assert_eq!(some["refusals"], json!({ "no-such-step": 1 }));
        dry["from"] = json!("reserve");
        let all = provost.bulk("rerun", &dry).await;
        assert_eq!(counts(&all), [3, 3, 0], "{all:#}");
        let steps = &all["examples"][0]["before"]["steps"];
        assert_eq!(steps[0], json!({ "name": "reserve", "state": "processed" }));
        assert_eq!(reserve.count(), 4, "a dry run changes nothing");

        let job = provost.bulk("rerun", &body).await;
        assert_eq!(counts(&job), [3, 3, 0], "{job:#}");
        let words = "rerun 3 tasks from step reserve, with label batch=prices, that failed by";
        let sentence = job["sentence"].as_str().unwrap();
        assert!(sentence.starts_with(words), "{sentence}");
        for id in &failed {
            assert_eq!(provost.settled(id).await["state"], "processed");
            let history = provost.history(id).await;
            let is_rerun =
                |entry: &Value| entry["reason"] == "the prices were wrong (rerun from reserve)";
            assert!(history.iter().any(is_rerun), "{history:#?}");
        }
        assert_eq!(reserve.count(), 7);

        // A task that runs is rerun only if its state is named.
        body["state"] = json!("processing");
        assert_eq!(counts(&provost.bulk("rerun", &body).await), [1, 1, 0]);
        until(true, is_reserved).await;
        until(8, || async { reserve.count() }).await;
    }
}

#[tokio::test]
async fn a_dry_run_of_an_undo_has_one_plan_for_all_tasks() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let url = remote.url();
    let undo = json!({ "request": { "method": "DELETE", "path": "/undo" } });
    for number in 0..15 {
        let mut steps = json!([
            { "name": "reserve", "url": url, "undo": undo },
            { "name": "notify", "url": url },
        ]);
        if number < 5 {
            steps[1]["undo"] = undo.clone();
        }
        provost
            .run(&json!({ "steps": steps, "labels": { "batch": "spring" } }))
            .await;
    }
    let body = json!({ "state": "processed", "labels": { "batch": "spring" }, "dry_run": true });
    let dry = provost.bulk("undo", &body).await;
    let step = |step: &str, calls: u32, passed_over: u32, effect_remains: u32| {
        json!({ "step": step, "calls": calls, "unknown": 0, "failing": 0, "running": 0,
                "passed_over": passed_over, "effect_remains": effect_remains })
    };
    let plan = json!({ "tasks": 15, "other_calls": 0,
                       "steps": [step("reserve", 15, 0, 0), step("notify", 5, 10, 10)] });
    assert_eq!(dry["plan"], plan, "{dry:#}");
}

#[tokio::test]
async fn a_task_that_is_paused_while_in_error_says_so_until_it_is_resumed() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        let id = failed(&provost, &remote, "/never", 1).await.remove(0);
        let task = provost.task(&id).await;
        assert_eq!(
            (&task["state"], task.get("paused")),
            (&json!("error"), None)
        );
        let body = json!({ "ids": [id], "dry_run": true });
        let dry = provost.bulk("pause", &body).await;
        let after = json!({ "state": "error", "paused": true, "steps": [] });
        assert_eq!(dry["examples"][0]["after"], after, "{dry:#}");
        assert_eq!(dry["examples"][0]["before"].get("paused"), None, "{dry:#}");

        provost
            .command(&format!("/v1/tasks/{id}/pause"))
            .await
            .expect(200);
        let paused = provost.task(&id).await;
        let state = (&paused["state"], &paused["paused"]);
        assert_eq!(state, (&json!("error"), &json!(true)), "{paused:#}");
        let again = provost.command(&format!("/v1/tasks/{id}/pause")).await;
        let problem = again.expect_problem(409, "wrong-task-state");
        assert_eq!(
            problem["detail"],
            "the task is in error: it is already paused"
        );
        let resumed = provost.command(&format!("/v1/tasks/{id}/resume")).await;
        let resumed = resumed.expect(200);
        assert_eq!(
            (&resumed["state"], resumed.get("paused")),
            (&json!("error"), None)
        );
    }
}

#[tokio::test]
async fn the_children_of_a_task_are_selected_as_they_are_listed() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        let child = json!({ "steps": [{ "name": "charge", "url": remote.url(), "request": { "path": "/never" } }] });
        let parent = json!({ "steps": [{ "name": "all", "for_each": [1, 2, 3], "task": child }] });
        let parent = provost.submit(&parent).await;
        failed(&provost, &remote, "/never", 2).await;
        let filter = format!("/v1/tasks?state=error&parent={parent}");
        let listed = async || {
            let page = provost.get(&filter).await.expect(200);
            page["items"].as_array().unwrap().len()
        };
        until(3, listed).await;
        let body = json!({ "parent": parent, "dry_run": true });
        let dry = provost.bulk("retry", &body).await;
        assert_eq!(counts(&dry), [3, 3, 0], "{dry:#}");
        let words = format!("retry 3 tasks of the steps of task {parent}, that failed by ");
        assert!(
            dry["sentence"].as_str().unwrap().starts_with(&words),
            "{dry:#}"
        );
        let wrong = json!({ "parent": "none" });
        let refused = provost.post("/v1/tasks/retry", &wrong).await;
        assert_eq!(refused.expect_faults(), ["/parent", "/all"]);
    }
}

#[tokio::test]
async fn no_ids_are_no_tasks_and_the_reason_of_a_stop_is_in_the_ledger() {
    for setup in setups().await {
        let remote = service().await;
        let provost = setup.start().await;
        let ids = failed(&provost, &remote, "/never", 3).await;
        let none = provost.post("/v1/tasks/retry", &json!({ "ids": [] })).await;
        assert_eq!(none.expect_faults(), ["/ids"]);
        let body = json!({ "ids": ids, "rate": "1/h" });
        let id = id_of(&provost.post("/v1/tasks/retry", &body).await.expect(202));
        let reason = json!({ "reason": "the service refuses them all" });
        let stopped = provost.post(&format!("/v1/bulk/{id}/stop"), &reason).await;
        stopped.expect(200);
        // On PostgreSQL a change is in the ledger once no older transaction of the server runs any more.
        let noted = async || {
            let ledger = provost.get("/v1/events?types=bulk_job.stopped").await;
            let ledger = ledger.expect(200);
            let noted = ledger["items"][0]["record"]["reason"].as_str();
            noted.is_some_and(|reason| reason.ends_with(": the service refuses them all"))
        };
        until(true, noted).await;
        let unknown = json!({ "why": "?" });
        let refused = provost.post(&format!("/v1/bulk/{id}/stop"), &unknown).await;
        assert_eq!(refused.expect_faults(), ["/why"]);
    }
}

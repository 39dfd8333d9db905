//! Tasks that are submitted for later.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::harness::{
    Act, Api, Provost, Remote, all_processed, kinds, new_database, setups, step, until,
};

async fn remote() -> Remote {
    Remote::with(|_| Act::Ok(json!({}))).await
}

fn at(seconds: i64) -> String {
    let at = Timestamp::now() + Duration::from_secs(seconds.unsigned_abs());
    at.to_string()
}

fn booked(url: &str, start_at: &str) -> Value {
    json!({ "start_at": start_at, "complete_within": "1m", "steps": [
        { "name": "pause", "wait": { "for": "0s" } },
        { "name": "last", "url": url },
    ] })
}

async fn state(api: &Api, id: &str) -> Value {
    api.task(id).await["state"].clone()
}

#[tokio::test]
async fn a_task_begins_at_its_time_whatever_is_killed_before() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.start().await;
        let start = at(3);
        let id = provost.submit(&booked(&remote.url(), &start)).await;
        let task = provost.task(&id).await;
        assert_eq!(task["state"], "pending", "{task}");
        let begins: Timestamp = task["start_at"].as_str().unwrap().parse().unwrap();
        let ends: Timestamp = task["complete_by"].as_str().unwrap().parse().unwrap();
        assert_eq!(ends.duration_since(begins).as_secs(), 60);
        let blocked = &step(&task, "pause")["blocked_by"];
        assert_eq!(
            *blocked,
            json!({ "reason": "start", "until": task["start_at"] })
        );
        assert_eq!(step(&task, "pause")["state"], "waiting");
        let list = provost.get("/v1/tasks").await.expect(200);
        assert_eq!(list["items"][0]["start_at"], task["start_at"]);
        provost.kill().await;
        provost.restart().await;
        assert_eq!(provost.task(&id).await["start_at"], task["start_at"]);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed", "{task}");
        assert_eq!(task["start_at"], Value::Null);
        assert_eq!(remote.count(), 1);
        let history = provost.history(&id).await;
        let started = history.iter().find(|event| event["type"] == "task.started");
        let started = started.unwrap();
        assert!(
            started["by"].as_str().unwrap().starts_with("supervisor:"),
            "{started}"
        );
        let began: Timestamp = started["at"].as_str().unwrap().parse().unwrap();
        assert!(began >= begins, "{began} {begins}");
    }
}

#[tokio::test]
async fn an_operator_starts_or_cancels_one_early_and_a_plain_task_has_no_start() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        let id = api.submit(&booked(&remote.url(), &at(86_400))).await;
        let start = format!("/v1/tasks/{id}/start");
        let why = json!({ "reason": "the customer is here" });
        let version = api.task(&id).await["version"].as_u64().unwrap();
        let stale = api.post(&start, &why).header("if-match", "\"99\"").await;
        stale.expect_problem(412, "version-mismatch");
        let current = format!("\"{version}\"");
        api.post(&start, &why)
            .header("if-match", &current)
            .await
            .expect(200);
        assert_eq!(api.settled(&id).await["state"], "processed");
        let again = api.post(&start, &why).await;
        again.expect_problem(409, "task-ended");
        let history = api.history(&id).await;
        let started = history.iter().find(|event| event["type"] == "task.started");
        assert_eq!(started.unwrap()["reason"], why["reason"]);
        let id = api.submit(&booked(&remote.url(), &at(86_400))).await;
        api.command(&format!("/v1/tasks/{id}/cancel"))
            .await
            .expect(200);
        assert_eq!(state(api, &id).await, "cancelled");
        // A time in the past means now.
        let past = booked(&remote.url(), "2020-02-02T02:02:02+01:00");
        assert_eq!(api.run(&past).await["state"], "processed");
        let mut plain = booked(&remote.url(), "");
        plain["start_at"] = Value::Null;
        let task = api.run(&plain).await;
        assert_eq!(task["start_at"], Value::Null);
        let clone = format!("/v1/tasks/{id}/clone");
        let clone = api.post(&clone, &json!({})).await.expect(202);
        assert_eq!(clone["start_at"], Value::Null);
        let later = json!({ "start_at": at(86_400) });
        let clone = format!("/v1/tasks/{id}/clone");
        let clone = api.post(&clone, &later).await.expect(202);
        assert!(clone["start_at"].is_string(), "{clone}");
    }
}

#[tokio::test]
async fn a_time_that_is_none_or_too_far_or_cannot_work_is_refused() {
    let remote = remote().await;
    let provost = Provost::start().await;
    let api = provost.api();
    for wrong in ["tomorrow", "2026-02-03", "2926-02-03T04:05:06Z", ""] {
        let refused = api.post("/v1/tasks", &booked(&remote.url(), wrong)).await;
        assert_eq!(refused.expect_faults(), ["/start_at"], "{wrong}");
    }
    for on_conflict in ["reject", "replace"] {
        let workflow = json!({
            "limits": [{ "by": "{{ input.customer }}", "max_running": 1, "on_conflict": on_conflict }],
            "steps": [{ "name": "only", "url": remote.url() }],
        });
        let put = api.put("/v1/workflows/one", &workflow).await;
        assert!(put.status < 300, "{put:?}");
        let order = json!({ "workflow": "one", "input": { "customer": "a" }, "start_at": at(60) });
        let refused = api.post("/v1/tasks", &order).await;
        assert_eq!(refused.expect_faults(), ["/start_at"]);
        let dry = api.post("/v1/tasks?dry_run=true", &order).await;
        assert_eq!(dry.expect_faults(), ["/start_at"]);
    }
    let dry = api
        .post("/v1/tasks?dry_run=true", &booked(&remote.url(), &at(60)))
        .await;
    dry.expect(200);
    let key = |call: crate::harness::Call| call.header("idempotency-key", "k");
    let order = booked(&remote.url(), &at(60));
    let first = key(api.post("/v1/tasks", &order)).await.expect(202);
    let again = key(api.post("/v1/tasks", &order)).await.expect(202);
    assert_eq!(first["id"], again["id"]);
}

/// A task does not count for the limit before it begins.
#[tokio::test]
async fn a_task_counts_for_the_limits_of_its_workflow_from_its_begin() {
    for setup in setups().await {
        let gate = crate::harness::Gate::closed();
        let passes = gate.clone();
        let remote = Remote::with(move |_| passes.then(json!({}))).await;
        let provost = setup.start().await;
        let api = provost.api();
        let workflow = json!({
            "limits": [{ "by": "{{ input.customer }}", "max_running": 1 }],
            "steps": [{ "name": "only", "url": remote.url() }],
        });
        let put = api.put("/v1/workflows/one", &workflow).await;
        assert!(put.status < 300, "{put:?}");
        let mut order =
            json!({ "workflow": "one", "input": { "customer": "a" }, "start_at": at(86_400) });
        let later = api.submit(&order).await;
        order["start_at"] = Value::Null;
        let now = api.submit(&order).await;
        remote.requests(1).await;
        api.command(&format!("/v1/tasks/{later}/start"))
            .await
            .expect(200);
        until(json!("task_limit"), async || {
            step(&api.task(&later).await, "only")["blocked_by"]["reason"].clone()
        })
        .await;
        assert_eq!(remote.count(), 1);
        gate.open();
        all_processed(api, &[now, later]).await;
    }
}

/// The witness has a later begin. When it has begun, the supervisor has processed all tasks that were due before.
#[tokio::test]
async fn a_paused_task_begins_with_its_resumption_and_not_at_its_time() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        let failing = json!({ "name": "first", "url": remote.url(), "when": "input.missing > 1", "on_permanent": "undo" });
        let mut paused = Vec::new();
        for (first, end) in [
            (json!({ "name": "first", "url": remote.url() }), "processed"),
            (
                json!({ "name": "first", "url": remote.url(), "when": "false" }),
                "processed",
            ),
            (
                json!({ "name": "first", "wait": { "for": "0s" } }),
                "processed",
            ),
            (failing, "undone"),
        ] {
            let task = json!({ "start_at": at(2), "steps": [first] });
            let id = api.submit(&task).await;
            let pause = format!("/v1/tasks/{id}/pause");
            api.command(&pause).await.expect(200);
            paused.push((id, end));
        }
        let witness = api.submit(&booked(&remote.url(), &at(3))).await;
        all_processed(api, &[witness]).await;
        assert_eq!(remote.count(), 1);
        for (id, end) in paused {
            let task = api.task(&id).await;
            assert_eq!(task["state"], "paused", "{task}");
            assert!(task["start_at"].is_string(), "{task}");
            let history = api.history(&id).await;
            assert_eq!(kinds(&history), ["task.accepted", "task.paused"]);
            let resume = format!("/v1/tasks/{id}/resume");
            api.command(&resume).await.expect(200);
            let task = api.settled(&id).await;
            assert_eq!(task["state"], end, "{task}");
            assert_eq!(task["start_at"], Value::Null);
            let history = api.history(&id).await;
            assert_eq!(kinds(&history)[2..4], ["task.resumed", "task.started"]);
        }
    }
}

#[tokio::test]
async fn of_many_tasks_that_begin_at_once_each_begins_once_with_three_instances() {
    let remote = remote().await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (mut a, b, c) = tokio::join!(on().start(), on().start(), on().start());
    let start = at(5);
    let mut ids = Vec::new();
    for round in 0..60 {
        let api = [a.api(), b.api(), c.api()][round % 3];
        ids.push(api.submit(&booked(&remote.url(), &start)).await);
    }
    a.kill().await;
    all_processed(b.api(), &ids).await;
    assert_eq!(remote.count(), ids.len());
    for id in &ids {
        let history = c.api().history(id).await;
        let started = history
            .iter()
            .filter(|event| event["type"] == "task.started");
        assert_eq!(started.count(), 1);
    }
}

//! Steps that call no service, and wait for a time.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{Act, Api, Provost, Remote, all_processed, new_database, setups, step, until};

/// Returns a task with a wait between two calls.
fn pausing(url: &str, wait: &Value) -> Value {
    json!({ "input": { "later": "2s", "now": "2020-02-02T02:02:02Z", "number": 3 },
            "steps": [{ "name": "first", "url": url },
                      { "name": "pause", "wait": wait },
                      { "name": "last", "url": url }] })
}

async fn remote() -> Remote {
    Remote::with(|_| Act::Ok(json!({}))).await
}

/// Waits until the wait has begun, and returns when it ends.
async fn begun(api: &Api, id: &str) -> String {
    until(json!("processing"), async || {
        step(&api.task(id).await, "pause")["state"].clone()
    })
    .await;
    let task = api.task(id).await;
    step(&task, "pause")["complete_by"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn command(api: &Api, path: &str, body: &Value) {
    let answer = api.post(path, body).await;
    assert!(answer.status < 300, "{path}: {answer:?}");
}

#[tokio::test]
async fn a_step_waits_for_its_time_and_holds_nothing() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        for wait in [
            json!({ "for": "2s" }),
            json!({ "for": "{{ input.later }}" }),
        ] {
            let before = remote.count();
            let start = Instant::now();
            let id = api.submit(&pausing(&remote.url(), &wait)).await;
            let until = begun(api, &id).await;
            let task = api.task(&id).await;
            let pause = step(&task, "pause");
            assert_eq!(pause["kind"], "wait");
            assert_eq!(
                pause["blocked_by"],
                json!({ "reason": "wait", "until": until })
            );
            for nothing in [
                "agent",
                "locked_by",
                "idempotency_key",
                "awaited_reply",
                "error",
            ] {
                assert_eq!(pause[nothing], Value::Null, "{nothing}");
            }
            assert_eq!(step(&task, "first")["kind"], "call");
            assert_eq!(remote.count(), before + 1);
            let task = api.settled(&id).await;
            assert_eq!(task["state"], "processed", "{task}");
            assert!(start.elapsed() >= Duration::from_secs(2));
            let ended = step(&task, "pause")["ended_at"].as_str().unwrap();
            assert!(ended >= until.as_str(), "{ended} {until}");
            assert_eq!(remote.count(), before + 2);
            let history = api.history(&id).await;
            let began = history.iter().find(|event| event["type"] == "step.began");
            let reason = began.unwrap()["reason"].as_str().unwrap();
            assert_eq!(reason, format!("waits until {until}"));
        }
        let wait = json!({ "until": "{{ input.now }}" });
        let task = api.run(&pausing(&remote.url(), &wait)).await;
        assert_eq!(task["state"], "processed", "{task}");
        assert_eq!(api.metric("provost_steps_waiting_for_event").await, 0.0);
    }
}

#[tokio::test]
async fn a_time_that_is_too_far_away_is_refused_with_its_definition() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        let too_far = "`wait.until` gives 2999-01-01T00:00:00Z, which is more than 3650d away";
        let expected = json!([{ "pointer": "/steps/1/wait/until", "message": too_far }]);
        let wait = json!({ "until": "2999-01-01T00:00:00Z" });
        let submission = pausing(&remote.url(), &wait);
        for path in ["/v1/tasks", "/v1/tasks?dry_run=true"] {
            let problem = api.post(path, &submission).await.expect(422);
            assert_eq!(problem["errors"], expected, "{path}");
        }
        let workflow = json!({ "steps": submission["steps"] });
        let problem = api.put("/v1/workflows/far", &workflow).await.expect(422);
        assert_eq!(problem["errors"], expected);
        let validated = api.post("/v1/workflows/far/validate", &workflow);
        let problem = validated.await.expect(422);
        assert_eq!(problem["errors"], expected);
        assert_eq!(remote.count(), 0);

        // A time from data is known only when the step is ready, and then it is the same fault.
        let mut from_data = pausing(&remote.url(), &json!({ "until": "{{ input.far }}" }));
        from_data["input"]["far"] = wait["until"].clone();
        let task = api.run(&from_data).await;
        assert_eq!(task["state"], "error");
        assert_eq!(step(&task, "pause")["error"]["message"], too_far);
    }
}

#[tokio::test]
async fn what_the_data_does_not_give_is_an_error_that_an_operator_resolves() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        let wait = json!({ "until": "{{ input.number }}" });
        let task = api.run(&pausing(&remote.url(), &wait)).await;
        assert_eq!(task["state"], "error");
        let message = task["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("`wait.until` must give a time such as"),
            "{message}"
        );
        let id = task["id"].as_str().unwrap();
        let alerts = api.get("/v1/alerts?state=open").await.expect(200);
        assert_eq!(alerts["items"][0]["task"], task["id"], "{alerts}");
        command(api, &format!("/v1/tasks/{id}/steps/pause/skip"), &json!({})).await;
        assert_eq!(api.settled(id).await["state"], "processed");
        let alerts = api.get("/v1/alerts?state=open").await.expect(200);
        assert_eq!(alerts["items"], json!([]));
    }
}

#[tokio::test]
async fn an_operator_ends_a_wait_or_the_task_while_it_waits() {
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        let wait = json!({ "for": "30d" });
        for (path, state) in [
            ("steps/pause/skip", "processed"),
            ("steps/pause/resolve", "processed"),
            ("cancel", "cancelled"),
            ("undo", "undone"),
        ] {
            let id = api.submit(&pausing(&remote.url(), &wait)).await;
            begun(api, &id).await;
            let body = match path {
                "steps/pause/resolve" => json!({ "output": "enough" }),
                _ => json!({}),
            };
            command(api, &format!("/v1/tasks/{id}/{path}"), &body).await;
            let task = api.settled(&id).await;
            assert_eq!(task["state"], state, "{path}: {task}");
        }
        // A paused task continues its wait, and stops only after it.
        let id = api
            .submit(&pausing(&remote.url(), &json!({ "for": "1s" })))
            .await;
        begun(api, &id).await;
        command(api, &format!("/v1/tasks/{id}/pause"), &json!({})).await;
        until(json!("processed"), async || {
            step(&api.task(&id).await, "pause")["state"].clone()
        })
        .await;
        assert_eq!(api.task(&id).await["state"], "paused");
        command(api, &format!("/v1/tasks/{id}/resume"), &json!({})).await;
        assert_eq!(api.settled(&id).await["state"], "processed");
    }
}

#[tokio::test]
async fn a_wait_ends_on_time_whoever_is_killed_meanwhile() {
    for setup in setups().await {
        let remote = remote().await;
        let mut provost = setup.start().await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            let wait = json!({ "for": "3s" });
            ids.push(provost.submit(&pausing(&remote.url(), &wait)).await);
        }
        let mut ends = Vec::new();
        for id in &ids {
            ends.push(begun(provost.api(), id).await);
        }
        provost.kill().await;
        provost.restart().await;
        for (id, end) in ids.iter().zip(ends) {
            let task = provost.task(id).await;
            let pause = step(&task, "pause");
            if pause["state"] == "processing" {
                assert_eq!(pause["complete_by"], end);
            }
        }
        all_processed(provost.api(), &ids).await;
        assert_eq!(remote.count(), 2 * ids.len());
    }
}

/// Three instances share the work, and the supervisor among them is lost.
#[tokio::test]
async fn another_instance_ends_the_waits_of_one_that_is_lost() {
    let remote = remote().await;
    let url = new_database().await;
    let on = || {
        Provost::setup()
            .database_url(&url)
            .set("INSTANCE__LEASE", "1s")
    };
    let mut first = on().start().await;
    first.says("this instance is now the supervisor").await;
    let (second, third) = (on().start().await, on().start().await);
    let mut ids = Vec::new();
    for at in 0..30 {
        let api = [first.api(), second.api(), third.api()][at % 3];
        ids.push(
            api.submit(&pausing(&remote.url(), &json!({ "for": "3s" })))
                .await,
        );
    }
    for id in &ids {
        begun(second.api(), id).await;
    }
    first.kill().await;
    all_processed(third.api(), &ids).await;
    assert_eq!(remote.count(), 2 * ids.len());
}

/// Each wait costs a row and an entry of an index.
#[tokio::test]
async fn many_waits_slow_nothing_and_take_no_memory() {
    const MANY: usize = 3_000;
    for setup in setups().await {
        let remote = remote().await;
        let provost = setup.start().await;
        let api = provost.api();
        let wait = json!({ "steps": [{ "name": "pause", "wait": { "for": "30d" } }] });
        for _ in 0..MANY / 100 {
            let submitted = (0..100).map(|_| api.submit(&wait));
            futures::future::join_all(submitted).await;
        }
        until(MANY as f64, async || {
            api.metric("provost_steps_waiting_for_event").await
        })
        .await;
        let task = api
            .run(&pausing(&remote.url(), &json!({ "for": "1s" })))
            .await;
        assert_eq!(task["state"], "processed");
    }
}

#[tokio::test]
async fn what_is_no_wait_is_refused() {
    let provost = Provost::start().await;
    let api = provost.api();
    for (step, pointer, said) in [
        (
            json!({ "wait": { "for": "1 hour" } }),
            "/steps/0/wait/for",
            "such as",
        ),
        (json!({ "wait": {} }), "/steps/0/wait/for", "is missing"),
        (
            json!({ "wait": { "for": "1h" }, "agent": "payments" }),
            "/steps/0/agent",
            "belongs to steps that call a service",
        ),
        (
            json!({}),
            "/steps/0/agent",
            "a `wait`, a `signal`, a `task`, a `set` or a `stop`, or a block",
        ),
    ] {
        let mut step = step;
        step["name"] = json!("pause");
        let answer = api.post("/v1/tasks", &json!({ "steps": [step] })).await;
        let problem = answer.expect_problem(422, "invalid");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        let message = problem["errors"][0]["message"].as_str().unwrap();
        assert!(message.contains(said), "{message}");
    }
}

//! Workers that fetch the steps of an agent, because its service cannot be called.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    cluster::Proxy,
    harness::{Answer, Api, Database, Provost, id_of, kinds, new_database, setups, step, until},
};

pub async fn pulled(api: &Api) {
    let put = api
        .put("/v1/agents/video", &json!({ "mode": "pull" }))
        .await;
    put.expect(201);
}

/// Returns a task of one step, or of `count` steps.
pub fn render(count: usize, extra: Value) -> Value {
    let steps = (0..count).map(|at| {
        let mut step = json!({ "name": format!("render{at}"), "agent": "video", "after": [],
            "complete_within": "1h",
            "request": { "path": "/videos?n={{ input.n }}", "headers": { "x-size": "big" },
                         "body": { "n": "{{ input.n }}" } } });
        step.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        step
    });
    json!({ "input": { "n": 7 }, "steps": steps.collect::<Vec<_>>() })
}

async fn ask(api: &Api, worker: &str, max: usize, wait: &str) -> Answer {
    let body = json!({ "worker": worker, "max": max, "wait": wait });
    api.post("/v1/agents/video/claim", &body).await
}

/// The time for which a worker waits for work, which is the longest that is allowed.
const LONG_WAIT: Duration = Duration::from_secs(60);

async fn claim(api: &Api, worker: &str, max: usize) -> Vec<Value> {
    let wait = format!("{}s", LONG_WAIT.as_secs());
    let work = ask(api, worker, max, &wait).await.expect(200);
    work["steps"].as_array().unwrap().clone()
}

pub async fn claim_one(api: &Api, worker: &str) -> Value {
    let mut steps = claim(api, worker, 1).await;
    assert_eq!(steps.len(), 1, "{steps:#?}");
    steps.remove(0)
}

fn reply_path(step: &Value) -> String {
    format!("/v1/replies/{}", step["token"].as_str().unwrap())
}

pub async fn reply(api: &Api, step: &Value, body: Value) -> Answer {
    api.post(&reply_path(step), &body).await
}

pub async fn agent(api: &Api) -> Value {
    api.get("/v1/agents/video").await.expect(200)
}

#[tokio::test]
async fn a_worker_fetches_a_step_and_replies() {
    for setup in setups().await {
        let provost = setup.start().await;
        let api = provost.api();
        pulled(api).await;
        let none = ask(api, "w-1", 10, "0s").await.expect(200);
        assert_eq!(none, json!({ "steps": [] }));

        let id = provost.submit(&render(1, json!({}))).await;
        let task = provost.task(&id).await;
        let blocked = &step(&task, "render0")["blocked_by"];
        assert_eq!(
            blocked,
            &json!({ "reason": "worker", "agent": "video", "ahead": 0, "ahead_is_at_least": false })
        );

        let fetched = claim_one(api, "w-1").await;
        assert_eq!(fetched["task"], id.as_str());
        assert_eq!(fetched["step"], "render0");
        assert_eq!(fetched["attempt"], 1);
        assert_eq!(fetched["purpose"], "work");
        assert_eq!(fetched["heartbeat_within"], Value::Null);
        let request = &fetched["request"];
        assert_eq!(request["method"], "POST");
        assert_eq!(request["path"], "/videos?n=7");
        assert_eq!(request["body"], json!({ "n": 7 }));
        let headers = &request["headers"];
        assert_eq!(headers["x-size"], "big");
        assert_eq!(headers["idempotency-key"], fetched["idempotency_key"]);
        assert_eq!(headers["provost-complete-by"], fetched["complete_by"]);
        assert_eq!(headers["content-type"], "application/json");
        assert!(headers["traceparent"].is_string(), "{headers:#}");
        assert_eq!(headers.get("host"), None);

        let task = provost.task(&id).await;
        let step0 = step(&task, "render0");
        assert_eq!(step0["state"], "processing");
        assert_eq!(step0["locked_by"], Value::Null);
        assert_eq!(step0["awaited_reply"]["worker"], "w-1");
        assert_eq!(step0["blocked_by"], Value::Null);
        let agent = agent(api).await;
        let worker = &agent["workers"][0];
        assert_eq!(worker["name"], "w-1");
        assert!(worker["seen_at"].is_string());
        assert_eq!(worker["steps"][0]["task"], id.as_str());
        assert_eq!(worker["steps"][0]["step"], "render0");

        let beat = format!("{}/heartbeat", reply_path(&fetched));
        let progress = json!({ "progress": 0.5, "message": "half" });
        api.post(&beat, &progress).await.expect(204);
        let task = provost.task(&id).await;
        assert_eq!(step(&task, "render0")["awaited_reply"]["progress"], 0.5);

        let done = json!({ "output": { "url": "s3://7" } });
        reply(api, &fetched, done.clone()).await.expect(204);
        reply(api, &fetched, done).await.expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        assert_eq!(step(&task, "render0")["output"], json!({ "url": "s3://7" }));
        let claimed = provost.history(&id).await;
        let claimed = claimed.iter().find(|event| event["type"] == "step.claimed");
        assert_eq!(claimed.unwrap()["reason"], "fetched by worker w-1");
        let other = reply(api, &fetched, json!({ "output": 8 })).await;
        other.expect_problem(409, "late-reply");
    }
}

#[tokio::test]
async fn a_worker_that_waits_gets_what_becomes_ready_at_once() {
    for setup in setups().await {
        let provost = setup.start().await;
        pulled(provost.api()).await;
        let api = provost.api().clone();
        let waiting = tokio::spawn(async move { claim(&api, "w-1", 10).await });
        let api = provost.api();
        until_seen(api, "w-1").await;
        let submitted = Instant::now();
        provost.submit(&render(3, json!({}))).await;
        let steps = waiting.await.unwrap();
        assert!(
            submitted.elapsed() < LONG_WAIT,
            "found at the end of the wait"
        );
        assert_eq!(steps.len(), 3, "those of one transaction come together");
    }
}

/// Returns once the worker waits, or has waited.
async fn until_seen(api: &Api, name: &str) {
    loop {
        let agent = agent(api).await;
        let workers = agent["workers"].as_array().unwrap().clone();
        if workers.iter().any(|worker| worker["name"] == name) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_becomes_ready_at_once_is_spread_over_the_workers_that_wait() {
    let provost = Provost::start().await;
    pulled(provost.api()).await;
    let mut waiting = Vec::new();
    for name in ["w-1", "w-2"] {
        let api = provost.api().clone();
        waiting.push(tokio::spawn(async move { claim(&api, name, 10).await }));
        until_seen(provost.api(), name).await;
    }
    provost.submit(&render(4, json!({}))).await;
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_worker_that_dies_is_a_step_that_expires() {
    for setup in setups().await {
        let provost = setup.set("SUPERVISOR__INTERVAL", "50ms").start().await;
        let api = provost.api();
        pulled(api).await;
        let id = provost
            .submit(&render(1, json!({ "heartbeat_within": "1s" })))
            .await;
        let first = claim_one(api, "w-1").await;
        assert_eq!(first["heartbeat_within"], "1s");
        let second = claim_one(api, "w-2").await;
        assert_eq!(second["attempt"], 2);
        assert_eq!(second["idempotency_key"], first["idempotency_key"]);
        let late = reply(api, &first, json!({ "output": 1 })).await;
        late.expect_problem(409, "late-reply");
        let beat = format!("{}/heartbeat", reply_path(&first));
        api.post(&beat, &json!({}))
            .await
            .expect_problem(409, "late-reply");
        reply(api, &second, json!({ "output": 2 }))
            .await
            .expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(step(&task, "render0")["output"], 2);
        assert_eq!(step(&task, "render0")["failure_count"], 1);
    }
}

#[tokio::test]
async fn nothing_is_lost_if_workers_hang_up_whenever_they_like() {
    for setup in setups().await {
        let provost = setup.set("SUPERVISOR__INTERVAL", "50ms").start().await;
        pulled(provost.api()).await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            let api = provost.api().clone();
            let waiting = tokio::spawn(async move { ask(&api, "gone", 1, "60s").await });
            until_seen(provost.api(), "gone").await;
            let step = json!({ "heartbeat_within": "1s" });
            let id = provost.submit(&render(1, step)).await;
            waiting.abort();
            ids.push(id);
        }
        let mut left = ids.len();
        while left > 0 {
            for fetched in claim(provost.api(), "w-2", 100).await {
                let body = json!({ "output": 1 });
                left -= usize::from(reply(provost.api(), &fetched, body).await.status == 204);
            }
        }
        for id in ids {
            assert_eq!(provost.settled(&id).await["state"], "processed");
        }
    }
}

#[tokio::test]
async fn many_replies_go_in_one_request_each_with_its_own_result() {
    for setup in setups().await {
        let provost = setup.start().await;
        let api = provost.api();
        pulled(api).await;
        let id = provost.submit(&render(3, json!({}))).await;
        let steps = claim(api, "w-1", 10).await;
        assert_eq!(steps.len(), 3);
        let token = |at: usize| steps[at]["token"].clone();
        let results = api
            .post(
                "/v1/replies",
                &json!({ "replies": [
                    { "token": token(0), "output": 0 },
                    { "token": token(1), "output": 1, "error": { "message": "both" } },
                    { "token": "AAAA", "output": 1 },
                    { "output": 1 },
                    7,
                    { "token": token(2), "output": 2 },
                    { "token": token(2), "output": 2 },
                    { "token": token(2), "output": 3 },
                ] }),
            )
            .await
            .expect(200);
        let results = results["results"].as_array().unwrap();
        let statuses: Vec<_> = results
            .iter()
            .map(|r| r["status"].as_u64().unwrap())
            .collect();
        assert_eq!(statuses, [204, 422, 404, 422, 422, 204, 204, 409]);
        assert_eq!(results[0]["problem"], Value::Null);
        assert_eq!(results[2]["problem"]["type"], "/problems/no-such-reply");
        let text = serde_json::to_string(results).unwrap();
        assert!(
            !text.contains(steps[0]["token"].as_str().unwrap()),
            "{text}"
        );
        reply(api, &steps[1], json!({ "output": 1 }))
            .await
            .expect(204);
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        for wrong in [
            json!({}),
            json!({ "replies": [] }),
            json!({ "replies": null }),
            json!({ "replies": vec![json!({}); 501] }),
        ] {
            let faults = api.post("/v1/replies", &wrong).await.expect_faults();
            assert_eq!(faults, ["/replies"]);
        }
    }
}

#[tokio::test]
async fn a_worker_reaches_the_work_of_another_instance() {
    let url = new_database().await;
    let one = Provost::setup().database_url(&url).start().await;
    let two = Provost::setup().database_url(&url).start().await;
    pulled(one.api()).await;
    for _ in 0..5 {
        let api = two.api().clone();
        let waiting = tokio::spawn(async move { claim_one(&api, "w-1").await });
        let id = one.submit(&render(1, json!({}))).await;
        let fetched = waiting.await.unwrap();
        assert_eq!(fetched["task"], id.as_str());
        // The reply may go to each instance.
        reply(one.api(), &fetched, json!({ "output": 1 }))
            .await
            .expect(204);
        assert_eq!(one.settled(&id).await["state"], "processed");
    }
}

/// Steps that one instance has queued, and that the other has given to its workers, must not delay later steps. The
/// polls are rare, so that only the notification brings the work.
#[tokio::test]
async fn a_worker_reaches_the_work_of_another_instance_whatever_was_queued_here_before() {
    let url = new_database().await;
    let start = || {
        let setup = Provost::setup().database_url(&url);
        let setup = setup.set("SCHEDULER__POLL", "60s");
        setup.set("SUPERVISOR__INTERVAL", "60s").start()
    };
    let (one, two) = (start().await, start().await);
    pulled(one.api()).await;
    for (asked, submitted, rounds) in [(&two, &one, 20), (&one, &two, 20), (&two, &one, 5)] {
        for _ in 0..rounds {
            let api = asked.api().clone();
            let waiting = tokio::spawn(async move { ask(&api, "w-1", 1, "15s").await });
            let id = submitted.submit(&render(1, json!({}))).await;
            let fetched = waiting.await.unwrap().expect(200)["steps"][0].clone();
            assert_eq!(fetched["task"], id.as_str());
            let done = json!({ "output": 1 });
            reply(asked.api(), &fetched, done).await.expect(204);
        }
    }
}

#[tokio::test]
async fn every_instance_gives_out_work_once_one_knows_that_the_agent_is_pulled() {
    let url = new_database().await;
    let one = Provost::setup().database_url(&url).start().await;
    let two = Provost::setup().database_url(&url).start().await;
    for _ in 0..10 {
        let called = json!({ "endpoints": [{ "url": "http://127.0.0.1:9" }] });
        let put = one.put("/v1/agents/video", &called).await;
        assert!(put.status < 300);
        // Now the other instance knows the agent too.
        while two.get("/v1/agents/video").await.status != 200 {}
        let put = json!({ "mode": "pull" });
        one.put("/v1/agents/video", &put).await.expect(200);
        ask(two.api(), "w-1", 1, "0s").await.expect(200);
    }
}

#[tokio::test]
async fn what_a_worker_holds_survives_the_death_of_the_instance() {
    for setup in setups().await {
        let mut provost = setup.start().await;
        pulled(provost.api()).await;
        let id = provost.submit(&render(2, json!({}))).await;
        let held = claim_one(provost.api(), "w-1").await;
        provost.kill().await;
        provost.restart().await;
        let next = claim_one(provost.api(), "w-2").await;
        assert_ne!(next["step"], held["step"], "that one is still held");
        for step in [&held, &next] {
            reply(provost.api(), step, json!({ "output": 1 }))
                .await
                .expect(204);
        }
        let task = provost.settled(&id).await;
        assert_eq!(task["state"], "processed");
        for name in ["render0", "render1"] {
            assert_eq!(step(&task, name)["attempt"], 1);
        }
    }
}

#[tokio::test]
async fn an_undo_and_a_probe_are_fetched_as_well() {
    let provost = Provost::start().await;
    let api = provost.api();
    pulled(api).await;
    let undo =
        json!({ "undo": { "request": { "path": "/undo", "body": { "of": "{{ output.id }}" } } } });
    let id = provost.submit(&render(1, undo)).await;
    let work = claim_one(api, "w-1").await;
    let error = json!({ "error": { "message": "no disk" } });
    reply(api, &work, error).await.expect(204);
    let again = claim_one(api, "w-1").await;
    assert_eq!(again["attempt"], 2);
    // The step that follows would end the task, which is undone before.
    provost
        .command(&format!("/v1/tasks/{id}/undo"))
        .await
        .expect(200);
    reply(api, &again, json!({ "output": { "id": 5 } }))
        .await
        .expect(204);
    let undo = claim_one(api, "w-1").await;
    assert_eq!(undo["purpose"], "undo");
    assert_eq!(undo["request"]["body"], json!({ "of": 5 }));
    assert!(undo["request"]["headers"]["provost-undoes"].is_string());
    reply(api, &undo, json!({ "output": null }))
        .await
        .expect(204);
    assert_eq!(provost.settled(&id).await["state"], "undone");
}

#[tokio::test]
async fn what_is_wrong_with_a_request_for_work_is_said() {
    let provost = Provost::start().await;
    let api = provost.api();
    let missing = ask(api, "w-1", 1, "0s").await;
    missing.expect_problem(404, "no-such-agent");
    api.register("video", "http://127.0.0.1:9", 1).await;
    let called = ask(api, "w-1", 1, "0s").await;
    called.expect_problem(409, "agent-is-called");
    let put = json!({ "mode": "pull" });
    api.put("/v1/agents/video", &put).await.expect(200);
    for (body, pointer) in [
        (json!({}), "/worker"),
        (json!({ "worker": "" }), "/worker"),
        (json!({ "worker": null }), "/worker"),
        (json!({ "worker": "a b" }), "/worker"),
        (json!({ "worker": "x".repeat(65) }), "/worker"),
        (json!({ "worker": "w", "max": 0 }), "/max"),
        (json!({ "worker": "w", "max": 101 }), "/max"),
        (json!({ "worker": "w", "wait": "-1s" }), "/wait"),
        (json!({ "worker": "w", "name": 1 }), "/name"),
    ] {
        let answer = api.post("/v1/agents/video/claim", &body).await;
        assert_eq!(answer.expect_faults(), [pointer], "{body}");
    }
    for spec in [
        json!({ "mode": "pull", "endpoints": [{ "url": "http://127.0.0.1:9" }] }),
        json!({ "mode": "push" }),
    ] {
        api.put("/v1/agents/video", &spec).await.expect_faults();
    }
}

#[tokio::test]
async fn a_token_of_a_worker_fetches_the_steps_of_its_agents_and_does_nothing_else() {
    let provost = Provost::setup()
        .config(
            r#"
[[tokens]]
name = "ops"
role = "admin"
token = "admin-admin-admin"
[[tokens]]
name = "renderer"
role = "work"
agents = ["video"]
token = "worker-worker-worker"
"#,
        )
        .start()
        .await;
    let api = provost.api();
    for agent in ["video", "audio"] {
        let put = api.put(&format!("/v1/agents/{agent}"), &json!({ "mode": "pull" }));
        put.header("authorization", "Bearer admin-admin-admin")
            .await
            .expect(201);
    }
    let call = |method: &str, path: &str| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let call = api.call(method, path);
        call.header("authorization", "Bearer worker-worker-worker")
    };
    let body = json!({ "worker": "w-1", "wait": "0s" });
    let own = call("POST", "/v1/agents/video/claim").json(&body).await;
    own.expect(200);
    let other = call("POST", "/v1/agents/audio/claim").json(&body).await;
    other.expect_problem(403, "forbidden");
    let replies = json!({ "replies": [{ "token": "AAAA", "output": 1 }] });
    call("POST", "/v1/replies").json(&replies).await.expect(200);
    for (method, path) in [
        ("GET", "/v1/tasks"),
        ("POST", "/v1/tasks"),
        ("GET", "/v1/agents/video"),
        ("GET", "/metrics"),
        ("PUT", "/v1/agents/video"),
        ("POST", "/v1/tasks/retry"),
    ] {
        let answer = call(method, path).json(&json!({})).await;
        answer.expect_problem(403, "forbidden");
    }
}

#[tokio::test]
async fn a_stop_ends_the_waits_of_workers() {
    let mut provost = Provost::start().await;
    pulled(provost.api()).await;
    let api = provost.api().clone();
    let waiting = tokio::spawn(async move { claim(&api, "w-1", 1).await });
    until_seen(provost.api(), "w-1").await;
    provost.terminate();
    assert_eq!(waiting.await.unwrap(), Vec::<Value>::new());
    provost.restart().await;
    let held: Vec<_> = agent(provost.api()).await["workers"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(held.len(), usize::from(!held.is_empty()));
}

#[tokio::test]
async fn the_more_important_step_is_fetched_first() {
    let provost = Provost::start().await;
    let api = provost.api();
    pulled(api).await;
    let mut ids = Vec::new();
    for priority in [0, 5, -5] {
        let mut submission = render(1, json!({}));
        submission["priority"] = json!(priority);
        ids.push(provost.submit(&submission).await);
    }
    let mut order = Vec::new();
    for _ in 0..3 {
        order.push(
            claim_one(api, "w-1").await["task"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    assert_eq!(order, [ids[1].clone(), ids[0].clone(), ids[2].clone()]);
    let fetched = r#"provost_agent_fetched_total{agent="video"}"#;
    assert_eq!(provost.metric(fetched).await, 3.0);
    let waiting = r#"provost_agent_waiting_workers{agent="video"}"#;
    assert_eq!(provost.metric(waiting).await, 0.0);
}

#[tokio::test]
async fn a_paused_or_cancelled_task_gives_out_no_step() {
    let provost = Provost::start().await;
    let api = provost.api();
    pulled(api).await;
    let paused = provost.submit(&render(1, json!({}))).await;
    provost
        .command(&format!("/v1/tasks/{paused}/pause"))
        .await
        .expect(200);
    let none = ask(api, "w-1", 1, "0s").await.expect(200);
    assert_eq!(none["steps"], json!([]));
    provost
        .command(&format!("/v1/tasks/{paused}/resume"))
        .await
        .expect(200);
    let held = claim_one(api, "w-1").await;
    provost
        .command(&format!("/v1/tasks/{paused}/cancel"))
        .await
        .expect(200);
    reply(api, &held, json!({ "output": 1 }))
        .await
        .expect_problem(409, "late-reply");
    let history = provost.history(&paused).await;
    assert!(kinds(&history).contains(&"step.late_reply"), "{history:#?}");
    assert_eq!(agent(api).await["workers"][0]["steps"], json!([]));
}

#[tokio::test]
async fn a_token_is_never_in_the_log_or_the_database() {
    let provost = Provost::setup().set("LOG", "trace").start().await;
    let api = provost.api();
    pulled(api).await;
    let id = provost.submit(&render(1, json!({}))).await;
    let held = claim_one(api, "w-1").await;
    reply(api, &held, json!({ "output": 1 })).await.expect(204);
    provost.settled(&id).await;
    let token = held["token"].as_str().unwrap();
    assert!(!provost.log().contains(token));
    let file = std::fs::read(provost.database()).unwrap();
    assert!(
        !file
            .windows(token.len())
            .any(|part| part == token.as_bytes())
    );
    let rows = Database::open(&provost.database())
        .number("SELECT count(*) FROM steps WHERE worker IS NOT NULL");
    assert_eq!(rows, 0, "nothing stays in the index of what is fetched");
}

async fn late(provost: &Provost) -> Vec<String> {
    let tasks = provost.get("/v1/tasks?key=late").await.expect(200);
    let tasks = tasks["items"].as_array().unwrap().iter();
    tasks.map(id_of).collect()
}

/// The instance learns late that its claim is saved, and another one undoes the task before: a worker that began at
/// that time would have an effect that is never undone.
#[tokio::test]
async fn no_worker_gets_a_step_whose_attempt_is_over_by_then() {
    let url = new_database().await;
    let (server, name) = url.rsplit_once('/').unwrap();
    let (_, port) = server.rsplit_once(':').unwrap();
    let network = Proxy::before(port.parse().unwrap()).await;
    let through = format!("postgres://provost@127.0.0.1:{}/{name}", network.port());
    let one = Provost::setup().database_url(&through).start().await;
    let two = Provost::setup().database_url(&url).start().await;
    pulled(two.api()).await;
    let mut submission = render(
        1,
        json!({ "undo": { "request": { "path": "/undo" } }, "on_undo": "drop" }),
    );
    // Once its statements are prepared, the database gets a submission and its claim in one transaction.
    for _ in 0..20 {
        let api = one.api().clone();
        let waiting = tokio::spawn(async move { claim_one(&api, "w-1").await });
        until_seen(one.api(), "w-1").await;
        one.submit(&submission).await;
        let fetched = waiting.await.unwrap();
        let done = json!({ "output": 1 });
        reply(one.api(), &fetched, done).await.expect(204);
    }
    let api = one.api().clone();
    let waiting = tokio::spawn(async move { ask(&api, "w-2", 1, "60s").await });
    until_seen(one.api(), "w-2").await;
    network.hang_answers();
    submission["key"] = json!("late");
    let api = one.api().clone();
    let submitting = tokio::spawn(async move { api.submit(&submission).await });
    until(1, || async { late(&two).await.len() }).await;
    let id = late(&two).await.remove(0);
    let task = two.task(&id).await;
    assert_eq!(step(&task, "render0")["awaited_reply"]["worker"], "w-2");
    let path = format!("/v1/tasks/{id}/undo");
    two.command(&path).await.expect(200);
    // A step that reaches its worker sooner is not checked in the record.
    tokio::time::sleep(Duration::from_millis(100)).await;
    network.heal();
    submitting.await.unwrap();
    // The worker gets nothing, or the undo if the step is fetched again.
    let answer = waiting.await.unwrap().expect(200);
    let mut steps = answer["steps"].as_array().unwrap().iter();
    assert!(steps.all(|step| step["purpose"] == "undo"), "{answer:#}");
    assert!(!kinds(&two.history(&id).await).contains(&"step.processed"));
}

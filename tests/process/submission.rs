//! Submissions: all faults of a refused one are reported at once, and an accepted one makes the right requests.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};

use crate::{
    cluster,
    harness::{Act, Gate, Provost, Remote, Seen, id_of, one_step, pipeline, step},
};

async fn nothing_is_stored(provost: &Provost) {
    let all = provost.get("/v1/tasks").await.expect(200);
    assert_eq!(all["items"], json!([]));
}

#[tokio::test]
async fn every_fault_of_a_submission_is_named_at_once_with_its_pointer() {
    let provost = Provost::start().await;
    let submission = json!({
        "priority": 1000,
        "complete_within": "soon",
        "lables": {},
        "steps": [
            { "name": "a", "url": "http://127.0.0.1:9", "complete_within": "1 s" },
            { "name": "a", "url": "http://127.0.0.1:9" },
            { "name": "b", "agent": "nobody", "after": ["z"] },
            { "name": "c", "url": "http://127.0.0.1:9", "when": "input.total >" },
            { "name": "d", "url": "http://127.0.0.1:9", "after": ["e"] },
            { "name": "e", "url": "http://127.0.0.1:9", "after": ["d"],
              "request": { "body": "{{ steps.q.output }}" } },
            { "name": "f", "url": "http://127.0.0.1:9", "max_failure": 1 },
        ],
    });
    let mut faults = provost.post("/v1/tasks", &submission).await.expect_faults();
    faults.sort();
    assert_eq!(
        faults,
        [
            "/complete_within",
            "/lables",
            "/priority",
            "/steps/0/complete_within",
            "/steps/1/name",
            "/steps/2/after/0",
            "/steps/2/agent",
            "/steps/3/when",
            "/steps/4/after",
            "/steps/5/request/body",
            "/steps/6/max_failure",
        ]
    );
    nothing_is_stored(&provost).await;
}

#[tokio::test]
async fn a_misspelled_field_is_refused_by_name_with_what_was_meant() {
    let provost = Provost::start().await;
    let mut submission = one_step("http://127.0.0.1:9", "/work");
    submission["prioritty"] = json!(1);
    let answer = provost.post("/v1/tasks", &submission).await;
    let problem = answer.expect_problem(422, "invalid");
    assert_eq!(problem["errors"][0]["pointer"], "/prioritty");
    let message = problem["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains("priority"), "{message}");
    nothing_is_stored(&provost).await;
}

#[tokio::test]
async fn a_body_that_is_no_json_too_large_or_of_another_type_is_refused_as_such() {
    let setup = Provost::setup().set("LIMITS__MAX_REQUEST", "10KiB");
    let provost = setup.start().await;
    let post = |content_type: &str, body: String| {
        let call = provost.command("/v1/tasks");
        call.text(content_type, body)
    };
    let broken = post("application/json", "{\"steps\": [".to_owned()).await;
    broken.expect_problem(400, "malformed-json");
    let text = post("text/plain", "{}".to_owned()).await;
    text.expect_problem(415, "not-json");
    let large = post("application/json", format!("\"{}\"", "x".repeat(11 << 10))).await;
    large.expect_problem(413, "body-too-large");
    let list = post("application/json", "[]".to_owned()).await;
    assert_eq!(list.expect_faults(), [""]);
    let nothing = post("application/json", "{}".to_owned()).await;
    assert_eq!(nothing.expect_faults(), ["/workflow"]);
    nothing_is_stored(&provost).await;
}

#[tokio::test]
async fn a_body_that_is_empty_or_no_object_is_called_so() {
    let provost = Provost::start().await;
    for (body, status, detail) in [
        ("[]", 422, "the body must be an object, not an array"),
        ("[{}]", 422, "the body must be an object, not an array"),
        ("\"\"", 422, "the body must be an object, not a string"),
        ("null", 422, "the body must be an object, not null"),
        ("", 400, "the body is empty: send JSON"),
        (" \n", 400, "the body is empty: send JSON"),
    ] {
        for path in ["/v1/tasks", "/v1/tasks/retry"] {
            let call = provost.api().call(reqwest::Method::POST, path);
            let answer = call.text("application/json", body).await;
            assert_eq!(answer.expect(status)["detail"], detail, "{path} {body:?}");
        }
    }
}

#[tokio::test]
async fn a_dry_run_says_what_would_run_and_stores_nothing() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let mut submission = pipeline(&remote.url(), &["a", "b"]);
    submission["complete_within"] = json!("1s");
    let verdict = provost
        .post("/v1/tasks?dry_run=true", &submission)
        .await
        .expect(200);
    assert_eq!(verdict["critical_path"], json!(["a", "b"]), "{verdict:#}");
    assert_eq!(
        verdict["fits"], false,
        "its worst case takes longer than it may: {verdict:#}"
    );
    submission["steps"][0]["agent"] = json!("nobody");
    let faults = provost.post("/v1/tasks?dry_run=true", &submission).await;
    assert!(!faults.expect_faults().is_empty());
    nothing_is_stored(&provost).await;
    assert_eq!(remote.count(), 0);
}

#[tokio::test]
async fn a_remote_service_gets_the_rendered_request_and_knows_whose_it_is() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let submission = json!({
        "key": "order-1001",
        "input": { "sku": "book 7/8", "quantity": 2, "gift": false },
        "labels": { "customer": "acme" },
        "steps": [
            { "name": "reserve", "url": remote.url(), "request": {
                "method": "PUT", "path": "/items/{{ input.sku }}",
                "headers": { "x-customer": "{{ task.labels.customer }}" },
                "body": { "quantity": "{{ input.quantity }}", "for": "order {{ task.key }}" } } },
            { "name": "wrap", "url": remote.url(), "when": "input.gift" },
            { "name": "ship", "url": remote.url(), "request": {
                "path": "/ship", "body": { "from": "{{ steps.reserve.output.path }}" } } },
        ],
    });
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let post = provost.post("/v1/tasks", &submission);
    let post = post.header("traceparent", &format!("00-{trace}-b7ad6b7169203331-01"));
    let task = post.header("prefer", "wait=30").await.expect(200);
    assert_eq!(task["state"], "processed", "{task:#}");
    assert_eq!(step(&task, "wrap")["state"], "skipped");
    let seen = remote.ledger();
    assert_eq!(seen.len(), 2);
    let reserve = &seen[0];
    assert_eq!(reserve.method, "PUT");
    assert_eq!(reserve.path, "/items/book%207%2F8");
    assert_eq!(
        reserve.body,
        json!({ "quantity": 2, "for": "order order-1001" })
    );
    assert_eq!(reserve.header("x-customer"), "acme");
    let id = task["id"].as_str().unwrap();
    for (name, value) in [
        ("provost-task", id),
        ("provost-task-key", "order-1001"),
        ("provost-step", "reserve"),
        ("provost-attempt", "1"),
        ("idempotency-key", &format!("{id}:reserve")),
        ("content-type", "application/json"),
    ] {
        assert_eq!(reserve.header(name), value, "{name}");
    }
    assert!(reserve.header("provost-complete-by").ends_with('Z'));
    for seen in &seen {
        assert!(
            seen.header("traceparent")
                .starts_with(&format!("00-{trace}-"))
        );
    }
    assert_ne!(seen[0].header("traceparent"), seen[1].header("traceparent"));
    assert_eq!(
        seen[1].body["from"],
        step(&task, "reserve")["output"]["path"]
    );
}

#[tokio::test]
async fn branches_run_side_by_side_and_a_join_waits_for_all() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let provost = Provost::start().await;
    let at = |name: &str, after: &[&str]| {
        json!({ "name": name, "url": remote.url(), "after": after,
                "request": { "path": format!("/{name}") } })
    };
    let submission = json!({ "steps": [
        at("left", &[]), at("right", &[]), at("join", &["left", "right"]),
    ] });
    let id = provost.submit(&submission).await;
    // Both calls have arrived although neither has a response.
    remote.requests(2).await;
    gate.let_through(1);
    let mut events = provost.events(&id).await;
    events.until("step.processed").await;
    assert_eq!(step(&provost.task(&id).await, "join")["state"], "waiting");
    assert_eq!(remote.count(), 2);
    gate.open();
    assert_eq!(provost.settled(&id).await["state"], "processed");
    let paths: Vec<String> = remote.ledger().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths[2..], ["/join"]);
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const STATE: &str = "rojo=00f067aa0ba902b7,congo@acme=t61rcWkgMzE";

/// Returns a service that refuses the first call, lets the second time out, and does the work of all further ones,
/// except for `/fail`.
fn faulty() -> impl Fn(&Seen) -> Act {
    let calls = AtomicUsize::new(0);
    move |seen| match (seen.path.as_str(), calls.fetch_add(1, Ordering::Relaxed)) {
        (_, 0) => Act::status(503),
        (_, 1) => Act::Hang,
        ("/fail", _) => Act::status(402),
        _ => Act::Ok(json!({ "id": 1 })),
    }
}

async fn submit_traced(provost: &Provost, submission: &Value) -> String {
    let parent = format!("00-{TRACE}-b7ad6b7169203331-00");
    let submitted = provost.post("/v1/tasks", submission);
    let submitted = submitted.header("traceparent", &parent);
    id_of(&submitted.header("tracestate", STATE).await.expect(202))
}

#[tokio::test]
async fn every_call_goes_on_with_the_callers_trace_in_a_span_of_its_own() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    for setup in [Provost::setup(), Provost::setup().database_url(&url)] {
        let remote = Remote::with(faulty()).await;
        let mut provost = setup.start().await;
        let spec = json!({ "endpoints": [{ "url": remote.url() }], "retry": { "initial": "1ms", "max": "2ms" } });
        provost.put("/v1/agents/shop", &spec).await.expect(201);
        let submission = json!({ "steps": [
            { "name": "one", "agent": "shop", "request": { "path": "/one" }, "complete_within": "1s",
              "probe": { "request": { "path": "/probe" }, "outcome": "'not_done'" },
              "undo": { "request": { "path": "/undo" } } },
            { "name": "two", "agent": "shop", "request": { "path": "/fail" }, "on_permanent": "undo" },
        ] });
        let first = submit_traced(&provost, &submission).await;
        // The second attempt is running, so the state after the restart is read from the record.
        remote.requests(2).await;
        provost.kill().await;
        provost.restart().await;
        let again = submit_traced(&provost, &submission).await;
        for id in [&first, &again] {
            assert_eq!(provost.settled(id).await["state"], "undone");
        }
        let seen = remote.ledger();
        for path in ["/one", "/probe", "/fail", "/undo"] {
            assert!(
                seen.iter().any(|seen| seen.path == path),
                "{path} was never called"
            );
        }
        let mut spans = HashSet::new();
        for seen in &seen {
            let parent = seen.header("traceparent");
            let parts: Vec<_> = parent.split('-').collect();
            assert_eq!(
                [parts[0], parts[1], parts[3]],
                ["00", TRACE, "00"],
                "{parent}"
            );
            assert_eq!(seen.header("tracestate"), STATE, "{}", seen.path);
            assert!(
                spans.insert(parts[2].to_owned()),
                "{} has the span of another call",
                seen.path
            );
        }
        assert!(seen.len() >= 9, "{}", seen.len());
    }
}

#[tokio::test]
async fn what_names_no_one_trace_begins_a_new_one() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let good = format!("00-{TRACE}-b7ad6b7169203331-01");
    let other = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-b7ad6b7169203331-01";
    for parents in [
        &[][..],
        &["nonsense"],
        &[&good, other],
        &[&good, &good],
        &[&format!("{good}-more")],
    ] {
        let mut submitted = provost.post("/v1/tasks", &one_step(&remote.url(), "/work"));
        for parent in parents {
            submitted = submitted.header("traceparent", parent);
        }
        let submitted = submitted
            .header("tracestate", STATE)
            .header("prefer", "wait=30");
        let id = id_of(&submitted.await.expect(200)).replace('-', "");
        let seen = remote.ledger();
        let seen = seen.last().unwrap();
        assert!(
            seen.header("traceparent").starts_with(&format!("00-{id}-")),
            "{parents:?}"
        );
        assert!(!seen.headers.contains_key("tracestate"), "{parents:?}");
    }
    let long = format!("long={},short=1", "x".repeat(2000));
    for (state, kept) in [
        ("a=1,A=2", None),
        (long.as_str(), None),
        ("b=2, a=1", Some("b=2,a=1")),
    ] {
        let submitted = provost.post("/v1/tasks", &one_step(&remote.url(), "/work"));
        let submitted = submitted
            .header("traceparent", &good)
            .header("tracestate", state);
        submitted.header("prefer", "wait=30").await.expect(200);
        let seen = remote.ledger();
        let sent = seen.last().unwrap().headers.get("tracestate").cloned();
        assert_eq!(sent.as_deref(), kept, "{state}");
    }
}

//! The commands of an operator for a whole task: the plan of an undo, the rerun from a step, a clone, and the graph.

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote, id_of, step};

fn text(answer: Value) -> String {
    match answer {
        Value::String(text) => text,
        other => panic!("{other} is no text"),
    }
}

/// Returns a task in which reserve and charge can be undone, ship is refused, and notify never runs.
fn order(url: &str) -> Value {
    json!({ "steps": [
        { "name": "reserve", "url": url, "request": { "path": "/holds", "body": "{{ input.sku }}" },
          "undo": { "request": { "method": "DELETE", "path": "/holds/{{ output.id }}" } } },
        { "name": "charge", "url": url, "request": { "path": "/charges", "headers": { "authorization": "Bearer s3cret" } },
          "undo": { "request": { "path": "/refunds", "headers": { "authorization": "Bearer s3cret" },
                                 "body": { "charge": "{{ output.id }}", "sku": "{{ input.sku }}" } } } },
        { "name": "ship", "url": url, "request": { "path": "/ship" } },
        { "name": "notify", "url": url, "request": { "path": "/notify" } },
    ] })
}

/// Returns a task whose shipment was refused. The response of each path is an id that counts its calls.
async fn failed() -> (Provost, Remote, String) {
    let remote = Remote::with(|seen| match (seen.path.as_str(), seen.attempt()) {
        ("/ship", 1) => Act::status(400),
        (path, attempt) => Act::Ok(json!({ "id": format!("{}-{attempt}", &path[1..2]) })),
    })
    .await;
    let provost = Provost::start().await;
    let mut submission = order(&remote.url());
    submission["input"] = json!({ "sku": "book-7", "quantity": 1 });
    submission["key"] = json!("order-1001");
    submission["labels"] = json!({ "customer": "acme" });
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "error");
    let id = id_of(&task);
    (provost, remote, id)
}

#[tokio::test]
async fn the_plan_of_an_undo_is_what_the_undo_then_does() {
    let (provost, remote, id) = failed().await;
    let path = format!("/v1/tasks/{id}/undo-plan");
    let answer = provost.get(&path).await;
    let etag = answer.header("etag").unwrap().to_owned();
    let plan = answer.expect(200);
    assert_eq!(plan["fingerprint"], etag);
    assert_eq!(
        (&plan["possible"], &plan["state"]),
        (&json!(true), &json!("error"))
    );
    let called: Vec<_> = plan["calls"].as_array().unwrap().iter().collect();
    assert_eq!(called[0]["step"], "charge.undo");
    assert_eq!(called[0]["because"], "processed");
    assert_eq!(called[0]["request"]["headers"]["authorization"], "***");
    assert_eq!(called[1]["step"], "reserve.undo");
    assert_eq!(called[1]["after"], json!(["charge.undo"]));
    let over = plan["passed_over"].as_array().unwrap().iter();
    let over: Vec<_> = over.map(|o| (&o["step"], &o["why"])).collect();
    assert_eq!(
        over,
        [
            (&json!("notify"), &json!("never_began")),
            (&json!("ship"), &json!("took_no_effect")),
        ]
    );
    assert!(!plan.to_string().contains("s3cret"));

    let before = remote.count();
    let undo = provost.command(&format!("/v1/tasks/{id}/undo"));
    undo.header("if-match", &etag).await.expect(200);
    let task = provost.get(&format!("/v1/tasks/{id}?wait=60s")).await;
    assert_eq!(task.expect(200)["state"], "undone");
    let seen = &remote.ledger()[before..];
    assert_eq!(seen.len(), called.len());
    for (seen, planned) in seen.iter().zip(&called) {
        let request = &planned["request"];
        assert_eq!(seen.method, request["method"]);
        assert_eq!(seen.path, request["path"]);
        assert_eq!(seen.body, request["body"]);
        assert_eq!(seen.key(), request["idempotency_key"]);
        assert_eq!(seen.header("provost-undoes"), request["undoes_key"]);
    }
    let plan = provost.get(&path).await.expect(200);
    assert_eq!(plan["possible"], false);
    assert!(
        plan["reason"].as_str().unwrap().contains("undone"),
        "{plan}"
    );
}

#[tokio::test]
async fn an_undo_is_refused_when_the_task_has_moved_since_its_plan_was_seen() {
    let (provost, remote, id) = failed().await;
    let plan = provost.get(&format!("/v1/tasks/{id}/undo-plan")).await;
    let fingerprint = plan.expect(200)["fingerprint"].as_str().unwrap().to_owned();
    provost
        .command(&format!("/v1/tasks/{id}/steps/ship/retry"))
        .await
        .expect(200);
    assert_eq!(provost.settled(&id).await["state"], "processed");
    let before = remote.count();
    let undo = provost.command(&format!("/v1/tasks/{id}/undo"));
    let refused = undo.header("if-match", &fingerprint).await;
    refused.expect_problem(412, "version-mismatch");
    assert_eq!(remote.count(), before);
}

#[tokio::test]
async fn a_task_runs_again_from_a_step_on_under_the_same_keys() {
    let (provost, remote, id) = failed().await;
    let retry = format!("/v1/tasks/{id}/retry");
    let body = json!({ "from": "charge", "reason": "the price was wrong" });
    provost.post(&retry, &body).await.expect(200);
    let task = provost.settled(&id).await;
    assert_eq!(task["state"], "processed");
    assert_eq!(step(&task, "reserve")["attempt"], 1);
    assert_eq!(step(&task, "charge")["attempt"], 2);
    assert_eq!(step(&task, "charge")["output"], json!({ "id": "c-2" }));
    let charges: Vec<_> = remote
        .ledger()
        .into_iter()
        .filter(|seen| seen.path == "/charges")
        .collect();
    assert_eq!(charges.len(), 2);
    assert_eq!(charges[0].key(), charges[1].key());
    let history = provost.history(&id).await;
    let again = history
        .iter()
        .find(|entry| entry["type"] == "step.retried")
        .unwrap();
    assert_eq!(again["step"], "charge");
    assert_eq!(again["by"], "operator:anonymous");
    assert_eq!(again["reason"], "the price was wrong (rerun from charge)");
    provost
        .post(&retry, &body)
        .await
        .expect_problem(409, "task-ended");
}

#[tokio::test]
async fn what_was_done_before_it_runs_again_is_undone_even_after_a_crash() {
    let gate = Gate::closed();
    let held = gate.clone();
    let remote = Remote::with(move |seen| match (seen.path.as_str(), seen.attempt()) {
        ("/ship", 1) => Act::status(400),
        ("/holds", 2..) => held.then(json!({ "id": "second" })),
        (path, attempt) => Act::Ok(json!({ "id": format!("{}-{attempt}", &path[1..2]) })),
    })
    .await;
    let mut provost = Provost::start().await;
    let mut submission = order(&remote.url());
    submission["input"] = json!({ "sku": "book-7" });
    submission["steps"][0]["on_undo"] = json!("drop");
    submission["steps"][0]["undo"]["request"]["path"] = json!("/holds/of/{{ task.id }}");
    let id = id_of(&provost.run(&submission).await);
    let from = json!({ "from": "reserve" });
    provost
        .post(&format!("/v1/tasks/{id}/retry"), &from)
        .await
        .expect(200);
    remote.requests(4).await;
    let refused = provost.post(&format!("/v1/tasks/{id}/retry"), &from).await;
    let problem = refused.expect_problem(409, "wrong-step-state");
    assert_eq!(problem["step_state"], "processing");
    provost.kill().await;
    provost.restart().await;
    provost
        .command(&format!("/v1/tasks/{id}/undo"))
        .await
        .expect(200);
    let task = provost
        .get(&format!("/v1/tasks/{id}?wait=60s"))
        .await
        .expect(200);
    assert_eq!(task["state"], "undone", "{task:#}");
    assert_eq!(step(&task, "charge")["state"], "undone");
    let refund = remote
        .ledger()
        .into_iter()
        .find(|seen| seen.path == "/refunds")
        .unwrap();
    assert_eq!(refund.body["charge"], "c-1", "what the charge gave before");
    gate.open();
}

#[tokio::test]
async fn a_retry_from_a_step_names_what_is_not_there() {
    let (provost, _remote, id) = failed().await;
    let retry = format!("/v1/tasks/{id}/retry");
    let missing = provost.post(&retry, &json!({ "from": "charg" })).await;
    missing.expect_problem(404, "no-such-step");
    let waiting = provost.post(&retry, &json!({ "from": "notify" })).await;
    waiting.expect_problem(409, "wrong-step-state");
    let typo = provost.post(&retry, &json!({ "form": "charge" })).await;
    assert_eq!(typo.expect_faults(), ["/form"]);
}

#[tokio::test]
async fn a_clone_is_a_new_submission_with_changes() {
    let (provost, remote, id) = failed().await;
    provost
        .command(&format!("/v1/tasks/{id}/cancel"))
        .await
        .expect(200);
    let path = format!("/v1/tasks/{id}/clone");
    let body = json!({ "input_patch": { "sku": "book-8", "gift": true }, "priority": 5, "reason": "another book" });
    let send = || {
        provost
            .post(&path, &body)
            .header("idempotency-key", "again-1")
    };
    let answer = send().await;
    let location = answer.header("location").unwrap().to_owned();
    let clone = answer.expect(202);
    let new = id_of(&clone);
    assert_ne!(new, id);
    assert_eq!(location, format!("/v1/tasks/{new}"));
    assert_eq!(
        clone["input"],
        json!({ "sku": "book-8", "quantity": 1, "gift": true })
    );
    assert_eq!(
        (&clone["key"], &clone["priority"]),
        (&json!("order-1001"), &json!(5))
    );
    assert_eq!(clone["labels"], json!({ "customer": "acme" }));
    let repeated = send().await;
    assert_eq!(repeated.header("idempotency-replayed"), Some("true"));
    assert_eq!(id_of(&repeated.expect(202)), new);
    provost.settled(&new).await;
    let history = provost.history(&new).await;
    assert_eq!(history[0]["type"], "task.accepted");
    assert_eq!(
        history[0]["reason"],
        format!("cloned from {id}: another book")
    );
    let holds: Vec<_> = remote
        .ledger()
        .into_iter()
        .filter(|seen| seen.path == "/holds")
        .collect();
    assert_eq!(holds.len(), 2);
    assert_ne!(holds[0].key(), holds[1].key());
    assert_eq!(holds[1].body, "book-8");

    let plain = provost.command(&path).header("prefer", "wait=30").await;
    assert_eq!(plain.header("preference-applied"), Some("wait=30"));
    assert_eq!(
        plain.expect(200)["input"],
        json!({ "sku": "book-7", "quantity": 1 })
    );
    for (body, pointer) in [
        (json!({ "input": 1, "input_patch": {} }), "/input_patch"),
        (json!({ "workflow_version": 2 }), "/workflow_version"),
        (json!({ "labels": { "a:b": "c" } }), "/labels"),
        (json!({ "state": "error" }), "/state"),
    ] {
        let refused = provost.post(&path, &body).await;
        assert_eq!(refused.expect_faults(), [pointer], "{body}");
    }
    let stale = provost.command(&path).header("if-match", "\"1\"").await;
    stale.expect_problem(412, "version-mismatch");
    let nobody = provost
        .command("/v1/tasks/019c7a5e-0000-7000-8000-000000000000/clone")
        .await;
    nobody.expect_problem(404, "no-such-task");
}

#[tokio::test]
async fn a_clone_takes_its_own_version_of_the_workflow_or_another() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    for path in ["/old", "/new"] {
        let definition =
            json!({ "steps": [{ "name": "a", "url": remote.url(), "request": { "path": path } }] });
        provost.put("/v1/workflows/order", &definition).await;
    }
    let first = json!({ "workflow": "order", "workflow_version": 1 });
    let id = id_of(&provost.run(&first).await);
    let path = format!("/v1/tasks/{id}/clone");
    for (body, version) in [
        (json!({}), 1),
        (json!({ "workflow_version": "latest" }), 2),
        (json!({ "workflow_version": 2 }), 2),
    ] {
        let clone = provost.post(&path, &body).await.expect(202);
        assert_eq!(clone["workflow_version"], version, "{body}");
    }
    for version in [json!(3), json!("newest"), json!(0)] {
        let refused = provost
            .post(&path, &json!({ "workflow_version": version }))
            .await;
        assert_eq!(refused.expect_faults(), ["/workflow_version"], "{version}");
    }
}

#[tokio::test]
async fn a_task_and_its_workflow_are_drawn() {
    let (provost, remote, id) = failed().await;
    let drawn = provost.get(&format!("/v1/tasks/{id}/graph")).await;
    assert_eq!(
        drawn.header("content-type"),
        Some("text/vnd.mermaid; charset=utf-8")
    );
    assert!(drawn.header("etag").is_some());
    let drawn = text(drawn.expect(200));
    assert!(drawn.contains("flowchart TD"), "{drawn}");
    assert!(drawn.contains("-. undo .->"));
    assert!(drawn.contains("class s2 error"), "{drawn}");
    let steps = order(&remote.url())["steps"].clone();
    provost
        .put("/v1/workflows/order", &json!({ "steps": steps }))
        .await
        .expect(201);
    let dot = provost
        .get("/v1/workflows/order/graph")
        .header("accept", "text/vnd.graphviz")
        .await;
    assert_eq!(
        dot.header("content-type"),
        Some("text/vnd.graphviz; charset=utf-8")
    );
    assert!(text(dot.expect(200)).starts_with("digraph \"order, version 1\""));
    let same = provost
        .get("/v1/workflows/order/graph?format=dot&version=1")
        .await;
    assert!(text(same.expect(200)).contains("s0 -> s1;"));
    for (path, status, kind) in [
        (
            "/v1/workflows/order/graph?version=2",
            404,
            "no-such-workflow",
        ),
        ("/v1/workflows/other/graph", 404, "no-such-workflow"),
        ("/v1/workflows/order/graph?format=svg", 400, "invalid-query"),
    ] {
        provost.get(path).await.expect_problem(status, kind);
    }
}

#[tokio::test]
async fn an_undo_that_names_what_it_cannot_see_is_refused() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let undo = |path: &str| json!({ "request": { "method": "DELETE", "path": path } });
    let url = remote.url();
    let body = json!({ "steps": [
        { "name": "a", "url": url, "undo": undo("/{{ steps.b.output.id }}") },
        { "name": "b", "url": url, "undo": undo("/{{ response.id }}") },
        { "name": "c", "url": url, "undo": undo("/{{ steps.d.output.id }}") },
        { "name": "d", "url": url, "undo": undo("/{{ output.id }}{{ steps.a.output }}{{ request.body }}") },
        { "name": "e", "url": url, "pivot": true, "undo": undo("/") },
        { "name": "f", "url": url, "on_permanent": "undo" },
    ] });
    for answer in [
        provost.post("/v1/workflows/order/validate", &body).await,
        provost.put("/v1/workflows/order", &body).await,
        provost.post("/v1/tasks", &body).await,
    ] {
        assert_eq!(
            answer.expect_faults(),
            [
                "/steps/4/undo",
                "/steps/0/undo/request/path",
                "/steps/1/undo/request/path",
                "/steps/2/undo/request/path",
                "/steps/5/on_permanent",
            ]
        );
    }
}

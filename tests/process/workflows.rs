//! Workflows: registered, versioned, validated.

use serde_json::{Value, json};

use crate::harness::{Gate, Provost, Remote, step};

fn definition(remote: &Remote, path: &str) -> Value {
    json!({ "steps": [
        { "name": "a", "url": remote.url(), "request": { "path": path } },
        { "name": "b", "url": remote.url(), "request": { "path": path } },
    ] })
}

#[tokio::test]
async fn an_unchanged_put_keeps_the_version_and_a_changed_one_makes_the_next() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let old = definition(&remote, "/old");
    let first = provost.put("/v1/workflows/order", &old).await;
    assert_eq!(first.expect(201)["version"], 1);
    let same = provost.put("/v1/workflows/order", &old).await.expect(200);
    assert_eq!(same["version"], 1);
    let new = definition(&remote, "/new");
    let second = provost.put("/v1/workflows/order", &new).await;
    assert_eq!(second.body["version"], 2, "{second:?}");
    let latest = provost.get("/v1/workflows/order").await.expect(200);
    assert_eq!(latest["version"], 2);
    assert_eq!(latest["steps"], new["steps"]);
    let first = provost
        .get("/v1/workflows/order/versions/1")
        .await
        .expect(200);
    assert_eq!(first["version"], 1);
    assert_eq!(first["steps"], old["steps"]);
    let missing = provost.get("/v1/workflows/order/versions/3").await;
    missing.expect_problem(404, "no-such-workflow");
    provost
        .get("/v1/workflows/other")
        .await
        .expect_problem(404, "no-such-workflow");
    let list = provost.get("/v1/workflows").await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["name"], "order");
    assert_eq!(list["items"][0]["version"], 2);
}

#[tokio::test]
async fn a_task_keeps_the_version_it_began_with_over_a_restart() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let mut provost = Provost::start().await;
    provost
        .put("/v1/workflows/order", &definition(&remote, "/old"))
        .await;
    let order = json!({ "workflow": "order" });
    let old = provost.submit(&order).await;
    remote.requests(1).await;
    provost
        .put("/v1/workflows/order", &definition(&remote, "/new"))
        .await;
    provost.kill().await;
    provost.restart().await;
    remote.requests(2).await;
    gate.open();
    let old = provost.settled(&old).await;
    assert_eq!(old["workflow_version"], 1);
    assert_eq!(step(&old, "b")["state"], "processed");
    assert!(remote.ledger().iter().all(|seen| seen.path == "/old"));
    let new = provost.run(&order).await;
    assert_eq!(new["workflow_version"], 2);
    let before = remote.count();
    let chosen = provost
        .run(&json!({ "workflow": "order", "workflow_version": 1 }))
        .await;
    assert_eq!(chosen["workflow_version"], 1);
    assert!(
        remote.ledger()[before..]
            .iter()
            .all(|seen| seen.path == "/old")
    );
}

#[tokio::test]
async fn validation_names_every_fault_and_stores_nothing() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let good = definition(&remote, "/work");
    provost
        .post("/v1/workflows/order/validate", &good)
        .await
        .expect(200);
    let bad = json!({ "steps": [
        { "name": "a", "agent": "nobody" },
        { "name": "b", "url": remote.url(), "after": ["c"] },
    ] });
    for path in ["/v1/workflows/order/validate", "/v1/workflows/order"] {
        let answer = match path.ends_with("validate") {
            true => provost.post(path, &bad).await,
            false => provost.put(path, &bad).await,
        };
        assert_eq!(
            answer.expect_faults(),
            ["/steps/0/agent", "/steps/1/after/0"]
        );
    }
    provost
        .get("/v1/workflows/order")
        .await
        .expect_problem(404, "no-such-workflow");
}

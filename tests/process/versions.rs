//! The active version of a workflow, and the record of who has activated it.

use serde_json::{Value, json};

use crate::harness::{Api, Provost, Remote, new_database, setups, sql, until};

async fn put(api: &Api, remote: &Remote, path: &str, query: &str) -> Value {
    let steps = json!({ "steps": [
        { "name": "a", "url": remote.url(), "request": { "path": path } },
    ] });
    let put = api
        .put(&format!("/v1/workflows/order{query}"), &steps)
        .await;
    assert!(put.status < 300, "{put:?}");
    put.body
}

async fn activate(api: &Api, version: u32) -> Value {
    let body = json!({ "version": version, "reason": format!("to {version}") });
    api.post("/v1/workflows/order/activate", &body)
        .await
        .expect(200)
}

/// Returns the version that a task gets which names none.
async fn used(api: &Api) -> Value {
    api.run(&json!({ "workflow": "order" })).await["workflow_version"].clone()
}

#[tokio::test]
async fn a_version_is_rolled_back_and_promoted_with_who_and_why() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let mut provost = setup.start().await;
        for (path, version) in [("/1", 1), ("/2", 2)] {
            let put = put(&provost, &remote, path, "").await;
            assert_eq!(
                (&put["version"], &put["active_version"]),
                (&json!(version), &json!(version))
            );
            assert_eq!(put["activations"], json!([]));
            assert_eq!(used(&provost).await, version);
        }
        let back = activate(&provost, 1).await;
        assert_eq!(
            (&back["version"], &back["active_version"]),
            (&json!(2), &json!(1))
        );
        assert_eq!(used(&provost).await, 1);
        // The roll-back stays in effect for the next versions, because none of them was activated explicitly.
        for (path, version) in [("/3", 3), ("/4", 4)] {
            let put = put(&provost, &remote, path, "").await;
            assert_eq!(
                (&put["version"], &put["active_version"]),
                (&json!(version), &json!(1))
            );
        }
        provost.kill().await;
        provost.restart().await;
        assert_eq!(used(&provost).await, 1);
        activate(&provost, 4).await;
        // The version is active already, and nothing is added.
        activate(&provost, 4).await;
        assert_eq!(used(&provost).await, 4);
        assert_eq!(put(&provost, &remote, "/5", "").await["active_version"], 5);
        assert_eq!(used(&provost).await, 5);
        // The same content again does not activate the version.
        activate(&provost, 2).await;
        assert_eq!(put(&provost, &remote, "/5", "").await["active_version"], 2);
        assert_eq!(
            put(&provost, &remote, "/5", "?activate=true").await["active_version"],
            5
        );
        let known = provost.get("/v1/workflows/order").await.expect(200);
        let activations = known["activations"].as_array().unwrap().iter();
        let told: Vec<_> = activations
            .map(|a| {
                (
                    a["from_version"].as_u64(),
                    a["version"].as_u64(),
                    a["reason"].as_str(),
                )
            })
            .collect();
        let registered = "it was registered";
        assert_eq!(
            told,
            [
                (2, 5, registered),
                (5, 2, "to 2"),
                (4, 5, registered),
                (1, 4, "to 4"),
                (2, 1, "to 1")
            ]
            .map(|(from, to, reason)| (Some(from), Some(to), Some(reason)))
        );
        assert_eq!(known["activations"][1]["by"], "operator:anonymous");
        let list = provost.get("/v1/workflows").await.expect(200);
        assert_eq!(list["items"][0]["active_version"], 5);
        let task = provost
            .run(&json!({ "workflow": "order", "workflow_version": 3 }))
            .await;
        assert_eq!(task["workflow_version"], 3);
    }
}

#[tokio::test]
async fn a_version_may_be_registered_and_activated_later() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    // There is no other version, so the first one is active.
    assert_eq!(
        put(&provost, &remote, "/1", "?activate=false").await["active_version"],
        1
    );
    assert_eq!(
        put(&provost, &remote, "/2", "?activate=false").await["active_version"],
        1
    );
    assert_eq!(used(&provost).await, 1);
    assert_eq!(
        put(&provost, &remote, "/3", "?activate=true").await["active_version"],
        3
    );
    assert_eq!(used(&provost).await, 3);
    let cloned = provost
        .run(&json!({ "workflow": "order", "workflow_version": 1 }))
        .await;
    let id = cloned["id"].as_str().unwrap();
    for (version, expected) in [(json!("active"), 3), (json!("latest"), 3), (json!(2), 2)] {
        let body = json!({ "workflow_version": version });
        let clone = provost
            .post(&format!("/v1/tasks/{id}/clone"), &body)
            .await
            .expect(202);
        assert_eq!(clone["workflow_version"], expected);
    }
}

#[tokio::test]
async fn what_cannot_be_activated_says_why() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let path = "/v1/workflows/order/activate";
    let one = json!({ "version": 1 });
    provost
        .post(path, &one)
        .await
        .expect_problem(404, "no-such-workflow");
    provost
        .get("/v1/workflows/order/versions")
        .await
        .expect_problem(404, "no-such-workflow");
    put(&provost, &remote, "/1", "").await;
    let tag = provost.get("/v1/workflows/order").await;
    let tag = tag.header("etag").unwrap().to_owned();
    put(&provost, &remote, "/2", "").await;
    let missing = provost.post(path, &json!({ "version": 9 })).await;
    assert_eq!(missing.expect_faults(), ["/version"]);
    for wrong in [
        json!({}),
        json!({ "version": 0 }),
        json!({ "version": "2" }),
    ] {
        assert_eq!(
            provost.post(path, &wrong).await.expect_faults(),
            ["/version"]
        );
    }
    let unknown = json!({ "version": 1, "resaon": "x" });
    assert_eq!(
        provost.post(path, &unknown).await.expect_faults(),
        ["/resaon"]
    );
    let stale = provost.post(path, &one).header("if-match", &tag).await;
    let current = stale.expect_problem(412, "precondition-failed")["etag"].clone();
    let current = current.as_str().unwrap();
    provost
        .post(path, &one)
        .header("if-match", current)
        .await
        .expect(200);
    // Another version has been activated since.
    let two = json!({ "version": 2 });
    let stale = provost.post(path, &two).header("if-match", current).await;
    stale.expect_problem(412, "precondition-failed");
    let versions = provost
        .get("/v1/workflows/order/versions?limit=1")
        .await
        .expect(200);
    assert_eq!(versions["items"][0]["version"], 2);
    assert_eq!(versions["items"][0]["active_version"], 1);
    let cursor = versions["next_cursor"].as_str().unwrap();
    let next = format!("/v1/workflows/order/versions?limit=1&cursor={cursor}");
    let next = provost.get(&next).await.expect(200);
    assert_eq!(next["items"][0]["version"], 1);
    assert_eq!(next["next_cursor"], Value::Null);
}

#[tokio::test]
async fn the_history_of_activations_is_bounded() {
    for setup in setups().await {
        let remote = Remote::quick().await;
        let provost = setup.start().await;
        put(&provost, &remote, "/1", "").await;
        put(&provost, &remote, "/2", "").await;
        for number in 0..61 {
            activate(&provost, 1 + number % 2).await;
        }
        let known = provost.get("/v1/workflows/order").await.expect(200);
        assert_eq!(known["activations"].as_array().unwrap().len(), 50);
        assert_eq!(known["active_version"], 1);
    }
}

#[tokio::test]
async fn an_instance_uses_what_was_activated_at_another() {
    let remote = Remote::quick().await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let (a, b) = tokio::join!(on().start(), on().start());
    put(&a, &remote, "/1", "").await;
    put(&a, &remote, "/2", "").await;
    for version in [1, 2, 1] {
        // Both instances know the other version.
        let other = 3 - version;
        activate(&a, other).await;
        crate::harness::until(json!(other), || used(&b)).await;
        activate(&a, version).await;
        assert_eq!(used(&a).await, version);
        crate::harness::until(json!(version), || used(&b)).await;
    }
    // Two requests come at the same time: one of them is the last, and both instances agree on it.
    let (first, second) = tokio::join!(activate(&a, 1), activate(&b, 2));
    let _ = (first, second);
    let last = a.get("/v1/workflows/order").await.expect(200)["active_version"].clone();
    crate::harness::until(last.clone(), || used(&b)).await;
    crate::harness::until(last, || used(&a)).await;
}

/// The bound is the one in the documentation, with time for a slow machine.
#[tokio::test]
async fn an_instance_that_is_not_notified_uses_it_within_seconds() {
    let remote = Remote::quick().await;
    let url = new_database().await;
    let on = || Provost::setup().database_url(&url);
    let deaf = on().set("POSTGRES__LISTEN", "false").start();
    let (a, b) = tokio::join!(on().start(), deaf);
    put(&a, &remote, "/1", "").await;
    put(&a, &remote, "/2", "").await;
    crate::harness::until(json!(2), || used(&b)).await;
    activate(&a, 1).await;
    crate::harness::until(json!(1), || used(&b)).await;
    // The version never changes back: a value that was read before does not replace a newer one.
    for _ in 0..20 {
        assert_eq!(used(&b).await, 1);
    }
}

/// Another instance has saved the change, and its notification never came, because the connection for notifications was
/// lost as well.
#[tokio::test]
async fn an_instance_that_missed_the_notification_uses_it_once_it_listens_again() {
    let remote = Remote::quick().await;
    let url = new_database().await;
    let provost = Provost::setup().database_url(&url).start().await;
    put(&provost, &remote, "/1", "").await;
    put(&provost, &remote, "/2", "").await;
    assert_eq!(used(&provost).await, 2);
    sql(
        &url,
        "INSERT INTO workflow_activations (name, number, version, from_version, at, activated_by)
         SELECT 'order', coalesce(max(number), 0) + 1, 1, 2, 1, 'operator:another' FROM workflow_activations",
    );
    assert_eq!(used(&provost).await, 2, "nothing has said that it changed");
    let listening = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND query ILIKE 'LISTEN%'";
    assert_eq!(sql(&url, listening).trim(), "1");
    until(json!(1), || used(&provost)).await;
}

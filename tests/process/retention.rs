//! Ended tasks are deleted when their retention is over; tasks that may still continue are never deleted.

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    cluster,
    harness::{Act, PATIENCE, Provost, Remote, one_step, until},
};

#[tokio::test]
async fn tasks_are_deleted_when_they_have_been_kept_long_enough_unless_they_wait_for_an_operator() {
    let remote = Remote::with(|seen| match seen.body["card"].as_str() {
        Some("tok_declined") => Act::status(402),
        _ => Act::Ok(json!("done")),
    })
    .await;
    let mut provost = Provost::start().await;
    let mut submission = one_step(&remote.url(), "/work");
    let submit = provost.post("/v1/tasks", &submission);
    let submit = submit.header("idempotency-key", "order-1").await;
    let done = submit.expect(202)["id"].as_str().unwrap().to_owned();
    provost.settled(&done).await;
    submission["input"] = json!({ "card": "tok_declined" });
    let failed = provost.run(&submission).await;
    assert!(
        !provost.log().contains("deleted tasks"),
        "kept a month, if nobody says otherwise"
    );
    provost.terminate();
    provost.ended().await;
    let short = |setup: crate::harness::Setup| {
        let setup = setup.set("RETENTION__KEEP", "0s");
        setup.set("RETENTION__INTERVAL", "10ms")
    };
    provost.restart_with(short).await;
    provost.says("deleted tasks that ended long ago").await;
    for part in ["", "/history", "/events"] {
        let gone = provost.get(&format!("/v1/tasks/{done}{part}")).await;
        gone.expect_problem(404, "no-such-task");
    }
    let kept = provost.task(failed["id"].as_str().unwrap()).await;
    assert_eq!(kept["state"], "error");
    let alerts = provost.get("/v1/alerts?state=open").await.expect(200);
    assert_eq!(alerts["items"].as_array().unwrap().len(), 1);
}

async fn register(provost: &Provost, name: &str, url: &str) -> Value {
    let step = json!({ "name": "work", "url": url, "request": { "path": "/work" } });
    let put = provost.put(
        &format!("/v1/workflows/{name}"),
        &json!({ "steps": [step] }),
    );
    put.await.expect(201);
    json!({ "workflow": name })
}

async fn submit(provost: &Provost, submission: &Value) -> String {
    let id = provost.submit(submission).await;
    provost.settled(&id).await;
    id
}

async fn cancel(provost: &Provost, id: &str) {
    let cancel = provost.command(&format!("/v1/tasks/{id}/cancel"));
    cancel.await.expect(200);
}

#[tokio::test]
async fn how_long_a_task_is_kept_depends_on_its_workflow_and_on_how_it_ended() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/fail" => Act::status(402),
        _ => Act::Ok(json!("done")),
    });
    let remote = remote.await;
    let settings = r#"
        [retention]
        interval = "10ms"
        processed = "0s"
        workflows.ship = { keep = "forever", cancelled = "0s" }
        workflows.pack = { keep = "1d" }
    "#;
    let mut provost = Provost::start().await;
    let (work, fail) = (
        one_step(&remote.url(), "/work"),
        one_step(&remote.url(), "/fail"),
    );
    let ship = register(&provost, "ship", &remote.url()).await;
    let pack = register(&provost, "pack", &remote.url()).await;
    let lost = register(&provost, "lost", &remote.url()).await;
    let shipped = submit(&provost, &ship).await;
    let failing = json!({ "steps": [{ "name": "work", "url": remote.url(), "request": { "path": "/fail" } }] });
    provost
        .put("/v1/workflows/ship", &failing)
        .await
        .expect(201);
    let kept = [
        shipped,
        submit(&provost, &pack).await,
        // All tasks except processed ones are kept for a month.
        submit(&provost, &fail).await,
        submit(&provost, &fail).await,
    ];
    cancel(&provost, &kept[3]).await;
    let deleted = [
        submit(&provost, &work).await,
        submit(&provost, &lost).await,
        submit(&provost, &ship).await,
    ];
    cancel(&provost, &deleted[2]).await;
    provost.restart_with(|setup| setup.config(settings)).await;
    provost.until_deleted(&deleted).await;
    assert_eq!(provost.metric("provost_purged_tasks_total").await, 3.0);
    // A task that ends from now on comes after all tasks that were examined before.
    let late = submit(&provost, &work).await;
    until(false, async || provost.is_there(&late).await).await;
    for id in &kept {
        assert!(provost.is_there(id).await, "{id}");
    }
    assert_eq!(provost.metric("provost_purged_tasks_total").await, 4.0);
}

#[tokio::test]
async fn of_several_instances_one_deletes_and_another_goes_on_where_that_is_lost() {
    let url = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let on = |name| {
        let setup = Provost::setup().database_url(&url).set("INSTANCE_ID", name);
        let setup = setup
            .set("RETENTION__KEEP", "0s")
            .set("INSTANCE__LEASE", "1s");
        setup.set("RETENTION__INTERVAL", "10ms")
    };
    let remote = Remote::quick().await;
    let mut first = on("first").start().await;
    first.says("this instance is now the supervisor").await;
    let second = on("second").start().await;
    let work = one_step(&remote.url(), "/work");
    let end = async |provost: &Provost| {
        let id = provost.submit(&work).await;
        until(false, async || provost.is_there(&id).await).await;
    };
    for _ in 0..5 {
        end(&second).await;
    }
    // An instance updates its count after the commit of a deletion.
    let count = async |provost: &Provost| provost.metric("provost_purged_tasks_total").await;
    until(5.0, async || count(&first).await).await;
    assert_eq!(count(&second).await, 0.0);
    first.kill().await;
    end(&second).await;
    until(1.0, async || count(&second).await).await;
}

/// Few tasks are deleted in one transaction, however many there are to delete.
#[tokio::test]
async fn many_tasks_are_deleted_a_few_at_a_time() {
    let remote = Remote::quick().await;
    let mut provost = Provost::start().await;
    let work = one_step(&remote.url(), "/work");
    let mut ids = Vec::new();
    for _ in 0..400 {
        ids.push(provost.submit(&work).await);
    }
    for id in &ids {
        provost.settled(id).await;
    }
    let short = |setup: crate::harness::Setup| {
        let setup = setup
            .set("RETENTION__KEEP", "0s")
            .set("RETENTION__BATCH", "10");
        setup.set("RETENTION__INTERVAL", "10ms")
    };
    provost.restart_with(short).await;
    let mut seen = Vec::new();
    let deleting = async {
        while seen.last() != Some(&400.0) {
            seen.push(provost.metric("provost_purged_tasks_total").await);
        }
    };
    timeout(PATIENCE, deleting).await.unwrap();
    assert!(
        seen.iter()
            .any(|deleted| *deleted > 0.0 && *deleted < 400.0),
        "{seen:?}"
    );
    provost
        .says("\"deleted tasks that ended long ago\",\"tasks\":400")
        .await;
}

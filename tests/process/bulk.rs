//! Retrying many tasks with one request.

use serde_json::{Value, json};

use crate::harness::{Act, Gate, Provost, Remote};

#[tokio::test]
async fn many_tasks_are_retried_by_filter_and_a_dry_run_only_counts() {
    let mended = Gate::closed();
    let held = mended.clone();
    // Down for the first tries, behind the gate for the next.
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
    let count = |retried: u32, matched: u32, dry_run: bool| json!({ "matched": matched, "retried": retried, "refused": 0, "dry_run": dry_run });
    let answer = provost.post("/v1/tasks/retry", &dry).await.expect(200);
    assert_eq!(answer, count(0, 20, true));
    assert_eq!(remote.count(), 25);
    let answer = provost.post("/v1/tasks/retry", &filter).await.expect(200);
    assert_eq!(answer, count(20, 20, false));
    mended.open();
    for (number, id) in ids.iter().enumerate() {
        let state = provost.settled(id).await["state"].clone();
        assert_eq!(
            state,
            if number < 20 { "processed" } else { "error" },
            "{number}"
        );
    }
    // A repeat finds nothing more to do.
    let answer = provost.post("/v1/tasks/retry", &filter).await.expect(200);
    assert_eq!(answer, count(0, 0, false));

    let by_id = json!({ "ids": [ids[20], ids[0], "019c7a5e-0000-7000-8000-000000000000"] });
    let answer = provost.post("/v1/tasks/retry", &by_id).await.expect(200);
    assert_eq!(answer["retried"], 1);
    assert_eq!(answer["refused"], 2);
    assert_eq!(provost.settled(&ids[20]).await["state"], "processed");
}

#[tokio::test]
async fn a_bulk_retry_with_a_fault_touches_nothing() {
    let remote = Remote::script([Act::status(410)]).await;
    let provost = Provost::start().await;
    let task = provost
        .run(&crate::harness::one_step(&remote.url(), "/work"))
        .await;
    for (body, pointer) in [
        (json!({ "workflw": "order" }), "/workflw"),
        (json!({ "state": "processed" }), "/state"),
        (json!({ "ids": ["nonsense"] }), "/ids/0"),
    ] {
        let refused = provost.post("/v1/tasks/retry", &body).await;
        assert_eq!(refused.expect_faults(), [pointer], "{body}");
    }
    let same: Value = provost.task(task["id"].as_str().unwrap()).await;
    assert_eq!(same, task);
    assert_eq!(remote.count(), 1);
}

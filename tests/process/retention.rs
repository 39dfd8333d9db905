//! Ended tasks are deleted in the end; what may still go on never is.

use serde_json::json;

use crate::harness::{Act, Provost, Remote, one_step};

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

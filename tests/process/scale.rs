//! Many tasks, and tasks of many steps.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::harness::{Api, Database, Provost, Remote, one_step};

const TASKS: usize = 10_000;
const TOGETHER: usize = 64;
const MEASURED: usize = 200;

/// The query by which the scheduler reads an agent queue.
const CLAIM: &str = "EXPLAIN QUERY PLAN
SELECT task_id, idx FROM steps
WHERE agent = 'http://127.0.0.1:1' AND due_at IS NOT NULL AND queued = 1
ORDER BY lane, turn, task_id, idx LIMIT 64";

/// The query by which the supervisor finds expired attempts.
const EXPIRED: &str = "EXPLAIN QUERY PLAN
SELECT task_id, idx, attempt FROM steps INDEXED BY steps_processing
WHERE state = 'processing' AND locked_by IS NOT NULL AND complete_by <= 1 ORDER BY complete_by LIMIT 500";

/// Its query for promised replies that did not come.
const AWAITED: &str = "EXPLAIN QUERY PLAN
SELECT task_id, idx, attempt FROM steps INDEXED BY steps_awaited
WHERE state = 'processing' AND locked_by IS NULL AND agent <> '' AND complete_by <= 1 ORDER BY complete_by LIMIT 500";

/// Its query for the instances that hold steps. It reads a whole index, but that index contains only what runs.
const HOLDERS: &str = "EXPLAIN QUERY PLAN
SELECT DISTINCT locked_by FROM steps INDEXED BY steps_processing
WHERE state = 'processing' AND locked_by IS NOT NULL";

/// The same queries for the claims in the rows of tasks.
const EXPIRED_CLAIMS: &str = "EXPLAIN QUERY PLAN
SELECT id, claim_step, claim_until FROM tasks INDEXED BY tasks_claimed
WHERE claimed_by IS NOT NULL AND claim_after <= 1 AND claim_until <= 1 LIMIT 500";
const HOLDERS_OF_CLAIMS: &str = "EXPLAIN QUERY PLAN
SELECT CAST(0 AS bigint) FROM tasks INDEXED BY tasks_claimed
WHERE claimed_by IS NOT NULL AND claimed_by <> 'a' AND claimed_by NOT IN (SELECT id FROM instances WHERE until > 1)
ORDER BY claim_after LIMIT 1";

/// Returns the time from the submission to the response that the task is processed.
async fn processed(api: &Api, submission: &Value) -> Duration {
    let submitted = Instant::now();
    let task = api
        .post("/v1/tasks", submission)
        .header("prefer", "wait=60")
        .await;
    assert_eq!(task.expect(200)["state"], "processed");
    submitted.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[tokio::test]
async fn ten_thousand_ended_tasks_do_not_slow_claims() {
    let remote = Remote::quick().await;
    let setup = Provost::setup().set("LOG", "warn,provost::service=info");
    let fresh = setup.clone().start().await;
    let mut full = setup.start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["input"] = json!({ "sku": "book-7", "quantity": 1 });
    let (api, submission) = (full.api(), &submission);
    stream::iter(0..TASKS)
        .for_each_concurrent(TOGETHER, async |_| {
            processed(api, submission).await;
        })
        .await;
    // The runs alternate, so that other load on the machine slows both in the same way.
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..MEASURED {
        with.push(processed(api, submission).await);
        without.push(processed(fresh.api(), submission).await);
    }
    let (with, without) = (median(with), median(without));
    println!("median with ended tasks {with:?}, without {without:?}");
    assert!(with < without * 3, "with {with:?}, without {without:?}");

    full.terminate();
    assert!(full.ended().await.success());
    let database = Database::open(&full.database());
    let ended = database.steps();
    assert_eq!(ended.len(), TASKS + MEASURED);
    assert!(ended.iter().all(|step| step.state == "processed"));
    // When all tasks have ended, each query is one search of an index that contains none of them.
    for (look, index) in [
        (CLAIM, "steps_line"),
        (EXPIRED, "steps_processing"),
        (AWAITED, "steps_awaited"),
        (EXPIRED_CLAIMS, "tasks_claimed (claim_after<?)"),
    ] {
        let plan = database.plan(look);
        assert!(plan.contains(index), "{plan}");
        for slow in ["SCAN", "TEMP B-TREE"] {
            assert!(!plan.contains(slow), "{plan}");
        }
    }
    let plan = database.plan(HOLDERS);
    assert!(
        plan.contains("COVERING INDEX steps_processing"),
        "no step itself is read: {plan}"
    );
    let plan = database.plan(HOLDERS_OF_CLAIMS);
    assert!(
        plan.contains("COVERING INDEX tasks_claimed"),
        "no task itself is read: {plan}"
    );
}

#[tokio::test]
async fn a_task_of_as_many_steps_as_are_allowed_runs_them_all_once() {
    let remote = Remote::quick().await;
    let provost = Provost::start().await;
    let branches = (0..499).map(
        |number| json!({ "name": format!("branch-{number}"), "url": remote.url(), "after": [] }),
    );
    let mut steps: Vec<Value> = branches.collect();
    let all: Vec<Value> = steps.iter().map(|step| step["name"].clone()).collect();
    steps.push(json!({ "name": "join", "url": remote.url(), "after": all,
                       "request": { "path": "/join" } }));
    let task = provost.run(&json!({ "steps": steps })).await;
    assert_eq!(task["state"], "processed");
    let seen = remote.ledger();
    assert_eq!(seen.len(), 500);
    assert_eq!(seen[499].path, "/join");
    let keys: HashSet<&str> = seen.iter().map(|seen| seen.key()).collect();
    assert_eq!(keys.len(), 500);
    steps.push(json!({ "name": "more", "url": remote.url() }));
    let refused = provost.post("/v1/tasks", &json!({ "steps": steps })).await;
    assert_eq!(refused.expect_faults(), ["/steps"]);
}

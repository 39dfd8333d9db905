//! Ten thousand ended tasks do not slow claims.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::harness::{Api, Database, Provost, Remote, one_step};

const TASKS: usize = 10_000;
const TOGETHER: usize = 64;
const MEASURED: usize = 200;

/// The scheduler's look at an agent's line.
const CLAIM: &str = "EXPLAIN QUERY PLAN
SELECT task_id, idx FROM steps
WHERE agent = 'http://127.0.0.1:1' AND due_at IS NOT NULL AND queued = 1
ORDER BY priority DESC, task_id, idx LIMIT 64";

/// The supervisor's look at what has expired.
const EXPIRED: &str = "EXPLAIN QUERY PLAN
SELECT task_id, idx, attempt FROM steps
WHERE state = 'processing' AND complete_by <= 1 ORDER BY complete_by LIMIT 500";

async fn processed(api: &Api, submission: &Value) {
    let task = api
        .post("/v1/tasks", submission)
        .header("prefer", "wait=60")
        .await;
    assert_eq!(task.expect(200)["state"], "processed");
}

/// The median of the time from submission to the answer that it is processed, one at a time.
async fn median(api: &Api, submission: &Value) -> Duration {
    let mut times = Vec::new();
    for _ in 0..MEASURED {
        let submitted = Instant::now();
        processed(api, submission).await;
        times.push(submitted.elapsed());
    }
    times.sort();
    times[MEASURED / 2]
}

#[tokio::test]
async fn ten_thousand_ended_tasks_do_not_slow_claims() {
    let remote = Remote::quick().await;
    let setup = Provost::setup().set("LOG", "warn,provost::service=info");
    let mut provost = setup.start().await;
    let mut submission = one_step(&remote.url(), "/work");
    submission["input"] = json!({ "sku": "book-7", "quantity": 1 });
    let before = median(provost.api(), &submission).await;
    let (api, submission) = (provost.api(), &submission);
    stream::iter(0..TASKS)
        .for_each_concurrent(TOGETHER, |_| processed(api, submission))
        .await;
    let after = median(api, submission).await;
    println!("median before {before:?}, after {after:?}");
    assert!(after < before * 3, "before {before:?}, after {after:?}");
    assert_eq!(remote.count(), TASKS + 2 * MEASURED);

    provost.terminate();
    assert!(provost.ended().await.success());
    let mut database = Database::open(&provost.database()).await;
    let ended = database.steps().await;
    assert_eq!(ended.len(), TASKS + 2 * MEASURED);
    assert!(ended.iter().all(|step| step.state == "processed"));
    // With all of them ended, each look is one search of an index that holds none of them.
    for (look, index) in [(CLAIM, "steps_line"), (EXPIRED, "steps_processing")] {
        let plan = database.plan(look).await;
        assert!(plan.contains(index), "{plan}");
        for slow in ["SCAN", "TEMP B-TREE"] {
            assert!(!plan.contains(slow), "{plan}");
        }
    }
}

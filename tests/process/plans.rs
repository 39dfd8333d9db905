//! The committer's statements have the intended plans in the PostgreSQL version of the tests, while the database is new
//! and when it is full. The server itself logs the plans, by its module `auto_explain`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Act, Postgres, Provost, Remote, pipeline};

/// The nodes that the committer's settings must prevent.
const NEVER: [&str; 7] = [
    "Seq Scan",
    "Bitmap Heap Scan",
    "Hash Join",
    "Merge Join",
    "Sort",
    "Incremental Sort",
    "Gather",
];
/// The tables that grow with the work. The others have one or two pages, and some have no useful index.
const LARGE: [&str; 5] = ["tasks", "task_details", "steps", "history", "task_labels"];

const ENDED: u32 = 20_000;

/// Inserts ended tasks that never ran.
fn fill() -> String {
    format!(
        "CREATE TEMP TABLE new AS SELECT at, gen_random_uuid() AS id FROM generate_series(1, {ENDED}) AS at;
         INSERT INTO tasks (id, labels, priority, created_at, version, state, paused, ended_at)
             SELECT id, '{{}}', 0, at, 2, 'processed', false, at FROM new;
         INSERT INTO task_details (task_id, steps, input) SELECT id, '[]', 'null' FROM new;
         INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, queued)
             SELECT id, idx, 'step', 'narrow', 0, 'processed', 1, 0, 0, 0 FROM new, generate_series(0, 1) AS idx;
         INSERT INTO history (task_id, version, at, events)
             SELECT id, version, at, '[]' FROM new, generate_series(1, 2) AS version;
         INSERT INTO task_labels (label, value, task_id) SELECT 'tenant', at % 100, id FROM new;
         ANALYZE"
    )
}

/// Makes the service execute every statement that touches many rows: saves, loads, agent queues, and waits for a time.
async fn work(provost: &Provost, remote: &Remote, of_before: Option<&str>) -> String {
    // The step is retried: it waits for its time, and then joins the queue.
    let busy = Remote::script([Act::status(503), Act::Ok(json!(1))]).await;
    let again = provost.run(&pipeline(&busy.url(), &["again"])).await;
    assert_eq!(again["state"], "processed");
    provost.register("narrow", &remote.url(), 1).await;
    let mut submission = pipeline(&remote.url(), &["one", "two"]);
    submission["labels"] = json!({ "tenant": "acme" });
    submission["steps"].as_array_mut().unwrap().push(json!({
        "name": "queued", "agent": "narrow", "request": { "path": "/queued" },
    }));
    let submissions = (0..20).map(|_| provost.submit(&submission));
    let ids = futures::future::join_all(submissions).await;
    for id in &ids {
        assert_eq!(provost.settled(id).await["state"], "processed");
    }
    if let Some(id) = of_before {
        // The task is in no cache.
        let refused = provost.command(&format!("/v1/tasks/{id}/pause")).await;
        refused.expect_problem(409, "task-ended");
    }
    ids[0].clone()
}

/// Returns all plans of pinned sessions in a log, each with its statement.
fn plans(log: &str) -> Vec<(String, Value)> {
    let mut plans = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with("plan:") {
            continue;
        }
        let mut text = String::new();
        while let Some(more) = lines.next_if(|line| line.starts_with('\t')) {
            text.push_str(more);
        }
        let told: Value = serde_json::from_str(&text).unwrap();
        if told["Settings"]["enable_seqscan"] == "off" {
            let statement = told["Query Text"].as_str().unwrap().to_owned();
            plans.push((statement, told["Plan"].clone()));
        }
    }
    plans
}

/// Returns the faults of a plan, or of a part of it, below a node of this kind.
fn faults(plan: &Value, above: &str) -> Vec<String> {
    let node = plan["Node Type"].as_str().unwrap();
    let table = plan["Relation Name"].as_str();
    let is_large = table.is_none_or(|table| LARGE.contains(&table));
    let mut faults = Vec::new();
    if is_large && NEVER.contains(&node) {
        faults.push(format!("{node} of {table:?}"));
    }
    // A scan for the first entry of an index, below a Limit, reads no more of the index.
    let reads_all = node.starts_with("Index") && plan["Index Cond"].is_null() && above != "Limit";
    if is_large && reads_all {
        faults.push(format!("all of {} is read", plan["Index Name"]));
    }
    let parts = plan["Plans"].as_array().into_iter().flatten();
    faults.extend(parts.flat_map(|part| self::faults(part, node)));
    faults
}

#[tokio::test]
async fn no_statement_of_the_writer_reads_more_of_a_large_table_than_it_needs() {
    let server = Postgres::start().await;
    for setting in [
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_settings = on",
        "auto_explain.log_format = 'json'",
    ] {
        server
            .sql(&format!("ALTER ROLE provost SET {setting}"))
            .await;
    }
    let remote = Remote::quick().await;
    let mut provost = Provost::setup()
        .database_url(&server.url())
        .set("RETENTION__KEEP", "forever")
        .start()
        .await;
    let of_before = work(&provost, &remote, None).await;
    provost.terminate();
    assert!(provost.ended().await.success());
    server.sql(&fill()).await;
    provost.restart().await;
    work(&provost, &remote, Some(&of_before)).await;
    provost.terminate();
    assert!(provost.ended().await.success());

    let plans = plans(&server.log());
    for part in [
        "INSERT INTO history",
        "FROM steps\nCROSS JOIN LATERAL",
        "FROM task_details",
        "UPDATE steps SET queued",
    ] {
        let seen = plans
            .iter()
            .filter(|(statement, _)| statement.contains(part));
        assert!(seen.count() > 0, "no statement with {part:?} was planned");
    }
    let wrong: BTreeSet<_> = plans
        .iter()
        .flat_map(|(statement, plan)| {
            faults(plan, "")
                .into_iter()
                .map(move |fault| (fault, statement))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

//! The gauges of tasks that have ended, which may be very many.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::{
    backlog::{explaining, plans_of},
    harness::{Act, Database, Provost, Remote, one_step},
};

/// Returns what `provost_tasks` shows for the states of ended tasks.
async fn shown(provost: &Provost) -> BTreeMap<String, u64> {
    let metrics = provost.get("/metrics").await.expect(200);
    let lines = metrics.as_str().unwrap().lines();
    let lines = lines.filter_map(|line| line.strip_prefix("provost_tasks{state=\""));
    let gauges = lines.map(|line| line.split_once("\"} ").unwrap());
    gauges
        .filter(|(state, _)| ["processed", "undone", "cancelled"].contains(state))
        .map(|(state, count)| (state.to_owned(), count.parse().unwrap()))
        .collect()
}

fn all(processed: u64, undone: u64, cancelled: u64) -> BTreeMap<String, u64> {
    let all = [
        ("processed", processed),
        ("undone", undone),
        ("cancelled", cancelled),
    ];
    all.map(|(state, count)| (state.to_owned(), count)).into()
}

/// Waits for a count. After each page it rests for 99 times as long as that has taken, so a slow machine takes as many times
/// longer: nothing but the limit of the test ends the wait.
async fn until_shown(provost: &Provost, wanted: BTreeMap<String, u64>) {
    while shown(provost).await != wanted {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn tasks_that_end_are_shown_in_the_metrics_by_how_they_ended() {
    let remote = Remote::with(|seen| match seen.path.as_str() {
        "/work" => Act::Ok(json!("done")),
        _ => Act::status(402),
    })
    .await;
    let provost = Provost::start().await;
    until_shown(&provost, all(0, 0, 0)).await;
    for _ in 0..5 {
        provost.run(&one_step(&remote.url(), "/work")).await;
    }
    for (command, count) in [("undo", 2), ("cancel", 3)] {
        for _ in 0..count {
            let task = provost.run(&one_step(&remote.url(), "/fails")).await;
            let id = task["id"].as_str().unwrap();
            let done = provost.command(&format!("/v1/tasks/{id}/{command}")).await;
            done.expect(200);
        }
    }
    until_shown(&provost, all(5, 2, 3)).await;
}

/// Most tasks are processed, and many have ended at the same time.
const ENDED: &str = "INSERT INTO tasks (id, labels, priority, created_at, version, state, paused, ended_at)
    SELECT gen_random_uuid(), '{}', 0, at, 2,
           CASE WHEN at % 100 = 0 THEN 'undone' WHEN at % 2 = 0 THEN 'cancelled' ELSE 'processed' END,
           false, 1000 + at / 700
    FROM generate_series(1, 30000) AS at";

/// Returns the scans of a table in a plan.
fn scans(plan: &Value) -> Vec<&Value> {
    let parts = plan["Plans"].as_array().into_iter().flatten();
    let mut scans: Vec<_> = parts.flat_map(scans).collect();
    if plan["Relation Name"] == "tasks" {
        scans.push(plan);
    }
    scans
}

#[tokio::test]
async fn ended_tasks_are_counted_in_short_ranges_of_their_indexes_on_postgresql() {
    let server = explaining().await;
    let setup = Provost::setup().database_url(&server.url());
    let provost = setup.set("RETENTION__KEEP", "forever").start().await;
    server.sql(ENDED).await;
    // The first plans use the statistics of an empty table.
    until_shown(&provost, all(15_000, 300, 14_700)).await;
    server.sql("VACUUM ANALYZE tasks").await;
    let before = server.log().len();
    server.sql("DELETE FROM tasks WHERE state = 'undone'").await;
    until_shown(&provost, all(15_000, 0, 14_700)).await;

    let log = server.log();
    let of_counts =
        |log: &str| plans_of(log, |sql| sql.contains("AS count") && sql.contains("tasks"));
    let plans = of_counts(&log);
    assert!(plans.len() > 12, "{} statements", plans.len());
    for plan in &plans {
        for scan in scans(plan) {
            let kind = scan["Node Type"].as_str().unwrap();
            assert!(
                kind == "Index Only Scan" || kind == "Index Scan",
                "{plan:#}"
            );
            assert!(
                scan["Actual Rows"].as_f64().unwrap() <= 10_000.0,
                "{plan:#}"
            );
        }
    }
    // Only the rows that have changed since the vacuum are read from the table itself.
    let vacuumed = of_counts(&log[before..]);
    let full = |plan: &&Value| scans(plan).iter().any(|scan| scan["Actual Rows"] == 10_000);
    assert!(vacuumed.iter().any(|plan| full(&plan)), "{vacuumed:#?}");
    for plan in &vacuumed {
        for scan in scans(plan) {
            assert_eq!(scan["Node Type"], "Index Only Scan", "{plan:#}");
        }
    }
}

#[tokio::test]
async fn ended_tasks_are_counted_by_their_indexes_alone_on_sqlite() {
    let mut provost = Provost::start().await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    for (statement, range) in [
        (
            "EXPLAIN QUERY PLAN
             SELECT ended_at FROM tasks INDEXED BY tasks_ended
             WHERE ended_at IS NOT NULL AND ended_at >= 1 ORDER BY ended_at LIMIT 10000",
            "SEARCH tasks USING COVERING INDEX tasks_ended (ended_at>?)",
        ),
        (
            "EXPLAIN QUERY PLAN
             SELECT id FROM tasks INDEXED BY tasks_by_state
             WHERE state = 'undone' AND state <> 'processed' AND id > x'00' ORDER BY id LIMIT 10000",
            "SEARCH tasks USING COVERING INDEX tasks_by_state (state=? AND id>?)",
        ),
    ] {
        assert_eq!(database.plan(statement), range);
    }
}

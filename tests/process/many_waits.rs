//! Many tasks wait at once: for the end of a wait, and for their begin. Their rows are inserted as copies of those of
//! two tasks. `PROVOST_TEST_WAITS=500000` makes half a million of each.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Api, Database, Provost, Remote, all_processed, one_step, until};

const MEASURED: usize = 60;
/// The number of tasks of each kind that are due when the instance starts.
const DUE: usize = 1000;
const MIB: u64 = 1 << 20;

fn waits() -> usize {
    let given = std::env::var("PROVOST_TEST_WAITS").ok();
    given.map_or(20_000, |waits| {
        waits.parse().expect("PROVOST_TEST_WAITS is a number")
    })
}

/// Makes `count` copies of the task with this key.
fn copy(database: &Database, key: &str, letter: char, count: usize) {
    for (table, id) in [
        ("tasks", "id"),
        ("task_details", "task_id"),
        ("steps", "task_id"),
        ("history", "task_id"),
    ] {
        let columns = database.columns(table);
        let columns = columns.iter().filter(|column| *column != "seq");
        let columns: Vec<_> = columns.map(String::as_str).collect();
        let values = columns.iter().map(|column| match *column {
            column if column == id => {
                format!("unhex(printf('019{letter}0000000070008000%012x', n))")
            }
            "key" => "NULL".to_owned(),
            other => format!("source.\"{other}\""),
        });
        let values: Vec<_> = values.collect();
        database.execute(&format!(
            "INSERT INTO {table} (\"{}\")
             WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
             SELECT {} FROM numbers CROSS JOIN {table} AS source
             WHERE source.{id} = (SELECT id FROM tasks WHERE \"key\" = '{key}')",
            columns.join("\", \""),
            values.join(", ")
        ));
    }
}

async fn took(api: &Api, submission: &Value) -> Duration {
    let began = Instant::now();
    let task = api
        .post("/v1/tasks", submission)
        .header("prefer", "wait=60");
    assert_eq!(task.await.expect(200)["state"], "processed");
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn pending_of(api: &Api, state: &str) -> usize {
    let page = api.get(&format!("/v1/tasks?state={state}&limit=5")).await;
    page.expect(200)["items"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_wait_cost_no_memory_no_time_and_no_other_task_anything() {
    let count = waits();
    let remote = Remote::quick().await;
    let setup = Provost::setup().set("SUPERVISOR__INTERVAL", "1s");
    let fresh = setup.clone().start().await;
    let mut full = setup.start().await;
    let wait = |far: &str| {
        json!({ "key": far, "steps": [
            { "name": "pause", "wait": { "for": "300d" } }, { "name": "last", "url": remote.url() } ] })
    };
    full.submit(&wait("waits")).await;
    let mut later = one_step(&remote.url(), "/later");
    later["key"] = json!("later");
    later["start_at"] =
        json!((jiff::Timestamp::now() + Duration::from_secs(86_400 * 300)).to_string());
    full.submit(&later).await;
    until(1.0, async || {
        full.metric("provost_steps_waiting_for_event").await
    })
    .await;
    full.terminate();
    assert!(full.ended().await.success());
    let filled = Instant::now();
    let database = Database::open(&full.database());
    database.execute("PRAGMA synchronous = off; PRAGMA cache_size = -200000; BEGIN");
    copy(&database, "waits", 'a', count);
    copy(&database, "later", 'b', count);
    database.execute(&format!(
        "UPDATE steps SET complete_by = 1 WHERE task_id IN
             (SELECT task_id FROM steps WHERE state = 'processing' AND agent = '' ORDER BY task_id DESC LIMIT {DUE});
         UPDATE tasks SET overdue_at = 1, start_at = 1 WHERE id IN
             (SELECT id FROM tasks WHERE overdue_at IS NOT NULL ORDER BY id DESC LIMIT {DUE});
         COMMIT; PRAGMA wal_checkpoint(TRUNCATE)"
    ));
    for look in [
        "SELECT complete_by FROM steps WHERE state = 'processing' AND agent = '' ORDER BY complete_by LIMIT 1",
        "SELECT overdue_at FROM tasks WHERE overdue_at IS NOT NULL ORDER BY overdue_at LIMIT 1",
    ] {
        let plan = database.plan(&format!("EXPLAIN QUERY PLAN {look}"));
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
        assert!(
            plan.contains("steps_waits") || plan.contains("tasks_overdue"),
            "{plan}"
        );
    }
    drop(database);
    println!("{count} of each were inserted in {:?}", filled.elapsed());
    let started = Instant::now();
    full.restart().await;
    println!("ready after {:?}", started.elapsed());
    // Only the tasks that are due end.
    until(2 * DUE, async || {
        let calls = remote.count();
        assert!(calls <= 2 * DUE, "{calls} calls");
        calls
    })
    .await;
    println!("those that were due ended after {:?}", started.elapsed());
    let submission = one_step(&remote.url(), "/work");
    let mut soon = Vec::new();
    for _ in 0..20 {
        let wait = json!({ "steps": [{ "name": "pause", "wait": { "for": "2s" } }] });
        soon.push(full.submit(&wait).await);
        let mut task = submission.clone();
        task["start_at"] = json!((jiff::Timestamp::now() + Duration::from_secs(2)).to_string());
        soon.push(full.submit(&task).await);
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..MEASURED {
        with.push(took(&full, &submission).await);
        without.push(took(&fresh, &submission).await);
    }
    let (with, without) = (median(with), median(without));
    println!("median with tasks that wait {with:?}, without {without:?}");
    assert!(with < without * 3, "with {with:?}, without {without:?}");
    all_processed(full.api(), &soon).await;
    assert!(pending_of(&full, "pending").await > 0);
    // Both instances are idle for the same time.
    let cpu = || (full.cpu_time(), fresh.cpu_time());
    let before = cpu();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let after = cpu();
    if let ((Some(full_before), Some(fresh_before)), (Some(full_after), Some(fresh_after))) =
        (before, after)
    {
        let (full, fresh) = (full_after - full_before, fresh_after - fresh_before);
        println!("idle for 8 s: {full:?} of a processor, without {fresh:?}");
        assert!(
            full < fresh * 4 + Duration::from_millis(800),
            "{full:?}, without {fresh:?}"
        );
    }
    if let (Some(full), Some(fresh)) = (full.peak_memory(), fresh.peak_memory()) {
        println!("peak {} MiB, without {} MiB", full / MIB, fresh / MIB);
        assert!(full < fresh + 100 * MIB, "{full}, without {fresh}");
    }
}

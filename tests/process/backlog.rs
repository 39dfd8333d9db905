//! The queue of an agent that never responds grows without limit. The cost of the requests of callers must not grow
//! with it.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::time::{sleep, timeout};

use crate::{
    cluster,
    harness::{Act, Database, PATIENCE, Postgres, Provost, Remote, one_step, sql, until_messages},
};

/// The largest number to which a queue is counted.
const MOST_AHEAD: u64 = 1000;

/// Returns a task that has `steps` steps in the agent's queue at once.
fn parallel(agent: &str, steps: usize) -> Value {
    let steps = (0..steps)
        .map(|number| json!({ "name": format!("s{number}"), "agent": agent, "after": [] }));
    json!({ "steps": steps.collect::<Vec<_>>() })
}

/// Returns a Provost whose agent `dead` has a call in flight and never responds.
async fn with_dead_agent(setup: crate::harness::Setup) -> (Provost, Remote) {
    let remote = Remote::script([Act::Hang]).await;
    let provost = setup.start().await;
    provost.register("dead", &remote.url(), 1).await;
    provost.submit(&parallel("dead", 1)).await;
    remote.requests(1).await;
    (provost, remote)
}

/// Returns the field `ahead` of each step, and whether it is a lower bound.
fn places(task: &Value) -> Vec<(Option<u64>, bool)> {
    let steps = task["steps"].as_array().unwrap().iter();
    let places = steps.map(|step| {
        let blocked = &step["blocked_by"];
        assert_eq!(blocked["reason"], "capacity", "{step:#}");
        let at_least = blocked["ahead_is_at_least"].as_bool().unwrap();
        (blocked["ahead"].as_u64(), at_least)
    });
    places.collect()
}

async fn counts_up_to_a_bound(provost: &Provost) {
    let exact = |from: u64, count: u64| {
        let places = from..from + count;
        places.map(|place| (Some(place), false)).collect::<Vec<_>>()
    };
    let first = provost.submit(&parallel("dead", 500)).await;
    let second = provost.submit(&parallel("dead", 500)).await;
    assert_eq!(places(&provost.task(&first).await), exact(0, 500));
    assert_eq!(places(&provost.task(&second).await), exact(500, 500));
    let third = provost.submit(&parallel("dead", 200)).await;
    let last = provost.post("/v1/tasks", &parallel("dead", 1)).await;
    let last = last.expect(202);
    // The responses to submissions and commands contain no count.
    assert_eq!(places(&last), [(None, false)]);
    let at = format!("/v1/tasks/{}", last["id"].as_str().unwrap());
    provost.command(&format!("{at}/pause")).await.expect(200);
    let resumed = provost.command(&format!("{at}/resume")).await.expect(200);
    assert_eq!(places(&resumed), [(None, false)]);
    let last = provost.get(&at).await.expect(200);
    assert_eq!(places(&last), [(Some(MOST_AHEAD), true)]);
    let task = provost.task(&third).await;
    assert!(
        places(&task).iter().all(|(ahead, at_least)| {
            ahead.is_some_and(|ahead| ahead >= MOST_AHEAD) && *at_least
        })
    );
    let mut urgent = parallel("dead", 2);
    urgent["priority"] = json!(5);
    let urgent = provost.submit(&urgent).await;
    assert_eq!(places(&provost.task(&urgent).await), exact(0, 2));
}

#[tokio::test]
async fn the_place_in_a_queue_is_counted_up_to_a_bound_and_only_where_one_task_is_read() {
    let (provost, _remote) = with_dead_agent(Provost::setup()).await;
    counts_up_to_a_bound(&provost).await;
}

#[tokio::test]
async fn the_place_in_a_queue_is_counted_up_to_a_bound_on_postgresql() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let setup = Provost::setup().database_url(&url.unwrap());
    let (provost, _remote) = with_dead_agent(setup).await;
    counts_up_to_a_bound(&provost).await;
}

#[tokio::test]
async fn of_many_queues_that_one_task_waits_in_the_first_four_are_counted() {
    let remote = Remote::script([Act::Hang]).await;
    let provost = Provost::start().await;
    let agents: Vec<String> = (0..6).map(|number| format!("dead-{number}")).collect();
    for agent in &agents {
        provost.register(agent, &remote.url(), 1).await;
    }
    let steps = agents.iter();
    let steps = steps.map(|agent| json!({ "name": agent, "agent": agent, "after": [] }));
    let task = json!({ "steps": steps.collect::<Vec<_>>() });
    provost.submit(&task).await;
    remote.requests(6).await;
    provost.submit(&task).await;
    let last = provost.submit(&task).await;
    let counted = (Some(1), false);
    let left = (None, false);
    assert_eq!(
        places(&provost.task(&last).await),
        [counted, counted, counted, counted, left, left]
    );
}

/// Checks the two halves of the count, on a file that has a queue.
#[tokio::test]
async fn the_count_of_a_queue_is_ranges_of_its_index() {
    let (mut provost, _remote) = with_dead_agent(Provost::setup()).await;
    provost.submit(&parallel("dead", 10)).await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    let plan = database
        .plan(
            "EXPLAIN QUERY PLAN
             SELECT count(*) AS count FROM (
                 SELECT 1 FROM steps INDEXED BY steps_line
                 WHERE agent = 'dead' AND due_at IS NOT NULL AND queued = 1 AND lane = '' AND turn < 0
                 UNION ALL
                 SELECT 1 FROM steps INDEXED BY steps_line
                 WHERE agent = 'dead' AND due_at IS NOT NULL AND queued = 1 AND lane = '' AND turn = 0 AND task_id < x'01'
                 LIMIT 1000) AS ahead",
        );
    for range in [
        "steps_line (agent=? AND lane=? AND turn<?)",
        "steps_line (agent=? AND lane=? AND turn=? AND task_id<?)",
    ] {
        assert!(plan.contains(range), "{plan}");
    }
    assert!(!plan.contains("TEMP B-TREE"), "{plan}");
}

/// Inserts steps in the queue of the agent, which cannot be claimed.
fn queued(count: u32) -> String {
    format!(
        "INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, ready_at,
                            due_at, queued)
         SELECT gen_random_uuid(), 0, 'step', 'dead', at % 3 - 1, 'pending', 0, 0, 0, 1, 1, 1
         FROM generate_series(1, {count}) AS at"
    )
}

/// Returns the plans of some statements in a server's log. One that the server is still writing is left out.
pub fn plans_of(log: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Value> {
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
        let told: Value = match serde_json::from_str(&text) {
            Err(error) if error.is_eof() && lines.peek().is_none() => break,
            told => told.unwrap(),
        };
        if is_wanted(told["Query Text"].as_str().unwrap()) {
            let mut plan = told["Plan"].clone();
            plan["Query Text"] = told["Query Text"].clone();
            plans.push(plan);
        }
    }
    plans
}

/// Returns the number of rows that were read from the table or an index of it, used or not.
pub fn rows_read(plan: &Value) -> f64 {
    let parts = plan["Plans"].as_array().into_iter().flatten();
    let of_parts: f64 = parts.map(rows_read).sum();
    let number = |name: &str| plan[name].as_f64().unwrap_or_default();
    let is_read = plan["Node Type"].as_str().unwrap().contains("Scan");
    let own = match is_read && !plan["Node Type"].as_str().unwrap().starts_with("Subquery") {
        true => {
            let rows = number("Actual Rows")
                + number("Rows Removed by Filter")
                + number("Rows Removed by Index Recheck");
            rows * number("Actual Loops")
        }
        false => 0.0,
    };
    of_parts + own
}

/// Starts a server that logs the plan of each statement, and collects statistics only when the test does.
pub async fn explaining() -> Postgres {
    let server = Postgres::start().await;
    for setting in [
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_analyze = on",
        "auto_explain.log_timing = off",
        "auto_explain.log_format = 'json'",
    ] {
        let setting = format!("ALTER ROLE provost SET {setting}");
        server.sql(&setting).await;
    }
    server.sql("ALTER SYSTEM SET autovacuum = off").await;
    server.sql("SELECT pg_reload_conf()").await;
    server
}

#[tokio::test]
async fn postgresql_reads_no_more_of_a_queue_than_is_counted_whatever_it_believes_of_it() {
    let server = explaining().await;
    let (provost, _remote) = with_dead_agent(Provost::setup().database_url(&server.url())).await;
    let mut reads = 0;
    // The statistics are missing, then those of a small queue, then of a large one, and then of one without steps of
    // this agent.
    for statement in [
        "SELECT 1",
        &queued(2_000),
        "ANALYZE",
        &queued(40_000),
        "ANALYZE",
        "UPDATE steps SET agent = 'other' WHERE agent = 'dead' AND state = 'pending'",
        "ANALYZE",
        &queued(40_000),
    ] {
        server.sql(statement).await;
        let id = provost.submit(&parallel("dead", 3)).await;
        provost.task(&id).await;
        reads += 1;
    }
    let plans = plans_of(&server.log(), |sql| sql.contains(") AS ahead"));
    assert_eq!(plans.len(), reads, "counted where one task was read alone");
    for plan in &plans {
        assert!(rows_read(plan) <= MOST_AHEAD as f64, "{plan:#}");
    }
    assert!(
        plans
            .iter()
            .any(|plan| rows_read(plan) == MOST_AHEAD as f64)
    );
}

/// Inserts forty messages for each of a thousand receivers that fail, and whose next probe is far in the future.
const DEAD_RECEIVERS: &str = r#"
WITH failing AS (
    INSERT INTO destinations (destination, receiver, failures, failing_since, changed_at, paused_until, next_at)
    SELECT 'http://dead/' || at, 'http://dead:80', 9, 1, 1, 9999999999999, 9999999999999
    FROM generate_series(1, 1000) AS at),
waiting AS (
    INSERT INTO queues (receiver, subject, destination, due_at, waits_since, tries, waiting)
    SELECT 'http://dead:80', gen_random_uuid(), 'http://dead/' || 1 + at % 1000, 1, 1, 0, 1
    FROM generate_series(1, 40000) AS at
    RETURNING subject)
INSERT INTO messages (id, receiver, subject, place, kind, body, created_at, state, tries)
SELECT gen_random_uuid(), 'http://dead:80', subject, 1, 'task.accepted', '{}', 1, 'pending', 0 FROM waiting"#;

#[tokio::test]
async fn a_message_costs_the_same_whatever_waits_for_receivers_that_fail() {
    let server = explaining().await;
    let service = Remote::quick().await;
    let shop =
        Remote::with(|seen| Act::status(if seen.path == "/fails" { 503 } else { 204 })).await;
    let setup = Provost::setup().set("COURIER__GIVE_UP_AFTER", "300ms");
    let provost = setup.database_url(&server.url()).start().await;
    let (mut told, mut given_up) = (0, 0);
    // The statistics are missing, then those of empty tables, and then those of all rows.
    for statement in ["SELECT 1", "ANALYZE", DEAD_RECEIVERS, "ANALYZE"] {
        server.sql(statement).await;
        for (path, count) in [("/taken", 8), ("/fails", 4)] {
            for _ in 0..count {
                let mut task = one_step(&service.url(), "/work");
                let url = format!("{}{path}", shop.url());
                task["reply_to"] = json!({ "url": url, "events": ["task.accepted"] });
                provost.submit(&task).await;
            }
        }
        told += 8;
        given_up += 4;
        shop.paths("/taken", told).await;
        until_messages(&provost, "dead", given_up).await;
    }
    let is_of_courier = |sql: &str| {
        let sql = sql.trim_start();
        let is_of_queues = sql.contains("queues") || sql.contains("destinations");
        // Lists are ordered by the newest first, and only the test requests them.
        is_of_queues && !sql.starts_with("WITH failing") && !sql.contains("AS first")
            || sql.starts_with("UPDATE messages")
    };
    let plans = plans_of(&server.log(), is_of_courier);
    assert!(plans.len() > 100, "{} statements", plans.len());
    for plan in &plans {
        assert!(rows_read(plan) <= 3000.0, "{plan:#}");
    }
}

#[tokio::test]
async fn a_scrape_does_not_wait_until_everything_is_counted() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let url = url.unwrap();
    let provost = Provost::setup().database_url(&url).start().await;
    provost.get("/metrics").await.expect(200);
    let mut database = PgConnection::connect(&url).await.unwrap();
    for statement in ["BEGIN", "LOCK TABLE alerts IN ACCESS EXCLUSIVE MODE"] {
        sqlx::query(statement).execute(&mut database).await.unwrap();
    }
    // The connection is a separate one, because within a transaction the server shows the same moment again and again.
    let mut onlooker = PgConnection::connect(&url).await.unwrap();
    const COUNTS: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM alerts%GROUP BY kind%'";
    let answered_meanwhile = async {
        loop {
            let text = provost.get("/metrics").await.expect(200);
            assert!(text.as_str().unwrap().contains("provost_steps"), "{text}");
            let counting: i64 = sqlx::query_scalar(COUNTS)
                .fetch_one(&mut onlooker)
                .await
                .unwrap();
            if counting > 0 {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let answered = timeout(PATIENCE, answered_meanwhile).await;
    assert!(answered.is_ok(), "no scrape was answered during a count");
}

#[tokio::test]
async fn a_backlog_that_comes_due_at_once_joins_its_queue_in_parts() {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    let url = url.unwrap();
    let remote = Remote::quick().await;
    let provost = Provost::setup().database_url(&url).start().await;
    let run = |statement: &str| {
        let (url, statement) = (url.clone(), statement.to_owned());
        tokio::task::spawn_blocking(move || sql(&url, &statement))
    };
    run("CREATE TABLE joined (transaction xid8);
         CREATE FUNCTION note_joined() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO joined VALUES (pg_current_xact_id()); RETURN NULL; END $$;
         CREATE TRIGGER note_joined AFTER UPDATE OF queued ON steps FOR EACH ROW
         WHEN (OLD.queued = 0 AND NEW.queued = 1) EXECUTE FUNCTION note_joined();")
    .await
    .unwrap();
    // A step enters the queue under the lock of its task, so each step has a task.
    run("WITH owners AS (
             INSERT INTO tasks (id, labels, priority, created_at, version, state, paused)
             SELECT gen_random_uuid(), '{}', 0, 1, 1, 'pending', false FROM generate_series(1, 2500) RETURNING id)
         INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, ready_at,
                            due_at, queued)
         SELECT id, 0, 'step', 'dead', 0, 'pending', 0, 0, 0, 1, 1, 0 FROM owners")
    .await
    .unwrap();
    let all = async {
        while run("SELECT count(*) FROM joined").await.unwrap() != "2500" {
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(PATIENCE, all).await.is_ok(), "not all have joined");
    let most = run(
        "SELECT max(steps) FROM (SELECT count(*) AS steps FROM joined GROUP BY transaction::text) AS one",
    );
    let most: u32 = most.await.unwrap().parse().unwrap();
    assert!(most <= 1000, "{most} in one transaction");
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(task["state"], "processed");
}

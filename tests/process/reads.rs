//! The cost of reads in a database of many tasks, in rows: no list, count, cause or page of the console reads through a
//! table. `PROVOST_TEST_TASKS=5000000` makes more of them: see `scripts/test-reads`.

use serde_json::{Value, json};

use crate::{
    backlog::{explaining, plans_of, rows_read},
    harness::{Act, Api, Database, Postgres, Provost, Remote, Setup, id_of},
};

/// The most tasks that a page examines, and the most that one search of it does.
const MOST_EXAMINED: usize = 10_000;
/// The most rows that a request reads: its page examines tasks, tests up to three conditions of each by their keys, and finds
/// the last of those that it examined.
const MOST_ROWS: f64 = 5.5 * MOST_EXAMINED as f64;
/// The most instructions of SQLite's virtual machine for a request. It takes dozens to examine a task.
const MOST_INSTRUCTIONS: f64 = 150.0 * MOST_EXAMINED as f64;

fn tasks() -> usize {
    match std::env::var("PROVOST_TEST_TASKS") {
        Ok(tasks) => tasks.parse().expect("PROVOST_TEST_TASKS is a number"),
        Err(_) => 300_000,
    }
}

/// The time of the first task, in milliseconds. A tenth of a second passes from one to the next.
const FIRST: u64 = 1_700_000_000_000;

/// Returns the statements that add tasks. Every second task has failed like the one of workflow `import` that the service
/// has on record; the others are processed, and of workflow `order`, of which the service has three failures on record.
/// The oldest task has an agent and a label of its own.
fn fill(series: &str, id: &str) -> [String; 6] {
    let is_failed = "at % 2 = 1";
    [
        format!(
            "INSERT INTO tasks (id, \"key\", workflow, workflow_version, labels, priority, created_at, version, state, paused, untouched, agents)
             SELECT {id}, 'key-' || at, CASE WHEN {is_failed} THEN 'import' ELSE 'order' END, 1, '{{}}', 0, {FIRST} + at * 100, 1,
                    CASE WHEN {is_failed} THEN 'error' ELSE 'processed' END, false, 0, '{{}}'
             FROM {series}"
        ),
        format!(
            "INSERT INTO task_details (task_id, input, layout)
             SELECT {id}, known.input, known.layout
             FROM {series} CROSS JOIN (SELECT input, layout FROM task_details LIMIT 1) AS known"
        ),
        format!(
            "INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, queued)
             SELECT {id}, 0, 'one', CASE WHEN at = 1 THEN 'rare' ELSE 'often' END, 0,
                    CASE WHEN {is_failed} THEN 'error' ELSE 'processed' END, 1, 0, 0, 0
             FROM {series}"
        ),
        format!(
            "INSERT INTO task_labels (label, value, task_id)
             SELECT 'region', CASE WHEN at = 1 THEN 'us' ELSE 'eu' END, {id} FROM {series}"
        ),
        format!(
            "INSERT INTO alerts (id, task_id, idx, step, kind, message, state, raised_at, part_of, fingerprint)
             SELECT {id}, {id}, 0, 'one', 'task.error', 'no label', 'open', {FIRST} + at * 100, known.part_of, known.fingerprint
             FROM {series} CROSS JOIN (SELECT part_of, fingerprint FROM alerts WHERE part_of IS NOT NULL AND message LIKE '%import%' LIMIT 1) AS known
             WHERE {is_failed}"
        ),
        format!(
            "INSERT INTO attempts (task_id, idx, attempt, ended_at, succeeded, bytes, record)
             SELECT {id}, 0, 1, {FIRST} + at * 100, 0, 1, known.record
             FROM {series} CROSS JOIN (SELECT record FROM attempts LIMIT 1) AS known
             WHERE {is_failed}"
        ),
    ]
}

/// Starts a service, and has four tasks fail: three of one workflow, and one of another.
async fn with_failures(setup: Setup) -> (Provost, Remote, Vec<String>) {
    let remote = Remote::with(|seen| Act::answer(409, &[], &seen.path)).await;
    let setup = setup.set("RETENTION__KEEP", "forever");
    let provost = setup
        .set(
            "LOG",
            "warn,provost::service=info,provost::store::sqlite::rows=trace",
        )
        .start()
        .await;
    provost.register("often", &remote.url(), 64).await;
    let mut failed = Vec::new();
    for (workflow, count) in [("order", 3), ("import", 1)] {
        let request = json!({ "path": format!("/{workflow}") });
        let steps = json!([{ "name": "one", "agent": "often", "request": request }]);
        let path = format!("/v1/workflows/{workflow}");
        provost
            .put(&path, &json!({ "steps": steps }))
            .await
            .expect(201);
        for _ in 0..count {
            failed.push(id_of(&provost.run(&json!({ "workflow": workflow })).await));
        }
    }
    (provost, remote, failed)
}

/// Returns what is read: lists with each filter and every two of them, counts, causes, and pages of the console.
async fn paths(provost: &Api, failed: &[String]) -> Vec<String> {
    let causes = provost.get("/v1/failures").await.expect(200)["items"].clone();
    let causes = causes.as_array().unwrap().clone();
    assert_eq!(causes.len(), 2, "{causes:#?}");
    let alert = causes[0]["alert"].as_str().unwrap().to_owned();
    let cause = causes[0]["fingerprint"].as_str().unwrap().to_owned();
    let middle = "2023-11-15T02:23:20Z";
    let mut filters = vec![
        ("key", format!("key=key-{}", tasks() / 3)),
        ("key", "key=unknown".to_owned()),
        ("created_after", format!("created_after={middle}")),
        ("created_before", format!("created_before={middle}")),
        (
            "created_before",
            "created_before=2023-11-14T22:13:20.100Z".to_owned(),
        ),
        ("text", "text=nothing".to_owned()),
        ("alert", format!("alert={alert}")),
        ("cause", format!("cause={cause}")),
        ("parent", format!("parent={}", failed[0])),
        ("at_risk", "at_risk=true".to_owned()),
    ];
    let named = [
        ("state", ["processed", "error", "cancelled"]),
        ("workflow", ["order", "import", "unknown"]),
        ("agent", ["often", "rare", "unknown"]),
        ("label", ["region:eu", "region:us", "region:unknown"]),
    ];
    for (name, values) in named {
        filters.extend(values.map(|value| (name, format!("{name}={value}"))));
    }
    let mut paths = vec!["/v1/tasks".to_owned()];
    for (at, (name, filter)) in filters.iter().enumerate() {
        paths.push(format!("/v1/tasks?{filter}"));
        let others = filters[at + 1..].iter().filter(|(other, _)| name != other);
        paths.extend(others.map(|(_, other)| format!("/v1/tasks?{filter}&{other}")));
    }
    let (a, b) = (&failed[0], &failed[3]);
    for path in [
        "/v1/overview",
        "/v1/failures",
        "/v1/alerts",
        "/v1/alerts?state=open",
        "/v1/messages",
        "/v1/messages?state=dead",
        "/v1/asks",
        "/v1/agents",
        "/v1/workflows",
        "/v1/instances",
        "/v1/schedules",
        "/v1/bulk",
        "/v1/events",
        "/v1/changes",
        "/console",
        "/console/tasks",
        "/console/tasks?state=error&workflow=order",
        "/console/find?q=nothing",
        "/console/asks",
        "/console/alerts?state=open",
        "/console/messages",
        "/console/changes",
        "/console/agents",
        "/console/agents/often",
        "/console/workflows",
        "/console/workflows/order",
        "/console/schedules",
        "/console/bulk",
        "/console/instances",
    ] {
        paths.push(path.to_owned());
    }
    for path in [
        format!("/v1/failures/{cause}"),
        format!("/v1/alerts?task={a}"),
        format!("/v1/tasks/{a}"),
        format!("/v1/tasks/{a}/steps"),
        format!("/v1/tasks/{a}/history"),
        format!("/v1/tasks/{a}/undo-plan"),
        format!("/v1/tasks/{a}/steps/one/attempts"),
        format!("/v1/tasks/{a}/diff/{b}"),
        format!("/console/causes/{cause}"),
        format!("/console/tasks/{a}"),
        format!("/console/tasks/{a}?compare={b}"),
        format!("/console/tasks/fix?cause={cause}&do=retry"),
    ] {
        paths.push(path);
    }
    paths
}

/// Returns whether a statement is one of a loop of the service, which counts for the metrics or for alerts now and then.
fn is_of_loop(sql: &str) -> bool {
    let beginnings = [
        "SELECT state, count(*) AS count",
        "SELECT agent, count(*) AS count",
        "SELECT kind, count(CASE",
        "SELECT CAST((",
        "SELECT count(*) AS count FROM (\n    SELECT 1 AS one FROM alerts",
        "SELECT 'failing' AS kind, destination",
        "SELECT receiver FROM alerts",
        "SELECT 1 AS one\nWHERE (SELECT overdue_at",
    ];
    let sql = sql.trim_start();
    beginnings
        .iter()
        .any(|beginning| sql.starts_with(beginning))
}

/// Statements with the rows, or the instructions, that each of them took.
type Reads = Vec<(String, f64)>;

/// Requests each path. Fails with those that read more than this, and the statement that has read most of it.
async fn assert_bounded(
    provost: &Api,
    paths: &[String],
    most: f64,
    mut reads_since_last: impl FnMut() -> Reads,
) {
    let mut over = Vec::new();
    reads_since_last();
    for path in paths {
        let answer = provost.get(path).await;
        assert!(answer.status < 400, "{path}: {:#}", answer.body);
        let reads = reads_since_last();
        let sum: f64 = reads.iter().map(|(_, cost)| cost).sum();
        let greatest = reads
            .iter()
            .max_by(|(_, one), (_, other)| one.total_cmp(other));
        // The preview of a command counts up to 100,000 tasks.
        let most = if path.contains("/fix?") {
            most * 10.0
        } else {
            most
        };
        if sum > most {
            over.push(format!("{path} read {sum}, most of it by {greatest:?}"));
        }
    }
    let count = paths.len();
    assert!(
        over.is_empty(),
        "{} of {count} read more than {most}: {over:#?}",
        over.len()
    );
}

#[tokio::test]
async fn on_sqlite_no_page_reads_through_a_table() {
    let (mut provost, _remote, failed) = with_failures(Provost::setup()).await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    let count = tasks();
    let series = format!(
        "(WITH RECURSIVE series (at) AS (SELECT 1 UNION ALL SELECT at + 1 FROM series WHERE at < {count}) \
         SELECT at FROM series)"
    );
    let id = format!("unhex(printf('%012x70008000%012x', {FIRST} + at * 100, at))");
    for statement in fill(&series, &id) {
        database.execute(&statement);
    }
    drop(database);
    provost.restart().await;
    let paths = paths(&provost, &failed).await;
    let mut seen = 0;
    assert_bounded(&provost, &paths, MOST_INSTRUCTIONS, || {
        let log = provost.log();
        let lines = log
            .lines()
            .skip(std::mem::replace(&mut seen, log.lines().count()));
        let reads = lines.filter(|line| line.contains("\"instructions\""));
        let reads = reads.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let read = |read: Value| {
            let sql = read["sql"].as_str().unwrap().to_owned();
            (sql, read["instructions"].as_f64().unwrap())
        };
        let reads = reads.map(read);
        reads.filter(|(sql, _)| !is_of_loop(sql)).collect()
    })
    .await;
}

async fn fill_postgres(server: &Postgres) {
    let id = format!(
        "(lpad(to_hex({FIRST} + at * 100), 12, '0') || '70008000' || lpad(to_hex(at), 12, '0'))::uuid"
    );
    let series = format!("generate_series(1, {}::bigint) AS at", tasks());
    // The statements are one transaction, because the service must not clean up incomplete data.
    server.sql(&fill(&series, &id).join("; ")).await;
}

#[tokio::test]
async fn on_postgresql_no_page_reads_through_a_table_whatever_is_believed_of_it() {
    let server = explaining().await;
    let setup = Provost::setup().database_url(&server.url());
    let (provost, _remote, failed) = with_failures(setup).await;
    fill_postgres(&server).await;
    let paths = paths(&provost, &failed).await;
    // The statistics are missing at first. Then they are there, but nothing says which pages an index covers alone.
    for statement in ["SELECT 1", "ANALYZE"] {
        server.sql(statement).await;
        let mut seen = server.log_length();
        assert_bounded(&provost, &paths, MOST_ROWS, || {
            let log = server.log_from(seen);
            seen += log.len() as u64;
            plans_of(&log, |sql| !is_of_loop(sql))
                .iter()
                .map(|plan| (plan["Query Text"].to_string(), rows_read(plan)))
                .collect()
        })
        .await;
    }
}

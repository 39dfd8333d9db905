//! No page, list or count of the API and of the console reads more of a database because it is full: with 300,000 tasks, what
//! each request reads is counted, not timed. SQLite counts instructions, and PostgreSQL the rows of its plans.
//! PROVOST_TEST_MANY_TASKS sets another number of tasks.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::harness::{Act, Api, Database, Postgres, Provost, Remote, step};

/// The parts of the tasks that are copies of each of the templates, in thousandths.
const SHARES: [(&str, u64); 4] = [
    ("processed", 900),
    ("refused", 60),
    ("missing", 20),
    ("awaiting", 20),
];

/// The instructions of SQLite that one request may take: a few for each row that it reads, of which a capped count has 1,001.
const MOST_INSTRUCTIONS: u64 = 400_000;
/// The rows that one request may visit without an index: those of tables that do not grow.
const MOST_SCANNED: u64 = 2_000;
/// The rows that the plans of one request may read on PostgreSQL.
const MOST_ROWS: u64 = 30_000;

/// The tables with rows of tasks, each with the column that has the id.
const OF_TASKS: [(&str, &str); 7] = [
    ("tasks", "id"),
    ("task_details", "task_id"),
    ("steps", "task_id"),
    ("history", "task_id"),
    ("task_labels", "task_id"),
    ("attempts", "task_id"),
    ("alerts", "task_id"),
];

fn tasks() -> u64 {
    let number = std::env::var("PROVOST_TEST_MANY_TASKS");
    number.map_or(300_000, |number| number.parse().unwrap())
}

/// A task of each kind, by its name.
async fn templates(provost: &Provost, remote: &Remote) -> Vec<(&'static str, String)> {
    provost.register("shop", &remote.url(), 64).await;
    let mut ids = Vec::new();
    for (name, _) in SHARES {
        let mut steps = json!([{ "name": "charge", "agent": "shop", "request": { "path": format!("/{name}") } }]);
        if name == "awaiting" {
            let wait = json!({ "name": "paid", "signal": { "within": "1h" }, "after": ["charge"] });
            steps.as_array_mut().unwrap().push(wait);
        }
        let path = format!("/v1/workflows/{name}");
        provost
            .put(&path, &json!({ "steps": steps }))
            .await
            .expect(201);
        let submission = json!({
            "workflow": name, "key": format!("order-{name}"), "input": { "order": 17 },
            "labels": { "customer": name, "country": "fi" },
        });
        let id = provost.submit(&submission).await;
        match name {
            "awaiting" => {
                while step(&provost.task(&id).await, "paid")["state"] != "processing" {
                    tokio::task::yield_now().await;
                }
            }
            _ => drop(provost.settled(&id).await),
        }
        ids.push((name, id));
    }
    ids
}

/// The words in which the databases differ.
struct Dialect {
    /// An id as text that is stored in this form.
    id: fn(&str) -> String,
    /// The id of the copy with the number `n`. The copies are older than their templates.
    copy: &'static str,
    random_id: &'static str,
    bytes: &'static str,
}

const SQLITE: Dialect = Dialect {
    id: |id| format!("unhex('{}')", id.replace('-', "")),
    copy: "unhex(printf('%012x70008000%012x', 1700000000000 + n, n))",
    random_id: "randomblob(16)",
    bytes: "id || x'02'",
};

const POSTGRES: Dialect = Dialect {
    id: |id| format!("'{id}'::uuid"),
    copy: "(lpad(to_hex(1700000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid",
    random_id: "gen_random_uuid()",
    bytes: "uuid_send(id) || '\\x02'::bytea",
};

/// Returns the statements that copy the templates until there are as many tasks as wanted.
fn multiply(
    dialect: &Dialect,
    templates: &[(&str, String)],
    columns: impl Fn(&str) -> Vec<String>,
) -> String {
    let mut sql = "CREATE TEMP TABLE copies AS ".to_owned();
    let mut first = 0;
    for ((name, id), (_, share)) in templates.iter().zip(SHARES) {
        let count = tasks() * share / 1000;
        let last = first + count;
        let union = if first == 0 { "" } else { " UNION ALL " };
        write!(
            sql,
            "{union}SELECT {} AS old, {} AS id, n FROM (WITH RECURSIVE numbers(n) AS \
             (SELECT CAST({first} + 1 AS bigint) UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}) SELECT n FROM numbers) AS {name}",
            (dialect.id)(id),
            dialect.copy,
        )
        .unwrap();
        first = last;
    }
    sql.push_str(";\n");
    for (table, key) in OF_TASKS {
        let mut names = columns(table);
        // The database numbers the entries of histories.
        names.retain(|name| name != "seq");
        let values = names.iter().map(|name| match name.as_str() {
            _ if name == key => "copies.id".to_owned(),
            "id" => dialect.random_id.to_owned(),
            "created_at" => format!("{table}.created_at - n"),
            "ended_at" => format!("{table}.ended_at - n"),
            _ => format!("{table}.{name}"),
        });
        let values: Vec<_> = values.collect();
        writeln!(
            sql,
            "INSERT INTO {table} ({}) SELECT {} FROM copies JOIN {table} ON {table}.{key} = copies.old;",
            names.join(", "),
            values.join(", "),
        )
        .unwrap();
    }
    sql
}

fn ledger(dialect: &Dialect, columns: &str, values: &str) -> String {
    format!(
        "INSERT INTO ledger ({columns}) SELECT {values}, {} FROM copies;",
        dialect.bytes
    )
}

/// The requests: all lists and pages, with filters that match many tasks, one or none.
async fn requests(provost: &Api, templates: &[(&str, String)]) -> Vec<String> {
    let failures = provost.get("/v1/failures").await.expect(200);
    let cause = failures["items"][0]["fingerprint"].as_str().unwrap();
    let alerts = provost.get("/v1/alerts?limit=1").await.expect(200);
    let alert = alerts["items"][0]["id"].as_str().unwrap();
    let [(_, processed), (_, refused), ..] = templates else {
        unreachable!("there is a template of each kind")
    };
    let middle = "01700000-0000-7000-8000-000000000000";
    let mut paths: Vec<_> = [
        "/v1/overview",
        "/v1/failures",
        "/v1/failures?workflow=refused",
        "/v1/failures?text=no+money",
        "/v1/alerts",
        "/v1/alerts?state=open",
        "/v1/alerts?state=closed",
        "/v1/asks",
        "/v1/messages",
        "/v1/messages?state=dead",
        "/v1/bulk",
        "/v1/agents",
        "/v1/agents/shop",
        "/v1/workflows",
        "/v1/workflows/refused",
        "/v1/schedules",
        "/v1/instances",
        "/v1/tasks",
        "/v1/tasks?limit=500",
        "/v1/tasks?state=processed",
        "/v1/tasks?state=error",
        "/v1/tasks?state=undone",
        "/v1/tasks?state=error&workflow=missing",
        "/v1/tasks?state=error&workflow=processed",
        "/v1/tasks?state=processing",
        "/v1/tasks?workflow=missing",
        "/v1/tasks?workflow=nothing",
        "/v1/tasks?key=order-refused",
        "/v1/tasks?key=nothing",
        "/v1/tasks?agent=shop&state=error",
        "/v1/tasks?label=customer:missing",
        "/v1/tasks?label=customer:nobody",
        "/v1/tasks?label=customer:missing&label=country:fi",
        "/v1/tasks?at_risk=true",
        "/v1/tasks?created_before=2023-11-14T22:13:25Z",
        "/v1/events",
        "/v1/events?types=task.undone",
        "/v1/events?after=newest",
        "/v1/changes",
        "/v1/changes?types=agent.paused",
        "/metrics",
        "/console",
        "/console/tasks",
        "/console/tasks?state=error",
        "/console/asks",
        "/console/messages",
        "/console/agents",
        "/console/agents/shop",
        "/console/workflows",
        "/console/workflows/refused",
        "/console/schedules",
        "/console/instances",
        "/console/bulk",
        "/console/find?q=nothing",
    ]
    .map(str::to_owned)
    .into();
    paths.extend([
        format!("/v1/tasks?cause={cause}"),
        format!("/v1/tasks?alert={alert}"),
        format!("/v1/tasks?parent={processed}"),
        format!("/v1/failures/{cause}"),
        format!("/v1/tasks/{refused}"),
        format!("/v1/tasks/{refused}/history"),
        format!("/v1/tasks/{refused}/steps"),
        format!("/v1/tasks/{refused}/graph"),
        format!("/v1/tasks/{refused}/undo-plan"),
        format!("/v1/tasks/{refused}/steps/charge/attempts"),
        format!("/v1/tasks/{refused}/diff/{processed}"),
        format!("/v1/tasks/{middle}"),
        format!("/console/tasks/{refused}"),
        format!("/console/causes/{cause}"),
        format!("/console/causes/{cause}/fix"),
        format!("/console/find?q={processed}"),
    ]);
    paths
}

/// Requests each page. Returns the faults: the requests that read too much, each with the statements that read most.
async fn faults(
    provost: &Provost,
    paths: &[String],
    costs: impl AsyncFn() -> Vec<(u64, String)>,
    most: u64,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut known = costs().await.len();
    for path in paths {
        let answer = provost
            .get(path)
            .header("accept", "text/html, application/json");
        let status = answer.await.status;
        assert!([200, 303, 404].contains(&status), "{path}: {status}");
        let all = costs().await;
        let mut spent = all[known..].to_vec();
        known = all.len();
        let sum: u64 = spent.iter().map(|(cost, _)| cost).sum();
        println!("{sum:>10} {path}");
        if sum > most {
            spent.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            let worst = spent.iter().take(2);
            let worst = worst.fold(String::new(), |text, (cost, sql)| {
                format!("{text}\n    {cost}: {sql}")
            });
            faults.push(format!("{path} reads {sum}:{worst}"));
        }
    }
    faults
}

async fn service() -> Remote {
    Remote::with(|seen| match seen.path.as_str() {
        "/refused" => Act::answer(402, &[], "no money"),
        "/missing" => Act::answer(404, &[], "no such order"),
        _ => Act::Ok(json!({ "id": 4 })),
    })
    .await
}

/// Returns what the statement of a log line has read, with the line; `None` if the line is about something else.
fn cost(line: &str) -> Option<(u64, String)> {
    let said: Value = serde_json::from_str(line).ok()?;
    let instructions = said["instructions"].as_u64()?;
    // So many rows without an index are one fault, as the most instructions are.
    let scanned = said["scanned"].as_u64()? * (MOST_INSTRUCTIONS / MOST_SCANNED);
    Some((instructions + scanned, line.to_owned()))
}

#[tokio::test]
async fn no_request_reads_more_of_a_full_file() {
    let remote = service().await;
    let mut provost = Provost::setup()
        .set("RETENTION__KEEP", "forever")
        .set(
            "LOG",
            "warn,provost::service=info,provost::store::sqlite::rows=trace",
        )
        .start()
        .await;
    let templates = templates(&provost, &remote).await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    let columns = |table: &str| database.columns(table);
    let mut fill = multiply(&SQLITE, &templates, columns);
    fill.push_str(&ledger(&SQLITE, "at, changes", "1700000000000 + n"));
    database.execute(&format!("BEGIN; {fill} COMMIT;"));
    drop(database);
    provost.restart().await;

    let costs = async || {
        let log = provost.log();
        log.lines().filter_map(cost).collect()
    };
    let paths = requests(provost.api(), &templates).await;
    let faults = faults(&provost, &paths, costs, MOST_INSTRUCTIONS).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the rows that a plan reads: those of all scans, with those that a filter removed.
fn rows(plan: &Value) -> u64 {
    let number = |name: &str| plan[name].as_f64().unwrap_or_default();
    let kind = plan["Node Type"].as_str().unwrap();
    let read = match kind.contains("Scan") {
        true => (number("Actual Rows") + number("Rows Removed by Filter")) * number("Actual Loops"),
        false => 0.0,
    };
    let parts = plan["Plans"].as_array().into_iter().flatten();
    read as u64 + parts.map(rows).sum::<u64>()
}

/// Returns the rows that each statement in a log has read.
fn plans(log: &str) -> Vec<(u64, String)> {
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
        // The last one may not be there as a whole.
        if let Ok(told) = serde_json::from_str::<Value>(&text) {
            plans.push((rows(&told["Plan"]), told["Query Text"].to_string()));
        }
    }
    plans
}

#[tokio::test]
async fn no_request_reads_more_of_a_full_server() {
    let server = Postgres::start().await;
    for setting in [
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_analyze = on",
        "auto_explain.log_timing = off",
        "auto_explain.log_format = 'json'",
    ] {
        server
            .sql(&format!("ALTER ROLE provost SET {setting}"))
            .await;
    }
    let remote = service().await;
    let mut provost = Provost::setup()
        .database_url(&server.url())
        .set("RETENTION__KEEP", "forever")
        .start()
        .await;
    let templates = templates(&provost, &remote).await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let columns = "SELECT table_name || '.' || column_name FROM information_schema.columns \
                   WHERE table_schema = current_schema() AND is_generated = 'NEVER' ORDER BY ordinal_position";
    let columns = server.sql(columns).await;
    let columns = |table: &str| {
        let of_table = columns.lines().filter_map(|line| line.split_once('.'));
        let of_table = of_table.filter(|(of, _)| *of == table);
        of_table.map(|(_, column)| column.to_owned()).collect()
    };
    let mut fill = multiply(&POSTGRES, &templates, columns);
    fill.push_str(&ledger(
        &POSTGRES,
        "at, epoch, changes",
        "1700000000000 + n, 1",
    ));
    server
        .sql(&format!(
            "SET auto_explain.log_min_duration = -1; {fill} ANALYZE"
        ))
        .await;
    provost.restart().await;

    let paths = requests(provost.api(), &templates).await;
    let costs = async || plans(&server.log());
    let faults = faults(&provost, &paths, costs, MOST_ROWS).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

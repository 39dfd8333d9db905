//! Filters that match few tasks: a search for a page examines a limited number of tasks, and the cursor of the page
//! continues after them.

use serde_json::{Value, json};

use super::backlog::{explaining, plans_of, rows_read};
use crate::harness::{Api, Database, Postgres, Provost};

/// The number of tasks that one search examines.
const MOST_LOOKED_AT: usize = 2_000;
pub const TASKS: usize = 25_000;

/// Inserts ended tasks. Half of them are in error, and the others belong to a workflow; each half has a label of its
/// own. The oldest task has a step of an agent of its own.
fn fill(series: &str, id: &str) -> [String; 3] {
    [
        format!(
            "INSERT INTO tasks (id, workflow, workflow_version, labels, priority, created_at, version, state, paused, untouched, agents)
             SELECT {id}, CASE WHEN at % 2 = 0 THEN 'order' END, CASE WHEN at % 2 = 0 THEN 1 END, '{{}}', 0,
                    1700000000000 + at, 1, CASE WHEN at % 2 = 0 THEN 'processed' ELSE 'error' END, false, 1,
                    '{{\"1\":\"another\"}}'
             FROM {series}"
        ),
        format!(
            "INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, queued)
             SELECT {id}, 0, 'step', CASE WHEN at = 1 THEN 'rare' ELSE 'often' END, 0, 'processed', 1, 0, 0, 0
             FROM {series}"
        ),
        format!(
            "INSERT INTO task_labels (label, value, task_id)
             SELECT CASE WHEN at % 2 = 0 THEN 'even' ELSE 'odd' END, 'yes', {id} FROM {series}"
        ),
    ]
}

/// Returns the number of pages and of tasks until the end. Each page says how far back it has searched, and the last
/// has searched everything.
async fn walk(api: &Api, filter: &str) -> (usize, usize) {
    let (mut pages, mut tasks) = (0, 0);
    let mut cursor = String::new();
    let mut examined_back_to = None;
    loop {
        let page = api.get(&format!("/v1/tasks?{filter}{cursor}")).await;
        let page = page.expect(200);
        pages += 1;
        tasks += page["items"].as_array().unwrap().len();
        let examined = page["examined_back_to"].as_str().map(str::to_owned);
        match &page["next_cursor"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            _ => {
                assert_eq!(examined, None);
                return (pages, tasks);
            }
        }
        assert!(examined.is_some(), "{page}");
        // Times of one format have the order of their texts.
        assert!(examined_back_to.is_none() || examined < examined_back_to);
        examined_back_to = examined;
    }
}

async fn pages_are_bounded(api: &Api) {
    // These are upper bounds: if the last search is full, one more finds nothing, and a search that has found nothing
    // continues for a while.
    let all = TASKS / MOST_LOOKED_AT + 1;
    let half = TASKS / 2 / MOST_LOOKED_AT + 1;
    for (filter, expected) in [
        ("agent=nobody", (all, 0)),
        ("agent=rare", (all, 1)),
        ("state=error&workflow=order", (1, 0)),
        ("state=error&agent=often", (1, 0)),
        ("state=processed&workflow=import", (1, 0)),
        ("label=even:yes&label=odd:yes", (half, 0)),
        ("created_before=2023-11-14T22:13:20.002Z", (all, 1)),
        // An index finds these at once.
        ("workflow=unknown", (1, 0)),
        ("label=even:no", (1, 0)),
        ("key=unknown&agent=often", (1, 0)),
        ("created_after=2024-11-14T22:13:20Z", (1, 0)),
        ("created_before=2022-11-14T22:13:20Z", (1, 0)),
    ] {
        let (pages, tasks) = walk(api, filter).await;
        let (most_pages, expected) = expected;
        assert_eq!(tasks, expected, "{filter}");
        assert!(pages <= most_pages, "{filter}: {pages}");
    }
    // The pages are full as usual: none searches further than it must.
    let (pages, tasks) = walk(api, "agent=often&limit=200").await;
    assert_eq!(tasks, TASKS - 1);
    assert!(
        pages >= TASKS / 200 && pages <= TASKS / 200 + all,
        "{pages}"
    );
}

#[tokio::test]
async fn a_page_looks_at_so_many_tasks_and_its_cursor_leads_on() {
    let provost = filled_on_sqlite(fill).await;
    pages_are_bounded(&provost).await;
}

/// Returns statements for a series of numbers `at` and the id of each.
pub type Fill = fn(series: &str, id: &str) -> [String; 3];

pub async fn filled_on_sqlite(fill: Fill) -> Provost {
    let mut provost = Provost::start().await;
    provost.terminate();
    assert!(provost.ended().await.success());
    let database = Database::open(&provost.database());
    let series = format!(
        "(WITH RECURSIVE series (at) AS (SELECT 1 UNION ALL SELECT at + 1 FROM series WHERE at < {TASKS}) \
         SELECT at FROM series)"
    );
    let id = "unhex(printf('%012x70008000%012x', 1700000000000 + at, at))";
    for statement in fill(&series, id) {
        database.execute(&statement);
    }
    drop(database);
    provost.restart().await;
    provost
}

pub async fn fill_postgres(server: &Postgres, fill: Fill) {
    let id = "(lpad(to_hex(1700000000000 + at), 12, '0') || '70008000' || lpad(to_hex(at), 12, '0'))::uuid";
    // The statements are one transaction, because the service must not clean up incomplete data.
    let statements = fill(&format!("generate_series(1, {TASKS}) AS at"), id);
    server.sql(&statements.join("; ")).await;
}

#[tokio::test]
async fn on_postgresql_a_page_reads_so_many_rows_whatever_is_believed_of_the_tables() {
    let server = explaining().await;
    let provost = Provost::setup().database_url(&server.url()).start().await;
    fill_postgres(&server, fill).await;
    pages_are_bounded(&provost).await;
    server.sql("ANALYZE").await;
    pages_are_bounded(&provost).await;
    let plans = plans_of(&server.log(), |sql| sql.contains(") AS looked WHERE true"));
    assert!(plans.len() > 20, "{}", plans.len());
    for plan in &plans {
        // The plan reads the ids, the same number of examined tasks, and one row of a table for each of its conditions.
        // There are more than twice as many rows of each.
        let read = rows_read(plan);
        assert!(read <= 4.2 * MOST_LOOKED_AT as f64, "{read}: {plan:#}");
    }
}

/// Inserts tasks in error that failed at an agent `often` for one cause. The oldest ones belong to another workflow,
/// and one of them failed at another agent, for another cause. All have a processed step of that agent.
fn fill_failures(series: &str, id: &str) -> [String; 3] {
    let (often, rare) = alerts(id);
    [
        format!(
            "INSERT INTO tasks (id, workflow, workflow_version, labels, priority, created_at, version, state, paused, untouched, agents)
             SELECT {id}, CASE WHEN at <= 3 THEN 'order' ELSE 'import' END, 1, '{{}}', 0, 1700000000000 + at, 1, 'error', false, 0, '{{}}'
             FROM {series}"
        ),
        format!(
            "INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, queued)
             SELECT {id}, 0, 'first', 'rare', 0, CASE WHEN at = 1 THEN 'error' ELSE 'processed' END, 1, 0, 0, 0 FROM {series};
             INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, queued)
             SELECT {id}, 1, 'second', 'often', 0, CASE WHEN at = 1 THEN 'waiting' ELSE 'error' END, 1, 0, 0, 0 FROM {series}"
        ),
        format!(
            "INSERT INTO alerts (id, kind, message, state, raised_at, agent, cause, first, members, peak, announced) VALUES
             ({often}, 'task.error', 'often', 'open', 0, 'often', 'often', 'null', 1, 1, 1),
             ({rare}, 'task.error', 'rare', 'open', 0, 'rare', 'rare', 'null', 1, 1, 1);
             INSERT INTO alerts (id, task_id, idx, step, kind, message, state, raised_at, part_of)
             SELECT {id}, {id}, 1, 'second', 'task.error', 'no', 'open', 0, CASE WHEN at = 1 THEN {rare} ELSE {often} END FROM {series}"
        ),
    ]
}

/// Returns the ids of the alerts of both causes, in the form that ids have in the statements of this database.
fn alerts(id: &str) -> (&'static str, &'static str) {
    match id.contains("unhex") {
        true => (
            "x'00000000000070008000000000000001'",
            "x'00000000000070008000000000000002'",
        ),
        false => (
            "'00000000-0000-7000-8000-000000000001'::uuid",
            "'00000000-0000-7000-8000-000000000002'::uuid",
        ),
    }
}

/// Checks that the first page has the matching tasks, in spite of all the newer failures.
async fn failures_are_found_at_once(api: &Api) {
    let oldest = "018bcfe5-6801-7000-8000-000000000001";
    let cause = "alert=00000000-0000-7000-8000-000000000002";
    for (filter, expected) in [
        ("state=error&workflow=order", 3),
        ("state=error&agent=rare", 1),
        ("state=error&agent=rare&workflow=order", 1),
        ("state=error&agent=rare&workflow=import", 0),
        ("state=error&agent=nobody", 0),
        (cause, 1),
        (&format!("{cause}&state=error&agent=rare&workflow=order"), 1),
        (&format!("{cause}&state=error&agent=often"), 0),
        // The alert is one of a single step.
        ("alert=018bcfe5-6805-7000-8000-000000000005", 1),
        ("alert=00000000-0000-7000-8000-000000000003", 0),
    ] {
        let page = api.get(&format!("/v1/tasks?{filter}")).await.expect(200);
        let items = page["items"].as_array().unwrap();
        assert_eq!(items.len(), expected, "{filter}");
        assert_eq!(page["next_cursor"], Value::Null, "{filter}");
        if expected == 1 && !filter.starts_with("alert=018") {
            assert_eq!(items[0]["id"], oldest, "{filter}");
        }
    }
    // Pages are full, and their cursors lead to all tasks.
    let whole = "alert=00000000-0000-7000-8000-000000000001&limit=500";
    for filter in ["state=error&agent=often&limit=500", whole] {
        assert_eq!(
            walk(api, filter).await,
            (TASKS / 500, TASKS - 1),
            "{filter}"
        );
    }
    for (body, matched) in [
        (json!({ "agent": "rare" }), 1),
        (
            json!({ "alert": "00000000-0000-7000-8000-000000000002" }),
            1,
        ),
        (
            json!({ "alert": "00000000-0000-7000-8000-000000000003" }),
            0,
        ),
    ] {
        let mut body = body;
        body["dry_run"] = json!(true);
        body["limit"] = json!(100_000);
        let found = api.bulk("retry", &body).await;
        assert_eq!(found["matched"], matched, "{body} {found}");
    }
}

#[tokio::test]
async fn failures_are_found_by_workflow_agent_and_cause_in_spite_of_newer_ones() {
    let provost = filled_on_sqlite(fill_failures).await;
    failures_are_found_at_once(&provost).await;
    let labels = ["label=campaign:spring"; 33].join("&");
    let refused = provost.get(&format!("/v1/tasks?{labels}")).await;
    let refused = refused.expect_problem(400, "invalid-query");
    assert!(
        refused["detail"].as_str().unwrap().contains("at most 32"),
        "{refused}"
    );
    let few = labels.strip_prefix("label=campaign:spring&").unwrap();
    provost.get(&format!("/v1/tasks?{few}")).await.expect(200);
    let labels: serde_json::Map<_, _> = (0..33).map(|at| (format!("l{at}"), json!("x"))).collect();
    let refused = provost
        .post("/v1/tasks/cancel", &json!({ "labels": labels }))
        .await;
    assert_eq!(refused.expect_faults(), ["/labels"]);
    let refused = provost.get("/v1/tasks?alert=payments").await;
    let refused = refused.expect(400);
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("is not the id of an alert"),
        "{refused}"
    );
}

#[tokio::test]
async fn on_postgresql_failures_are_found_by_as_many_rows_as_a_page_has() {
    let server = explaining().await;
    let provost = Provost::setup().database_url(&server.url()).start().await;
    fill_postgres(&server, fill_failures).await;
    failures_are_found_at_once(&provost).await;
    server.sql("ANALYZE").await;
    failures_are_found_at_once(&provost).await;
    let plans = plans_of(&server.log(), |sql| {
        // The statements of bulk commands have other bounds.
        let is_page = !sql.contains(" AS place ") && !sql.contains("count(*)");
        is_page
            && [
                "FROM tasks WHERE state = 'error'",
                "FROM steps WHERE state = 'error'",
                ") AS alerted WHERE",
            ]
            .iter()
            .any(|index| sql.contains(index))
    });
    assert!(plans.len() > 200, "{}", plans.len());
    for plan in &plans {
        let read = rows_read(plan);
        // The bound is the entries of one search, or those of a page and its tasks.
        assert!(read <= 2.2 * MOST_LOOKED_AT as f64, "{read}: {plan:#}");
    }
}

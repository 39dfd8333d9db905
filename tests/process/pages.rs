//! Filters that seldom hold: a page looks at so many tasks and no more, and its cursor leads on.

use serde_json::Value;

use super::backlog::{explaining, plans_of, rows_read};
use crate::harness::{Api, Database, Postgres, Provost};

/// What a page looks at.
const MOST_LOOKED_AT: usize = 2_000;
pub const TASKS: usize = 25_000;

/// Ended tasks, half of them in error, the others of a workflow; each with a label of its half. The oldest one has a
/// step of an agent of its own.
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

/// How many pages and tasks there are to the end.
async fn walk(api: &Api, filter: &str) -> (usize, usize) {
    let (mut pages, mut tasks) = (0, 0);
    let mut cursor = String::new();
    loop {
        let page = api.get(&format!("/v1/tasks?{filter}{cursor}")).await;
        let page = page.expect(200);
        pages += 1;
        tasks += page["items"].as_array().unwrap().len();
        match &page["next_cursor"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            _ => return (pages, tasks),
        }
    }
}

async fn pages_are_bounded(api: &Api) {
    // Where the last page is full, one more finds nothing.
    let all = TASKS / MOST_LOOKED_AT + 1;
    let half = TASKS / 2 / MOST_LOOKED_AT + 1;
    for (filter, expected) in [
        ("agent=nobody", (all, 0)),
        ("agent=rare", (all, 1)),
        ("state=error&workflow=order", (half, 0)),
        ("label=even:yes&label=odd:yes", (half, 0)),
        ("created_before=2023-11-14T22:13:20.002Z", (all, 1)),
        // An index has these.
        ("workflow=unknown", (1, 0)),
        ("label=even:no", (1, 0)),
        ("key=unknown&agent=often", (1, 0)),
        ("created_after=2024-11-14T22:13:20Z", (1, 0)),
        ("created_before=2022-11-14T22:13:20Z", (1, 0)),
    ] {
        assert_eq!(walk(api, filter).await, expected, "{filter}");
    }
    // Full pages, as ever: none looks further than it must.
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

/// Makes statements of a series of numbers `at` and the id of each.
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
    // In one transaction: the service must not tidy up what is half there.
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
        // The ids, the same again as what was looked at, and one row of a table for each that is asked of it: there
        // are more than twice as many of each.
        let read = rows_read(plan);
        assert!(read <= 4.2 * MOST_LOOKED_AT as f64, "{read}: {plan:#}");
    }
}

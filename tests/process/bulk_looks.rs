//! Bulk commands with filters that match few tasks: a request examines a limited number of tasks, and its cursor
//! continues after them.

use serde_json::{Value, json};

use super::{
    backlog::{explaining, plans_of, rows_read},
    pages::{TASKS, fill_postgres, filled_on_sqlite},
};
use crate::harness::{Api, Provost};

/// The number of tasks that a request examines.
const MOST_LOOKED_AT: usize = 10_000;

/// Inserts tasks in error or paused. Every second one belongs to a workflow, and the others have one key; each half has
/// more tasks than a request examines, and a label of its own. The newest task has a step of an agent of its own, and a
/// label of its own.
fn fill(series: &str, id: &str) -> [String; 3] {
    [
        format!(
            "INSERT INTO tasks (id, \"key\", workflow, workflow_version, labels, priority, created_at, version, state, paused, untouched, agents)
             SELECT {id}, CASE WHEN at % 2 = 1 THEN 'many' END, CASE WHEN at % 2 = 0 THEN 'order' END, CASE WHEN at % 2 = 0 THEN 1 END, '{{}}', 0,
                    1700000000000 + at, 1, CASE WHEN at % 4 = 3 THEN 'paused' ELSE 'error' END, false, 1,
                    '{{\"1\":\"another\"}}'
             FROM {series}"
        ),
        format!(
            "INSERT INTO steps (task_id, idx, name, agent, turn, state, attempt, failure_count, extended, queued)
             SELECT {id}, 0, 'step', CASE WHEN at = {TASKS} THEN 'rare' ELSE 'often' END, 0, 'error', 1, 0, 0, 0
             FROM {series}"
        ),
        format!(
            "INSERT INTO task_labels (label, value, task_id)
             SELECT CASE WHEN at = {TASKS} THEN 'rare' WHEN at % 2 = 0 THEN 'even' ELSE 'odd' END, 'yes', {id}
             FROM {series}"
        ),
    ]
}

/// Repeats a dry run until its end. Returns for each request the number of matched tasks, the total or its lower bound,
/// and whether there may be more.
async fn dry_runs(api: &Api, command: &str, filter: &Value) -> Vec<(u64, u64, bool)> {
    let mut answers = Vec::new();
    let mut body = filter.clone();
    body["dry_run"] = json!(true);
    loop {
        let path = format!("/v1/tasks/{command}");
        let answer = api.post(&path, &body).await.expect(200);
        answers.push((
            answer["matched"].as_u64().unwrap(),
            answer["total"].as_u64().unwrap(),
            answer["total_is_at_least"].as_bool().unwrap(),
        ));
        match &answer["next_cursor"] {
            Value::Null => return answers,
            cursor => body["cursor"] = cursor.clone(),
        }
    }
}

async fn requests_are_bounded(api: &Api) {
    let (none, one) = ((0, 0, false), (1, 1, false));
    let may_be_more = (0, 0, true);
    for (command, filter, expected) in [
        // 18,750 tasks are in error. An index finds those of an agent or a workflow at once.
        ("retry", json!({ "agent": "nobody" }), &[none][..]),
        ("retry", json!({ "agent": "rare" }), &[one]),
        ("retry", json!({ "workflow": "unknown" }), &[none]),
        // The command applies to tasks in five states.
        (
            "cancel",
            json!({ "agent": "rare" }),
            &[may_be_more, may_be_more, one],
        ),
        // After the first request few tasks with one of the labels are left.
        (
            "cancel",
            json!({ "labels": { "even": "yes", "odd": "yes" } }),
            &[may_be_more, none],
        ),
        (
            "undo",
            json!({ "workflow": "order", "state": "paused" }),
            &[none],
        ),
        // The index of a key with this many tasks is not used: each examined task is compared instead.
        (
            "cancel",
            json!({ "key": "many", "workflow": "order" }),
            &[may_be_more, none],
        ),
        (
            "cancel",
            json!({ "key": "many", "labels": { "even": "yes" } }),
            &[may_be_more, none],
        ),
        (
            "cancel",
            json!({ "key": "many", "labels": { "rare": "yes" } }),
            &[none],
        ),
        // An index finds these at once.
        ("cancel", json!({ "workflow": "unknown" }), &[none]),
        (
            "cancel",
            json!({ "key": "unknown", "agent": "often" }),
            &[none],
        ),
        (
            "cancel",
            json!({ "labels": { "even": "yes", "rare": "yes" } }),
            &[none],
        ),
        (
            "cancel",
            json!({ "labels": { "rare": "yes" }, "agent": "rare" }),
            &[one],
        ),
        (
            "cancel",
            json!({ "created_after": "2024-11-14T22:13:20Z" }),
            &[none],
        ),
    ] {
        let found = dry_runs(api, command, &filter).await;
        assert_eq!(found, expected, "{command} {filter}");
    }
    let of_key = dry_runs(api, "cancel", &json!({ "key": "many", "limit": 20_000 })).await;
    let matched: u64 = of_key.iter().map(|(matched, ..)| matched).sum();
    assert_eq!(matched, u64::try_from(TASKS).unwrap() / 2);
    let few = json!({ "all": true, "limit": 7, "dry_run": true });
    let answer = api.bulk("cancel", &few).await;
    assert_eq!(answer["matched"], 7);
    assert_eq!(answer["total"], MOST_LOOKED_AT);
    assert_eq!(answer["total_is_at_least"], true);
}

#[tokio::test]
async fn a_bulk_command_looks_at_so_many_tasks_and_its_cursor_leads_on() {
    let provost = filled_on_sqlite(fill).await;
    requests_are_bounded(&provost).await;
}

#[tokio::test]
async fn on_postgresql_a_bulk_command_reads_so_many_rows_whatever_is_believed_of_the_tables() {
    let server = explaining().await;
    let provost = Provost::setup().database_url(&server.url()).start().await;
    fill_postgres(&server, fill).await;
    requests_are_bounded(&provost).await;
    server.sql("ANALYZE").await;
    requests_are_bounded(&provost).await;
    let plans = plans_of(&server.log(), |sql| sql.contains(") AS looked WHERE true"));
    assert!(plans.len() > 50, "{}", plans.len());
    for plan in &plans {
        // The plan reads the entries of each state in its index, and one row of each further table for each examined
        // task.
        let read = rows_read(plan);
        assert!(read <= 5.2 * MOST_LOOKED_AT as f64, "{read}: {plan:#}");
    }
}

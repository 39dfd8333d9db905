//! A list of alerts reads no more rows than it shows, however many steps are in error, and for however many causes.

use super::{
    backlog::{explaining, plans_of, rows_read},
    pages::{TASKS, fill_postgres, filled_on_sqlite},
};
use crate::harness::{Api, Provost, until};

const CAUSES: usize = 200;

/// Steps are counted up to this number.
const COUNTED: usize = 1000;

/// Inserts tasks in error. Most of them have one cause, and some have a cause of their own. For the same number of
/// causes everything is resolved.
fn fill(series: &str, id: &str) -> [String; 3] {
    let id_of_cause = id.replace("70008000", "70009000");
    [
        format!(
            "INSERT INTO tasks (id, labels, priority, created_at, version, state, paused)
             SELECT {id}, '{{}}', 0, 1700000000000 + at, 1, 'error', false FROM {series}"
        ),
        format!(
            "INSERT INTO alerts (id, kind, message, state, raised_at, closed_at, agent, cause, first, members, peak,
                                 announced)
             SELECT {id_of_cause}, 'task.error', 'refused', CASE WHEN at <= {CAUSES} THEN 'open' ELSE 'closed' END,
                    1, CASE WHEN at > {CAUSES} THEN 1 END, 'x', 'cause ' || at, 'null', 1, 1, 1
             FROM {series} WHERE at <= 2 * {CAUSES}"
        ),
        format!(
            "INSERT INTO alerts (id, task_id, idx, step, kind, message, state, raised_at, part_of)
             SELECT {id}, {id}, 0, 'a', 'task.error', 'refused', cause.state, 1, cause.id
             FROM {series} JOIN alerts AS cause
             ON cause.cause = 'cause ' || CASE WHEN at <= 2 * {CAUSES} THEN at ELSE 1 END"
        ),
    ]
}

async fn counts(api: &Api, filter: &str) -> Vec<u64> {
    let page = api.get(&format!("/v1/alerts?limit=500&{filter}")).await;
    let page = page.expect(200);
    let alerts = page["items"].as_array().unwrap().iter();
    alerts
        .map(|alert| alert["count"].as_u64().unwrap())
        .collect()
}

async fn lists_are_right(api: &Api) {
    let open = counts(api, "state=open").await;
    assert_eq!(open.len(), CAUSES);
    // The upkeep may have counted the steps already.
    assert!(open[CAUSES - 1] >= COUNTED as u64, "{open:?}");
    assert!(open[..CAUSES - 1].iter().all(|count| *count == 1));
    assert_eq!(counts(api, "state=closed").await.len(), CAUSES);
    assert_eq!(counts(api, "").await.len(), 2 * CAUSES);
    let first = api.get("/v1/alerts?state=open&limit=500").await.expect(200);
    let first = &first["items"][CAUSES - 1];
    assert_eq!(first["cause"], "cause 1");
    assert_eq!(first["tasks"].as_array().unwrap().len(), 3);
    let part_of = format!("part_of={}", first["id"].as_str().unwrap());
    for filter in ["", "&state=open"] {
        let parts = counts(api, &format!("{part_of}{filter}")).await;
        assert_eq!(parts.len(), 500);
    }
    let of_task = format!("task={}", first["task"].as_str().unwrap());
    assert_eq!(counts(api, &of_task).await, [1]);
}

#[tokio::test]
async fn thousands_of_steps_in_error_are_listed_by_their_causes() {
    let provost = filled_on_sqlite(fill).await;
    lists_are_right(&provost).await;
}

#[tokio::test]
async fn on_postgresql_lists_of_alerts_read_what_they_show_whatever_is_believed_of_the_table() {
    let server = explaining().await;
    let provost = Provost::setup().database_url(&server.url()).start().await;
    fill_postgres(&server, fill).await;
    lists_are_right(&provost).await;
    server.sql("ANALYZE").await;
    // PostgreSQL plans a prepared statement for any values after it was used several times.
    for _ in 0..6 {
        lists_are_right(&provost).await;
    }
    let lists = plans_of(&server.log(), |sql| sql.contains("FROM alerts AS alert"));
    assert!(lists.len() > 40, "{}", lists.len());
    // The upkeep rests while there are no alerts, and on a fast machine it may not have run again yet.
    let upkeep = || plans_of(&server.log(), |sql| sql.contains("(kind, cause) >"));
    until(true, async || !upkeep().is_empty()).await;
    let upkeep = upkeep();
    for plan in lists.iter().chain(&upkeep) {
        // For each alert the statement reads some of its steps, and those that are counted.
        let read = rows_read(plan);
        assert!(read <= (COUNTED + 20 * CAUSES) as f64, "{read}: {plan:#}");
    }
    assert_eq!(TASKS, 25_000, "they are far more than are read");
}

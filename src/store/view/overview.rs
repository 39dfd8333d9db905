//! The numbers of the overview. Each is counted along an index up to [`MOST_IN_OVERVIEW`], so that it costs the same with
//! any number of tasks.

use crate::domain::{task::TaskStatus, values::AgentName};
use crate::store::{
    Reader, StoreError,
    queries::QUEUED_AGENTS,
    rows::{Columns, Row},
    statement::Statement,
};

/// The most of each that are counted.
pub const MOST_IN_OVERVIEW: u64 = 1001;
/// The most agents whose queues are counted.
const MOST_QUEUES: usize = 100;

/// A number that was counted up to [`MOST_IN_OVERVIEW`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CappedCount(pub u64);

/// The numbers of what the tables hold at this moment.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// The tasks in each state that has an index: all but `processed`.
    pub tasks: Vec<(TaskStatus, CappedCount)>,
    /// The steps that wait for each agent and could be claimed now.
    pub queued: Vec<(AgentName, CappedCount)>,
    pub at_risk: CappedCount,
    pub asks: CappedCount,
    pub messages_pending: CappedCount,
    pub messages_dead: CappedCount,
}

/// Relies on tasks_by_state.
const TASKS: &str = r#"
SELECT '{state}' AS state, count(*) AS count FROM (
    SELECT 1 AS one FROM {tasks} WHERE state <> 'processed' AND state = '{state}' LIMIT $1) AS counted"#;

/// Relies on the primary keys, open_asks_listed, messages_in_queue and messages_died.
const OTHERS: &str = r#"
SELECT (SELECT count(*) FROM (
            SELECT 1 AS one FROM tasks_at_risk
            WHERE (SELECT overdue_at FROM tasks WHERE tasks.id = tasks_at_risk.task_id) IS NOT NULL LIMIT $1) AS counted)
       AS at_risk,
       (SELECT count(*) FROM (SELECT 1 AS one FROM open_asks WHERE place = 0 LIMIT $1) AS counted) AS asks,
       (SELECT count(*) FROM (SELECT 1 AS one FROM messages WHERE state = 'pending' LIMIT $1) AS counted) AS pending,
       (SELECT count(*) FROM (
            SELECT 1 AS one FROM messages WHERE died_at IS NOT NULL AND state = 'dead' LIMIT $1) AS counted) AS dead"#;

/// Follows [`QUEUED_AGENTS`], and relies on steps_line.
const QUEUED: &str = r#"
SELECT agent, (SELECT count(*) FROM (
    SELECT 1 AS one FROM steps WHERE steps.agent = line.agent AND due_at IS NOT NULL AND queued = 1 LIMIT $1) AS counted)
    AS count
FROM line WHERE agent IS NOT NULL LIMIT $2"#;

fn tasks(table: &str) -> String {
    let states = TaskStatus::ALL.iter();
    let states = states.filter(|state| **state != TaskStatus::Processed);
    let counts = states.map(|state| {
        TASKS
            .replace("{state}", state.as_str())
            .replace("{tasks}", table)
    });
    counts.collect::<Vec<_>>().join(" UNION ALL ")
}

fn queued() -> String {
    format!("{QUEUED_AGENTS}{QUEUED}")
}

fn count(row: &Row, column: &str) -> Result<CappedCount, StoreError> {
    Ok(CappedCount(row.get(column)?))
}

impl Reader {
    pub async fn overview(&self) -> Result<Overview, StoreError> {
        let table = self.source.by_index("tasks", "tasks_by_state");
        let tasks = Statement::new(tasks(&table)).bind(MOST_IN_OVERVIEW);
        let mut overview = Overview::default();
        for row in self.fetch_along_indexes(tasks).await? {
            let state: String = row.get("state")?;
            let known = TaskStatus::ALL.iter().find(|known| known.as_str() == state);
            if let Some(known) = known {
                overview.tasks.push((*known, count(&row, "count")?));
            }
        }
        let queued = Statement::new(queued()).bind(MOST_IN_OVERVIEW);
        for row in self.fetch_along_indexes(queued.bind(MOST_QUEUES)).await? {
            let agent: String = row.get("agent")?;
            let agent = AgentName::new(agent);
            overview.queued.push((agent, count(&row, "count")?));
        }
        let others = Statement::new(OTHERS).bind(MOST_IN_OVERVIEW);
        if let Some(row) = self.fetch_along_indexes(others).await?.first() {
            overview.at_risk = count(row, "at_risk")?;
            overview.asks = count(row, "asks")?;
            overview.messages_pending = count(row, "pending")?;
            overview.messages_dead = count(row, "dead")?;
        }
        Ok(overview)
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::store::view::{activity, workflow_usage};

    /// Returns the lines of a plan.
    fn plan(database: &Connection, sql: &str) -> Vec<String> {
        let mut explain = database
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        // Parameters that are not bound are null.
        let lines = explain.raw_query().mapped(|line| line.get("detail"));
        lines.map(Result::unwrap).collect()
    }

    #[test]
    fn every_number_is_counted_along_an_index() {
        let database = Connection::open_in_memory().unwrap();
        for migration in crate::store::migrations::sqlite() {
            database.execute_batch(migration.sql.as_str()).unwrap();
        }
        let tasks = tasks("tasks INDEXED BY tasks_by_state");
        let statements = [tasks, queued(), OTHERS.to_owned()];
        let of_activity = activity::STATEMENTS.map(str::to_owned);
        let of_workflow = [
            workflow_usage::sql("tasks INDEXED BY tasks_by_workflow", ""),
            workflow_usage::sql("tasks INDEXED BY tasks_failed", " AND state = 'error'"),
        ];
        let others = of_activity.iter().chain(&of_workflow);
        for sql in statements.iter().chain(others) {
            let lines = plan(&database, sql);
            let scans: Vec<_> = lines
                .iter()
                .filter(|line| line.starts_with("SCAN") && !line.contains(" INDEX "))
                .filter(|line| {
                    !["counted", "line", "CONSTANT ROW", "tasks_at_risk"]
                        .iter()
                        .any(|known| line.contains(known))
                })
                .collect();
            assert!(scans.is_empty(), "{scans:?} in {sql}: {lines:#?}");
        }
        let scanned = plan(&database, "SELECT count(*) FROM steps WHERE output = 'x'");
        assert!(
            scanned.iter().any(|line| line.starts_with("SCAN steps")),
            "{scanned:?}"
        );
    }
}

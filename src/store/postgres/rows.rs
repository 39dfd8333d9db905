//! How tasks are loaded.

use sqlx::PgConnection;

use super::statements::Statements;
use crate::{
    domain::{Task, TaskId},
    store::{Definitions, StoreError, rows::Loading},
};

const LOAD_TASKS: &str = r#"
SELECT id, "key", workflow, workflow_version, steps, policies, input, reply_to, labels, priority,
       complete_within, created_at, trace_id, version, state, paused, complete_by, ended_at, error, undo
FROM tasks JOIN task_details ON task_id = id
WHERE id = ANY ($1)
ORDER BY id"#;

const LOAD_STEPS: &str = r#"
SELECT task_id, idx, state, attempt, failure_count, extended, locked_by, complete_by, ready_at, started_at,
       ended_at, body, output, error, last_fault, doubt
FROM steps
WHERE task_id = ANY ($1)
ORDER BY task_id, idx"#;

const LOAD_WORKFLOW: &str = "SELECT body FROM workflows WHERE name = $1 AND version = $2";

/// The tasks among `ids` that exist, each with its steps. Tasks and steps are of one moment only where
/// the transaction sees one: a writer that sees more finds out by the version when it saves.
pub(super) async fn load(
    connection: &mut PgConnection,
    ids: &[TaskId],
    definitions: &Definitions,
    statements: Statements,
) -> Result<Vec<Task>, StoreError> {
    let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
    let tasks = statements
        .query(LOAD_TASKS)
        .bind(&ids)
        .fetch_all(&mut *connection)
        .await?;
    let steps = statements
        .query(LOAD_STEPS)
        .bind(&ids)
        .fetch_all(&mut *connection)
        .await?;
    let mut loading = Loading::new(tasks, definitions);
    for workflow in loading.missing()? {
        let row = statements
            .query(LOAD_WORKFLOW)
            .bind(workflow.name.as_str())
            .bind(i64::from(workflow.version))
            .fetch_one(&mut *connection)
            .await?;
        loading.workflow(workflow, &row)?;
    }
    loading.tasks(steps)
}

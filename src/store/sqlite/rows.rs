//! How SQLite is asked, and tasks are loaded from it.

use std::{collections::HashMap, sync::LazyLock};

use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection, query::Query, sqlite::SqliteArguments};

use crate::{
    domain::TaskId,
    store::{
        Definitions, Health, Loaded, StoreError, UnreadableTask,
        error::corrupt,
        record::{DetailsRow, NewTaskRow, StepRow, TaskRow, loaded_names},
        rows::{Loading, size},
        statement::{BindValue, Statement},
    },
};

static LOAD_TASKS: LazyLock<&str> = LazyLock::new(|| {
    let names = loaded_names(&[TaskRow::COLUMNS, NewTaskRow::COLUMNS, DetailsRow::COLUMNS]);
    format!(
        "SELECT {names} FROM tasks LEFT JOIN task_details ON task_id = id
WHERE id IN (SELECT unhex(value) FROM json_each(?1))
ORDER BY id"
    )
    .leak()
});

static LOAD_STEPS: LazyLock<&str> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM steps
WHERE task_id IN (SELECT unhex(value) FROM json_each(?1))
ORDER BY task_id, idx",
        loaded_names(&[StepRow::COLUMNS])
    )
    .leak()
});

/// The length of a text stands at its beginning: nothing of the texts is read.
const SIZES: &str = r#"
SELECT id, octet_length(input) AS input, coalesce(octet_length(task_details.steps), 0) AS definition,
       (SELECT count(*) FROM steps WHERE task_id = id) AS steps,
       (SELECT coalesce(sum(coalesce(octet_length(body), 0) + coalesce(octet_length(output), 0)
                            + coalesce(octet_length(error), 0) + coalesce(octet_length(last_fault), 0)), 0)
        FROM steps WHERE task_id = id) AS payloads
FROM (SELECT unhex(value) AS id FROM json_each(?1)) JOIN task_details ON task_details.task_id = id"#;

const LOAD_WORKFLOW: &str = "SELECT body FROM workflows WHERE name = ?1 AND version = ?2";

/// A statement with its values.
pub(super) fn query(statement: Statement) -> Query<'static, Sqlite, SqliteArguments> {
    // Only the store's own words are in it: what comes from outside is bound.
    let mut query = sqlx::query(AssertSqlSafe(statement.sql));
    for value in statement.values {
        query = match value {
            BindValue::Text(text) => query.bind(text),
            BindValue::Integer(number) => query.bind(number),
            BindValue::Uuid(id) => query.bind(id),
        };
    }
    query
}

/// The tasks among `ids` that exist, each with its steps. Where a part of the file is damaged that one of them
/// needs, each is read by itself.
pub(super) async fn load(
    connection: &mut SqliteConnection,
    ids: &[TaskId],
    definitions: &Definitions,
    health: &Health,
) -> Result<Loaded, StoreError> {
    let error = match load_together(connection, ids, definitions).await {
        Err(error @ StoreError::Unreadable(_)) => error,
        loaded => return loaded,
    };
    health.note(&error);
    let mut all = Loaded {
        is_spoilt: true,
        ..Loaded::default()
    };
    for id in ids {
        match load_together(connection, &[*id], definitions).await {
            Ok(mut loaded) => {
                all.tasks.append(&mut loaded.tasks);
                all.unreadable.append(&mut loaded.unreadable);
            }
            Err(StoreError::Unreadable(reason)) => {
                all.unreadable.push(UnreadableTask { task: *id, reason });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// See `sizes` of the transaction.
pub(super) async fn sizes(
    connection: &mut SqliteConnection,
    ids: &[TaskId],
) -> Result<HashMap<TaskId, usize>, StoreError> {
    let found = sqlx::query(SIZES)
        .bind(listed(ids)?)
        .fetch_all(connection)
        .await?;
    found.iter().map(size).collect()
}

fn listed(ids: &[TaskId]) -> Result<String, StoreError> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.simple()).collect();
    serde_json::to_string(&ids).map_err(corrupt)
}

async fn load_together(
    connection: &mut SqliteConnection,
    ids: &[TaskId],
    definitions: &Definitions,
) -> Result<Loaded, StoreError> {
    let ids = listed(ids)?;
    let tasks = sqlx::query(*LOAD_TASKS)
        .bind(&ids)
        .fetch_all(&mut *connection)
        .await?;
    let steps = sqlx::query(*LOAD_STEPS)
        .bind(&ids)
        .fetch_all(&mut *connection)
        .await?;
    let mut loading = Loading::new(tasks, definitions);
    for workflow in loading.missing() {
        let row = sqlx::query(LOAD_WORKFLOW)
            .bind(workflow.name.as_str())
            .bind(workflow.version)
            .fetch_optional(&mut *connection)
            .await
            .map_err(StoreError::from);
        match row {
            Err(error) if !error.is_damage() => return Err(error),
            row => loading.workflow(workflow, row),
        }
    }
    loading.tasks(steps)
}

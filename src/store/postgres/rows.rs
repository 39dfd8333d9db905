//! Loads tasks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

use sqlx::{PgConnection, postgres::PgRow};
use uuid::Uuid;

use super::prepared::Prepared;
use crate::{
    domain::values::TaskId,
    store::{
        CompiledDefinitions, Loaded, StoreError,
        record::{CLAIMED, DetailsRow, NewTaskRow, StepRow, TaskRow, UNTOUCHED, loaded_names},
        rows::{Columns, Loading, size},
    },
};

/// Relies on the primary keys, as does [`LOAD_STEPS`]. `OFFSET 0` leaves the planner no choice: the subquery before it
/// is run for each id. A plain join was seen to read the whole primary key when it was planned for a table that was
/// empty at that moment.
static LOAD_TASKS: LazyLock<&str> = LazyLock::new(|| {
    format!(
        "
SELECT task.*, details.*
FROM unnest($1::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT {} FROM tasks WHERE tasks.id = wanted.id OFFSET 0) AS task
LEFT JOIN LATERAL (
    SELECT {}, layout FROM task_details WHERE task_id = wanted.id OFFSET 0) AS details ON true",
        loaded_names(&[TaskRow::COLUMNS, NewTaskRow::COLUMNS]),
        loaded_names(&[DetailsRow::COLUMNS]),
    )
    .leak()
});

/// Returns each step with the version that its task has at that moment. A task without steps has one row without a
/// step.
static LOAD_STEPS: LazyLock<&str> = LazyLock::new(|| {
    format!(
        "
SELECT wanted.id AS of_task, task.version AS of_version, step.*
FROM unnest($1::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT version FROM tasks WHERE tasks.id = wanted.id OFFSET 0) AS task
LEFT JOIN LATERAL (
    SELECT {} FROM steps WHERE task_id = wanted.id OFFSET 0) AS step ON true",
        loaded_names(&[StepRow::COLUMNS])
    )
    .leak()
});

/// The length of a text is stored in its TOAST pointer, so the texts are not read.
static SIZES: LazyLock<&str> = LazyLock::new(|| {
    format!(
        "
SELECT wanted.id, details.input, details.definition, step.steps, step.payloads
FROM unnest($1::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT octet_length(input)::bigint AS input, (coalesce(octet_length(steps), 0) + coalesce(octet_length(policies), 0))::bigint AS definition
    FROM task_details WHERE task_id = wanted.id OFFSET 0) AS details
CROSS JOIN LATERAL (
    SELECT count(*) + coalesce((SELECT {UNTOUCHED} + {CLAIMED} FROM tasks WHERE tasks.id = wanted.id), 0) AS steps,
           coalesce(sum(coalesce(octet_length(body), 0)::bigint + coalesce(octet_length(output), 0)
                        + coalesce(octet_length(error), 0) + coalesce(octet_length(last_fault), 0) + coalesce(octet_length(reply), 0)), 0)::bigint
               AS payloads
    FROM steps WHERE task_id = wanted.id OFFSET 0) AS step"
    )
    .leak()
});

const LOAD_WORKFLOW: &str = "SELECT body FROM workflows WHERE name = $1 AND version = $2";

/// Reads the sizes of tasks, see `sizes` of the transaction.
pub(super) async fn sizes(
    connection: &mut PgConnection,
    ids: &[TaskId],
    prepared: Prepared,
) -> Result<HashMap<TaskId, usize>, StoreError> {
    let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
    let found = prepared
        .query(*SIZES)
        .bind(ids)
        .fetch_all(connection)
        .await?;
    found.iter().map(size).collect()
}

/// The most times that tasks are read again because others are changing them.
const LOADS: u32 = 4;

/// Returns the tasks among `ids` that exist, each with its steps of the same version.
pub(super) async fn load(
    connection: &mut PgConnection,
    ids: &[TaskId],
    definitions: &CompiledDefinitions,
    prepared: Prepared,
) -> Result<Loaded, StoreError> {
    let mut ids: Vec<_> = ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    let (mut tasks, mut steps) = (Vec::new(), Vec::new());
    let mut tried = 0;
    while !ids.is_empty() {
        if tried == LOADS {
            return Err(StoreError::Retryable(format!(
                "{} tasks changed whenever they were read",
                ids.len()
            )));
        }
        tried += 1;
        let found = prepared
            .query(*LOAD_TASKS)
            .bind(&ids)
            .fetch_all(&mut *connection)
            .await?;
        let of_steps = prepared
            .query(*LOAD_STEPS)
            .bind(&ids)
            .fetch_all(&mut *connection)
            .await?;
        ids = changed_meanwhile(&found, &of_steps)?;
        let is_whole = |row: &PgRow, id: &str| match row.get::<Option<TaskId>>(id) {
            Ok(Some(task)) => ids.binary_search(&task.0).is_err(),
            Ok(None) | Err(_) => true,
        };
        tasks.extend(found.into_iter().filter(|row| is_whole(row, "id")));
        let of_steps = of_steps.into_iter();
        steps.extend(of_steps.filter(|row| is_whole(row, "task_id")));
    }
    tasks.sort_by_cached_key(|row| row.get::<TaskId>("id").ok());
    steps.sort_by_cached_key(|row| {
        let index = row.get::<u16>("idx").ok();
        (row.get::<TaskId>("task_id").ok(), index)
    });
    let mut loading = Loading::new(tasks, definitions);
    for workflow in loading.missing() {
        let row = prepared
            .query(LOAD_WORKFLOW)
            .bind(workflow.name.as_str())
            .bind(i64::from(workflow.version))
            .fetch_optional(&mut *connection)
            .await?;
        loading.workflow(workflow, Ok(row));
    }
    loading.tasks(steps)
}

/// Returns the tasks of which the two statements saw different versions, in order. Another instance may have changed
/// them in between if the transaction does not see one snapshot.
fn changed_meanwhile(tasks: &[PgRow], steps: &[PgRow]) -> Result<Vec<Uuid>, StoreError> {
    let mut versions = BTreeMap::new();
    for row in steps {
        let version: i64 = row.get("of_version")?;
        versions.insert(row.get::<TaskId>("of_task")?, version);
    }
    let mut changed = Vec::new();
    for row in tasks {
        let id: TaskId = row.get("id")?;
        if versions.get(&id) != Some(&row.get("version")?) {
            changed.push(id.0);
        }
    }
    changed.sort_unstable();
    Ok(changed)
}

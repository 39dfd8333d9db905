//! Runs statements on SQLite, and loads tasks.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use rusqlite::{
    CachedStatement, Connection, Rows, StatementStatus, ToSql,
    types::{FromSqlError, ToSqlOutput, Value, ValueRef},
};
use tracing::{Level, trace};
use uuid::Uuid;

use crate::{
    domain::values::TaskId,
    store::{
        CompiledDefinitions, Health, Loaded, StoreError, UnreadableTask,
        error::corrupt,
        record::{CLAIMED, DetailsRow, NewTaskRow, StepRow, TaskRow, UNTOUCHED, loaded_names},
        rows::{Columns, Loading, size},
        statement::{BindValue, Statement},
    },
};

static LOAD_TASKS: LazyLock<String> = LazyLock::new(|| {
    let names = loaded_names(&[TaskRow::COLUMNS, NewTaskRow::COLUMNS, DetailsRow::COLUMNS]);
    format!(
        "SELECT {names}, layout FROM tasks LEFT JOIN task_details ON task_id = id
WHERE id IN (SELECT unhex(value) FROM json_each($1))
ORDER BY id"
    )
});

static LOAD_STEPS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM steps
WHERE task_id IN (SELECT unhex(value) FROM json_each($1))
ORDER BY task_id, idx",
        loaded_names(&[StepRow::COLUMNS])
    )
});

/// The length of a text is stored at its beginning, so the texts are not read.
static SIZES: LazyLock<String> = LazyLock::new(|| {
    format!(
        "
SELECT id, octet_length(input) AS input, coalesce(octet_length(task_details.steps), 0) + coalesce(octet_length(task_details.policies), 0) AS definition,
       (SELECT count(*) FROM steps WHERE task_id = id)
       + coalesce((SELECT {UNTOUCHED} + {CLAIMED} FROM tasks WHERE tasks.id = task_details.task_id), 0) AS steps,
       (SELECT coalesce(sum(coalesce(octet_length(body), 0) + coalesce(octet_length(output), 0)
                            + coalesce(octet_length(error), 0) + coalesce(octet_length(last_fault), 0) + coalesce(octet_length(reply), 0)), 0)
        FROM steps WHERE task_id = id) AS payloads
FROM (SELECT unhex(value) AS id FROM json_each($1)) JOIN task_details ON task_details.task_id = id"
    )
});

const LOAD_WORKFLOW: &str = "SELECT body FROM workflows WHERE name = $1 AND version = $2";

/// A row that was read, with the names of its columns.
#[derive(Debug)]
pub struct SqliteRow {
    names: Arc<[Box<str>]>,
    /// A damaged value affects only the code that needs it.
    values: Vec<Result<Value, FromSqlError>>,
}

impl SqliteRow {
    fn value(&self, column: &str) -> Result<&Value, StoreError> {
        let at = self.names.iter().position(|name| **name == *column);
        let at = at.ok_or_else(|| corrupt(format!("there is no column {column}")))?;
        let value = self.values[at].as_ref();
        value.map_err(|error| corrupt(format!("{column}: {error}")))
    }
}

fn unlike(column: &str, value: &Value) -> StoreError {
    corrupt(format!("{column} is of type {}", value.data_type()))
}

impl Columns for SqliteRow {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text.clone())),
            value => Err(unlike(column, value)),
        }
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Integer(number) => Ok(Some(*number)),
            value => Err(unlike(column, value)),
        }
    }

    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Blob(bytes) => Uuid::from_slice(bytes).map(Some).map_err(corrupt),
            value => Err(unlike(column, value)),
        }
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        Ok(self.integer(column)?.is_some_and(|flag| flag != 0))
    }
}

impl ToSql for BindValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match self {
            BindValue::Text(text) => text.as_ref().map(|text| ValueRef::Text(text.as_bytes())),
            BindValue::Integer(number) => number.map(ValueRef::Integer),
            BindValue::Uuid(id) => id.as_ref().map(|id| ValueRef::Blob(id.as_bytes())),
        };
        Ok(ToSqlOutput::Borrowed(value.unwrap_or(ValueRef::Null)))
    }
}

/// Binds the values. A parameter `$2` is the second value, wherever it is in the statement.
fn bind(prepared: &mut CachedStatement<'_>, values: &[BindValue]) -> Result<(), StoreError> {
    for at in 1..=prepared.parameter_count() {
        let name = prepared.parameter_name(at).unwrap_or_default();
        let number = name
            .get(1..)
            .and_then(|number| number.parse::<usize>().ok());
        let value = number.and_then(|number| values.get(number.checked_sub(1)?));
        let value = value.ok_or_else(|| corrupt(format!("no value for {name}")))?;
        prepared.raw_bind_parameter(at, value)?;
    }
    Ok(())
}

pub fn fetch(connection: &Connection, statement: &Statement) -> Result<Vec<SqliteRow>, StoreError> {
    let mut prepared = connection.prepare_cached(&statement.sql)?;
    bind(&mut prepared, &statement.values)?;
    let names = prepared.column_names().into_iter().map(Box::from).collect();
    let found = collect(names, prepared.raw_query())?;
    if tracing::enabled!(Level::TRACE) {
        say_cost(&statement.sql, &prepared, found.len());
    }
    Ok(found)
}

/// Logs how much a statement has read, and forgets it. SQLite counts the instructions of its virtual machine, which are a few for
/// each row or entry of an index, and the rows that were visited without an index.
fn say_cost(sql: &str, prepared: &rusqlite::Statement<'_>, rows: usize) {
    let instructions = prepared.reset_status(StatementStatus::VmStep);
    let scanned = prepared.reset_status(StatementStatus::FullscanStep);
    trace!(sql, rows, instructions, scanned, "read");
}

fn collect(names: Arc<[Box<str>]>, mut rows: Rows<'_>) -> Result<Vec<SqliteRow>, StoreError> {
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let values = (0..names.len()).map(|at| Ok(Value::try_from(row.get_ref(at)?)));
        found.push(SqliteRow {
            values: values.collect::<Result<_, StoreError>>()?,
            names: names.clone(),
        });
    }
    Ok(found)
}

/// Returns how many rows the statement affected.
pub fn execute(connection: &Connection, statement: &Statement) -> Result<u64, StoreError> {
    let mut prepared = connection.prepare_cached(&statement.sql)?;
    bind(&mut prepared, &statement.values)?;
    Ok(prepared.raw_execute()? as u64)
}

/// Returns the tasks among `ids` that exist, each with its steps. If a part of the file that one of them needs is
/// damaged, each task is read by itself.
pub fn load(
    connection: &Connection,
    ids: &[TaskId],
    definitions: &CompiledDefinitions,
    health: &Health,
) -> Result<Loaded, StoreError> {
    let error = match load_together(connection, ids, definitions) {
        Err(error @ StoreError::Unreadable(_)) => error,
        loaded => return loaded,
    };
    health.note(&error);
    let mut all = Loaded {
        is_spoilt: true,
        ..Loaded::default()
    };
    for id in ids {
        match load_together(connection, &[*id], definitions) {
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

/// Reads the sizes of tasks, see `sizes` of the transaction.
pub fn sizes(
    connection: &Connection,
    ids: &[TaskId],
) -> Result<HashMap<TaskId, usize>, StoreError> {
    let sizes = Statement::new(SIZES.as_str()).bind(listed(ids)?);
    fetch(connection, &sizes)?.iter().map(size).collect()
}

fn listed(ids: &[TaskId]) -> Result<String, StoreError> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.simple()).collect();
    serde_json::to_string(&ids).map_err(corrupt)
}

fn load_together(
    connection: &Connection,
    ids: &[TaskId],
    definitions: &CompiledDefinitions,
) -> Result<Loaded, StoreError> {
    let ids = listed(ids)?;
    let of_ids = |sql: &str| fetch(connection, &Statement::new(sql).bind(ids.as_str()));
    let tasks = of_ids(&LOAD_TASKS)?;
    let steps = of_ids(&LOAD_STEPS)?;
    let mut loading = Loading::new(tasks, definitions);
    for workflow in loading.missing() {
        let load = Statement::new(LOAD_WORKFLOW)
            .bind(&workflow.name)
            .bind(workflow.version);
        match fetch(connection, &load).map(|mut found| found.pop()) {
            Err(error) if !error.is_damage() => return Err(error),
            row => loading.workflow(workflow, row),
        }
    }
    loading.tasks(steps)
}

//! Saving a batch: a statement for each table, whatever the number of rows. The rows travel as one
//! JSON array of arrays, which `json_each` takes apart: a statement costs two thread wake-ups, a row
//! in it next to nothing.

use serde::Serialize;
use sqlx::SqliteConnection;

use crate::{
    domain::{AlertChange, StepIndex, Task, Timestamp},
    store::{
        Batch, Saved, StoreError,
        batch::TaskChange,
        record::{self, DetailsRecord, StepRecord, TaskRecord},
    },
};

/// Relies on the primary key.
const INSERT_TASKS: &str = r#"
INSERT INTO tasks (id, "key", workflow, workflow_version, steps, input, labels, priority, complete_within,
                   created_at, trace_id, version, state, paused, complete_by, overdue_at, ended_at, error)
SELECT unhex(value ->> 0), value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
       value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13,
       value ->> 14, value ->> 15, value ->> 16, value ->> 17
FROM json_each(?1)"#;

/// Compare-and-set on the version; relies on the primary key.
const UPDATE_TASKS: &str = r#"
UPDATE tasks
SET version = version + 1, state = new.state, paused = new.paused, complete_by = new.complete_by,
    overdue_at = new.overdue_at, ended_at = new.ended_at, error = new.error
FROM (SELECT unhex(value ->> 0) AS id, value ->> 1 AS base, value ->> 2 AS state, value ->> 3 AS paused,
             value ->> 4 AS complete_by, value ->> 5 AS overdue_at, value ->> 6 AS ended_at,
             value ->> 7 AS error
      FROM json_each(?1)) AS new
WHERE tasks.id = new.id AND tasks.version = new.base"#;

/// Relies on the primary key.
const SAVE_STEPS: &str = r#"
INSERT INTO steps (task_id, idx, name, agent, priority, state, attempt, failure_count, extended, locked_by,
                   complete_by, ready_at, due_at, queued, started_at, ended_at, body, output, error, last_fault)
SELECT unhex(value ->> 0), value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
       value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13,
       value ->> 14, value ->> 15, value ->> 16, value ->> 17, value ->> 18, value ->> 19
FROM json_each(?1)
WHERE true
ON CONFLICT (task_id, idx) DO UPDATE
SET state = excluded.state, attempt = excluded.attempt, failure_count = excluded.failure_count,
    extended = excluded.extended, locked_by = excluded.locked_by, complete_by = excluded.complete_by,
    ready_at = excluded.ready_at, due_at = excluded.due_at, queued = excluded.queued,
    started_at = excluded.started_at, ended_at = excluded.ended_at, body = excluded.body,
    output = excluded.output, error = excluded.error, last_fault = excluded.last_fault"#;

const INSERT_HISTORY: &str = r#"
INSERT INTO history (task_id, version, at, events)
SELECT unhex(value ->> 0), value ->> 1, value ->> 2, value ->> 3
FROM json_each(?1)"#;

const INSERT_LABELS: &str = r#"
INSERT INTO task_labels (label, value, task_id)
SELECT value ->> 0, value ->> 1, unhex(value ->> 2)
FROM json_each(?1)"#;

/// Relies on alerts_unclosed: an alert that is not closed yet stands for this one too.
const RAISE_ALERT: &str = r#"
INSERT INTO alerts (id, task_id, idx, step, kind, message, state, raised_at)
VALUES (?1, ?2, ?3, ?4, 'task.error', ?5, 'open', ?6)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed.
const CLOSE_ALERT: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = ?3
WHERE task_id = ?1 AND idx = ?2 AND state <> 'closed'"#;

const INSERT_KEYS: &str = r#"
INSERT INTO idempotency_keys ("key", fingerprint, task_id, created_at)
SELECT value ->> 0, value ->> 1, unhex(value ->> 2), ?2
FROM json_each(?1)"#;

type Id = uuid::fmt::Simple;

#[derive(Serialize)]
struct NewTaskRow<'a>(
    Id,
    Option<&'a str>,
    Option<&'a str>,
    Option<u32>,
    Option<&'a str>,
    &'a str,
    String,
    i64,
    Option<i64>,
    i64,
    Option<String>,
    u64,
    &'static str,
    u8,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<String>,
);

#[derive(Serialize)]
struct TaskRow(
    Id,
    u64,
    &'static str,
    u8,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<String>,
);

// A tuple struct of more than sixteen fields is fine for serde; only plain tuples stop there.
#[derive(Serialize)]
struct StepRow<'a>(
    Id,
    u16,
    &'a str,
    &'a str,
    i64,
    &'static str,
    u32,
    u32,
    u32,
    Option<&'a str>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    u8,
    Option<i64>,
    Option<i64>,
    Option<&'a str>,
    Option<&'a str>,
    Option<String>,
    Option<String>,
);

#[derive(Serialize)]
struct HistoryRow(Id, u64, i64, String);

pub(super) async fn save(
    tx: &mut SqliteConnection,
    batch: &Batch,
    now: Timestamp,
) -> Result<Saved, StoreError> {
    let mut new_tasks = Vec::new();
    let mut tasks = Vec::new();
    let mut steps = Vec::with_capacity(batch.changes.len() * 2);
    let mut history = Vec::with_capacity(batch.changes.len());
    let mut labels = Vec::new();
    for change in &batch.changes {
        let task = &*change.task;
        match change.base {
            None => {
                new_tasks.push(new_task_row(task));
                let own = task.details.labels.iter();
                labels.extend(own.map(|(label, value)| (label, value, task.id().0.simple())));
            }
            Some(base) => tasks.push(task_row(task, base)),
        }
        for index in &change.steps {
            steps.push(step_row(task, *index, now));
        }
        if !change.events.is_empty() {
            history.push(history_row(change));
        }
    }
    if !new_tasks.is_empty() {
        execute(tx, INSERT_TASKS, &new_tasks).await?;
    }
    if !tasks.is_empty() && execute(tx, UPDATE_TASKS, &tasks).await? < tasks.len() as u64 {
        return Ok(Saved::Stale);
    }
    if !steps.is_empty() {
        execute(tx, SAVE_STEPS, &steps).await?;
    }
    if !history.is_empty() {
        execute(tx, INSERT_HISTORY, &history).await?;
    }
    if !labels.is_empty() {
        execute(tx, INSERT_LABELS, &labels).await?;
    }
    if !batch.keys.is_empty() {
        let keys: Vec<_> = batch
            .keys
            .iter()
            .map(|new| (&new.key, &new.fingerprint, new.task.0.simple()))
            .collect();
        let json = json(&keys)?;
        sqlx::query(INSERT_KEYS)
            .bind(json)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
    }
    for change in &batch.changes {
        save_alerts(tx, change).await?;
    }
    Ok(Saved::All)
}

async fn execute<T: Serialize>(
    tx: &mut SqliteConnection,
    statement: &'static str,
    rows: &[T],
) -> Result<u64, StoreError> {
    let done = sqlx::query(statement).bind(json(rows)?).execute(tx).await?;
    Ok(done.rows_affected())
}

/// Alerts are rare: a statement for each is no cost that matters.
async fn save_alerts(tx: &mut SqliteConnection, change: &TaskChange) -> Result<(), StoreError> {
    let task = &change.task;
    for (alert_id, alert) in &change.alerts {
        match alert {
            AlertChange::Raise { step, message } => {
                sqlx::query(RAISE_ALERT)
                    .bind(alert_id.as_bytes().as_slice())
                    .bind(task.id().0.as_bytes().as_slice())
                    .bind(step.0)
                    .bind(task.definition(*step).name.as_str())
                    .bind(message)
                    .bind(change.at.as_millis())
                    .execute(&mut *tx)
                    .await?;
            }
            AlertChange::Close { step } => {
                sqlx::query(CLOSE_ALERT)
                    .bind(task.id().0.as_bytes().as_slice())
                    .bind(step.0)
                    .bind(change.at.as_millis())
                    .execute(&mut *tx)
                    .await?;
            }
        }
    }
    Ok(())
}

fn new_task_row(task: &Task) -> NewTaskRow<'_> {
    let details = DetailsRecord::of(task);
    let record = TaskRecord::of(task);
    NewTaskRow(
        record.id.simple(),
        details.key,
        details.workflow,
        details.workflow_version,
        details.steps,
        details.input,
        details.labels,
        details.priority,
        details.complete_within,
        details.created_at,
        details.trace_id,
        task.version,
        record.state,
        u8::from(record.paused),
        record.complete_by,
        record.overdue_at,
        record.ended_at,
        record.error,
    )
}

fn task_row(task: &Task, base: u64) -> TaskRow {
    let record = TaskRecord::of(task);
    TaskRow(
        record.id.simple(),
        base,
        record.state,
        u8::from(record.paused),
        record.complete_by,
        record.overdue_at,
        record.ended_at,
        record.error,
    )
}

fn step_row(task: &Task, index: StepIndex, now: Timestamp) -> StepRow<'_> {
    let record = StepRecord::of(task, index, now);
    StepRow(
        record.task.simple(),
        record.idx,
        record.name,
        record.agent,
        record.priority,
        record.state,
        record.attempt,
        record.failure_count,
        record.extended,
        record.locked_by,
        record.complete_by,
        record.ready_at,
        record.due_at,
        u8::from(record.queued),
        record.started_at,
        record.ended_at,
        record.body,
        record.output,
        record.error,
        record.last_fault,
    )
}

fn history_row(change: &TaskChange) -> HistoryRow {
    HistoryRow(
        change.task.id().0.simple(),
        change.task.version,
        change.at.as_millis(),
        record::events(change),
    )
}

fn json<T: Serialize + ?Sized>(rows: &T) -> Result<String, StoreError> {
    serde_json::to_string(rows).map_err(|error| StoreError::Corrupt(error.to_string()))
}

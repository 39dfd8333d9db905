//! Reads records that are one row each and need no rows of others, such as a step of a queue, a message or a circuit.

use super::columns::{Columns, FromColumn};
use crate::domain::{
    message::Circuit,
    queue::QueuedStep,
    task::{Expiry, memory_of},
    values::{StepRef, TaskId},
};
use crate::store::{
    AgentRecord, EndedAt, EndedTask, ExpiredStep, HeldStep, KnownKey, NextMessage, SavedChange,
    StoreError, WorkflowRecord,
};

/// Defines for each record the columns that statements select for it, and the function that reads it from them.
macro_rules! records {
    ($($read:ident, $COLUMNS:ident: $Record:ident {
        $first:ident = $first_column:literal $(, $field:ident = $column:literal)*
    })*) => { $(
        pub const $COLUMNS: &str = concat!($first_column $(, ", ", $column)*);

        pub fn $read(row: &impl Columns) -> Result<$Record, StoreError> {
            Ok($Record { $first: row.get($first_column)?, $($field: row.get($column)?),* })
        }
    )* };
}

records! {
    workflow, WORKFLOW: WorkflowRecord {
        name = "name", version = "version", body = "body", created_at = "created_at"
    }
    agent, AGENT: AgentRecord { name = "name", spec = "spec" }
}

pub fn change(row: &impl Columns) -> Result<SavedChange, StoreError> {
    Ok(SavedChange {
        version: row.get("version")?,
        at: row.get("at")?,
        events: row.get("events")?,
    })
}

pub fn step_ref(row: &impl Columns) -> Result<StepRef, StoreError> {
    Ok(StepRef {
        task: row.get("task_id")?,
        step: row.get("idx")?,
    })
}

pub fn queued_step(row: &impl Columns) -> Result<QueuedStep, StoreError> {
    Ok(QueuedStep {
        step: step_ref(row)?,
        turn: row.get("turn")?,
        due_at: row.get("due_at")?,
    })
}

pub fn next_message(row: &impl Columns) -> Result<NextMessage, StoreError> {
    Ok(NextMessage {
        id: row.get("id")?,
        kind: row.get("kind")?,
        url: row.get("url")?,
        body: row.get("body")?,
        created_at: row.get("created_at")?,
    })
}

pub fn circuit(row: &impl Columns) -> Result<Circuit, StoreError> {
    Ok(Circuit {
        failures: row.get("failures")?,
        failing_since: row.get("failing_since")?,
        changed_at: row.get("changed_at")?,
        paused_until: row.get("paused_until")?,
    })
}

pub fn known_key(row: &impl Columns) -> Result<KnownKey, StoreError> {
    Ok(KnownKey {
        key: row.get("key")?,
        fingerprint: row.get("fingerprint")?,
        task: row.get("task_id")?,
    })
}

/// Reads a count, by the value of the column `by`.
pub fn count<T: FromColumn>(row: &impl Columns, by: &str) -> Result<(T, u64), StoreError> {
    Ok((row.get(by)?, row.get("count")?))
}

pub fn held_step(row: &impl Columns) -> Result<HeldStep, StoreError> {
    Ok(HeldStep {
        step: step_ref(row)?,
        attempt: row.get("attempt")?,
        undoing: row.get("undoing")?,
        cancelled: row.get("cancelled")?,
    })
}

pub fn expired_step(row: &impl Columns) -> Result<ExpiredStep, StoreError> {
    let cause = match row.get("lost")? {
        true => Expiry::InstanceLost,
        false => Expiry::CompleteBy,
    };
    Ok(ExpiredStep {
        step: step_ref(row)?,
        attempt: row.get("attempt")?,
        cause,
    })
}

pub fn size(row: &impl Columns) -> Result<(TaskId, usize), StoreError> {
    let (input, definition) = (row.get("input")?, row.get("definition")?);
    let memory = memory_of(input, definition, row.get("steps")?, row.get("payloads")?);
    Ok((row.get("id")?, memory))
}

/// Reads a task that has ended.
pub fn ended_task(row: &impl Columns, with_kind: bool) -> Result<EndedTask, StoreError> {
    let ended = EndedAt {
        at: row.get("ended_at")?,
        task: row.get("id")?,
    };
    let kind = || Ok::<_, StoreError>((row.get("workflow")?, row.get("state")?));
    Ok(EndedTask {
        ended,
        kind: with_kind.then(kind).transpose()?,
    })
}

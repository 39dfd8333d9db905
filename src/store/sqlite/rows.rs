//! From rows back to aggregates.

use std::sync::Arc;

use serde_json::value::RawValue;
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use crate::{
    domain::{
        Accepted, AgentName, Attempt, Definition, Details, Expiry, Fault, InstanceId, Limits,
        Payload, Priority, Span, Step, StepIndex, StepName, StepRef, StepState, StepStatus, Task,
        TaskId, TaskState, TaskStatus, Timestamp, WorkflowName, WorkflowRef, parse_steps,
    },
    store::{
        Alert, AlertId, AlertState, Change, Definitions, ExpiredStep, StoreError, TaskSummary,
        WorkflowRecord,
    },
};

const LOAD_TASKS: &str = r#"
SELECT id, "key", workflow, workflow_version, steps, input, labels, priority, complete_within, created_at,
       trace_id, version, state, paused, complete_by, ended_at, error
FROM tasks JOIN task_details ON task_id = id
WHERE id IN (SELECT unhex(value) FROM json_each(?1))
ORDER BY id"#;

const LOAD_STEPS: &str = r#"
SELECT task_id, idx, state, attempt, failure_count, extended, locked_by, complete_by, ready_at, started_at,
       ended_at, body, output, error, last_fault
FROM steps
WHERE task_id IN (SELECT unhex(value) FROM json_each(?1))
ORDER BY task_id, idx"#;

const LOAD_WORKFLOW: &str = "SELECT body FROM workflows WHERE name = ?1 AND version = ?2";

/// The tasks among `ids` that exist, each with its steps.
pub(super) async fn load(
    connection: &mut SqliteConnection,
    ids: &[TaskId],
    definitions: &Definitions,
) -> Result<Vec<Task>, StoreError> {
    let ids: Vec<_> = ids.iter().map(|id| id.0.simple()).collect();
    let ids = serde_json::to_string(&ids).map_err(corrupt)?;
    let task_rows = sqlx::query(LOAD_TASKS)
        .bind(&ids)
        .fetch_all(&mut *connection)
        .await?;
    let step_rows = sqlx::query(LOAD_STEPS)
        .bind(&ids)
        .fetch_all(&mut *connection)
        .await?;
    let mut step_rows = step_rows.into_iter().peekable();
    let mut tasks = Vec::with_capacity(task_rows.len());
    for row in task_rows {
        let definition = definition(connection, &row, definitions).await?;
        let mut task = task(&row, definition)?;
        let id = task.id();
        while let Some(row) = step_rows.next_if(|row| task_id(row, "task_id").ok() == Some(id)) {
            task.steps.push(step(&row)?);
        }
        if task.steps.len() != task.details.definition.steps.len() {
            return Err(corrupt(format!("task {id} lacks records of its steps")));
        }
        tasks.push(task);
    }
    Ok(tasks)
}

async fn definition(
    connection: &mut SqliteConnection,
    row: &SqliteRow,
    definitions: &Definitions,
) -> Result<Arc<Definition>, StoreError> {
    if let Some(steps) = row.try_get::<Option<String>, _>("steps")? {
        return compile(steps).map(Arc::new);
    }
    let workflow =
        workflow_ref(row)?.ok_or_else(|| corrupt("a task has neither steps nor a workflow"))?;
    if let Some(known) = definitions.get(&workflow) {
        return Ok(known);
    }
    let body: String = sqlx::query(LOAD_WORKFLOW)
        .bind(workflow.name.as_str())
        .bind(workflow.version)
        .fetch_one(connection)
        .await?
        .try_get("body")?;
    let definition = Arc::new(compile(workflow_steps(&body)?)?);
    definitions.put(workflow, definition.clone());
    Ok(definition)
}

/// The steps of a stored workflow.
fn workflow_steps(body: &str) -> Result<String, StoreError> {
    #[derive(serde::Deserialize)]
    struct Body {
        steps: Box<RawValue>,
    }
    let body: Body = serde_json::from_str(body).map_err(corrupt)?;
    Ok(body.steps.get().to_owned())
}

/// A definition that was accepted once is compiled again without asking who is known today.
pub(super) fn compile(steps: String) -> Result<Definition, StoreError> {
    let source = Payload::parse(steps).ok_or_else(|| corrupt("a definition is not JSON"))?;
    parse_steps(&source, "", &Limits::stored(), &Accepted).map_err(|faults| {
        let faults: Vec<_> = faults
            .iter()
            .map(|fault| format!("{}: {}", fault.pointer, fault.message))
            .collect();
        corrupt(format!("a stored definition: {}", faults.join("; ")))
    })
}

fn task(row: &SqliteRow, definition: Arc<Definition>) -> Result<Task, StoreError> {
    let status: String = row.try_get("state")?;
    let status = TaskStatus::parse(&status).ok_or_else(|| corrupt(format!("state {status}")))?;
    let ended_at = || required(time(row, "ended_at")?, "ended_at");
    let state = match status {
        TaskStatus::Pending => TaskState::Pending,
        TaskStatus::Processing => TaskState::Processing,
        TaskStatus::Paused => TaskState::Paused,
        TaskStatus::Processed => TaskState::Processed { at: ended_at()? },
        TaskStatus::Cancelled => TaskState::Cancelled { at: ended_at()? },
        TaskStatus::Error => TaskState::Error(required(fault(row, "error")?, "error")?),
    };
    let labels: String = row.try_get("labels")?;
    let input: String = row.try_get("input")?;
    let key: Option<String> = row.try_get("key")?;
    let trace_id: Option<String> = row.try_get("trace_id")?;
    let complete_within: Option<i64> = row.try_get("complete_within")?;
    let details = Details {
        id: task_id(row, "id")?,
        key: key.map(Into::into),
        workflow: workflow_ref(row)?,
        definition,
        input: Payload::parse(input).ok_or_else(|| corrupt("an input is not JSON"))?,
        labels: serde_json::from_str(&labels).map_err(corrupt)?,
        priority: priority(row)?,
        complete_within: complete_within.map(|millis| Span::from_millis(millis.unsigned_abs())),
        trace_id: trace_id.and_then(|trace| u128::from_str_radix(&trace, 16).ok()),
    };
    Ok(Task {
        steps: Vec::with_capacity(details.definition.steps.len()),
        details: Arc::new(details),
        created_at: required(time(row, "created_at")?, "created_at")?,
        version: version(row)?,
        state,
        paused: row.try_get("paused")?,
        complete_by: time(row, "complete_by")?,
    })
}

fn step(row: &SqliteRow) -> Result<Step, StoreError> {
    let status: String = row.try_get("state")?;
    let status = StepStatus::parse(&status).ok_or_else(|| corrupt(format!("state {status}")))?;
    let at = || required(time(row, "ended_at")?, "ended_at");
    let state = match status {
        StepStatus::Waiting => StepState::Waiting,
        StepStatus::Pending => StepState::Pending {
            ready_at: required(time(row, "ready_at")?, "ready_at")?,
        },
        StepStatus::Processing => StepState::Processing {
            locked_by: InstanceId::new(row.try_get::<String, _>("locked_by")?),
            complete_by: required(time(row, "complete_by")?, "complete_by")?,
        },
        StepStatus::Processed => StepState::Processed {
            output: required(payload(row, "output")?, "output")?,
            at: at()?,
        },
        StepStatus::Error => StepState::Error(required(fault(row, "error")?, "error")?),
        StepStatus::Skipped => StepState::Skipped {
            output: payload(row, "output")?,
            at: at()?,
        },
        StepStatus::Cancelled => StepState::Cancelled { at: at()? },
    };
    Ok(Step {
        state,
        attempt: Attempt(row.try_get("attempt")?),
        failure_count: row.try_get("failure_count")?,
        extended: row.try_get("extended")?,
        body: payload(row, "body")?,
        started_at: time(row, "started_at")?,
        last_fault: fault(row, "last_fault")?,
    })
}

pub(super) fn summary(row: &SqliteRow) -> Result<TaskSummary, StoreError> {
    let state: String = row.try_get("state")?;
    let labels: String = row.try_get("labels")?;
    Ok(TaskSummary {
        id: task_id(row, "id")?,
        key: row.try_get("key")?,
        workflow: workflow_ref(row)?,
        state: TaskStatus::parse(&state).ok_or_else(|| corrupt(format!("state {state}")))?,
        priority: priority(row)?,
        labels: RawValue::from_string(labels).map_err(corrupt)?,
        created_at: required(time(row, "created_at")?, "created_at")?,
        complete_by: time(row, "complete_by")?,
        ended_at: time(row, "ended_at")?,
        version: version(row)?,
        error: fault(row, "error")?,
    })
}

pub(super) fn change(row: &SqliteRow) -> Result<Change, StoreError> {
    Ok(Change {
        version: version(row)?,
        at: required(time(row, "at")?, "at")?,
        events: row.try_get("events")?,
    })
}

pub(super) fn workflow(row: &SqliteRow) -> Result<WorkflowRecord, StoreError> {
    Ok(WorkflowRecord {
        name: WorkflowName::new(row.try_get::<String, _>("name")?),
        version: row.try_get("version")?,
        body: row.try_get("body")?,
        created_at: required(time(row, "created_at")?, "created_at")?,
    })
}

pub(super) fn alert(row: &SqliteRow) -> Result<Alert, StoreError> {
    let state: String = row.try_get("state")?;
    Ok(Alert {
        id: AlertId(uuid(row, "id")?),
        task: task_id(row, "task_id")?,
        step: StepName::new(row.try_get::<String, _>("step")?),
        kind: row.try_get("kind")?,
        message: row.try_get("message")?,
        state: AlertState::parse(&state).ok_or_else(|| corrupt(format!("state {state}")))?,
        raised_at: required(time(row, "raised_at")?, "raised_at")?,
        acknowledged_at: time(row, "acknowledged_at")?,
        acknowledged_by: row.try_get("acknowledged_by")?,
        closed_at: time(row, "closed_at")?,
    })
}

pub(super) fn step_ref(row: &SqliteRow) -> Result<StepRef, StoreError> {
    Ok(StepRef {
        task: task_id(row, "task_id")?,
        step: StepIndex(row.try_get("idx")?),
    })
}

pub(super) fn held_step(row: &SqliteRow) -> Result<(StepRef, Attempt), StoreError> {
    Ok((step_ref(row)?, Attempt(row.try_get("attempt")?)))
}

pub(super) fn expired_step(row: &SqliteRow) -> Result<ExpiredStep, StoreError> {
    let (step, attempt) = held_step(row)?;
    let cause = match row.try_get("lost")? {
        true => Expiry::InstanceLost,
        false => Expiry::CompleteBy,
    };
    Ok(ExpiredStep {
        step,
        attempt,
        cause,
    })
}

pub(super) fn agent_name(row: &SqliteRow, column: &str) -> Result<AgentName, StoreError> {
    Ok(AgentName::new(row.try_get::<String, _>(column)?))
}

pub(super) fn task_id(row: &SqliteRow, column: &str) -> Result<TaskId, StoreError> {
    uuid(row, column).map(TaskId)
}

pub(super) fn uuid(row: &SqliteRow, column: &str) -> Result<Uuid, StoreError> {
    Uuid::from_slice(row.try_get(column)?).map_err(corrupt)
}

pub(super) fn time(row: &SqliteRow, column: &str) -> Result<Option<Timestamp>, StoreError> {
    let millis: Option<i64> = row.try_get(column)?;
    Ok(millis.map(Timestamp::from_millis))
}

fn version(row: &SqliteRow) -> Result<u64, StoreError> {
    let version: i64 = row.try_get("version")?;
    u64::try_from(version).map_err(corrupt)
}

fn priority(row: &SqliteRow) -> Result<Priority, StoreError> {
    Priority::new(row.try_get("priority")?).ok_or_else(|| corrupt("a priority is out of range"))
}

fn workflow_ref(row: &SqliteRow) -> Result<Option<WorkflowRef>, StoreError> {
    let name: Option<String> = row.try_get("workflow")?;
    let version: Option<u32> = row.try_get("workflow_version")?;
    Ok(name.zip(version).map(|(name, version)| WorkflowRef {
        name: WorkflowName::new(name),
        version,
    }))
}

fn payload(row: &SqliteRow, column: &str) -> Result<Option<Payload>, StoreError> {
    let text: Option<String> = row.try_get(column)?;
    text.map(|text| Payload::parse(text).ok_or_else(|| corrupt(format!("{column} is not JSON"))))
        .transpose()
}

fn fault(row: &SqliteRow, column: &str) -> Result<Option<Fault>, StoreError> {
    let text: Option<String> = row.try_get(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(corrupt))
        .transpose()
}

pub(super) fn required<T>(value: Option<T>, column: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| corrupt(format!("{column} is missing")))
}

pub(super) fn corrupt(reason: impl ToString) -> StoreError {
    StoreError::Corrupt(reason.to_string())
}

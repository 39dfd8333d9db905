//! From rows back to aggregates and records, the same for every database.

use std::{collections::HashMap, sync::Arc};

use serde_json::value::RawValue;
use sqlx::{ColumnIndex, Decode, Type, postgres::PgRow, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    AgentRecord, Alert, AlertId, AlertState, Definitions, EndedAt, EndedTask, ExpiredStep,
    HeldStep, KnownKey, SavedChange, StoreError, TaskSummary, UnreadableTask, WorkflowRecord,
    stored_workflow::StoredWorkflow,
};
use crate::domain::{
    Accepted, AgentName, Attempt, Definition, Details, Effect, Expiry, Fault, InstanceId, Limits,
    Payload, Policies, Priority, ReceiverName, Span, Step, StepIndex, StepName, StepRef, StepState,
    StepStatus, Task, TaskId, TaskState, TaskStatus, Timestamp, Trace, WorkflowName, WorkflowRef,
    memory_of, parse_steps,
};

/// One row, read by the names of its columns.
pub trait Columns {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError>;
    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError>;
    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError>;
    fn flag(&self, column: &str) -> Result<bool, StoreError>;
}

impl<R: sqlx::Row> Columns for R
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Uuid: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> bool: Decode<'r, R::Database> + Type<R::Database>,
{
    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError> {
        Ok(self.try_get(column)?)
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        Ok(self.try_get(column)?)
    }
}

/// A row of one of the databases.
pub enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Columns for Row {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError> {
        match self {
            Row::Sqlite(row) => row.text(column),
            Row::Postgres(row) => row.text(column),
        }
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError> {
        match self {
            Row::Sqlite(row) => row.integer(column),
            Row::Postgres(row) => row.integer(column),
        }
    }

    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError> {
        match self {
            Row::Sqlite(row) => row.uuid(column),
            Row::Postgres(row) => row.uuid(column),
        }
    }

    fn flag(&self, column: &str) -> Result<bool, StoreError> {
        match self {
            Row::Sqlite(row) => row.flag(column),
            Row::Postgres(row) => row.flag(column),
        }
    }
}

/// What was found of the tasks that were asked for.
#[derive(Debug, Default)]
pub struct Loaded {
    pub tasks: Vec<Task>,
    /// Those that are there, and cannot be read. They cost the others nothing.
    pub unreadable: Vec<UnreadableTask>,
    /// A damaged part of the database was met: SQLite lets a transaction that did so write nothing any more.
    pub is_spoilt: bool,
}

impl Loaded {
    /// The one task that was asked for, if there is one.
    pub fn one(mut self) -> Result<Option<Task>, StoreError> {
        match self.unreadable.pop() {
            Some(unreadable) => Err(unreadable.into()),
            None => Ok(self.tasks.pop()),
        }
    }
}

/// Rows of tasks and of their steps on the way to aggregates: first the workflows that are not known
/// yet are asked for, then all is put together.
pub struct Loading<'d, R> {
    tasks: Vec<R>,
    definitions: &'d Definitions,
    /// Kept here as well: the cache of `definitions` is bounded, and may forget what it is given. Or why
    /// one cannot be read.
    workflows: HashMap<WorkflowRef, Result<Arc<Definition>, String>>,
}

impl<'d, R: Columns> Loading<'d, R> {
    pub fn new(tasks: Vec<R>, definitions: &'d Definitions) -> Self {
        Self {
            tasks,
            definitions,
            workflows: HashMap::new(),
        }
    }

    /// The workflows that must be handed in by [`Loading::workflow`].
    pub fn missing(&mut self) -> Vec<WorkflowRef> {
        let mut missing = Vec::new();
        for row in &self.tasks {
            // What cannot be read here is met again when the task is put together.
            let (Ok(None), Ok(Some(workflow))) = (row.text("steps"), workflow_ref(row)) else {
                continue;
            };
            if self.workflows.contains_key(&workflow) || missing.contains(&workflow) {
                continue;
            }
            match self.definitions.get(&workflow) {
                Some(known) => {
                    self.workflows.insert(workflow, Ok(known));
                }
                None => missing.push(workflow),
            }
        }
        missing
    }

    pub fn workflow(&mut self, workflow: WorkflowRef, found: Result<Option<R>, StoreError>) {
        let definition = found.and_then(|row| {
            let row = row.ok_or_else(|| corrupt("it is missing"))?;
            let stored = StoredWorkflow::parse(&text(&row, "body")?)?;
            stored.definition().map(Arc::new)
        });
        if let Ok(definition) = &definition {
            self.definitions.put(workflow.clone(), definition.clone());
        }
        let definition = definition.map_err(|error| {
            let WorkflowRef { name, version } = &workflow;
            format!(
                "version {version} of its workflow {name}: {}",
                error.damage()
            )
        });
        self.workflows.insert(workflow, definition);
    }

    /// The tasks, each with its steps, which come in the order of tasks and their steps.
    pub fn tasks(self, steps: Vec<R>) -> Result<Loaded, StoreError> {
        let mut steps = steps.into_iter().peekable();
        let mut loaded = Loaded {
            tasks: Vec::with_capacity(self.tasks.len()),
            unreadable: Vec::new(),
            is_spoilt: false,
        };
        for row in &self.tasks {
            let id = task_id(row, "id")?;
            let of = |row: &R| task_id(row, "task_id").ok();
            // Steps without a task are nobody's.
            while steps.next_if(|row| of(row) < Some(id)).is_some() {}
            let own = std::iter::from_fn(|| steps.next_if(|row| of(row) == Some(id)));
            let own: Vec<_> = own.collect();
            match self.definition(row).and_then(|of| assemble(row, of, &own)) {
                Ok(task) => loaded.tasks.push(task),
                Err(error) => loaded.unreadable.push(UnreadableTask {
                    task: id,
                    reason: error.damage(),
                }),
            }
        }
        Ok(loaded)
    }

    fn definition(&self, row: &R) -> Result<Arc<Definition>, StoreError> {
        if let Some(steps) = row.text("steps")? {
            return compile(row.text("policies")?.as_deref(), steps).map(Arc::new);
        }
        let workflow = workflow_ref(row)?.and_then(|workflow| self.workflows.get(&workflow));
        let workflow = workflow.cloned();
        let workflow = workflow.ok_or_else(|| corrupt("it has neither steps nor a workflow"))?;
        workflow.map_err(StoreError::Corrupt)
    }
}

/// A task of its row and those of its steps.
pub fn assemble<R: Columns>(
    row: &R,
    definition: Arc<Definition>,
    steps: &[R],
) -> Result<Task, StoreError> {
    let mut task = task(row, definition)?;
    let definition = &task.details.definition;
    let undos = match task.undo {
        Some(_) => definition.undos.len(),
        None => 0,
    };
    // The undos come after the steps.
    let first_undo = definition.steps.len();
    if steps.len() != first_undo + undos {
        return Err(corrupt("records of its steps are missing"));
    }
    for (at, row) in steps.iter().enumerate() {
        let step = step(row)?;
        match at < first_undo {
            true => task.steps.push(step),
            false => task.undos.push(step),
        }
    }
    Ok(task)
}

/// A definition that was accepted once is compiled again without asking who is known today.
pub fn compile(policies: Option<&str>, steps: String) -> Result<Definition, StoreError> {
    let source = Payload::parse(steps).ok_or_else(|| corrupt("a definition is not JSON"))?;
    let policies = policies.map_or_else(|| Ok(Policies::default()), Policies::parse);
    let compiled = policies
        .and_then(|policies| parse_steps(&source, "", &policies, &Limits::stored(), &Accepted));
    compiled.map_err(|faults| {
        let faults: Vec<_> = faults
            .iter()
            .map(|fault| format!("{}: {}", fault.pointer, fault.message))
            .collect();
        corrupt(format!("a stored definition: {}", faults.join("; ")))
    })
}

fn task(row: &impl Columns, definition: Arc<Definition>) -> Result<Task, StoreError> {
    let status = text(row, "state")?;
    let status = TaskStatus::parse(&status).ok_or_else(|| corrupt(format!("state {status}")))?;
    let ended_at = || required(time(row, "ended_at")?, "ended_at");
    let state = match status {
        TaskStatus::Pending => TaskState::Pending,
        TaskStatus::Processing => TaskState::Processing,
        TaskStatus::Paused => TaskState::Paused,
        TaskStatus::Processed => TaskState::Processed { at: ended_at()? },
        TaskStatus::Undoing => TaskState::Undoing,
        TaskStatus::Undone => TaskState::Undone { at: ended_at()? },
        TaskStatus::Cancelled => TaskState::Cancelled { at: ended_at()? },
        TaskStatus::Error => TaskState::Error(required(fault(row, "error")?, "error")?),
    };
    let labels = text(row, "labels")?;
    let input = payload(row, "input")?;
    let key = row.text("key")?;
    let complete_within = row.integer("complete_within")?;
    let reply_to = row.text("reply_to")?;
    let reply_to = reply_to.map(|text| serde_json::from_str(&text).map_err(corrupt));
    let details = Details {
        id: task_id(row, "id")?,
        key: key.map(Into::into),
        workflow: workflow_ref(row)?,
        definition,
        input: required(input, "input")?,
        labels: serde_json::from_str(&labels).map_err(corrupt)?,
        priority: priority(row)?,
        complete_within: complete_within.map(|millis| Span::from_millis(millis.unsigned_abs())),
        trace: trace(row)?,
        reply_to: reply_to.transpose()?,
    };
    Ok(Task {
        steps: Vec::with_capacity(details.definition.steps.len()),
        undos: Vec::new(),
        undo: json(row, "undo")?,
        details: Arc::new(details),
        created_at: required(time(row, "created_at")?, "created_at")?,
        version: version(row)?,
        state,
        paused: row.flag("paused")?,
        complete_by: time(row, "complete_by")?,
    })
}

/// Of a task from before the rest of it was kept, the id alone.
fn trace(row: &impl Columns) -> Result<Option<Trace>, StoreError> {
    let id = row.text("trace_id")?;
    let Some(id) = id.and_then(|id| u128::from_str_radix(&id, 16).ok()) else {
        return Ok(None);
    };
    let flags = row.integer("trace_flags")?;
    Ok(Some(Trace {
        id,
        // It was always passed on as sampled then.
        flags: flags
            .and_then(|flags| u8::try_from(flags).ok())
            .unwrap_or(1),
        state: row.text("tracestate")?.map(Into::into),
    }))
}

fn step(row: &impl Columns) -> Result<Step, StoreError> {
    let status = text(row, "state")?;
    let status = StepStatus::parse(&status).ok_or_else(|| corrupt(format!("state {status}")))?;
    let at = || required(time(row, "ended_at")?, "ended_at");
    let state = match status {
        StepStatus::Waiting => StepState::Waiting,
        StepStatus::Pending => StepState::Pending {
            ready_at: required(time(row, "ready_at")?, "ready_at")?,
        },
        StepStatus::Processing => StepState::Processing {
            locked_by: InstanceId::new(text(row, "locked_by")?),
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
        StepStatus::Undone => StepState::Undone {
            output: payload(row, "output")?,
            at: at()?,
        },
    };
    let previous_output = match status {
        StepStatus::Processed | StepStatus::Skipped | StepStatus::Undone => None,
        StepStatus::Waiting
        | StepStatus::Pending
        | StepStatus::Processing
        | StepStatus::Error
        | StepStatus::Cancelled => payload(row, "output")?,
    };
    let time_left = match &state {
        StepState::Pending { ready_at } => {
            let end = time(row, "complete_by")?;
            end.map(|end| Span::from_millis(end.since(*ready_at).as_millis() as u64))
        }
        _ => None,
    };
    let (effect, is_probing) = effect(row)?;
    Ok(Step {
        state,
        previous_output,
        tries: number(row, "tries")?,
        time_left,
        attempt: Attempt(number(row, "attempt")?),
        failure_count: number(row, "failure_count")?,
        extensions_used: number(row, "extended")?,
        effect,
        is_probing,
        body: payload(row, "body")?,
        started_at: time(row, "started_at")?,
        last_fault: fault(row, "last_fault")?,
    })
}

pub fn summary(row: &impl Columns) -> Result<TaskSummary, StoreError> {
    let id = task_id(row, "id")?;
    summary_of(id, row).map_err(|error| {
        let reason = error.damage();
        UnreadableTask { task: id, reason }.into()
    })
}

fn summary_of(id: TaskId, row: &impl Columns) -> Result<TaskSummary, StoreError> {
    let state = text(row, "state")?;
    let labels = text(row, "labels")?;
    Ok(TaskSummary {
        id,
        key: row.text("key")?,
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

pub fn change(row: &impl Columns) -> Result<SavedChange, StoreError> {
    Ok(SavedChange {
        version: version(row)?,
        at: required(time(row, "at")?, "at")?,
        events: text(row, "events")?,
    })
}

pub fn workflow(row: &impl Columns) -> Result<WorkflowRecord, StoreError> {
    Ok(WorkflowRecord {
        name: WorkflowName::new(text(row, "name")?),
        version: number(row, "version")?,
        body: text(row, "body")?,
        created_at: required(time(row, "created_at")?, "created_at")?,
    })
}

pub fn alert(row: &impl Columns) -> Result<Alert, StoreError> {
    let state = text(row, "state")?;
    Ok(Alert {
        id: AlertId(uuid(row, "id")?),
        task: row.uuid("task_id")?.map(TaskId),
        step: row.text("step")?.map(StepName::new),
        receiver: row.text("receiver")?.map(ReceiverName::new),
        kind: text(row, "kind")?,
        message: text(row, "message")?,
        state: AlertState::parse(&state).ok_or_else(|| corrupt(format!("state {state}")))?,
        raised_at: required(time(row, "raised_at")?, "raised_at")?,
        acknowledged_at: time(row, "acknowledged_at")?,
        acknowledged_by: row.text("acknowledged_by")?,
        closed_at: time(row, "closed_at")?,
    })
}

pub fn known_key(row: &impl Columns) -> Result<KnownKey, StoreError> {
    Ok(KnownKey {
        key: text(row, "key")?,
        fingerprint: text(row, "fingerprint")?,
        task: task_id(row, "task_id")?,
    })
}

pub fn agent(row: &impl Columns) -> Result<AgentRecord, StoreError> {
    Ok(AgentRecord {
        name: agent_name(row, "name")?,
        spec: serde_json::from_str(&text(row, "spec")?).map_err(corrupt)?,
    })
}

pub fn task_count(row: &impl Columns) -> Result<(TaskStatus, u64), StoreError> {
    let state = text(row, "state")?;
    let state = TaskStatus::parse(&state).ok_or_else(|| corrupt(format!("state {state}")))?;
    Ok((state, number(row, "count")?))
}

pub fn alert_count(row: &impl Columns) -> Result<(String, u64), StoreError> {
    Ok((text(row, "kind")?, number(row, "count")?))
}

pub fn queue_count(row: &impl Columns) -> Result<(AgentName, u64), StoreError> {
    Ok((agent_name(row, "agent")?, number(row, "count")?))
}

pub fn step_ref(row: &impl Columns) -> Result<StepRef, StoreError> {
    Ok(StepRef {
        task: task_id(row, "task_id")?,
        step: StepIndex(number(row, "idx")?),
    })
}

pub fn held_step(row: &impl Columns) -> Result<HeldStep, StoreError> {
    Ok(HeldStep {
        step: step_ref(row)?,
        attempt: Attempt(number(row, "attempt")?),
        undoing: row.flag("undoing")?,
    })
}

pub fn expired_step(row: &impl Columns) -> Result<ExpiredStep, StoreError> {
    let (step, attempt) = (step_ref(row)?, Attempt(number(row, "attempt")?));
    let cause = match row.flag("lost")? {
        true => Expiry::InstanceLost,
        false => Expiry::CompleteBy,
    };
    Ok(ExpiredStep {
        step,
        attempt,
        cause,
    })
}

pub fn size(row: &impl Columns) -> Result<(TaskId, usize), StoreError> {
    let [input, definition, steps, payloads] =
        ["input", "definition", "steps", "payloads"].map(|column| number::<usize>(row, column));
    Ok((
        task_id(row, "id")?,
        memory_of(input?, definition?, steps?, payloads?),
    ))
}

pub fn agent_name(row: &impl Columns, column: &str) -> Result<AgentName, StoreError> {
    Ok(AgentName::new(text(row, column)?))
}

/// Of one that ended.
pub fn ended_task(row: &impl Columns, with_kind: bool) -> Result<EndedTask, StoreError> {
    let ended = EndedAt {
        at: required(time(row, "ended_at")?, "ended_at")?,
        task: task_id(row, "id")?,
    };
    let kind = || {
        let state = required(row.text("state")?, "state")?;
        let state = TaskStatus::parse(&state).ok_or_else(|| corrupt(format!("state {state}")))?;
        Ok::<_, StoreError>((row.text("workflow")?.map(WorkflowName::new), state))
    };
    Ok(EndedTask {
        ended,
        kind: with_kind.then(kind).transpose()?,
    })
}

pub fn task_id(row: &impl Columns, column: &str) -> Result<TaskId, StoreError> {
    uuid(row, column).map(TaskId)
}

pub fn uuid(row: &impl Columns, column: &str) -> Result<Uuid, StoreError> {
    required(row.uuid(column)?, column)
}

pub fn time(row: &impl Columns, column: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(row.integer(column)?.map(Timestamp::from_millis))
}

fn version(row: &impl Columns) -> Result<u64, StoreError> {
    number(row, "version")
}

fn priority(row: &impl Columns) -> Result<Priority, StoreError> {
    Priority::new(number(row, "priority")?).ok_or_else(|| corrupt("a priority is out of range"))
}

fn workflow_ref(row: &impl Columns) -> Result<Option<WorkflowRef>, StoreError> {
    let Some(name) = row.text("workflow")? else {
        return Ok(None);
    };
    Ok(Some(WorkflowRef {
        name: WorkflowName::new(name),
        version: number(row, "workflow_version")?,
    }))
}

fn payload(row: &impl Columns, column: &str) -> Result<Option<Payload>, StoreError> {
    let text = row.text(column)?;
    text.map(|text| Payload::parse(text).ok_or_else(|| corrupt(format!("{column} is not JSON"))))
        .transpose()
}

/// Whether the effect of the step is known, and whether its attempt asks the probe.
fn effect(row: &impl Columns) -> Result<(Effect, bool), StoreError> {
    let word = row.text("doubt")?;
    Step::parse_effect(word.as_deref()).ok_or_else(|| corrupt(format!("doubt {word:?}")))
}

fn fault(row: &impl Columns, column: &str) -> Result<Option<Fault>, StoreError> {
    json(row, column)
}

fn json<T: serde::de::DeserializeOwned>(
    row: &impl Columns,
    column: &str,
) -> Result<Option<T>, StoreError> {
    let text = row.text(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(corrupt))
        .transpose()
}

pub fn text(row: &impl Columns, column: &str) -> Result<String, StoreError> {
    required(row.text(column)?, column)
}

pub fn number<T: TryFrom<i64>>(row: &impl Columns, column: &str) -> Result<T, StoreError> {
    let number = required(row.integer(column)?, column)?;
    T::try_from(number).map_err(|_| corrupt(format!("{column} is {number}")))
}

pub fn required<T>(value: Option<T>, column: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| corrupt(format!("{column} is missing")))
}

pub fn corrupt(reason: impl ToString) -> StoreError {
    StoreError::Corrupt(reason.to_string())
}

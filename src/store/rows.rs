//! From rows back to aggregates and records, the same for every database.

use std::{collections::HashMap, sync::Arc};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sqlx::{Row as _, postgres::PgRow};
use uuid::Uuid;

use super::{
    AgentRecord, AlertId, AlertState, Definitions, EndedAt, EndedTask, ExpiredStep, HeldStep,
    KnownKey, MessageId, MessageState, NextMessage, SavedChange, StoreError, TaskSummary,
    UnreadableTask, Validation, WorkflowRecord,
    error::corrupt,
    sqlite::SqliteRow,
    stored_workflow::{StoredWorkflow, compile},
};
use crate::domain::{
    AgentName, AgentSpec, AtRisk, Attempt, Circuit, Definition, Destination, Details, Effect,
    Expansion, Expiry, Fault, Incarnation, InstanceId, ItemGroup, OpenReply, Payload, Priority,
    QueuedStep, ReceiverName, SavedReplies, Span, Step, StepHolder, StepIndex, StepLayout,
    StepList, StepName, StepRef, StepState, StepStatus, Task, TaskId, TaskState, TaskStatus, Term,
    Timestamp, Trace, Turn, WorkerName, WorkflowName, WorkflowRef, memory_of,
};

/// One row, read by the names of its columns.
pub trait Columns {
    fn text(&self, column: &str) -> Result<Option<String>, StoreError>;
    fn integer(&self, column: &str) -> Result<Option<i64>, StoreError>;
    fn uuid(&self, column: &str) -> Result<Option<Uuid>, StoreError>;
    fn flag(&self, column: &str) -> Result<bool, StoreError>;

    /// The value of a column; an `Option` where it may be NULL.
    fn get<T: FromColumn>(&self, column: &str) -> Result<T, StoreError>
    where
        Self: Sized,
    {
        T::get(self, column)
    }
}

impl Columns for PgRow {
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

macro_rules! of_either_row {
    ($($kind:ident -> $Type:ty),*) => {
        impl Columns for Row {
            $(fn $kind(&self, column: &str) -> Result<$Type, StoreError> {
                match self {
                    Row::Sqlite(row) => row.$kind(column),
                    Row::Postgres(row) => row.$kind(column),
                }
            })*
        }
    };
}

of_either_row!(text -> Option<String>, integer -> Option<i64>, uuid -> Option<Uuid>, flag -> bool);

/// A type that a column is read as.
pub trait FromColumn: Sized {
    fn read(row: &impl Columns, column: &str) -> Result<Option<Self>, StoreError>;

    fn get(row: &impl Columns, column: &str) -> Result<Self, StoreError> {
        required(Self::read(row, column)?, column)
    }
}

impl<T: FromColumn> FromColumn for Option<T> {
    fn read(row: &impl Columns, column: &str) -> Result<Option<Self>, StoreError> {
        T::read(row, column).map(Some)
    }

    fn get(row: &impl Columns, column: &str) -> Result<Self, StoreError> {
        T::read(row, column)
    }
}

macro_rules! read_as {
    ($(|$row:ident, $column:ident| $read:expr => $($Type:ty),*;)*) => { $($(
        impl FromColumn for $Type {
            fn read($row: &impl Columns, $column: &str) -> Result<Option<Self>, StoreError> {
                $read
            }
        }
    )*)* };
}

read_as! {
    |row, column| row.text(column) => String;
    |row, column| row.integer(column) => i64;
    |row, column| row.uuid(column) => Uuid;
    |row, column| row.flag(column).map(Some) => bool;
    |row, column| Ok(row.text(column)?.map(Self::new)) =>
        AgentName, Destination, InstanceId, ReceiverName, StepName, WorkerName, WorkflowName;
    |row, column| Ok(row.text(column)?.map(Self::from)) => Arc<str>;
    |row, column| Ok(row.uuid(column)?.map(Self)) => TaskId, AlertId, MessageId, Incarnation;
    |row, column| Ok(row.get::<Option<_>>(column)?.map(Self)) => Attempt, StepIndex, Term;
    |row, column| Ok(row.integer(column)?.map(Self::from_millis)) => Timestamp;
    |row, column| Ok(row.get::<Option<_>>(column)?.map(Self::from_millis)) => Span;
    |row, column| row.text(column)?.map(|word| {
        Self::parse(&word).ok_or_else(|| corrupt(format!("{column} {word}")))
    }).transpose() => TaskStatus, StepStatus, AlertState, MessageState;
    |row, column| row.integer(column)?.map(|number| {
        Self::try_from(number).map_err(|_| corrupt(format!("{column} is {number}")))
    }).transpose() => u8, u16, u32, u64, usize;
    |row, column| row.integer(column)?.map(|number| {
        Self::new(number).ok_or_else(|| corrupt(format!("{column} is {number}")))
    }).transpose() => Priority;
    |row, column| Ok(row.integer(column)?.map(Self::from_millis)) => Turn;
    |row, column| row.text(column)?.map(|text| {
        Self::parse(text).ok_or_else(|| corrupt(format!("{column} is not JSON")))
    }).transpose() => Payload;
    |row, column| json(row, column) => AgentSpec, Fault, Box<RawValue>;
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
            let stored = StoredWorkflow::parse(&row.get::<String>("body")?)?;
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
            let id: TaskId = row.get("id")?;
            let of = |row: &R| row.get::<TaskId>("task_id").ok();
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
            return inline(row.text("policies")?.as_deref(), &steps, self.definitions);
        }
        let workflow = workflow_ref(row)?;
        let found = workflow
            .as_ref()
            .and_then(|workflow| self.workflows.get(workflow));
        let (Some(workflow), Some(found)) = (&workflow, found) else {
            return Err(corrupt("it has neither steps nor a workflow"));
        };
        let definition = found.clone().map_err(StoreError::Corrupt)?;
        let Some(layout) = row.text("layout")? else {
            return Ok(definition);
        };
        let layout = StepLayout::parse(&layout);
        let laid_out = layout.and_then(|layout| {
            let definitions = &self.definitions;
            definitions.laid_out(workflow, &definition, &layout)
        });
        laid_out.ok_or_else(|| corrupt("the order of its steps does not fit its workflow"))
    }
}

/// Tasks in memory with the same steps share their definition.
fn inline(
    policies: Option<&str>,
    steps: &str,
    definitions: &Definitions,
) -> Result<Arc<Definition>, StoreError> {
    let text = definitions.inline.text(steps, policies);
    if let Some(known) = definitions.inline.get(&text, Validation::Stored) {
        return Ok(known);
    }
    let definition = Arc::new(compile(policies, steps)?);
    definitions
        .inline
        .put(&text, &definition, Validation::Stored);
    Ok(definition)
}

/// A task of its row and those of its steps.
pub fn assemble<R: Columns>(
    row: &R,
    definition: Arc<Definition>,
    steps: &[R],
) -> Result<Task, StoreError> {
    let (mut task, untouched) = task(row, definition)?;
    let claim = own_claim(row)?;
    task.own_claim = claim.as_ref().map(|(index, _)| *index);
    let definition = &task.details.definition;
    let missing = || corrupt("records of its steps are missing");
    if untouched > definition.steps.len() {
        return Err(missing());
    }
    let (steps, untouched) = with_those_without_rows(steps, untouched, claim)?;
    let is_own = |index: &StepIndex| index.at() < definition.steps.len();
    if !untouched.iter().chain(&task.own_claim).all(is_own) {
        return Err(missing());
    }
    let own = steps.get(..definition.steps.len()).ok_or_else(missing)?;
    let expansion = expansion(definition, own)?;
    let (forward, undos) = match &expansion {
        Some(expansion) => (expansion.steps(), expansion.undos()),
        None => (definition.steps.len(), definition.undos.len()),
    };
    let undos = match task.undo {
        Some(_) => undos,
        None => 0,
    };
    // The undos come after the steps.
    if steps.len() != forward + undos {
        return Err(missing());
    }
    let mut rows = steps.into_iter();
    let own = rows.by_ref().take(definition.steps.len());
    task.steps = StepList::from(own.collect::<Vec<_>>());
    let items = forward - definition.steps.len();
    task.steps.push_items(rows.by_ref().take(items));
    if task.undo.is_some() {
        let own = rows.by_ref().take(definition.undos.len());
        task.undos = StepList::from(own.collect::<Vec<_>>());
        task.undos.push_items(rows);
    }
    task.expansion = expansion.map(Arc::new);
    task.untouched = untouched;
    task.give_turns();
    Ok(task)
}

/// The step whose claim stands in the row of its task, as it is by that claim.
pub fn own_claim(row: &impl Columns) -> Result<Option<(StepIndex, Step)>, StoreError> {
    let Some(index) = row.get::<Option<StepIndex>>("claim_step")? else {
        return Ok(None);
    };
    let by = row.get("claimed_by")?;
    let step = Step::first_claimed(by, row.get("claimed_at")?, row.get("claim_until")?);
    Ok(Some((index, step)))
}

/// The steps of these rows, and between them those that have none: so many that are untouched, where the first gaps are, and
/// one whose claim stands in the row of the task, if there is one.
fn with_those_without_rows(
    rows: &[impl Columns],
    count: usize,
    mut claim: Option<(StepIndex, Step)>,
) -> Result<(Vec<Step>, Vec<StepIndex>), StoreError> {
    let mut steps = Vec::with_capacity(rows.len() + count + 1);
    let mut places = Vec::with_capacity(count);
    let mut rows = rows.iter();
    let mut next = rows.next();
    loop {
        let place = next.map(|row| row.get::<usize>("idx")).transpose()?;
        let is_gap = place.is_none_or(|place| steps.len() < place);
        let is_claimed = claim
            .as_ref()
            .is_some_and(|(index, _)| index.at() == steps.len());
        if is_gap && is_claimed {
            steps.extend(claim.take().map(|(_, step)| step));
            continue;
        }
        match next {
            Some(row) if !is_gap || places.len() == count => {
                steps.push(step(row)?);
                next = rows.next();
            }
            _ if places.len() < count => {
                places.push(StepIndex(steps.len() as u16));
                steps.push(Step::new());
            }
            _ => break,
        }
    }
    match claim {
        Some(_) => Err(corrupt(
            "the step of its claim has a record, or is none of its steps",
        )),
        None => Ok((steps, places)),
    }
}

/// The items of the groups, as the records of the groups have them.
fn expansion(definition: &Definition, own: &[Step]) -> Result<Option<Expansion>, StoreError> {
    let mut groups = Vec::new();
    for (index, record) in definition.forward().zip(own) {
        let step = definition.step(index);
        let saved = record.body.as_ref();
        if let Some(saved) = saved.filter(|_| step.group_rule().is_some()) {
            let group = ItemGroup::read(index, step, saved);
            groups.push(group.ok_or_else(|| corrupt("the record of its items"))?);
        }
    }
    if groups.is_empty() {
        return Ok(None);
    }
    Expansion::of(definition, groups)
        .map(Some)
        .ok_or_else(|| corrupt("its items are not one after the other, or too many"))
}

/// A task without its steps, and how many of those have no rows.
fn task(row: &impl Columns, definition: Arc<Definition>) -> Result<(Task, usize), StoreError> {
    let ended_at = || row.get("ended_at");
    let state = match row.get("state")? {
        TaskStatus::Pending => TaskState::Pending,
        TaskStatus::Processing => TaskState::Processing,
        TaskStatus::Paused => TaskState::Paused,
        TaskStatus::Processed => TaskState::Processed { at: ended_at()? },
        TaskStatus::Undoing => TaskState::Undoing,
        TaskStatus::Undone => TaskState::Undone { at: ended_at()? },
        TaskStatus::Cancelled => TaskState::Cancelled { at: ended_at()? },
        TaskStatus::Error => TaskState::Error(row.get("error")?),
    };
    let details = Details {
        id: row.get("id")?,
        key: row.get("key")?,
        workflow: workflow_ref(row)?,
        definition,
        input: row.get("input")?,
        labels: required(json(row, "labels")?, "labels")?,
        priority: row.get("priority")?,
        complete_within: row.get("complete_within")?,
        start_at: None,
        trace: trace(row)?,
        reply_to: json(row, "reply_to")?,
        parent: json(row, "parent")?,
        key_prefix: row.get("key_prefix")?,
    };
    let task = Task {
        steps: StepList::default(),
        untouched: Vec::new(),
        own_claim: None,
        undos: StepList::default(),
        expansion: None,
        undo: json(row, "undo")?,
        details: Arc::new(details),
        created_at: row.get("created_at")?,
        version: row.get("version")?,
        state,
        paused: row.get("paused")?,
        waits: row.get("waits")?,
        start_at: row.get("start_at")?,
        complete_by: row.get("complete_by")?,
    };
    Ok((task, row.get("untouched")?))
}

/// Of a task from before the rest of it was kept, the id alone.
fn trace(row: &impl Columns) -> Result<Option<Trace>, StoreError> {
    let id = row.text("trace_id")?;
    let Some(id) = id.and_then(|id| u128::from_str_radix(&id, 16).ok()) else {
        return Ok(None);
    };
    Ok(Some(Trace {
        id,
        // It was always passed on as sampled then.
        flags: row.get::<Option<_>>("trace_flags")?.unwrap_or(1),
        state: row.get("tracestate")?,
    }))
}

fn step(row: &impl Columns) -> Result<Step, StoreError> {
    let status = row.get("state")?;
    let SavedReplies {
        open,
        log,
        waits,
        signal,
        ask,
        child,
    } = json(row, "reply")?.unwrap_or_default();
    let at = || row.get("ended_at");
    let state = match status {
        StepStatus::Waiting => StepState::Waiting,
        StepStatus::Pending => StepState::Pending {
            ready_at: row.get("ready_at")?,
        },
        StepStatus::Processing => processing(row, open, waits)?,
        StepStatus::Processed => StepState::Processed {
            output: row.get("output")?,
            at: at()?,
        },
        StepStatus::Error => StepState::Error(row.get("error")?),
        StepStatus::Skipped => StepState::Skipped {
            output: row.get("output")?,
            at: at()?,
        },
        StepStatus::Cancelled => StepState::Cancelled { at: at()? },
        StepStatus::Undone => StepState::Undone {
            output: row.get("output")?,
            at: at()?,
        },
    };
    let previous_output = match status {
        StepStatus::Processed | StepStatus::Skipped | StepStatus::Undone => None,
        StepStatus::Waiting
        | StepStatus::Pending
        | StepStatus::Processing
        | StepStatus::Error
        | StepStatus::Cancelled => row.get("output")?,
    };
    let time_left = match &state {
        StepState::Pending { ready_at } => {
            let end: Option<Timestamp> = row.get("complete_by")?;
            end.map(|end| Span::from_millis(end.since(*ready_at).as_millis() as u64))
        }
        _ => None,
    };
    let (effect, is_probing) = effect(row)?;
    Ok(Step {
        state,
        previous_output,
        tries: row.get("tries")?,
        time_left,
        awaits_turn: false,
        attempt: row.get("attempt")?,
        failure_count: row.get("failure_count")?,
        extensions_used: row.get("extended")?,
        effect,
        is_probing,
        body: row.get("body")?,
        started_at: row.get("started_at")?,
        last_fault: row.get("last_fault")?,
        reply_log: log,
        signal,
        ask,
        child,
    })
}

fn processing(
    row: &impl Columns,
    open: Option<(Box<OpenReply>, Timestamp)>,
    waits: bool,
) -> Result<StepState, StoreError> {
    let (held_by, complete_by) = match (row.get("locked_by")?, open) {
        (Some(instance), Some((open, complete_by))) => {
            (StepHolder::Poll(instance, open), complete_by)
        }
        (Some(instance), None) => (StepHolder::Instance(instance), row.get("complete_by")?),
        (None, Some((open, complete_by))) => (StepHolder::Service(open), complete_by),
        (None, None) if waits => (StepHolder::Event, row.get("complete_by")?),
        (None, None) => return Err(corrupt("nobody holds a step that is processing")),
    };
    Ok(StepState::Processing {
        held_by,
        complete_by,
    })
}

/// Of a row with the columns of `tasks_at_risk`.
pub fn at_risk(row: &impl Columns) -> Result<AtRisk, StoreError> {
    let agent: String = row.get("agent")?;
    Ok(AtRisk {
        predicted_end: row.get("predicted_end")?,
        agent: AgentName::new(agent),
        since: row.get("since")?,
    })
}

pub fn summary(row: &impl Columns) -> Result<TaskSummary, StoreError> {
    let task = row.get("id")?;
    summary_of(task, row).map_err(|error| {
        let reason = error.damage();
        UnreadableTask { task, reason }.into()
    })
}

fn summary_of(id: TaskId, row: &impl Columns) -> Result<TaskSummary, StoreError> {
    Ok(TaskSummary {
        id,
        key: row.get("key")?,
        workflow: workflow_ref(row)?,
        state: row.get("state")?,
        priority: row.get("priority")?,
        labels: row.get("labels")?,
        created_at: row.get("created_at")?,
        start_at: row.get("start_at")?,
        complete_by: row.get("complete_by")?,
        at_risk: match row.get::<Option<Timestamp>>("since")? {
            Some(_) => Some(at_risk(row)?),
            None => None,
        },
        ended_at: row.get("ended_at")?,
        version: row.get("version")?,
        error: row.get("error")?,
    })
}

/// Of each record: the columns that statements select for it, and how it is read from them.
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

/// How many of each, by the column `by`.
pub fn count<T: FromColumn>(row: &impl Columns, by: &str) -> Result<(T, u64), StoreError> {
    Ok((row.get(by)?, row.get("count")?))
}

pub fn held_step(row: &impl Columns) -> Result<HeldStep, StoreError> {
    Ok(HeldStep {
        step: step_ref(row)?,
        attempt: row.get("attempt")?,
        undoing: row.get("undoing")?,
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

/// Of one that ended.
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

fn workflow_ref(row: &impl Columns) -> Result<Option<WorkflowRef>, StoreError> {
    let Some(name) = row.get("workflow")? else {
        return Ok(None);
    };
    let version = row.get("workflow_version")?;
    Ok(Some(WorkflowRef { name, version }))
}

/// Whether the effect of the step is known, and whether its attempt asks the probe.
fn effect(row: &impl Columns) -> Result<(Effect, bool), StoreError> {
    let word = row.text("doubt")?;
    Step::parse_effect(word.as_deref()).ok_or_else(|| corrupt(format!("doubt {word:?}")))
}

pub fn json<T: DeserializeOwned>(
    row: &impl Columns,
    column: &str,
) -> Result<Option<T>, StoreError> {
    let text = row.text(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(corrupt))
        .transpose()
}

fn required<T>(value: Option<T>, column: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| corrupt(format!("{column} is missing")))
}

#[cfg(test)]
mod tests;

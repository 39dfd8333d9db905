//! Makes a task of its row and the rows of its steps. Untouched steps have no rows, and the claim of one step may be
//! in the row of the task.

use std::sync::Arc;

use super::{
    columns::{Columns, json, required},
    step::step,
};
use crate::domain::{
    definition::Definition,
    task::{Details, Expansion, ItemGroup, Step, StepList, Task, TaskState, TaskStatus},
    values::{StepIndex, Trace, WorkflowRef},
};
use crate::store::{StoreError, error::corrupt};

/// Makes a task of its row and the rows of its steps.
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
    // The undos are after the steps.
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

/// Returns the step whose claim is in the row of its task, in the state of that claim.
pub fn own_claim(row: &impl Columns) -> Result<Option<(StepIndex, Step)>, StoreError> {
    let Some(index) = row.get::<Option<StepIndex>>("claim_step")? else {
        return Ok(None);
    };
    let by = row.get("claimed_by")?;
    let step = Step::first_claimed(by, row.get("claimed_at")?, row.get("claim_until")?);
    Ok(Some((index, step)))
}

/// Returns the steps of these rows, with those that have no rows at their indexes: `count` untouched steps in the first
/// gaps, and the step whose claim is in the row of the task, if there is one.
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

/// Returns the items of the groups, by the records of the groups.
fn expansion(definition: &Definition, own: &[Step]) -> Result<Option<Expansion>, StoreError> {
    let mut groups = Vec::new();
    for (index, record) in definition.forward().zip(own) {
        let step = definition.step(index);
        let saved = record.body.as_ref();
        if let Some(saved) = saved.filter(|_| step.group_rule().is_some()) {
            let group = ItemGroup::from_record(index, step, saved);
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

/// Returns a task without its steps, and the number of steps that have no rows.
pub(super) fn task(
    row: &impl Columns,
    definition: Arc<Definition>,
) -> Result<(Task, usize), StoreError> {
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

/// Returns the trace. A task that an early version has saved has only its id.
fn trace(row: &impl Columns) -> Result<Option<Trace>, StoreError> {
    let id = row.text("trace_id")?;
    let Some(id) = id.and_then(|id| u128::from_str_radix(&id, 16).ok()) else {
        return Ok(None);
    };
    Ok(Some(Trace {
        id,
        // Early versions always passed the trace on as sampled.
        flags: row.get::<Option<_>>("trace_flags")?.unwrap_or(1),
        state: row.get("tracestate")?,
    }))
}

pub(super) fn workflow_ref(row: &impl Columns) -> Result<Option<WorkflowRef>, StoreError> {
    let Some(name) = row.get("workflow")? else {
        return Ok(None);
    };
    let version = row.get("workflow_version")?;
    Ok(Some(WorkflowRef { name, version }))
}

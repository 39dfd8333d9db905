//! What is written of a task, column by column, the same for every database.

use std::sync::Arc;

use uuid::Uuid;

use super::batch::TaskChange;
use crate::domain::{Event, Fault, Step, StepIndex, StepState, Task, Timestamp};

/// What a save may change of a task's row.
pub struct TaskRecord {
    pub id: Uuid,
    pub state: &'static str,
    pub paused: bool,
    pub complete_by: Option<i64>,
    pub overdue_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub error: Option<String>,
    pub undo: Option<String>,
}

/// The rest of it, which never changes.
pub struct DetailsRecord<'a> {
    pub key: Option<&'a Arc<str>>,
    pub workflow: Option<&'a Arc<str>>,
    pub workflow_version: Option<u32>,
    pub steps: Option<&'a str>,
    /// With the steps.
    pub policies: Option<&'a str>,
    pub input: &'a str,
    pub labels: String,
    pub priority: i64,
    pub complete_within: Option<i64>,
    pub created_at: i64,
    pub trace_id: Option<String>,
    pub trace_flags: Option<i64>,
    pub tracestate: Option<&'a Arc<str>>,
}

/// The columns of a step that a save may change, each with the kind of its value. Whatever is written of them is made of
/// this list: the record, the statements that save and load, and what is bound to them. A new column is added here, to
/// [`StepRecord::of`], and to `step` in `rows.rs`.
macro_rules! step_columns {
    ($with:ident) => {
        $with! {
            state: word,
            attempt: number,
            failure_count: number,
            extended: number,
            doubt: maybe_word,
            tries: number,
            locked_by: maybe_shared,
            complete_by: maybe_number,
            ready_at: maybe_number,
            due_at: maybe_number,
            queued: flag,
            started_at: maybe_number,
            ended_at: maybe_number,
            body: maybe_text,
            output: maybe_text,
            error: maybe_owned,
            last_fault: maybe_owned
        }
    };
}
pub(super) use step_columns;

/// The columns that a step is loaded from. Two are only there for indexes to find steps by.
macro_rules! loaded_step_columns {
    () => {
        "state, attempt, failure_count, extended, locked_by, complete_by, ready_at, started_at, ended_at, body, output, error, last_fault, doubt, tries"
    };
}
pub(super) use loaded_step_columns;

/// The type of a kind of value.
macro_rules! value_of {
    ($a:lifetime word) => { &'static str };
    ($a:lifetime maybe_word) => { Option<&'static str> };
    ($a:lifetime number) => { i64 };
    ($a:lifetime maybe_number) => { Option<i64> };
    ($a:lifetime flag) => { bool };
    ($a:lifetime maybe_shared) => { Option<&$a Arc<str>> };
    ($a:lifetime maybe_text) => { Option<&$a str> };
    ($a:lifetime maybe_owned) => { Option<String> };
}

macro_rules! step_record {
    ($($name:ident: $kind:ident),*) => {
        pub struct StepRecord<'a> {
            pub task: Uuid,
            pub idx: u16,
            pub name: &'a Arc<str>,
            pub agent: &'a Arc<str>,
            pub priority: i64,
            $(pub $name: value_of!('a $kind),)*
        }
    };
}

step_columns!(step_record);

impl TaskRecord {
    pub fn of(task: &Task) -> Self {
        Self {
            id: task.id().0,
            state: task.status().as_str(),
            paused: task.paused,
            complete_by: millis(task.complete_by),
            overdue_at: millis(task.overdue_at()),
            ended_at: millis(task.ended_at()),
            error: task.error().map(fault),
            undo: task.undo.as_ref().map(json),
        }
    }
}

impl<'a> DetailsRecord<'a> {
    pub fn of(task: &'a Task) -> Self {
        let details = &*task.details;
        let workflow = details.workflow.as_ref();
        let trace = details.trace.as_ref();
        Self {
            key: details.key.as_ref(),
            workflow: workflow.map(|workflow| workflow.name.shared()),
            workflow_version: workflow.map(|workflow| workflow.version),
            steps: workflow
                .is_none()
                .then(|| details.definition.source.as_json()),
            policies: details
                .definition
                .policies
                .as_json()
                .filter(|_| workflow.is_none()),
            input: details.input.as_json(),
            // A map of strings always serialises.
            labels: serde_json::to_string(&details.labels).unwrap_or_default(),
            priority: details.priority.get(),
            complete_within: details.complete_within.map(|span| span.as_millis()),
            created_at: task.created_at.as_millis(),
            trace_id: trace.map(|trace| format!("{:032x}", trace.id)),
            trace_flags: trace.map(|trace| i64::from(trace.flags)),
            tracestate: trace.and_then(|trace| trace.state.as_ref()),
        }
    }
}

impl<'a> StepRecord<'a> {
    pub fn of(task: &'a Task, index: StepIndex, now: Timestamp) -> Self {
        let definition = task.definition(index);
        let step = task.step(index);
        let Step {
            state,
            attempt,
            failure_count,
            extensions_used,
            tries,
            time_left,
            effect: _,
            is_probing: _,
            // Where there is one, it is the output.
            previous_output: _,
            body,
            started_at,
            last_fault,
        } = step;
        let (locked_by, complete_by) = match state {
            StepState::Processing {
                locked_by,
                complete_by,
            } => (Some(locked_by.shared()), Some(*complete_by)),
            // What is left of its time is kept as the end that it has if it is claimed in time.
            StepState::Pending { ready_at } => (None, time_left.map(|left| *ready_at + left)),
            _ => (None, None),
        };
        let ready_at = match state {
            StepState::Pending { ready_at } => Some(*ready_at),
            _ => None,
        };
        let error = match state {
            StepState::Error(error) => Some(fault(error)),
            _ => None,
        };
        let due_at = task.due_at(index);
        Self {
            task: task.id().0,
            idx: index.0,
            name: definition.name.shared(),
            agent: definition.agent().shared(),
            priority: task.details.priority.get(),
            state: step.status().as_str(),
            attempt: attempt.0.into(),
            failure_count: (*failure_count).into(),
            extended: (*extensions_used).into(),
            tries: (*tries).into(),
            doubt: step.effect_word(),
            locked_by,
            complete_by: millis(complete_by),
            ready_at: millis(ready_at),
            due_at: millis(due_at),
            queued: due_at.is_some_and(|due| due <= now),
            started_at: millis(*started_at),
            ended_at: millis(step.ended_at()),
            body: body.as_ref().map(|body| body.as_json()),
            output: step.output().map(|output| output.as_json()),
            error,
            last_fault: last_fault.as_ref().map(fault),
        }
    }
}

/// Room for one event, in bytes: most are shorter.
const EVENT: usize = 192;

/// All that happened in one change, as a JSON array.
pub fn events(change: &TaskChange) -> String {
    let events: &[Event] = &change.events;
    let mut json = Vec::with_capacity(events.len() * EVENT);
    // Strings and numbers under fixed names always serialise, and to UTF-8.
    let _ = serde_json::to_writer(&mut json, events);
    String::from_utf8(json).unwrap_or_default()
}

/// The receiver of messages about the task, as JSON.
pub fn reply_to(task: &Task) -> Option<String> {
    let reply_to = task.details.reply_to.as_ref();
    // Strings under fixed names always serialise.
    reply_to.map(|reply_to| serde_json::to_string(reply_to).unwrap_or_default())
}

fn millis(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_millis)
}

fn fault(fault: &Fault) -> String {
    json(fault)
}

fn json(value: &impl serde::Serialize) -> String {
    // Strings and numbers under fixed names always serialise.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_step_is_loaded_from_the_columns_that_are_saved_but_for_those_of_indexes() {
        macro_rules! names {
            ($($name:ident: $kind:ident),*) => { [$(stringify!($name)),*] };
        }
        let mut saved: Vec<_> = step_columns!(names).to_vec();
        saved.retain(|name| !["due_at", "queued"].contains(name));
        let mut loaded: Vec<_> = loaded_step_columns!().split(", ").collect();
        saved.sort_unstable();
        loaded.sort_unstable();
        assert_eq!(saved, loaded);
    }
}

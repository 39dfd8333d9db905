//! The rows of tasks, messages and queues that are written, the same for every database.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use uuid::Uuid;

use super::{
    MessageState,
    batch::{NewKey, TaskChange},
};
use crate::domain::{
    message::Message,
    task::{Event, SavedReplies, Step, StepHolder, StepState, Task, TaskStatus},
    values::{AgentName, InstanceId, StepIndex, Timestamp, WorkerName},
};

/// The rows that a batch is saved as: their columns, each with the kind of its value. The structs here, the statements
/// that save and load, and the values that are bound are made from this list. A new column is added here, where its row
/// is made below, and where it is read in `rows/task.rs` and `rows/step.rs`.
macro_rules! saved_rows {
    ($with:ident) => {
        $with! {
            /// The columns of a task that a save may change. `TaskRowState` compares them: a new column is added there
            /// as well. The columns after the semicolon have values while the task is paused or waits, if its time is
            /// limited, and once it fails or is undone.
            TaskRow<'a> {
                id: id, version: number, state: word, ended_at: maybe_number, untouched: number,
                claim_step: maybe_number, claimed_by: maybe_shared, claimed_at: maybe_number,
                claim_until: maybe_number, claim_after: maybe_number;
                paused: boolean, waits: boolean, start_at: maybe_number, complete_by: maybe_number,
                overdue_at: maybe_number, error: maybe_owned, undo: maybe_owned
            }
            /// The other columns, which never change.
            NewTaskRow<'a> {
                key: maybe_shared, workflow: maybe_shared, workflow_version: maybe_number,
                labels: owned, priority: number, complete_within: maybe_number, created_at: number,
                trace_id: maybe_owned, trace_flags: maybe_number, tracestate: maybe_shared, agents: maybe_owned
            }
            /// These columns are in a table of their own, so that the rows that change stay small. If the task has a
            /// workflow, the definition is stored there.
            DetailsRow<'a> {
                task_id: id, steps: maybe_text, policies: maybe_text, input: text,
                reply_to: maybe_owned, parent: maybe_owned, key_prefix: maybe_shared
            }
            /// The columns of a step that a save may change. A step that is called at once and succeeds has no values
            /// after the semicolon.
            StepRow<'a> {
                task_id: id, idx: number, state: word, attempt: number, locked_by: maybe_shared,
                complete_by: maybe_number, started_at: maybe_number, ended_at: maybe_number, output: maybe_text;
                failure_count: number, extended: number, doubt: maybe_word, tries: number,
                ready_at: maybe_number, due_at: maybe_number, queued: flag, lane: text, body: maybe_text,
                error: maybe_owned, last_fault: maybe_owned, reply: maybe_owned, worker: maybe_shared
            }
            /// The other columns of a step.
            NewStepRow<'a> { name: shared, agent: shared, turn: number }
            HistoryRow { task_id: id, version: number, at: number, events: owned }
            LabelRow<'a> { label: text, value: text, task_id: id }
            KeyRow<'a> { key: text, fingerprint: text, task_id: id, created_at: number }
            MessageRow<'a> {
                id: id, receiver: text, subject: id, place: number, task_id: maybe_id, kind: text,
                url: maybe_text, body: text, created_at: number, state: word, tries: number
            }
            /// A queue to which messages are added. It may exist already.
            QueueRow<'a> {
                receiver: text, subject: id, destination: owned, due_at: number,
                waits_since: number, tries: number
            }
        }
    };
}
pub(super) use saved_rows;

/// Columns that are written only for indexes and conditions.
const ONLY_FOUND_BY: [&str; 7] = [
    "overdue_at",
    "due_at",
    "queued",
    "lane",
    "worker",
    "agents",
    "claim_after",
];

/// An index has the end of a claim rounded down to a multiple of this number of milliseconds, so that the entry of a
/// task stays unchanged while one short step of it follows another.
const CLAIM_AFTER: i64 = 10_000;

/// The number of steps of a task that have no rows, if it is a possible number: a damaged number affects only its task.
pub const UNTOUCHED: &str = "CASE WHEN untouched BETWEEN 0 AND 32767 THEN untouched ELSE 0 END";

/// The number of steps of a task that have no rows because its own row has their claims.
pub const CLAIMED: &str = "CASE WHEN claim_step IS NULL THEN 0 ELSE 1 END";

/// The name of a column, and its type on PostgreSQL.
pub type SqlColumn = (&'static str, &'static str);

/// Returns the names of columns, as SQL lists them.
pub fn names(columns: &[&[SqlColumn]]) -> String {
    let names: Vec<_> = columns.concat().iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Returns SQL that sets each column to that of `from`.
pub fn set_all(columns: &[SqlColumn], from: &str) -> String {
    let set: Vec<_> = columns
        .iter()
        .map(|(name, _)| format!("{name} = {from}.{name}"))
        .collect();
    set.join(", ")
}

/// Returns the names of the columns that are loaded again.
pub fn loaded_names(columns: &[&[SqlColumn]]) -> String {
    let mut columns = columns.concat();
    columns.retain(|(name, _)| !ONLY_FOUND_BY.contains(name));
    names(&[&columns])
}

/// The type of a kind of value; `'a` is the lifetime of the row.
macro_rules! value_of {
    (id) => { Uuid };
    (maybe_id) => { Option<Uuid> };
    (word) => { &'static str };
    (maybe_word) => { Option<&'static str> };
    (number) => { i64 };
    (maybe_number) => { Option<i64> };
    (boolean) => { bool };
    (flag) => { bool };
    (shared) => { &'a Arc<str> };
    (maybe_shared) => { Option<&'a Arc<str>> };
    (text) => { &'a str };
    (maybe_text) => { Option<&'a str> };
    (owned) => { String };
    (maybe_owned) => { Option<String> };
}

macro_rules! type_of {
    (id) => {
        "uuid"
    };
    (maybe_id) => {
        "uuid"
    };
    (number) => {
        "bigint"
    };
    (maybe_number) => {
        "bigint"
    };
    (boolean) => {
        "boolean"
    };
    (flag) => {
        "smallint"
    };
    ($text:ident) => {
        "text"
    };
}

macro_rules! name_of {
    (key) => {
        "\"key\""
    };
    ($column:ident) => {
        stringify!($column)
    };
}

macro_rules! row_structs {
    ($($(#[$doc:meta])* $Row:ident $(<$a:lifetime>)? {
        $($column:ident: $kind:ident),* $(; $($rare:ident: $rare_kind:ident),*)?
    })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $Row $(<$a>)? {
            $(pub $column: value_of!($kind),)*
            $($(pub $rare: value_of!($rare_kind),)*)?
        }

        impl $(<$a>)? $Row $(<$a>)? {
            pub const COLUMNS: &'static [SqlColumn] = &[
                $((name_of!($column), type_of!($kind)),)*
                $($((name_of!($rare), type_of!($rare_kind)),)*)?
            ];
        }
    )* };
}

saved_rows!(row_structs);

impl<'a> TaskRow<'a> {
    /// `version` is the one that an existing task must still have.
    pub fn of(task: &'a Task, version: u64) -> Self {
        let claim = task.own_claim();
        Self {
            claim_step: claim.map(|(step, ..)| step.0.into()),
            claimed_by: claim.map(|(_, by, ..)| by.shared()),
            claimed_at: claim.map(|(_, _, at, _)| at.as_millis()),
            claim_until: claim.map(|(.., until)| until.as_millis()),
            claim_after: claim_after(task),
            id: task.id().0,
            version: version as i64,
            state: task.status().as_str(),
            paused: task.paused,
            waits: task.waits,
            start_at: millis(task.start_at),
            complete_by: millis(task.complete_by),
            overdue_at: millis(task.overdue_at()),
            ended_at: millis(task.ended_at()),
            untouched: task.untouched.len() as i64,
            error: task.error().map(json),
            undo: task.undo.as_ref().map(json),
        }
    }
}

fn claim_after(task: &Task) -> Option<i64> {
    let (.., until) = task.own_claim()?;
    let until = until.as_millis();
    Some(until - until.rem_euclid(CLAIM_AFTER))
}

/// Tells whether a change touches more of a [`TaskRow`] than the version, the number of untouched steps, and the parts
/// of the claim that no index has. Most changes do not.
#[derive(PartialEq, Eq, Debug)]
pub struct TaskRowState {
    status: TaskStatus,
    paused: bool,
    waits: bool,
    start_at: Option<Timestamp>,
    complete_by: Option<Timestamp>,
    overdue_at: Option<Timestamp>,
    claimed_by: Option<InstanceId>,
    claim_after: Option<i64>,
    /// True if the task has an error, or is being undone. Such rows are not compared further.
    has_more: bool,
}

impl TaskRowState {
    pub fn of(task: &Task) -> Self {
        Self {
            status: task.status(),
            paused: task.paused,
            waits: task.waits,
            start_at: task.start_at,
            complete_by: task.complete_by,
            overdue_at: task.overdue_at(),
            claimed_by: task.own_claim().map(|(_, by, ..)| by.clone()),
            claim_after: claim_after(task),
            has_more: task.error().is_some() || task.undo.is_some() || task.is_ended(),
        }
    }

    pub fn is_kept(&self, task: &Task) -> bool {
        !self.has_more && *self == Self::of(task)
    }
}

impl<'a> NewTaskRow<'a> {
    pub fn of(task: &'a Task) -> Self {
        let details = &*task.details;
        let workflow = details.workflow.as_ref();
        let trace = details.trace.as_ref();
        Self {
            key: details.key.as_ref(),
            workflow: workflow.map(|workflow| workflow.name.shared()),
            workflow_version: workflow.map(|workflow| workflow.version.into()),
            labels: json(&details.labels),
            priority: details.priority.get(),
            complete_within: details.complete_within.map(|span| span.as_millis()),
            created_at: task.created_at.as_millis(),
            trace_id: trace.map(|trace| format!("{:032x}", trace.id)),
            trace_flags: trace.map(|trace| trace.flags.into()),
            tracestate: trace.and_then(|trace| trace.state.as_ref()),
            agents: agents_without_rows(task),
        }
    }
}

impl<'a> DetailsRow<'a> {
    pub fn of(task: &'a Task) -> Self {
        let details = &*task.details;
        let own = details.workflow.is_none().then_some(&details.definition);
        Self {
            task_id: task.id().0,
            steps: own.map(|definition| definition.source.as_json()),
            policies: own.and_then(|definition| definition.policies.as_json()),
            input: details.input.as_json(),
            reply_to: details.reply_to.as_ref().map(json),
            parent: details.parent.as_ref().map(json),
            key_prefix: details.key_prefix.as_ref(),
        }
    }
}

/// Returns the agents of the steps without rows, by the indexes of the steps. Returns `None` if none of them calls an
/// agent.
fn agents_without_rows(task: &Task) -> Option<String> {
    let agent = |index: &StepIndex| Some((index.0, task.definition(*index).agent()?.as_str()));
    let without_rows = task.untouched.iter().chain(&task.own_claim);
    let agents: BTreeMap<_, _> = without_rows.filter_map(agent).collect();
    (!agents.is_empty()).then(|| json(&agents))
}

impl<'a> StepRow<'a> {
    /// `lane` is empty if the agent's queue is not divided.
    pub fn of(task: &'a Task, index: StepIndex, lane: &'a str, now: Timestamp) -> Self {
        let step = task.step(index);
        let Step {
            state,
            attempt,
            failure_count,
            extensions_used,
            tries,
            time_left,
            // This follows from the states of the items, and is contained in `due_at`.
            awaits_turn: _,
            effect: _,
            is_probing: _,
            // If there is a previous output, it is stored as the output.
            previous_output: _,
            body,
            started_at,
            last_fault,
            // These are in the column `reply`.
            reply_log: _,
            signal: _,
            ask: _,
            child: _,
            sent_request: _,
            response: _,
            counts: _,
        } = step;
        let (locked_by, complete_by) = match state {
            StepState::Processing {
                held_by,
                complete_by,
            } => (
                held_by.instance().map(InstanceId::shared),
                Some(held_by.ends_at(*complete_by)),
            ),
            // The remaining time is stored as the end that the step has if it is claimed in time.
            StepState::Pending { ready_at } => (None, time_left.map(|left| *ready_at + left)),
            _ => (None, None),
        };
        let ready_at = match state {
            StepState::Pending { ready_at } => Some(*ready_at),
            _ => None,
        };
        let error = match state {
            StepState::Error(error) => Some(json(error)),
            _ => None,
        };
        let due_at = task.due_at(index);
        Self {
            task_id: task.id().0,
            idx: index.0.into(),
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
            lane,
            started_at: millis(*started_at),
            ended_at: millis(step.ended_at()),
            body: body.as_ref().map(|body| body.as_json()),
            output: step.output().map(|output| output.as_json()),
            error,
            last_fault: last_fault.as_ref().map(json),
            reply: replies(step),
            worker: task.worker(index).map(WorkerName::shared),
        }
    }
}

/// The agent in the record of a step that calls no service. No agent has such a name.
static NO_AGENT: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(""));

impl<'a> NewStepRow<'a> {
    pub fn of(task: &'a Task, index: StepIndex) -> Self {
        let definition = task.definition(index);
        Self {
            name: definition.name.shared(),
            agent: definition.agent().map_or(&NO_AGENT, AgentName::shared),
            turn: task.turn().as_millis(),
        }
    }
}

impl HistoryRow {
    /// Returns the row with all events of one change, as a JSON array.
    pub fn of(change: &TaskChange) -> Self {
        let events: &[Event] = &change.events;
        let mut json = Vec::with_capacity(events.len() * EVENT);
        // Strings and numbers under fixed names always serialise, and to UTF-8.
        let _ = serde_json::to_writer(&mut json, events);
        Self {
            task_id: change.task.id().0,
            version: change.task.version as i64,
            at: change.at.as_millis(),
            events: String::from_utf8(json).unwrap_or_default(),
        }
    }
}

impl<'a> LabelRow<'a> {
    /// Returns a row for each label of the task.
    pub fn of(task: &'a Task) -> impl Iterator<Item = Self> + Clone {
        let labels = task.details.labels.iter();
        labels.map(|(label, value)| Self {
            label,
            value,
            task_id: task.id().0,
        })
    }
}

impl<'a> KeyRow<'a> {
    pub fn of(new: &'a NewKey, now: Timestamp) -> Self {
        Self {
            key: &new.key,
            fingerprint: &new.fingerprint,
            task_id: new.task.0,
            created_at: now.as_millis(),
        }
    }
}

impl<'a> MessageRow<'a> {
    pub fn of(message: &'a Message) -> Self {
        Self {
            id: message.id,
            receiver: message.receiver.as_str(),
            subject: message.subject,
            place: message.position,
            task_id: message.task.map(|task| task.0),
            kind: &message.kind,
            url: message.url.as_deref(),
            body: &message.body,
            created_at: message.at.as_millis(),
            state: MessageState::Pending.as_str(),
            tries: 0,
        }
    }
}

impl<'a> QueueRow<'a> {
    /// Returns the queues of these messages, each once and in the order in which every instance locks them.
    pub fn of(messages: &[&'a Message]) -> Vec<Self> {
        let mut messages = messages.to_vec();
        messages.sort_unstable_by_key(|m| (&m.receiver, m.subject, m.at));
        messages.dedup_by_key(|m| (&m.receiver, m.subject));
        let queue = |message: &'a Message| Self {
            receiver: message.receiver.as_str(),
            subject: message.subject,
            destination: message.destination().as_str().to_owned(),
            due_at: message.at.as_millis(),
            waits_since: message.at.as_millis(),
            tries: 0,
        };
        messages.into_iter().map(queue).collect()
    }
}

/// Returns `None` for a step that never had a later reply, waits for no event, has no child and keeps neither a
/// request, nor a part of a response, nor counts of its attempts.
fn replies(step: &Step) -> Option<String> {
    let (open, waits) = match &step.state {
        StepState::Processing {
            held_by,
            complete_by,
        } => (
            held_by.open_reply().map(|open| (open, *complete_by)),
            *held_by == StepHolder::Event,
        ),
        _ => (None, false),
    };
    let is_empty = open.is_none()
        && step.reply_log.is_empty()
        && !waits
        && step.signal.is_none()
        && step.ask.is_none()
        && step.child.is_none()
        && step.sent_request.is_none()
        && step.response.is_none()
        && step.counts.is_empty();
    (!is_empty).then(|| {
        json(&SavedReplies {
            waits,
            signal: step.signal.clone(),
            ask: step.ask.clone(),
            child: step.child.clone(),
            open: open.map(|(open, complete_by)| (Box::new(open.clone()), complete_by)),
            log: step.reply_log.clone(),
            sent_request: step.sent_request.clone(),
            response: step.response.clone(),
            counts: step.counts,
        })
    })
}

/// The expected size of one event, in bytes; most are shorter.
const EVENT: usize = 192;

fn millis(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_millis)
}

fn json(value: &impl serde::Serialize) -> String {
    // Strings and numbers, under fixed names or as a map of strings, always serialise.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::UNTOUCHED;
    use crate::domain::definition::MOST_STEPS;

    #[test]
    fn a_task_may_have_as_many_untouched_steps_as_a_definition_may() {
        let most = format!("BETWEEN 0 AND {MOST_STEPS} THEN");
        assert!(UNTOUCHED.contains(&most), "{UNTOUCHED}");
    }
}

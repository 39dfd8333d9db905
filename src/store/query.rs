//! What can be asked of the store, and what comes back.

use std::time::Duration;

use serde_json::value::RawValue;
use uuid::Uuid;

use crate::domain::{
    AgentName, AgentSpec, AtRisk, Attempt, Expiry, Fault, InstanceRecord, Lease, Priority,
    ReceiverName, StepName, StepRef, TaskId, TaskStatus, Timestamp, WorkflowName, WorkflowRef,
};

/// Which tasks. Every part that is given must hold.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TaskFilter {
    /// One of these; none: in any state.
    pub states: Vec<TaskStatus>,
    pub workflow: Option<String>,
    pub key: Option<String>,
    /// The agent of one of its steps; if only tasks in error are asked for, of one of its steps in error.
    pub agent: Option<String>,
    pub labels: Vec<(String, String)>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
    /// Only those that will be late by what is known.
    pub at_risk: bool,
    /// Only those that are done for steps of this one.
    pub parent: Option<TaskId>,
    /// Only the tasks that this alert, which is not closed, is about.
    pub alert: Option<AlertId>,
}

impl TaskFilter {
    pub fn is_of_failures(&self) -> bool {
        self.states[..] == [TaskStatus::Error]
    }
}

/// A page of tasks, newest first.
#[derive(Clone, Debug)]
pub struct TaskQuery {
    pub filter: TaskFilter,
    /// Only tasks older than this one.
    pub before: Option<TaskId>,
    pub limit: usize,
}

/// A task in a list: all but its input and its steps.
#[derive(Clone, Debug)]
pub struct TaskSummary {
    pub id: TaskId,
    pub key: Option<String>,
    pub workflow: Option<WorkflowRef>,
    pub state: TaskStatus,
    pub priority: Priority,
    pub labels: Box<RawValue>,
    pub created_at: Timestamp,
    pub start_at: Option<Timestamp>,
    pub complete_by: Option<Timestamp>,
    pub at_risk: Option<AtRisk>,
    pub ended_at: Option<Timestamp>,
    pub version: u64,
    pub error: Option<Fault>,
}

/// The position of a task among those that ended: by the time of its end, then by id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EndedAt {
    pub at: Timestamp,
    pub task: TaskId,
}

/// A task that ended, as far as retention is about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedTask {
    pub ended: EndedAt,
    /// Its workflow, if it has one, and its state; where they were asked for.
    pub kind: Option<(Option<WorkflowName>, TaskStatus)>,
}

/// What a purge of some tasks did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purged {
    pub tasks: u64,
    /// For how long others had to wait for it.
    pub took: Duration,
}

/// One saved change of a task: what happened together.
#[derive(Clone, Debug)]
pub struct SavedChange {
    pub version: u64,
    pub at: Timestamp,
    /// A JSON array of [`crate::domain::Event`].
    pub events: String,
}

/// The next changes of a task, up to a number and a number of bytes. The first is there whatever its size.
#[derive(Clone, Default, Debug)]
pub struct SavedChanges {
    pub changes: Vec<SavedChange>,
    pub has_more: bool,
}

#[derive(Clone, Debug)]
pub struct KnownKey {
    pub key: String,
    pub fingerprint: String,
    pub task: TaskId,
}

#[derive(Clone, Debug, Default)]
pub struct Promoted {
    /// All agents with queued steps.
    pub agents: Vec<AgentName>,
    /// Not after the time of the promotion, where more were due than one takes.
    pub next_due: Option<Timestamp>,
    /// Nothing that was due could be enqueued, because others have locked its tasks.
    pub is_locked: bool,
}

impl Promoted {
    /// The most steps of one promotion: where a whole backlog comes due at once, as after an outage, other
    /// commands get their turns in between.
    pub const MOST: i64 = 1000;
}

#[derive(Clone, Debug)]
pub struct WorkflowRecord {
    pub name: WorkflowName,
    pub version: u32,
    pub body: String,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct AgentRecord {
    pub name: AgentName,
    pub spec: AgentSpec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlertId(pub Uuid);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlertState {
    Open,
    Acknowledged,
    Closed,
}

impl AlertState {
    pub const ALL: [AlertState; 3] = [
        AlertState::Open,
        AlertState::Acknowledged,
        AlertState::Closed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            AlertState::Open => "open",
            AlertState::Acknowledged => "acknowledged",
            AlertState::Closed => "closed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

#[derive(Clone, Debug)]
pub struct Alert {
    pub id: AlertId,
    /// Of a step of this task; or else it is about a receiver.
    pub task: Option<TaskId>,
    pub step: Option<StepName>,
    pub receiver: Option<ReceiverName>,
    pub kind: String,
    pub message: String,
    pub state: AlertState,
    pub raised_at: Timestamp,
    pub acknowledged_at: Option<Timestamp>,
    pub acknowledged_by: Option<String>,
    pub closed_at: Option<Timestamp>,
    /// The alert of a cause, if this is that of one of its steps.
    pub part_of: Option<AlertId>,
    pub agent: Option<AgentName>,
    pub cause: Option<String>,
    /// How many steps or dead letters it is about; of a closed one of a cause, how many steps it was about.
    pub count: u64,
    /// When the latest step failed.
    pub last_at: Timestamp,
    /// Some of the tasks, oldest failures first.
    pub tasks: Vec<TaskId>,
}

/// Up to this number steps of an alert are counted whenever somebody asks.
pub const COUNTED_AT_ONCE: u64 = 1000;

/// Up to this number dead letters of a receiver are counted for its alert.
pub const DEAD_LETTERS_COUNTED: u64 = 10_000;

/// A page of alerts, newest first: those of causes, and those that are part of none. With a task or `part_of`, those of
/// single steps.
#[derive(Clone, Debug, Default)]
pub struct AlertQuery {
    pub state: Option<AlertState>,
    pub task: Option<TaskId>,
    pub part_of: Option<AlertId>,
    pub id: Option<AlertId>,
    pub before: Option<AlertId>,
    pub limit: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MessageId(pub Uuid);

/// Of a message that is not delivered: one that is, is no longer there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageState {
    Pending,
    /// Given up: a dead letter, for an operator.
    Dead,
}

impl MessageState {
    pub const ALL: [MessageState; 2] = [MessageState::Pending, MessageState::Dead];

    pub fn as_str(self) -> &'static str {
        match self {
            MessageState::Pending => "pending",
            MessageState::Dead => "dead",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// A message that is not delivered.
#[derive(Clone, Debug)]
pub struct MessageRecord {
    pub id: MessageId,
    pub receiver: ReceiverName,
    pub task: Option<TaskId>,
    pub kind: String,
    pub url: Option<String>,
    /// Only where it is asked for.
    pub body: Option<String>,
    pub state: MessageState,
    pub created_at: Timestamp,
    pub tries: u32,
    /// How the last try failed.
    pub error: Option<String>,
    /// Left out while another message of its queue comes first.
    pub next_try_at: Option<Timestamp>,
    pub died_at: Option<Timestamp>,
}

/// A page of messages, newest first.
#[derive(Clone, Debug, Default)]
pub struct MessageQuery {
    pub id: Option<MessageId>,
    /// Bodies may be large.
    pub with_body: bool,
    pub state: Option<MessageState>,
    pub receiver: Option<ReceiverName>,
    pub task: Option<TaskId>,
    pub before: Option<MessageId>,
    pub limit: usize,
}

/// How much of what there is, for the metrics. Tasks that have ended are counted apart: see [`super::EndedCount`].
#[derive(Clone, Debug, Default)]
pub struct StoreCounts {
    /// Those that have not ended, by state.
    pub tasks: Vec<(TaskStatus, u64)>,
    /// Queued steps by agent.
    pub queued: Vec<(AgentName, u64)>,
    pub waiting: u64,
    pub delayed: u64,
    /// Processing steps that an instance holds.
    pub held: u64,
    /// Processing steps whose service has promised a reply.
    pub awaited: u64,
    /// Steps that call no service and have begun: they wait for a time or a signal.
    pub waits: u64,
    /// Alerts that are not closed, by kind.
    pub open_alerts: Vec<(String, u64)>,
    /// Steps in error.
    pub failed: u64,
    pub messages_pending: u64,
    pub messages_dead: u64,
    /// Tasks that will be late by what is known.
    pub at_risk: u64,
}

/// A running step with its attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldStep {
    pub step: StepRef,
    pub attempt: Attempt,
    /// Its task is to be undone.
    pub undoing: bool,
}

/// A running step to be recovered, with the attempt that was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpiredStep {
    pub step: StepRef,
    pub attempt: Attempt,
    pub cause: Expiry,
}

/// Who runs, and who supervises, at one moment.
#[derive(Clone, Debug)]
pub struct Instances {
    pub now: Timestamp,
    /// Each with the number of steps that it holds.
    pub records: Vec<(InstanceRecord, u64)>,
    pub supervisor: Option<Lease>,
}

//! The parameters of reads from the store, and their results.

use std::{fmt, time::Duration};

use serde_json::value::RawValue;
use uuid::Uuid;

use crate::domain::{
    agent::AgentSpec,
    task::{CauseFingerprint, DroppedBy, Expiry, TaskStatus},
    values::{
        AgentName, Attempt, Fault, InstanceId, InstanceRecord, Lease, Priority, ReceiverName,
        StepName, StepRef, TaskId, Timestamp, WorkflowName, WorkflowRef,
    },
    view::AtRisk,
};

/// A filter of tasks. All of its parts must match.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TaskFilter {
    /// The task is in one of these states; if empty, in any state.
    pub states: Vec<TaskStatus>,
    pub workflow: Option<String>,
    pub key: Option<String>,
    /// The agent of one of its steps; if only tasks in error are requested, of one of its steps in error.
    pub agent: Option<String>,
    pub labels: Vec<(String, String)>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
    /// True to select only tasks that are predicted to be late.
    pub at_risk: bool,
    /// Only tasks that were made for steps of this one.
    pub parent: Option<TaskId>,
    /// Only the tasks that this alert is about, which is not closed.
    pub alert: Option<AlertId>,
    /// Only tasks with a step that needs a person for this cause.
    pub cause: Option<CauseFingerprint>,
    /// Only tasks with this text in their key, or in the message of a step that needs a person. Case does not matter.
    pub text: Option<String>,
    /// Only tasks with a step in error that failed by this time.
    pub failed_by: Option<Timestamp>,
    /// Only tasks with this result of this bulk job.
    pub bulk: Option<(BulkJobId, BulkResultFilter)>,
}

impl TaskFilter {
    /// Leaves out what came after a time: tasks that were created later and, of those in error, the ones that failed later.
    pub fn leave_out_later(&mut self, time: Timestamp) {
        let after = Timestamp::from_millis(time.as_millis().saturating_add(1));
        self.created_before = Some(
            self.created_before
                .map_or(after, |before| before.min(after)),
        );
        if self.is_of_failures() {
            self.failed_by = Some(self.failed_by.map_or(time, |by| by.min(time)));
        }
    }

    pub fn is_of_failures(&self) -> bool {
        self.states[..] == [TaskStatus::Error]
    }
}

/// A request for a page of tasks, newest first.
#[derive(Clone, Debug)]
pub struct TaskQuery {
    pub filter: TaskFilter,
    /// Only tasks older than this one.
    pub before: Option<TaskId>,
    pub limit: usize,
}

/// A task in a list, without its input and its steps.
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

/// A task that has ended, with the data that retention needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedTask {
    pub ended: EndedAt,
    /// Its workflow, if it has one, and its state; on request.
    pub kind: Option<(Option<WorkflowName>, TaskStatus)>,
}

/// The result of a purge of some tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purged {
    pub tasks: u64,
    /// The time for which other requests had to wait for it.
    pub took: Duration,
}

/// One saved change of a task: the events that happened together.
#[derive(Clone, Debug)]
pub struct SavedChange {
    pub version: u64,
    pub at: Timestamp,
    /// A JSON array of [`crate::domain::task::Event`].
    pub events: String,
}

/// The next changes of a task, up to a number and a number of bytes. The first is included at any size.
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
    /// The time when the next delayed step is due. It is not after the time of the promotion if more steps were due
    /// than one promotion takes.
    pub next_due: Option<Timestamp>,
    /// True if no due step could be enqueued, because other instances have locked its task.
    pub is_locked: bool,
}

impl Promoted {
    /// The most steps of one promotion: if a whole backlog is due at once, as after an outage, other commands are
    /// processed in between.
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
pub struct BulkJobId(pub Uuid);

impl BulkJobId {
    /// Returns the idempotency key of the command for a task. A caller's key has one space at most.
    pub fn key_of(self, task: TaskId) -> String {
        format!("bulk {self} {task}")
    }
}

impl fmt::Display for BulkJobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The results of the tasks of a bulk job by which they are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkResultFilter {
    Accepted,
    Refused,
    /// Tasks that have accepted the command, and of which a step has failed since.
    FailedAgain,
}

impl BulkResultFilter {
    pub const ALL: [Self; 3] = [Self::Accepted, Self::Refused, Self::FailedAgain];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::FailedAgain => "failed_again",
        }
    }

    /// Returns the result on record.
    pub(super) fn recorded(self) -> &'static str {
        match self {
            Self::Accepted | Self::FailedAgain => "accepted",
            Self::Refused => "refused",
        }
    }
}

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
    /// The task of the step that the alert is about. `None` if the alert is about a receiver.
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
    /// The alert of the cause, if this is the alert of one of its steps.
    pub part_of: Option<AlertId>,
    pub agent: Option<AgentName>,
    pub cause: Option<String>,
    /// The number of steps or dead letters that the alert is about; for a closed alert of a cause, the number of steps
    /// that it was about.
    pub count: u64,
    /// The time when the latest step failed.
    pub last_at: Timestamp,
    /// Some of the tasks, oldest failures first.
    pub tasks: Vec<TaskId>,
}

/// Up to this number, the steps of an alert are counted at each request.
pub const COUNTED_AT_ONCE: u64 = 1000;

/// Up to this number, the dead letters of a receiver are counted for its alert.
pub const DEAD_LETTERS_COUNTED: u64 = 10_000;

/// A page of alerts, newest first: those of causes, and those that are part of none. With a task or `part_of`, the
/// alerts of single steps.
#[derive(Clone, Debug, Default)]
pub struct AlertQuery {
    pub state: Option<AlertState>,
    pub task: Option<TaskId>,
    pub part_of: Option<AlertId>,
    /// Only the alert of the steps that need a person for this cause.
    pub cause: Option<CauseFingerprint>,
    pub id: Option<AlertId>,
    pub before: Option<AlertId>,
    pub limit: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MessageId(pub Uuid);

/// The state of an undelivered message. A message is deleted when it is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageState {
    Pending,
    /// The message was given up: it is a dead letter, for an operator.
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

/// An undelivered message.
#[derive(Clone, Debug)]
pub struct MessageRecord {
    pub id: MessageId,
    pub receiver: ReceiverName,
    pub task: Option<TaskId>,
    pub kind: String,
    pub url: Option<String>,
    /// Only on request.
    pub body: Option<String>,
    pub state: MessageState,
    pub created_at: Timestamp,
    pub tries: u32,
    /// The error of the last attempt.
    pub error: Option<String>,
    /// `None` while another message of its queue comes first.
    pub next_try_at: Option<Timestamp>,
    pub died_at: Option<Timestamp>,
}

/// A failed attempt to deliver a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageTry {
    pub began: Timestamp,
    pub ended: Timestamp,
    /// The number of the attempt. After an operator's redelivery it is 1 again.
    pub number: u32,
    pub instance: InstanceId,
    /// `None`: no response of HTTP came.
    pub status: Option<u32>,
    pub reason: String,
    /// `None`: it was the last one.
    pub next_at: Option<Timestamp>,
}

/// A page of messages, newest first.
#[derive(Clone, Debug, Default)]
pub struct MessageQuery {
    pub id: Option<MessageId>,
    /// True to include the bodies, which may be large.
    pub with_body: bool,
    pub state: Option<MessageState>,
    pub receiver: Option<ReceiverName>,
    pub task: Option<TaskId>,
    pub before: Option<MessageId>,
    pub limit: usize,
}

/// Counts for the metrics. Tasks that have ended are counted separately: see [`super::EndedCount`].
#[derive(Clone, Debug, Default)]
pub struct StoreCounts {
    /// The tasks that have not ended, by state.
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
    /// The tasks that are predicted to be late.
    pub at_risk: u64,
}

/// A running step with its attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldStep {
    pub step: StepRef,
    pub attempt: Attempt,
    /// True if its task is to be undone.
    pub undoing: bool,
    /// True if the attempt is withdrawn: an operator has cancelled the step, or it is not needed any more.
    pub cancelled: bool,
}

impl HeldStep {
    /// Returns whether its call is to be dropped, and the drop confirmed.
    pub fn is_to_be_dropped(&self, by: DroppedBy) -> bool {
        match by {
            DroppedBy::Withdrawal => self.cancelled,
            DroppedBy::Undo => self.cancelled || self.undoing,
            DroppedBy::Nothing => false,
        }
    }
}

/// A running step that must be recovered, with the attempt that was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpiredStep {
    pub step: StepRef,
    pub attempt: Attempt,
    pub cause: Expiry,
}

/// The instances and the supervisor at one moment.
#[derive(Clone, Debug)]
pub struct Instances {
    pub now: Timestamp,
    /// The instances, each with the number of steps that it holds.
    pub records: Vec<(InstanceRecord, u64)>,
    pub supervisor: Option<Lease>,
}

//! The commands to a task, and the reasons for which it refuses one.

use std::sync::Arc;

use thiserror::Error;

use crate::{
    task::{
        aggregate::Details,
        ask::AskAnswer,
        call::CallOutcome,
        child_record::ChildReport,
        open_reply::{Progress, ReplyDigest},
        status::TaskStatus,
        step::StepStatus,
        version_move::{UnmappedStep, VersionMove},
    },
    template::payload::Payload,
    values::{
        ids::{Attempt, InstanceId, StepIndex, StepName, WorkerName},
        time::{Span, Timestamp},
    },
};

/// A requested change of one task. Submission is not a command: it makes the task.
#[derive(Clone, Debug)]
pub enum Command {
    /// A scheduler takes a pending step.
    Claim {
        step: StepIndex,
        by: Claimant,
    },
    /// An agent's result of the attempt that it was given.
    Reply {
        step: StepIndex,
        attempt: Attempt,
        outcome: CallOutcome,
    },
    /// A service's reply with the token of an attempt.
    LaterReply {
        step: StepIndex,
        attempt: Attempt,
        outcome: CallOutcome,
        digest: ReplyDigest,
    },
    /// A service that will reply later is still at work.
    Heartbeat {
        step: StepIndex,
        attempt: Attempt,
        progress: Progress,
    },
    /// A scheduler gives a step back without a failure.
    Release {
        step: StepIndex,
        attempt: Attempt,
        why: Release,
    },
    /// The supervisor requests the recovery of a step, and names the attempt that it saw.
    Expire {
        step: StepIndex,
        attempt: Attempt,
        cause: Expiry,
    },
    /// The supervisor has seen that the task's own complete-by has passed, or that its begin has come.
    Overdue,
    /// An operator retries a step, or every step in error if none is named.
    Retry {
        step: Option<StepIndex>,
        /// Replaces the rendered request body.
        body: Option<Payload>,
        reason: Option<String>,
    },
    /// An operator reruns a step and all steps that depend on it, completed ones included.
    RetryFrom {
        step: StepIndex,
        reason: Option<String>,
    },
    /// An operator reruns the step of this name and all steps that depend on it, completed ones included.
    RetryFromName {
        step: StepName,
        reason: Option<String>,
    },
    /// An operator skips the steps in error: all of them, or the one of this name.
    SkipFailed {
        step: Option<StepName>,
        output: Option<Payload>,
        reason: Option<String>,
    },
    /// An operator records that the steps in error of this name were done outside Provost.
    ResolveFailed {
        step: StepName,
        output: Payload,
        reason: Option<String>,
    },
    /// An operator skips a step.
    Skip {
        step: StepIndex,
        output: Option<Payload>,
        reason: Option<String>,
    },
    /// An operator records that a step was done outside Provost.
    Resolve {
        step: StepIndex,
        output: Payload,
        reason: Option<String>,
    },
    /// An operator ends the attempt of a step that is under way, without its outcome.
    CancelStep {
        step: StepIndex,
        reason: Option<String>,
    },
    Cancel {
        reason: Option<String>,
    },
    /// Undoes the effects of the task as a whole.
    Undo {
        reason: Option<String>,
    },
    Pause {
        reason: Option<String>,
    },
    Resume {
        reason: Option<String>,
    },
    /// Begins a task before its `start_at`.
    Start {
        reason: Option<String>,
    },
    /// The event that a step waits for has happened.
    Signal {
        step: StepIndex,
        payload: Payload,
        digest: ReplyDigest,
    },
    /// A person decides the question of a step.
    Decide {
        step: StepIndex,
        attempt: Attempt,
        /// The index of the person in the list of people who are asked.
        person: u16,
        answer: AskAnswer,
    },
    /// Records that the child of a step is made in the same transaction.
    BeginChild {
        step: StepIndex,
        attempt: Attempt,
        child: Arc<Details>,
    },
    /// Reports the state of a step's child.
    ChildReport {
        step: StepIndex,
        attempt: Attempt,
        report: ChildReport,
    },
    /// Admits a task, because the limit of its key allows one more.
    Admit,
    /// An operator moves the task to another version of its workflow.
    Migrate {
        to: Arc<VersionMove>,
        reason: Option<String>,
    },
    /// The service failed while it decided on the task: an operator must be notified.
    ReportFault {
        step: StepIndex,
        message: String,
    },
}

impl Command {
    /// Returns the step that the command names by its index. The index comes from outside the task: see
    /// [`Draft::apply`].
    ///
    /// [`Draft::apply`]: super::decide::Draft::apply
    pub fn step(&self) -> Option<StepIndex> {
        match self {
            Command::Claim { step, .. }
            | Command::Reply { step, .. }
            | Command::LaterReply { step, .. }
            | Command::Heartbeat { step, .. }
            | Command::Release { step, .. }
            | Command::Expire { step, .. }
            | Command::RetryFrom { step, .. }
            | Command::Skip { step, .. }
            | Command::Resolve { step, .. }
            | Command::CancelStep { step, .. }
            | Command::Signal { step, .. }
            | Command::Decide { step, .. }
            | Command::BeginChild { step, .. }
            | Command::ChildReport { step, .. }
            | Command::ReportFault { step, .. } => Some(*step),
            Command::Retry { step, .. } => *step,
            Command::Overdue
            | Command::RetryFromName { .. }
            | Command::SkipFailed { .. }
            | Command::ResolveFailed { .. }
            | Command::Cancel { .. }
            | Command::Undo { .. }
            | Command::Pause { .. }
            | Command::Resume { .. }
            | Command::Migrate { .. }
            | Command::Start { .. }
            | Command::Admit => None,
        }
    }

    /// Returns the name of the command, for the log and for alerts.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Claim { .. } => "claim",
            Command::Reply { .. } => "reply",
            Command::LaterReply { .. } => "later-reply",
            Command::Heartbeat { .. } => "heartbeat",
            Command::Release { .. } => "release",
            Command::Expire { .. } => "expire",
            Command::Overdue => "overdue",
            Command::Retry { .. } => "retry",
            Command::RetryFrom { .. } => "retry-from",
            Command::RetryFromName { .. } => "retry-from-name",
            Command::SkipFailed { .. } => "skip-failed",
            Command::ResolveFailed { .. } => "resolve-failed",
            Command::Skip { .. } => "skip",
            Command::Resolve { .. } => "resolve",
            Command::CancelStep { .. } => "cancel-step",
            Command::Cancel { .. } => "cancel",
            Command::Undo { .. } => "undo",
            Command::Pause { .. } => "pause",
            Command::Resume { .. } => "resume",
            Command::Start { .. } => "start",
            Command::Signal { .. } => "signal",
            Command::Decide { .. } => "decide",
            Command::BeginChild { .. } => "begin-child",
            Command::ChildReport { .. } => "child-report",
            Command::Admit => "admit",
            Command::Migrate { .. } => "migrate",
            Command::ReportFault { .. } => "report-fault",
        }
    }
}

/// The party that works on a claimed step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claimant {
    /// This instance, with a call.
    Instance(InstanceId),
    /// This worker, which has requested work and replies later.
    Worker(WorkerName),
}

/// The reason why an attempt is over without a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// Its complete-by has passed.
    CompleteBy,
    /// The lease of the instance that holds it has expired: the instance died, hangs, or cannot reach the store. The
    /// store decides about leases; the attempt's number makes a wrong guess harmless.
    InstanceLost,
    /// The instance that holds it has given up its call, because its time has elapsed. The instance reports this if the
    /// store's clock does not show it, because that clock was set back in the meantime.
    GivenUp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    Shutdown,
    Restart,
    NeverStarted,
    /// The task is to be undone, and no attempt can follow any more: the call has ended.
    Dropped,
    /// The worker that asked for the step was gone before it got it.
    Undelivered,
    /// The agent was paused, or its breaker opened, after the claim and before the call.
    Stopped,
    /// The step was claimed ahead, and no slot was freed in time.
    NoSlot,
}

impl Release {
    pub fn reason(self) -> &'static str {
        match self {
            Release::Shutdown => "the instance shut down before the call ended",
            Release::Restart => "the instance that held it restarted",
            Release::Dropped => "its call was dropped",
            Release::Undelivered => "the worker that asked for it was gone before it got it",
            Release::Stopped => {
                "its agent was paused, or its breaker opened, before the call began"
            }
            Release::NoSlot => "no slot of its agent was freed for its call; it is queued again",
            Release::NeverStarted => "it was recorded as claimed, but its call never started",
        }
    }
}

fn after_end(state: &str) -> &'static str {
    match state == TaskStatus::Processed.as_str() {
        true => ", and all that can still be done is to undo it",
        false => " and never changes again",
    }
}

/// The reason why a command changed nothing.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum Refusal {
    #[error(
        "the task has no step with index {}: undo steps exist only once the task is being undone", .0.at()
    )]
    NoStep(StepIndex),
    #[error("the task has no step {0:?}")]
    NoStepOfName(StepName),
    #[error("the task is {}: it has ended{}", .0, after_end(.0))]
    Ended(&'static str),
    #[error("step {step} is {}: {needed}", .status.as_str())]
    StepState {
        step: StepName,
        status: StepStatus,
        needed: &'static str,
    },
    #[error("the task is {}: {needed}", .status.in_words())]
    TaskState {
        status: TaskStatus,
        needed: &'static str,
    },
    #[error(
        "attempt {attempt} of step {step} is over: its reply came too late and changes nothing"
    )]
    Late { step: StepName, attempt: Attempt },
    #[error(
        "the address is not that of the reply which step {step} awaits: a reply to it was accepted, the step runs again under another one, or its probe runs now"
    )]
    UsedAddress { step: StepName },
    #[error(
        "the service has promised to reply to attempt {attempt} of step {step} later: no instance holds it any more"
    )]
    Deferred { step: StepName, attempt: Attempt },
    #[error(
        "step {step} is a pivot and is {}: the task can only be completed, not undone", .status.as_str()
    )]
    PastPivot { step: StepName, status: StepStatus },
    #[error(
        "the task was processed at {at}, and its `undoable_for` allows an undo for {within} after that: it is too late"
    )]
    UndoExpired { at: Timestamp, within: Span },
    #[error("this is not the signal that step {step} awaits: {reason}")]
    SignalMismatch { step: StepName, reason: String },
    #[error("the task has no step {0} any more: it has moved to another version of its workflow")]
    StepRemoved(StepName),
    #[error("the task has moved to another version at the same time: send the request again")]
    MovedMeanwhile,
    #[error("the task cannot move to version {version}: {}", unmapped(.steps))]
    Unmapped {
        version: u32,
        steps: Arc<[UnmappedStep]>,
    },
    #[error("{person} has decided {choice:?} on step {step} before, and the first decision counts")]
    Decided {
        step: StepName,
        person: String,
        choice: String,
    },
    #[error("the {length} bytes for step {step} are not kept: {why}; give less")]
    NoRoom {
        step: StepName,
        length: usize,
        why: String,
    },
    #[error("step {step} is not due before {at}")]
    NotDue { step: StepName, at: Timestamp },
}

impl Refusal {
    /// Returns whether this refusal means that the task can never be undone, although its effects remain.
    pub fn prevents_undo(&self) -> bool {
        matches!(self, Self::PastPivot { .. } | Self::UndoExpired { .. })
    }
}

/// The most steps that a message names.
const NAMED: usize = 3;

fn unmapped(steps: &[UnmappedStep]) -> String {
    let named = steps.iter().take(NAMED);
    let mut named: Vec<_> = named
        .map(|unmapped| format!("step {}: {}", unmapped.step, unmapped.reason))
        .collect();
    if steps.len() > NAMED {
        named.push(format!(
            "and {} more steps, in `steps`",
            steps.len() - NAMED
        ));
    }
    named.join("; ")
}

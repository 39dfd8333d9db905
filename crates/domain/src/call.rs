//! What the scheduler hands an agent, and what the agent hands back.

use std::{ops::Deref, sync::Arc, time::Duration};

use crate::{
    definition::{Method, ReplyMode, Target},
    fault::Fault,
    ids::{Attempt, StepName, StepRef},
    payload::Payload,
    retry_budget::RetryWait,
    time::{Span, Timestamp},
    trace::CallTrace,
};

/// One attempt of one step: everything the agent needs to do the work.
#[derive(Clone, Debug)]
pub struct Call {
    pub step: StepRef,
    pub step_name: StepName,
    pub task_key: Option<Arc<str>>,
    pub attempt: Attempt,
    /// How many attempts before this one met a transient fault within the same time to complete.
    pub tries: u32,
    /// Equal for every attempt of the step, so that the remote service can deduplicate.
    pub idempotency_key: String,
    pub target: Target,
    pub method: Method,
    pub path: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Option<CallBody>,
    /// The time by the store's clock at which the step is over.
    pub complete_by: Timestamp,
    /// The same moment as the remote service has it: a store that is a file follows a wall clock that was set only gradually.
    pub wall_complete_by: Timestamp,
    /// What was left until `complete_by` when the step was claimed: the agent's own deadline.
    pub complete_within: Span,
    /// The trace that each try of it continues.
    pub trace: CallTrace,
    pub purpose: Purpose,
    /// If it breaks off, the step has failed once too often, so it is not made over a connection that its service may be
    /// about to close.
    pub needs_new_connection: bool,
    /// The call is dropped when its task is to be undone.
    pub is_dropped_by_undo: bool,
    pub reply_mode: ReplyMode,
    /// Who works on it gives a sign of life at least so often, if it replies later.
    pub heartbeat_within: Option<Span>,
}

/// The body of a call.
#[derive(Clone, Debug)]
pub enum CallBody {
    Rendered(String),
    /// The task's input, or what an operator put instead of the rendered one: as it is held anyway.
    Whole(Payload),
}

/// Its JSON.
impl Deref for CallBody {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            CallBody::Rendered(json) => json,
            CallBody::Whole(payload) => payload.as_json(),
        }
    }
}

impl PartialEq for CallBody {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// What a call is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The step's own work.
    Work,
    /// To undo what the calls under this key did.
    Undo(String),
    /// To ask whether the calls under this key took effect.
    Probe(String),
    /// To ask whether the reply is there that the service has promised.
    Poll,
    /// To ask the service to cancel the work for the calls under this key: its reply is no longer awaited.
    Cancel(String),
}

/// How a call ended. An agent that ran out of time returns none of these.
#[derive(Clone, PartialEq, Debug)]
pub enum CallOutcome {
    Success(Payload),
    /// A transient fault: to be tried again once the wait is over.
    Transient {
        fault: Fault,
        wait: RetryWait,
    },
    /// A permanent error.
    Failed(Fault),
    /// This service failed during the call: the step may have taken effect.
    Crashed(Fault),
    /// The service has promised to reply later.
    Deferred,
    /// The same, and that the reply will be found at this address.
    PollAt {
        address: String,
        retry_after: Option<Duration>,
    },
    /// A response that may be the reply: the step's rule for polling says whether it is.
    Polled {
        status: u16,
        body: Payload,
        retry_after: Option<Duration>,
    },
    /// The answer to a probe: a success, 404 or 410.
    Probed {
        status: u16,
        body: Payload,
    },
}

//! The call that the scheduler gives to an agent, and the result that the agent returns.

use std::{ops::Deref, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

use crate::{
    definition::{AttemptRules, Method, ReplyMode, Target},
    task::{kept_response::KeptResponse, redact::Redactor, retry_budget::RetryWait},
    template::payload::Payload,
    values::{
        fault::Fault,
        ids::{Attempt, StepName, StepRef},
        time::{Span, Timestamp},
        trace::CallTrace,
    },
};

/// The reasons for which a running call is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DroppedBy {
    /// A withdrawal of its attempt.
    Withdrawal,
    /// The undo of its task as well.
    Undo,
    /// Nothing, because it asks the service to cancel its work: what drops a call waits for this one.
    Nothing,
}

/// One attempt of one step: everything the agent needs to do the work.
#[derive(Clone, Debug)]
pub struct Call {
    pub step: StepRef,
    pub step_name: StepName,
    pub task_key: Option<Arc<str>>,
    pub attempt: Attempt,
    /// The number of attempts before this one that had a transient fault within the same time to complete.
    pub transient_faults: u32,
    /// Equal for every attempt of the step, so that the remote service can deduplicate.
    pub idempotency_key: String,
    pub target: Target,
    pub method: Method,
    pub path: String,
    /// The names are in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Option<CallBody>,
    /// The complete-by of the step, by the store's clock.
    pub complete_by: Timestamp,
    /// The same moment by the wall clock, for the remote service: a store that is a file follows a wall clock that was
    /// set only gradually.
    pub wall_complete_by: Timestamp,
    /// The time that was left until `complete_by` when the step was claimed: the agent's own deadline.
    pub complete_within: Span,
    /// The trace that each attempt of the call continues.
    pub trace: CallTrace,
    pub purpose: Purpose,
    /// True if a broken connection would be one failure too many for the step. The call is then not made over a
    /// connection that its service may be about to close.
    pub needs_new_connection: bool,
    /// The reasons for which the call is dropped.
    pub dropped_by: DroppedBy,
    pub reply_mode: ReplyMode,
    /// The address for the reply if the request has it: a credential.
    pub reply_url: Option<Arc<str>>,
    /// A service or worker that replies later must send a heartbeat at least this often.
    pub heartbeat_within: Option<Span>,
    /// The rules for the attempts of the step, if it has any of those that most steps do without.
    pub rules: Option<Arc<AttemptRules>>,
}

impl Call {
    /// Returns what hides the address for the reply, if the request has it: a service may echo what it was sent.
    pub fn address_redactor(&self) -> Option<Redactor> {
        let token = self.reply_url.as_deref()?.rsplit('/').next()?;
        Some(Redactor::of([token]))
    }

    /// Returns the rules for its attempts. Polls and cancellations have none: they make no attempt of their own.
    pub fn attempt_rules(&self) -> Option<&AttemptRules> {
        match self.purpose {
            Purpose::Work | Purpose::Undo(_) | Purpose::Probe(_) => self.rules.as_deref(),
            Purpose::Poll | Purpose::Cancel(_) => None,
        }
    }

    /// Returns whether the call is made again after a fault, if its step says so.
    pub fn retries(&self, fault: &Fault) -> Option<bool> {
        self.attempt_rules()?.retries(fault)
    }

    /// Returns the outcome of a response that gave this output, with the parts of the response that the step keeps. `hide`
    /// removes the secrets of the agent from a text.
    pub fn success(
        &self,
        output: Payload,
        status: StatusCode,
        headers: &HeaderMap,
        hide: impl Fn(String) -> String,
    ) -> CallOutcome {
        let keep = self.rules.as_ref();
        match keep.and_then(|rules| rules.keep_headers.as_deref()) {
            Some(names) => CallOutcome::Kept {
                output,
                response: Box::new(KeptResponse::of(names, status.as_u16(), headers, hide)),
            },
            None => CallOutcome::Success(output),
        }
    }
}

/// The body of a call.
#[derive(Clone, Debug)]
pub enum CallBody {
    Rendered(String),
    /// The task's input, or the body that an operator has set, without a copy of it.
    Whole(Payload),
}

/// A body dereferences to its JSON.
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

/// The purpose of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The step's own work.
    Work,
    /// To undo the effect of the calls under this key.
    Undo(String),
    /// To find out whether the calls under this key took effect.
    Probe(String),
    /// To poll for the reply that the service has promised.
    Poll,
    /// To ask the service to cancel the work of the calls under this key: its reply is no longer awaited.
    Cancel(String),
}

/// The result of a call. An agent that ran out of time returns none of these.
#[derive(Clone, PartialEq, Debug)]
pub enum CallOutcome {
    Success(Payload),
    /// A success of a step that keeps parts of the response.
    Kept {
        output: Payload,
        response: Box<KeptResponse>,
    },
    /// A transient fault: the call is attempted again once the wait is over.
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
    /// The service has promised that its reply will be at this address.
    PollAt {
        address: String,
        retry_after: Option<Duration>,
    },
    /// A response that may be the reply: the step's rule for polling decides.
    Polled {
        status: u16,
        body: Payload,
        retry_after: Option<Duration>,
    },
    /// The response to a probe: a success, 404 or 410.
    Probed {
        status: u16,
        body: Payload,
    },
}

impl CallOutcome {
    /// The outcome of a call whose service reports an error in a later reply. The task's rule for later replies says when
    /// that was, and how long the next attempt waits.
    pub fn reported_error(message: &str, is_permanent: bool) -> Self {
        let message = format!("the service replied with an error: {message}");
        let at = Timestamp::from_millis(0);
        match is_permanent {
            true => Self::Failed(Fault::permanent(message, at)),
            false => Self::Transient {
                fault: Fault::transient(message, at),
                wait: RetryWait::default(),
            },
        }
    }
}

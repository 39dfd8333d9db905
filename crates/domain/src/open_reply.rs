//! A reply that a service has promised for later: what is known of it meanwhile, and what is kept of it afterwards.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    ask::OpenAsk,
    child::Child,
    ids::{Attempt, InstanceId, WorkerName},
    payload::Payload,
    time::{Span, Timestamp},
};

/// Who works on the current attempt of a step.
#[derive(Clone, PartialEq, Debug)]
pub enum StepHolder {
    /// This instance runs the call.
    Instance(InstanceId),
    /// The service works on it, or a worker that fetched it, and replies later. No instance has it in memory.
    Service(Box<OpenReply>),
    /// This instance is asking the service whether the reply is there.
    Poll(InstanceId, Box<OpenReply>),
    /// No instance and no service: the step waits for an event, or for its child.
    Event,
}

impl StepHolder {
    pub fn instance(&self) -> Option<&InstanceId> {
        match self {
            StepHolder::Instance(instance) | StepHolder::Poll(instance, _) => Some(instance),
            StepHolder::Service(_) | StepHolder::Event => None,
        }
    }

    pub fn open_reply(&self) -> Option<&OpenReply> {
        match self {
            StepHolder::Instance(_) | StepHolder::Event => None,
            StepHolder::Service(open) | StepHolder::Poll(_, open) => Some(open),
        }
    }

    pub fn worker(&self) -> Option<&WorkerName> {
        self.open_reply().and_then(|open| open.worker.as_ref())
    }

    /// The end of the attempt: its complete-by, or the time by which the next heartbeat must have come.
    pub fn ends_at(&self, complete_by: Timestamp) -> Timestamp {
        let silent_at = self.open_reply().and_then(|open| open.silent_at);
        silent_at.map_or(complete_by, |silent_at| silent_at.min(complete_by))
    }
}

/// While a reply is awaited.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OpenReply {
    /// When the service promised it, or the worker fetched the step.
    pub since: Timestamp,
    /// Who fetched the step. `None`: the service was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
    /// The attempt ends if no heartbeat comes before. `None`: the step requires no heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_at: Option<Timestamp>,
    /// The last heartbeat that was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_at: Option<Timestamp>,
    /// When the history last got an entry of its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Progress::is_empty")]
    pub progress: Progress,
    /// Where the service is polled. `None`: it sends its reply by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollState>,
}

impl OpenReply {
    /// `worker` has fetched the step.
    pub fn fetched(now: Timestamp, heartbeat_within: Option<Span>, worker: WorkerName) -> Self {
        Self {
            worker: Some(worker),
            ..Self::new(now, heartbeat_within)
        }
    }

    /// The service is only asked to cancel its work.
    pub fn is_cancelled(&self) -> bool {
        self.poll.as_ref().is_some_and(|poll| poll.cancels)
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PollState {
    /// As the service named it. `None`: the step's own request is made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Arc<str>>,
    pub next_at: Timestamp,
    /// The reply is no longer awaited: the service is asked to cancel its work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancels: bool,
}

impl OpenReply {
    pub fn new(now: Timestamp, heartbeat_within: Option<Span>) -> Self {
        Self {
            since: now,
            worker: None,
            silent_at: heartbeat_within.map(|within| now + within),
            heartbeat_at: None,
            recorded_at: None,
            progress: Progress::default(),
            poll: None,
        }
    }
}

/// How far the service is, in its own words. What it does not say anew stays as it was.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Payload>,
}

impl Progress {
    /// The longest message, in bytes.
    pub const LONGEST_MESSAGE: usize = 1000;
    /// The longest details, in bytes of JSON.
    pub const LONGEST_DETAILS: usize = 4096;

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// With what `newer` says.
    #[must_use]
    pub fn updated(&self, newer: &Self) -> Self {
        Self {
            fraction: newer.fraction.or(self.fraction),
            message: newer.message.clone().or_else(|| self.message.clone()),
            details: newer.details.clone().or_else(|| self.details.clone()),
        }
    }

    /// One sentence for the history.
    pub fn in_words(&self) -> String {
        let percent = self
            .fraction
            .map(|fraction| format!("{:.0} % done", fraction * 100.0));
        match (percent, &self.message) {
            (Some(percent), Some(message)) => format!("{percent}: {message}"),
            (Some(percent), None) => percent,
            (None, Some(message)) => message.clone(),
            (None, None) => "the service is at work".to_owned(),
        }
    }
}

/// What is kept of the replies that came later, to recognise a repeated one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplyLog {
    /// Those that ended an attempt, the last of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<AcceptedReply>,
    /// The last attempt that got a reply after its end. The history has one entry for each such attempt, however
    /// many replies come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Attempt>,
}

impl ReplyLog {
    /// So many are kept: who repeats a reply does so soon, and a step that is retried without end must not grow.
    pub const MOST_ACCEPTED: usize = 8;

    pub fn accept(&mut self, reply: AcceptedReply) {
        if self.accepted.len() >= Self::MOST_ACCEPTED {
            self.accepted.remove(0);
        }
        self.accepted.push(reply);
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AcceptedReply {
    pub attempt: Attempt,
    pub digest: ReplyDigest,
}

/// A hash of the content of a reply: the same for the same content, however it is written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReplyDigest(pub String);

/// What a step's record holds of replies that come later, as JSON. Most steps have none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SavedReplies {
    /// While one is awaited, with the attempt's complete-by: the column of that name has the end of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<(Box<OpenReply>, Timestamp)>,
    #[serde(default, skip_serializing_if = "ReplyLog::is_empty")]
    pub log: ReplyLog,
    /// The step waits for an event, so no instance holds it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Box<Signal>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Box<OpenAsk>>,
    pub child: Option<Box<Child>>,
}

/// A signal that has come for a step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Signal {
    /// By which the same one is known again.
    pub digest: ReplyDigest,
    /// Kept until the step gets it: it may come before the step is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
}

impl SavedReplies {
    pub fn is_empty(&self) -> bool {
        self.open.is_none()
            && self.log.is_empty()
            && !self.waits
            && self.signal.is_none()
            && self.ask.is_none()
            && self.child.is_none()
    }
}

//! A reply that a service has promised for later: its state until it comes, and the record of it afterwards.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    task::{
        ask::OpenAsk, attempt_counts::AttemptCounts, child_record::Child,
        kept_response::KeptResponse,
    },
    template::payload::Payload,
    values::{
        ids::{Attempt, InstanceId, WorkerName},
        time::{Span, Timestamp},
    },
};

/// The party that works on the current attempt of a step.
#[derive(Clone, PartialEq, Debug)]
pub enum StepHolder {
    /// This instance runs the call.
    Instance(InstanceId),
    /// The service, or a worker that fetched the step, works on the attempt and replies later. No instance has it in
    /// memory.
    Service(Box<OpenReply>),
    /// This instance is polling the service for the reply.
    Poll(InstanceId, Box<OpenReply>),
    /// No instance and no service works on it: the step waits for an event, or for its child.
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

/// The state of a reply that is awaited.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OpenReply {
    /// When the service promised it, or the worker fetched the step.
    pub since: Timestamp,
    /// The worker that fetched the step. `None`: the service was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
    /// The attempt ends at this time if no heartbeat comes before. `None`: the step requires no heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_at: Option<Timestamp>,
    /// The last heartbeat that was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_at: Option<Timestamp>,
    /// The time of the last entry of the history about its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Progress::is_empty")]
    pub progress: Progress,
    /// The state of the polling. `None`: the service sends its reply by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollState>,
}

impl OpenReply {
    /// Makes the state for a step that `worker` has fetched.
    pub fn fetched(now: Timestamp, heartbeat_within: Option<Span>, worker: WorkerName) -> Self {
        Self {
            worker: Some(worker),
            ..Self::new(now, heartbeat_within)
        }
    }

    /// Returns whether the reply is no longer awaited, and the service is only asked to cancel its work.
    pub fn is_cancelled(&self) -> bool {
        self.poll.as_ref().is_some_and(|poll| poll.cancels)
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PollState {
    /// The address that the service named. `None`: the step's own request is made again.
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

/// The progress of the service, as it reports it. A field that a report leaves out stays as it was.
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

    /// Returns the progress with the fields of `newer` in place of its own.
    #[must_use]
    pub fn updated(&self, newer: &Self) -> Self {
        Self {
            fraction: newer.fraction.or(self.fraction),
            message: newer.message.clone().or_else(|| self.message.clone()),
            details: newer.details.clone().or_else(|| self.details.clone()),
        }
    }

    /// Returns one sentence for the history.
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

/// The record of later replies, to recognise a repeated one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplyLog {
    /// The last replies that ended an attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<AcceptedReply>,
    /// The last attempt that got a reply after its end. The history has one entry for each such attempt, for any number
    /// of replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Attempt>,
}

impl ReplyLog {
    /// The most replies that are kept: a sender repeats a reply soon after it, and the record of a step that is retried
    /// without end must not grow.
    pub const MOST_ACCEPTED: usize = 8;

    pub fn accept(&mut self, reply: AcceptedReply) {
        if self.accepted.len() >= Self::MOST_ACCEPTED {
            self.accepted.remove(0);
        }
        self.accepted.push(reply);
    }

    /// The step is run again: the address for replies to the attempts until now is not that of the next ones. The digest
    /// is that of no reply.
    pub fn close(&mut self, last: Attempt) {
        if self.accepted.last().map(|reply| reply.attempt) != Some(last) {
            self.accept(AcceptedReply {
                attempt: last,
                digest: ReplyDigest(String::new()),
            });
        }
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

/// The part of a step's record that is about later replies and events, as JSON. Most steps have none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SavedReplies {
    /// The state of an awaited reply, with the attempt's complete-by: the column `complete_by` has the end of the
    /// attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<(Box<OpenReply>, Timestamp)>,
    #[serde(default, skip_serializing_if = "ReplyLog::is_empty")]
    pub log: ReplyLog,
    /// True if the step waits for an event, so that no instance holds it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Box<Signal>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Box<OpenAsk>>,
    pub child: Option<Box<Child>>,
    /// The request that was sent, if it can no longer be rendered from the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_request: Option<Payload>,
    /// The parts of the response that the step keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Box<KeptResponse>>,
    #[serde(default, skip_serializing_if = "AttemptCounts::is_empty")]
    pub counts: AttemptCounts,
}

/// A signal that has come for a step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Signal {
    /// A repeated signal is recognised by its digest.
    pub digest: ReplyDigest,
    /// The payload is kept until the step gets it: the signal may come before the step is ready.
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
            && self.sent_request.is_none()
            && self.response.is_none()
            && self.counts.is_empty()
    }
}

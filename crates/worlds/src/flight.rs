//! A call in flight: a request on its way to the service, or a response on its way back.

use provost_domain::values::{Attempt, StepIndex, Timestamp};

/// A step of one of the tasks of a world. Tasks are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepOfTask {
    pub task: u8,
    pub step: StepIndex,
}

/// One call. It lives on when its instance has died, because a request may still be on its way then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Flight {
    pub at: StepOfTask,
    pub attempt: Attempt,
    /// The instance that makes the call.
    pub instance: u8,
    pub aim: Aim,
    /// The index of the entry in the ledger of the service: that of the work, also for its undo and its probe.
    pub entry: u8,
    pub complete_by: Timestamp,
    /// The instance still waits for the response. It does not once it has died or has dropped the call.
    pub is_awaited: bool,
    pub stage: Stage,
}

/// The purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Aim {
    Work,
    Undo,
    Probe,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The request is on its way.
    Sent,
    /// The response is on its way.
    Responded(ServiceResponse),
    /// Request or response was lost, and the instance waits until its time is over.
    Lost,
}

/// The response of the service, as the instance sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ServiceResponse {
    Success,
    /// 404: to a probe, or to the undo of work that was never done.
    NotFound,
    /// 422.
    Refused,
    /// 503: nothing was done.
    Unavailable,
    /// The connection broke.
    Broken,
    /// 202: the reply comes later.
    Promised,
}

impl Aim {
    pub fn in_words(self) -> &'static str {
        match self {
            Aim::Work => "call",
            Aim::Undo => "undo",
            Aim::Probe => "probe",
        }
    }
}

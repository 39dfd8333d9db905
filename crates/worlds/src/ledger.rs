//! The service, as docs/undo.md requires it: it does the work of a key once, remembers undone keys, and refuses a request
//! that arrives after its complete-by. Its ledger has the effects that stand.

use std::sync::Arc;

use provost_domain::values::Attempt;

use crate::flight::{Aim, ServiceResponse, StepOfTask};

/// The service's record of one key, and the parts of Provost's record that are compared with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceEntry {
    pub key: Arc<str>,
    /// The step whose work has this key.
    pub at: StepOfTask,
    pub is_done: bool,
    /// The work is undone, or is never to be done: its undo came first.
    pub is_undone: bool,
    /// The attempt that was refused. Earlier attempts get the same response when they arrive later.
    pub refused: Attempt,
    /// Provost has recorded the success: the work must not be called again.
    pub is_recorded: bool,
}

/// The way in which the service treats a request that it may treat in several ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    Does,
    Refuses,
    IsUnavailable,
    /// It does the work and replies later.
    Promises,
}

impl ServiceEntry {
    pub fn new(key: Arc<str>, at: StepOfTask) -> Self {
        Self {
            key,
            at,
            is_done: false,
            is_undone: false,
            refused: Attempt::default(),
            is_recorded: false,
        }
    }

    /// Returns whether the work was done and is not undone.
    pub fn stands(&self) -> bool {
        self.is_done && !self.is_undone
    }

    /// Treats a request. `may_follow`: another request for the same work is still on its way.
    pub fn serve(
        &mut self,
        aim: Aim,
        attempt: Attempt,
        treatment: Treatment,
        may_follow: bool,
    ) -> ServiceResponse {
        match (aim, treatment) {
            (_, Treatment::IsUnavailable) => ServiceResponse::Unavailable,
            (Aim::Work, _) if self.is_undone => ServiceResponse::Refused,
            (Aim::Work, Treatment::Promises) => ServiceResponse::Promised,
            (Aim::Work, _) if self.is_done => ServiceResponse::Success,
            (Aim::Work, _) if attempt <= self.refused => ServiceResponse::Refused,
            (Aim::Work, Treatment::Refuses) => {
                self.refused = attempt;
                ServiceResponse::Refused
            }
            (Aim::Work, Treatment::Does) => {
                self.is_done = true;
                ServiceResponse::Success
            }
            (Aim::Undo, _) if self.is_undone => ServiceResponse::Success,
            (Aim::Undo, Treatment::Refuses) => ServiceResponse::Refused,
            (Aim::Undo, _) => {
                self.is_undone = true;
                match self.is_done {
                    true => ServiceResponse::Success,
                    false => ServiceResponse::NotFound,
                }
            }
            (Aim::Probe, Treatment::Refuses) => ServiceResponse::Refused,
            (Aim::Probe, _) if self.stands() => ServiceResponse::Success,
            // "Not done" must be final.
            (Aim::Probe, _) if may_follow && !self.is_undone => ServiceResponse::Unavailable,
            (Aim::Probe, _) => ServiceResponse::NotFound,
        }
    }
}

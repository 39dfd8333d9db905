//! One attempt of a call: its deadline, the permission that it needs, and the faults that it may end with.

use std::time::Duration;

use ::http::StatusCode;
use async_trait::async_trait;

use crate::agent::{client::response, notes::CallNotes};
use crate::{
    clock::{self, Instant},
    domain::{
        task::{AttemptExchange, Call, CallOutcome, Purpose},
        values::{Effect, Fault, FaultKind, Timestamp},
    },
};

/// Asked before a call is made.
#[async_trait]
pub trait Permission: Send + Sync {
    /// Comes back when the call may be made; never where its attempt is known to be over, or to be dropped.
    async fn granted(&self, call: &Call);

    /// Told what was sent in a call that has been dropped before its response came.
    fn unanswered(&self, _call: &Call, _sent: Box<AttemptExchange>) {}
}

/// A call with its deadline, and who is asked before it is made.
#[derive(Clone, Copy)]
pub(in crate::agent) struct CallAttempt<'a> {
    pub call: &'a Call,
    pub deadline: Instant,
    pub permission: &'a dyn Permission,
    pub notes: &'a CallNotes,
}

impl CallAttempt<'_> {
    /// The store's clock, without asking the store: complete-by is known on both clocks.
    pub(super) fn store_time(&self) -> Timestamp {
        let left = self.deadline.saturating_duration_since(clock::instant());
        let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.call.complete_by.as_millis().saturating_sub(left))
    }

    fn fault(&self, kind: FaultKind, message: String) -> Fault {
        Fault::new(kind, message, self.store_time())
    }

    /// Tells what was sent, if anything was.
    pub fn dropped(&self) {
        if let Some(sent) = self.notes.exchange(self.call, self.store_time()) {
            self.permission.unanswered(self.call, sent);
        }
    }

    /// Nothing was sent.
    pub fn permanent(&self, message: String) -> CallOutcome {
        CallOutcome::Failed(self.fault(FaultKind::Permanent, message))
    }

    /// An answer that is no success. It says what it leaves open; asking a probe leaves nothing.
    pub(super) fn answered(&self, kind: FaultKind, message: String, status: StatusCode) -> Fault {
        let mut fault = self.fault(kind, message);
        fault.status = Some(status.as_u16());
        let probes = matches!(self.call.purpose, Purpose::Probe(_));
        fault.effect = Effect::unknown_if(!probes && response::leaves_effect_unknown(status));
        fault
    }

    pub fn transient(&self, message: String) -> Transient {
        Transient {
            fault: self.fault(FaultKind::Transient, message),
            retry_after: None,
        }
    }
}

/// A fault after which a retry may succeed. A permanent failure at the service is not an error here but a
/// [`CallOutcome`], so that a breaker, which counts errors, counts only signs of ill health.
#[derive(Debug)]
pub(in crate::agent) struct Transient {
    pub fault: Fault,
    pub(super) retry_after: Option<Duration>,
}

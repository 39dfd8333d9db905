//! Why an agent was not called for a while, as the history says it of the steps that were queued meanwhile.

use crate::{decide::Draft, ids::StepIndex, time::Timestamp};

/// An agent was not called at all until a moment, for a reason that has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastStop {
    pub until: Timestamp,
    /// Such as `its breaker was open: 20 of 24 calls in 30s failed`.
    pub why: String,
}

impl Draft {
    /// The step has just been claimed from the queue of an agent that was not called for a while. If it was queued then, its
    /// claim says so.
    pub fn explain_wait(&mut self, index: StepIndex, stop: &PastStop) {
        let name = &self.task.definition(index).name;
        let mut latest = self.events.iter_mut().rev();
        let claim = latest.find(|event| event.step.as_ref() == Some(name));
        let Some(claim) = claim.filter(|event| event.kind == "step.claimed") else {
            return;
        };
        if claim.ready_at.is_none_or(|ready_at| ready_at >= stop.until) {
            return;
        }
        let wait = format!(
            "its agent was not called until {}: {}",
            stop.until, stop.why
        );
        claim.reason = Some(match claim.reason.take() {
            Some(reason) => format!("{reason}; {wait}"),
            None => wait,
        });
    }
}

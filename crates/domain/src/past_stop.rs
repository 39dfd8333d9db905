//! Why an agent was not called for a while, as the history says it of the steps that were queued meanwhile.

use crate::{
    decide::Draft,
    ids::{InstanceId, StepIndex},
    time::Timestamp,
};

/// An agent was not called at all until a moment, for a reason that has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastStop {
    pub until: Timestamp,
    /// Such as `its breaker was open: 20 of 24 calls in 30s failed`.
    pub why: String,
    /// The instance that made no calls, if others may have made some.
    pub at: Option<InstanceId>,
}

impl PastStop {
    fn in_words(&self) -> String {
        let Self { until, why, at } = self;
        match at {
            Some(instance) => {
                format!("instance {instance} did not call its agent until {until}: {why}")
            }
            None => format!("its agent was not called until {until}: {why}"),
        }
    }
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
        let wait = stop.in_words();
        claim.reason = Some(match claim.reason.take() {
            Some(reason) => format!("{reason}; {wait}"),
            None => wait,
        });
    }
}

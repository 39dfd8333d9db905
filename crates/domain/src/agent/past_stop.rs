//! The reason why an agent was not called for a while, for the history of the steps that were queued in that time.

use crate::{
    task::decide::Draft,
    values::{
        ids::{InstanceId, StepIndex},
        time::Timestamp,
    },
};

/// A time in which an agent was not called at all, for a reason that has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastStop {
    pub until: Timestamp,
    /// The reason, such as `its breaker was open: 20 of 24 calls in 30s failed`.
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
    /// Adds the reason to the claim of a step that was just claimed from the queue of such an agent, if the step was
    /// queued in that time.
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

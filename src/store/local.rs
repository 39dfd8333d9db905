//! What the writer needs of the instance at hand, so that a step which becomes ready is claimed in
//! the transaction that made it ready.

use std::{any::Any, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::domain::{
    Actor, AgentName, Attempt, Call, Claimant, InstanceId, LaneRule, PastStop, StepRef, Timestamp,
    WorkerName,
};

/// A slot for one step of an agent; freed when dropped.
#[derive(Debug)]
pub struct SlotPermit {
    slot: Box<dyn Any + Send>,
    /// The step is for this worker, and not for a call.
    worker: Option<WorkerName>,
}

impl SlotPermit {
    pub fn for_call(slot: impl Any + Send) -> Self {
        Self {
            slot: Box::new(slot),
            worker: None,
        }
    }

    pub fn for_worker(slot: impl Any + Send, worker: WorkerName) -> Self {
        Self {
            slot: Box::new(slot),
            worker: Some(worker),
        }
    }

    pub fn is_for_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// Who works on the step then.
    pub fn claimant(&self, instance: &InstanceId) -> Claimant {
        match &self.worker {
            Some(worker) => Claimant::Worker(worker.clone()),
            None => Claimant::Instance(instance.clone()),
        }
    }

    /// What it was made of.
    pub fn into_slot<T: Any>(self) -> Option<T> {
        self.slot.downcast().ok().map(|slot| *slot)
    }
}

/// A saved claim: to be called now, or to be given to a worker.
#[derive(Debug)]
pub struct Dispatch {
    pub call: Call,
    /// The step's complete-by on this process's monotonic clock.
    pub deadline: Instant,
    pub permit: SlotPermit,
}

/// The scheduler of this process, seen from the writer. No method may block.
pub trait LocalScheduler: Send + Sync + 'static {
    fn instance(&self) -> &InstanceId;
    /// The instance's scheduler, for the history.
    fn actor(&self) -> &Actor;
    /// A slot for one more call, if one is free and no step is queued for it.
    fn try_take(&self, agent: &AgentName) -> Option<SlotPermit>;
    /// Whether a step that has just been enqueued by another instance is left to that one for a moment.
    fn leaves_to_others(&self, _agent: &AgentName) -> bool {
        false
    }
    /// How many more steps of the agent can be claimed now.
    fn free(&self, agent: &AgentName) -> usize;
    /// How many more calls the agent can take now: nothing is claimed ahead where more than slots is counted.
    fn free_slots(&self, agent: &AgentName) -> usize {
        self.free(agent)
    }
    /// A slot for the first queued step.
    fn take_for_queued(&self, agent: &AgentName) -> Option<SlotPermit>;
    /// The agent's queue is empty, as far as this process knows.
    fn queue_drained(&self, agent: &AgentName);
    /// A reply of this agent is no longer awaited.
    fn reply_closed(&self, agent: &AgentName);
    /// Whether the queue of any agent is divided into lanes.
    fn has_lanes(&self) -> bool {
        false
    }
    /// How the queue of an agent is divided, if it is.
    fn lane_rule(&self, _agent: &AgentName) -> Option<Arc<LaneRule>> {
        None
    }
    /// Why the agent was not called until a moment, if there was such a time. `now` is the store's time at `instant`.
    fn past_stop(
        &self,
        _agent: &AgentName,
        _now: Timestamp,
        _instant: Instant,
    ) -> Option<Arc<PastStop>> {
        None
    }
    /// A step of the agent has ended, and another of its lane may begin.
    fn lane_freed(&self, _agent: &AgentName) {}
    /// Steps may be claimed after so long that may not be now.
    fn claim_later(&self, _wait: Duration) {}
    /// A batch took so long to be saved.
    fn committed(&self, _took: Duration) {}
    /// Claims that have just been committed.
    fn dispatch(&self, dispatches: Vec<Dispatch>);
    /// A step is pending and nobody claimed it; it may be from `due_at` on, `now` being now.
    fn pending(&self, agent: &AgentName, due_at: Timestamp, now: Timestamp);
    /// Drops a running call of this process. If its attempt is not over, the drop is confirmed once the call has
    /// ended.
    fn dropped(&self, step: StepRef, attempt: Attempt, confirm: bool);
}

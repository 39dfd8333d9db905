//! The writer's interface to the scheduler of its process, so that a step which becomes ready is claimed in the
//! transaction that made it ready.

use std::{any::Any, sync::Arc, time::Duration};

use crate::{
    clock::Instant,
    domain::{
        agent::PastStop,
        queue::LaneRule,
        task::{Actor, Call, Claimant},
        values::{AgentName, Attempt, InstanceId, StepRef, Timestamp, WorkerName},
    },
};

/// A slot for one step of an agent. It is released when this is dropped.
#[derive(Debug)]
pub struct SlotPermit {
    slot: Box<dyn Any + Send>,
    /// If set, the step is for this worker, and not for a call.
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

    /// Returns who works on the step after the claim.
    pub fn claimant(&self, instance: &InstanceId) -> Claimant {
        match &self.worker {
            Some(worker) => Claimant::Worker(worker.clone()),
            None => Claimant::Instance(instance.clone()),
        }
    }

    /// Returns the slot from which this permit was made.
    pub fn into_slot<T: Any>(self) -> Option<T> {
        self.slot.downcast().ok().map(|slot| *slot)
    }
}

/// A saved claim: the step is called now, or is given to a worker.
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
    /// Returns the instance's scheduler, for the history.
    fn actor(&self) -> &Actor;
    /// Takes a slot for one more call, if one is free and no step is queued for it.
    fn try_take(&self, agent: &AgentName) -> Option<SlotPermit>;
    /// Returns whether a step that another instance has just enqueued is left to that instance for a moment.
    fn leaves_to_others(&self, _agent: &AgentName) -> bool {
        false
    }
    /// Returns how many more steps of the agent can be claimed now.
    fn free(&self, agent: &AgentName) -> usize;
    /// Returns how many more calls the agent can take now. Nothing is claimed ahead if other limits than slots are
    /// counted.
    fn free_slots(&self, agent: &AgentName) -> usize {
        self.free(agent)
    }
    /// Takes a slot for the first queued step.
    fn take_for_queued(&self, agent: &AgentName) -> Option<SlotPermit>;

    /// Takes back a permit whose step was not claimed. A freed slot would have the queue read again at once, which has the
    /// same step.
    fn put_back(&self, permit: SlotPermit) {
        drop(permit);
    }

    /// Notes that the agent's queue is empty, as far as this process knows.
    fn queue_drained(&self, agent: &AgentName);
    /// Notes that a reply of this agent is no longer awaited.
    fn reply_closed(&self, agent: &AgentName);
    /// Returns whether the queue of any agent is divided into lanes.
    fn has_lanes(&self) -> bool {
        false
    }
    /// Returns the rule by which the queue of an agent is divided, if it is.
    fn lane_rule(&self, _agent: &AgentName) -> Option<Arc<LaneRule>> {
        None
    }
    /// Returns why the agent was not called until a moment in the past, if there was such a stop. `now` is the store's
    /// time at `instant`.
    fn past_stop(
        &self,
        _agent: &AgentName,
        _now: Timestamp,
        _instant: Instant,
    ) -> Option<Arc<PastStop>> {
        None
    }
    /// Notes that a step of the agent has ended, so that another of its lane may begin.
    fn lane_freed(&self, _agent: &AgentName) {}
    /// Notes that steps which may not be claimed now may be after this time.
    fn claim_later(&self, _wait: Duration) {}
    /// Notes the duration of the commit of a batch.
    fn committed(&self, _took: Duration) {}
    /// Starts the claims that have just been committed.
    fn dispatch(&self, dispatches: Vec<Dispatch>);
    /// Notes that a step is pending and was not claimed. It may be claimed from `due_at` on.
    fn pending(&self, agent: &AgentName, due_at: Timestamp, now: Timestamp);
    /// Drops a running call of this process. If its attempt is not over, the drop is confirmed once the call has
    /// ended.
    fn dropped(&self, step: StepRef, attempt: Attempt, confirm: bool);
}

//! What the writer needs of the instance at hand, so that a step which becomes ready is claimed in
//! the transaction that made it ready.

use std::any::Any;

use tokio::time::Instant;

use crate::domain::{Actor, AgentName, Attempt, Call, InstanceId, StepRef, Timestamp};

/// A slot for one call of an agent; freed when dropped.
pub type SlotPermit = Box<dyn Any + Send>;

/// A saved claim: to be called now.
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
    /// How many more calls the agent can take now.
    fn free(&self, agent: &AgentName) -> usize;
    /// A slot for the first queued step.
    fn take_for_queued(&self, agent: &AgentName) -> Option<SlotPermit>;
    /// The agent's queue is empty, as far as this process knows.
    fn queue_drained(&self, agent: &AgentName);
    /// Claims that have just been committed.
    fn dispatch(&self, dispatches: Vec<Dispatch>);
    /// A step is pending and nobody claimed it; it may be from `due_at` on, `now` being now.
    fn pending(&self, agent: &AgentName, due_at: Timestamp, now: Timestamp);
    /// Drops a running call of this process. If its attempt is not over, the drop is confirmed once the call has
    /// ended.
    fn dropped(&self, step: StepRef, attempt: Attempt, confirm: bool);
}

//! The scheduler: takes pending steps for agents with free capacity and has them called (P8 to P13).
//!
//! Most steps never pass through here as pending: the writer claims them in the transaction that made
//! them ready, through [`Local`]. What found no place then stands in its agent's line, and the
//! [`claimer`] takes it from there. The [`dispatcher`] runs the calls of every saved claim.

mod call;
mod claimer;
mod dispatcher;
mod lines;
mod recovery;
mod running;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::{sync::mpsc, time::Instant};

pub use claimer::run as run_claimer;
pub use dispatcher::Dispatcher;
pub use recovery::{reconcile, resume_interrupted};

use self::{lines::Lines, running::Running};
use crate::{
    agent::Agents,
    domain::{Actor, AgentName, Attempt, InstanceId, StepRef, Timestamp},
    instance::Standing,
    store::{Dispatch, LocalScheduler, Permit},
};

/// What the writer sees of this instance's scheduler.
pub struct Local {
    instance: InstanceId,
    actor: Actor,
    /// Without a lease nothing is claimed: others would take it for lost.
    standing: Arc<Standing>,
    agents: Arc<Agents>,
    lines: Lines,
    running: Running,
    dispatches: mpsc::UnboundedSender<Vec<Dispatch>>,
}

/// Claims on their way to the dispatcher. Unbounded, because each holds a permit: there are never
/// more than the agents have places for.
pub type Dispatches = mpsc::UnboundedReceiver<Vec<Dispatch>>;

impl Local {
    pub fn new(
        instance: InstanceId,
        standing: Arc<Standing>,
        agents: Arc<Agents>,
    ) -> (Arc<Self>, Dispatches) {
        let (dispatches, receiver) = mpsc::unbounded_channel();
        let local = Arc::new(Self {
            actor: Actor::scheduler(instance.as_str()),
            instance,
            standing,
            agents,
            lines: Lines::default(),
            running: Running::default(),
            dispatches,
        });
        let weak = Arc::downgrade(&local);
        local.agents.on_freed(Box::new(move |agent: &AgentName| {
            if let Some(local) = weak.upgrade() {
                local.lines.capacity_freed(agent);
            }
        }));
        (local, receiver)
    }

    /// Any line may have grown by the hand of another instance: the claimer looks.
    pub fn look_everywhere(&self) {
        self.lines.look_everywhere();
    }

    fn may_claim(&self) -> bool {
        self.standing.may_claim(Instant::now())
    }

    /// A line that may hold steps: the claimer looks.
    pub fn expect_line(&self, agent: &AgentName) {
        self.lines.grew(agent);
    }
}

impl LocalScheduler for Local {
    fn instance(&self) -> &InstanceId {
        &self.instance
    }

    fn actor(&self) -> &Actor {
        &self.actor
    }

    fn try_take(&self, agent: &AgentName) -> Option<Permit> {
        if self.lines.has_line(agent) {
            return None;
        }
        self.take_for_line(agent)
    }

    fn free(&self, agent: &AgentName) -> usize {
        if self.may_claim() {
            self.agents.free(agent)
        } else {
            0
        }
    }

    fn take_for_line(&self, agent: &AgentName) -> Option<Permit> {
        if !self.may_claim() {
            return None;
        }
        let slot = self.agents.try_take(agent)?;
        Some(Box::new(slot))
    }

    fn line_drained(&self, agent: &AgentName) {
        self.lines.drained(agent);
    }

    fn dispatch(&self, dispatches: Vec<Dispatch>) {
        // Fails only once the dispatcher has ended: at shutdown, when leftovers are handed back at
        // the next start.
        let _ = self.dispatches.send(dispatches);
    }

    fn pending(&self, agent: &AgentName, due_at: Timestamp, now: Timestamp) {
        if due_at <= now {
            self.lines.grew(agent);
        } else {
            self.lines.due_in(due_at.since(now));
        }
    }

    fn dropped(&self, step: StepRef, attempt: Attempt) {
        self.running.abort(step, attempt);
    }
}

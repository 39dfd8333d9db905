//! The claims of agents: the slots that can be taken and the steps that may be claimed, until the instance stops.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{Agents, agent::Agent, origins::is_origin};
use crate::agent::queue::capacity::{CallSlot, Slot};
use crate::domain::{queue::LaneRule, values::AgentName};

impl Agents {
    /// `None` when the agent is at capacity or unknown, lacks a secret, or after [`Agents::close`].
    pub fn try_take(&self, name: &AgentName) -> Option<Slot> {
        if is_origin(name) {
            return self.for_origin(name).try_take();
        }
        let registered = self.registered.load();
        let agent = registered.get(name)?;
        agent.has_secrets().then(|| agent.try_take())?
    }

    /// [`Agents::try_take`]; if no slot is free, a claim ahead of one that is freed soon.
    pub fn try_claim(&self, name: &AgentName) -> Option<CallSlot> {
        if is_origin(name) {
            return self.for_origin(name).try_claim();
        }
        let registered = self.registered.load();
        let agent = registered.get(name)?;
        agent.has_secrets().then(|| agent.try_claim())?
    }

    /// Returns the number of slots that can be taken now.
    pub fn free(&self, name: &AgentName) -> usize {
        self.count(name, Agent::free)
    }

    /// Returns the number of steps of an agent that may be claimed now.
    pub fn claimable(&self, name: &AgentName) -> usize {
        self.count(name, Agent::claimable)
    }

    fn count(&self, name: &AgentName, count: impl Fn(&Agent) -> usize) -> usize {
        if is_origin(name) {
            return count(&self.for_origin(name));
        }
        let registered = self.registered.load();
        let agent = registered.get(name);
        agent.map_or(0, |agent| match agent.has_secrets() {
            true => count(agent),
            false => 0,
        })
    }

    /// Claims took so long to be saved.
    pub fn committed(&self, took: Duration) {
        self.shared.gate.add_commit_time(took);
    }

    /// Returns true if the queue of any agent is or was divided into lanes.
    pub fn has_lanes(&self) -> bool {
        self.has_lanes.load(Ordering::Acquire)
    }

    /// Returns the rule that divides the queue of an agent into lanes, if it has one.
    pub fn lane_rule(&self, name: &AgentName) -> Option<Arc<LaneRule>> {
        if !self.has_lanes() {
            return None;
        }
        self.registered.load().get(name)?.lanes.clone()
    }

    /// `notify` is called whenever an agent may have capacity again, on the thread that released it: it must only
    /// wake another task. It is set once.
    pub fn on_freed(&self, notify: impl Fn(&AgentName) + Send + Sync + 'static) {
        self.shared.gate.on_freed(Box::new(notify));
    }

    /// Gives out no more slots, permanently: the instance is stopping. Running calls continue.
    pub fn close(&self) {
        self.shared.gate.close();
    }

    /// Returns true after [`Agents::close`].
    pub fn is_closed(&self) -> bool {
        self.shared.gate.is_closed()
    }
}

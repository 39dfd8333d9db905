//! For the loops without a caller: the agents that each of them looks after, and the events that wake it.

use std::sync::Arc;

use super::{Agents, agent::Agent};
use crate::domain::{agent::BreakerReport, values::AgentName};

impl Agents {
    /// Takes the reports of calls about endpoints since the previous call of this function.
    pub fn take_reports(&self) -> Vec<BreakerReport> {
        self.shared.reports.take()
    }

    /// Waits until there are reports, or the pause or a breaker of an agent has changed.
    pub async fn reported(&self) {
        self.shared.reports.woken().await;
    }

    /// Returns the agents whose rate is limited.
    pub fn rate_limited(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let limited = registered
            .values()
            .filter(|agent| agent.spec.rate_limit.is_some());
        limited.map(Arc::clone).collect()
    }

    /// Comes back when an agent wants more calls than its rate lets begin.
    pub async fn wanting(&self) {
        self.shared.wants.calls.notified().await;
    }

    /// The agents whose calls in flight are limited over all instances.
    pub fn slot_limited(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let limited = registered
            .values()
            .filter(|agent| agent.spec.max_in_flight.is_some());
        limited.map(Arc::clone).collect()
    }

    /// Comes back when an agent wants more slots than this instance has, or another instance has changed what it holds.
    pub async fn wanting_slots(&self) {
        self.shared.wants.slots.notified().await;
    }

    /// Another instance has changed what it holds of the slots of an agent.
    pub fn hear_of_slots(&self) {
        self.shared.wants.slots.notify_one();
    }

    /// Returns the agents whose awaited replies are limited.
    pub fn open_limited(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let limited = registered
            .values()
            .filter(|agent| agent.bulkhead.is_open_limited());
        limited.map(Arc::clone).collect()
    }

    /// Comes back when an agent was limited.
    pub async fn limited(&self) {
        self.limited.notified().await;
    }

    /// A reply of this agent is no longer awaited.
    pub fn closed_open(&self, name: &AgentName) {
        if let Some(agent) = self.registered.load().get(name)
            && agent.bulkhead.is_open_limited()
        {
            agent.bulkhead.remove_open_reply();
        }
    }

    /// The agents whose endpoints are checked.
    pub fn checked(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let checked = registered
            .values()
            .filter(|agent| agent.spec.health.is_some());
        checked.map(Arc::clone).collect()
    }
}

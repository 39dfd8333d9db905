//! The agents that an instance knows, by name. Read on every claim and every call, changed rarely: so
//! readers take a snapshot and writers swap it.
//!
//! `agent` is one of them, `shared_parts` makes it. This file registers, changes and finds agents; `origins` has
//! those that are not registered, but made for the URLs of steps. `claims` is for the scheduler, `housekeeping` for
//! the periodic loops, `secrets` for the loop that reads secrets. `last_checks` has the results of `agent check`.

mod agent;
mod claims;
mod housekeeping;
mod last_checks;
mod origins;
mod secrets;
mod shared_parts;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

pub use self::{agent::Agent, last_checks::check_tag};
use self::{
    last_checks::LastChecks,
    origins::{Origins, is_origin},
    shared_parts::SharedParts,
};
use super::settings::AgentSettings;
use crate::{
    clock::Instant,
    domain::{
        agent::{AgentCheck, AgentSpec, PastStop},
        queue::LaneRule,
        task::{RecordSuccesses, ReplyAddresses},
        values::{AgentName, Timestamp},
    },
};

/// The agents of an instance.
pub struct Agents {
    shared: SharedParts,
    registered: ArcSwap<HashMap<AgentName, Arc<Agent>>>,
    origins: Origins,
    /// An agent was limited whose awaited replies have to be counted.
    limited: Notify,
    /// Agents with lanes are or were registered.
    has_lanes: AtomicBool,
    checks: LastChecks,
}

impl Agents {
    /// Returns which attempts that succeed are recorded.
    pub(super) fn record_successes(&self) -> RecordSuccesses {
        self.shared.settings.record_successes
    }

    /// The metrics recorder must be installed before the first call: agents keep the handles they find.
    pub fn new(settings: AgentSettings) -> Self {
        Self {
            shared: SharedParts::new(settings),
            registered: ArcSwap::default(),
            origins: Origins::new(),
            limited: Notify::new(),
            has_lanes: AtomicBool::new(false),
            checks: LastChecks::default(),
        }
    }

    /// Adds an agent, or changes one: its calls in flight continue and keep their slots.
    pub fn put(&self, name: AgentName, spec: AgentSpec) {
        // Before it is known, and before it has more slots: nothing is claimed by those as if its queue were not divided.
        if let Some(lanes) = LaneRule::of(&spec.limits, spec.fairness.as_ref()) {
            self.has_lanes.store(true, Ordering::Release);
            self.divide(&name, &Arc::new(lanes));
        }
        self.registered.rcu(|known| {
            let mut next = HashMap::clone(known);
            let agent = self.shared.registered(&name, &spec, known.get(&name));
            next.insert(name.clone(), Arc::new(agent));
            next
        });
        if let Some(agent) = self.get(&name) {
            agent.guard.configure(agent.spec());
            // A secret may have changed since it was read above.
            if let Some(access) = &agent.wire.access {
                access.refresh();
            }
            agent.bulkhead.limit_open(agent.spec().max_open);
            if agent.spec().max_open.is_some() {
                self.limited.notify_one();
            }
            // There is something to be looked at.
            if agent.spec().needs_looks() {
                self.shared.reports.wake();
            }
            // Not before it is known: they would be asked for in vain.
            if agent.bulkhead.slots.is_wanting() {
                self.shared.wants.slots.notify_one();
            }
        }
        // New capacity is free capacity.
        self.shared.gate.freed(&name);
    }

    /// Has the queue of a known agent divided, which stays as it was otherwise.
    fn divide(&self, name: &AgentName, lanes: &Arc<LaneRule>) {
        self.registered.rcu(|known| {
            let Some(agent) = known.get(name) else {
                return Arc::clone(known);
            };
            let divided = agent.divided(lanes);
            let mut next = HashMap::clone(known);
            next.insert(name.clone(), Arc::new(divided));
            Arc::new(next)
        });
    }

    /// Does not affect calls in flight. True if the agent was known.
    pub fn remove(&self, name: &AgentName) -> bool {
        let before = self.registered.rcu(|known| {
            let mut next = HashMap::clone(known);
            next.remove(name);
            next
        });
        let removed = before.get(name);
        if let Some(removed) = removed {
            removed.guard.removed();
        }
        removed.is_some()
    }

    /// Returns a registered agent, or the agent for the origin of a step's URL, which is made on first use.
    pub fn get(&self, name: &AgentName) -> Option<Arc<Agent>> {
        if is_origin(name) {
            return Some(self.for_origin(name));
        }
        self.registered.load().get(name).map(Arc::clone)
    }

    fn for_origin(&self, origin: &AgentName) -> Arc<Agent> {
        self.origins.agent(origin, &self.shared)
    }

    /// Returns the names of the agents in the configuration file.
    pub fn configured(&self) -> &BTreeSet<AgentName> {
        &self.shared.settings.configured
    }

    /// Returns the registered agents, sorted by name.
    pub fn list(&self) -> Vec<Arc<Agent>> {
        let mut all: Vec<_> = self.registered.load().values().map(Arc::clone).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Replaces the last checks of all agents by those of the record.
    pub fn take_checks(&self, checks: Vec<(AgentName, AgentCheck)>) {
        self.checks.replace(checks);
    }

    /// The last check of an agent, and whether the agent still has the specification that was checked.
    pub fn last_check(&self, name: &AgentName) -> Option<(Arc<AgentCheck>, bool)> {
        let check = self.checks.get(name)?;
        let agent = self.registered.load().get(name).map(Arc::clone)?;
        let is_current = check.spec == check_tag(&agent.spec);
        Some((check, is_current))
    }

    /// Why the agent was not called until a moment, if there was such a time. `now` is the store's time at `instant`.
    pub fn past_stop(
        &self,
        name: &AgentName,
        now: Timestamp,
        instant: Instant,
    ) -> Option<Arc<PastStop>> {
        let registered = self.registered.load();
        registered.get(name)?.guard.past_stop(now, instant)
    }

    pub(super) fn reply_address(&self) -> Option<&ReplyAddresses> {
        self.shared.settings.replies.get().map(Arc::as_ref)
    }

    #[cfg(test)]
    pub(super) fn origins_known(&self) -> usize {
        self.origins.len()
    }
}

//! The agents for the origins of steps that name a URL: made on first use, and a bounded number of them.

use std::{num::NonZeroUsize, sync::Arc};

use lru::LruCache;
use parking_lot::Mutex;

use super::{agent::Agent, shared_parts::SharedParts};
use crate::agent::meters::CallMetrics;
use crate::domain::{
    agent::{AgentMode, AgentSpec, Endpoint},
    values::AgentName,
    view::URL_AGENTS,
};

/// Above this number, origins of step URLs without calls in flight are removed, the least recently used first.
const ORIGINS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

pub(super) struct Origins {
    known: Mutex<LruCache<AgentName, Arc<Agent>>>,
    /// They count the calls of all origins together.
    meters: Arc<CallMetrics>,
}

impl Origins {
    pub fn new() -> Self {
        Self {
            known: Mutex::new(LruCache::unbounded()),
            meters: Arc::new(CallMetrics::new(URL_AGENTS)),
        }
    }

    /// Returns the agent for an origin.
    pub fn agent(&self, origin: &AgentName, shared: &SharedParts) -> Arc<Agent> {
        let mut origins = self.known.lock();
        if let Some(agent) = origins.get(origin) {
            return Arc::clone(agent);
        }
        while origins.len() >= ORIGINS.get()
            && let Some(idle) = least_recently_used_idle(&origins)
        {
            origins.pop(&idle);
        }
        let spec = AgentSpec {
            mode: AgentMode::Call,
            endpoints: vec![Endpoint {
                url: origin.as_str().to_owned(),
                max_in_flight: shared.settings.default_max_in_flight,
                zone: None,
                drain: false,
            }],
            ..AgentSpec::default()
        };
        let agent = Arc::new(shared.make(origin, spec, Arc::clone(&self.meters), None));
        origins.put(origin.clone(), Arc::clone(&agent));
        agent
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.known.lock().len()
    }
}

/// Returns the origin to remove. Forgetting an agent in use would forget its calls in flight and save no memory,
/// because its users hold it: so the memory is bounded by the idle agents plus those with calls in flight.
fn least_recently_used_idle(origins: &LruCache<AgentName, Arc<Agent>>) -> Option<AgentName> {
    origins
        .iter()
        .rev()
        .find(|(_, agent)| Arc::strong_count(agent) == 1 && agent.in_flight() == 0)
        .map(|(name, _)| name.clone())
}

/// The names of registered agents hold no `:`, the origins of URLs always do.
pub(super) fn is_origin(name: &AgentName) -> bool {
    name.as_str().contains(':')
}

//! The gauges of an agent's endpoints: each exists while its specification has what the gauge is about.

use crate::{
    agent::meters,
    domain::{
        agent::{AgentGuard, AgentSpec, EndpointState},
        values::AgentName,
    },
};

#[derive(Clone, Copy)]
pub struct EndpointGauges {
    breakers: bool,
    ejections: bool,
    checks: bool,
    limits: bool,
}

impl EndpointGauges {
    pub fn of(spec: &AgentSpec) -> Self {
        Self {
            breakers: spec.breaker.is_some(),
            ejections: spec.ejection.is_some(),
            checks: spec.health.is_some(),
            limits: spec.watches_calls(),
        }
    }

    /// Returns those that the others lack.
    pub fn without(self, others: Self) -> Self {
        Self {
            breakers: self.breakers && !others.breakers,
            ejections: self.ejections && !others.ejections,
            checks: self.checks && !others.checks,
            limits: self.limits && !others.limits,
        }
    }

    /// Shows everything that is known of the endpoints.
    pub fn show(self, guard: &AgentGuard) {
        let (agent, (_, control)) = (guard.agent(), guard.record());
        for (endpoint, most) in guard.endpoint_calls() {
            let url = endpoint.url();
            if self.breakers {
                let known = control.breakers.get(url);
                meters::show_breaker(agent, url, known.map(|known| &known.state));
            }
            if self.ejections {
                let is_ejected = matches!(endpoint.state(), EndpointState::Ejected(_));
                meters::show_ejection(agent, url, is_ejected);
            }
            if self.checks {
                let is_unhealthy = matches!(endpoint.state(), EndpointState::Unhealthy(_));
                meters::show_check(agent, url, !is_unhealthy);
            }
            self.show_limit(agent, url, most);
        }
    }

    pub fn show_limit(self, agent: &AgentName, url: &str, most: u32) {
        if self.limits {
            meters::show_limit(agent, url, most);
        }
    }

    /// Nothing is to be seen of the endpoint any more.
    pub fn clear(self, agent: &AgentName, url: &str) {
        if self.breakers {
            meters::show_breaker(agent, url, None);
        }
        if self.ejections {
            meters::show_ejection(agent, url, false);
        }
        if self.checks {
            meters::show_check(agent, url, true);
        }
        self.show_limit(agent, url, 0);
    }
}

//! The reasons, other than its breaker, for which an endpoint takes no new calls.

use crate::{
    agent::{
        control::{AgentControl, BreakerState},
        ejection::{Ejection, may_eject},
        health::Unhealthy,
        spec::{AgentSpec, Endpoint},
    },
    values::time::Timestamp,
};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum EndpointState {
    /// It takes new calls, if its breaker lets them through.
    #[default]
    Healthy,
    /// It has failed several times in a row.
    Ejected(Ejection),
    /// It is to be stopped.
    Draining,
    /// Its checks fail.
    Unhealthy(Unhealthy),
}

impl EndpointState {
    pub fn is_healthy(&self) -> bool {
        *self == Self::Healthy
    }
}

impl AgentControl {
    pub fn endpoint_state(
        &self,
        endpoint: &Endpoint,
        spec: &AgentSpec,
        now: Timestamp,
    ) -> EndpointState {
        if endpoint.drain {
            return EndpointState::Draining;
        }
        let breaker = self.breakers.get(&endpoint.url);
        if breaker.is_some_and(|breaker| breaker.state == BreakerState::ForcedClosed) {
            return EndpointState::Healthy;
        }
        if let Some(unhealthy) = self.unhealthy.get(&endpoint.url)
            && spec.health.is_some()
        {
            return EndpointState::Unhealthy(unhealthy.clone());
        }
        if let Some(ejection) = self.ejections.get(&endpoint.url)
            && spec.ejection.is_some()
            && ejection.holds_at(now)
        {
            return EndpointState::Ejected(ejection.clone());
        }
        EndpointState::Healthy
    }

    fn takes_calls(&self, endpoint: &Endpoint, spec: &AgentSpec, now: Timestamp) -> bool {
        let breaker = self.breakers.get(&endpoint.url);
        breaker.is_none_or(|breaker| breaker.state == BreakerState::ForcedClosed)
            && self.endpoint_state(endpoint, spec, now).is_healthy()
    }

    /// Returns whether an endpoint that failed several times in a row may be ejected: it takes calls now, and enough
    /// others do.
    pub fn may_eject(&self, url: &str, spec: &AgentSpec, now: Timestamp) -> bool {
        let endpoints = spec.endpoints.iter().filter(|endpoint| !endpoint.drain);
        let (taking, out): (Vec<_>, Vec<_>) =
            endpoints.partition(|endpoint| self.takes_calls(endpoint, spec, now));
        !self.breakers.contains_key(url)
            && taking.iter().any(|endpoint| endpoint.url == url)
            && may_eject(out.len(), taking.len() + out.len())
    }
}

//! The parts that all agents of an instance share, and the way an agent is made of them and of its specification.

use std::sync::Arc;

use super::agent::Agent;
use crate::agent::{
    client::{connector::CallConnector, http},
    guard::{Guard, Reports},
    meters::CallMetrics,
    queue::{
        capacity::Bulkhead,
        gate::{Gate, Wants},
    },
    routing::Endpoints,
    secret::access::AgentAccess,
    settings::AgentSettings,
    transport::Transport,
};
use crate::{
    clock,
    domain::{
        agent::{AgentSpec, HttpVersion},
        queue::LaneRule,
        values::AgentName,
    },
};

pub(super) struct SharedParts {
    pub settings: AgentSettings,
    connector: CallConnector,
    /// For agents whose endpoints speak HTTP/2.
    http2_connector: CallConnector,
    pub gate: Arc<Gate>,
    pub reports: Arc<Reports>,
    pub wants: Wants,
}

impl SharedParts {
    pub fn new(settings: AgentSettings) -> Self {
        let connector = http::connector(&settings);
        Self {
            http2_connector: connector.with_http2(),
            connector,
            settings,
            gate: Arc::default(),
            reports: Arc::default(),
            wants: Wants::default(),
        }
    }

    /// Makes a registered agent. It has the capacity, the state of endpoints and the metrics of the agent `before`, which
    /// it replaces.
    pub fn registered(
        &self,
        name: &AgentName,
        spec: &AgentSpec,
        before: Option<&Arc<Agent>>,
    ) -> Agent {
        if let Some(before) = before {
            // The new specification may not need the secret that is missing.
            before.note_secret_fault();
        }
        let meters = match before {
            Some(before) => Arc::clone(&before.wire.meters),
            None => Arc::new(CallMetrics::new(name.as_str())),
        };
        self.make(name, spec.clone(), meters, before)
    }

    /// Makes an agent, whose calls are counted by `meters`.
    pub fn make(
        &self,
        name: &AgentName,
        spec: AgentSpec,
        meters: Arc<CallMetrics>,
        before: Option<&Arc<Agent>>,
    ) -> Agent {
        let bulkhead = match before {
            Some(before) => Arc::clone(&before.bulkhead),
            None => Arc::new(Bulkhead::new(
                name.clone(),
                most_in_flight(&spec),
                Arc::clone(&self.gate),
                self.wants.clone(),
                meters.in_flight.clone(),
            )),
        };
        let guard = match before {
            Some(before) => Arc::clone(&before.guard),
            None => Arc::new(Guard::new(
                name.clone(),
                self.settings.instance.clone(),
                Arc::clone(&bulkhead),
                Arc::clone(&self.reports),
            )),
        };
        guard.configure(&spec);
        bulkhead.rate.configure(
            spec.rate_limit.as_ref(),
            self.settings.is_shared,
            clock::instant(),
        );
        bulkhead
            .slots
            .configure(spec.max_in_flight, self.settings.is_shared);
        // Where more than slots is counted, nothing is claimed before all of it is free.
        let is_plain = spec.rate_limit.is_none() && spec.max_open.is_none();
        bulkhead.allow_claims_ahead(is_plain && spec.limits.is_empty() && spec.fairness.is_none());
        let endpoints = Endpoints::new(
            &spec.endpoints,
            &self.settings.addresses,
            self.settings.zone.as_deref(),
            before.map(|before| &before.wire.endpoints),
            |endpoint| guard.allowed(&endpoint.url),
        );
        let is_configured = self.settings.configured.contains(name);
        let connector = match spec.http_version {
            Some(HttpVersion::Http2) => &self.http2_connector,
            Some(HttpVersion::Http1) | None => &self.connector,
        };
        let wire = Arc::new(Transport {
            agent: name.clone(),
            access: AgentAccess::of(
                name,
                &spec,
                is_configured,
                &self.settings.secrets,
                connector,
                &self.connector,
            ),
            connector: connector.clone(),
            endpoints,
            retry: spec.retry.clone(),
            budget: spec.retry.budget_percent.map(|_| {
                let known = before.and_then(|before| before.wire.budget.clone());
                known.unwrap_or_default()
            }),
            max_output: self.settings.max_output,
            replies: Arc::clone(&self.settings.replies),
            queues: Arc::clone(&self.settings.queues),
            meters,
            guard: spec.watches_calls().then(|| Arc::clone(&guard)),
            throttled: spec.rate_limit.is_some().then(|| Arc::clone(&guard)),
        });
        Agent {
            name: name.clone(),
            lanes: LaneRule::of(&spec.limits, spec.fairness.as_ref()).map(Arc::new),
            spec,
            bulkhead,
            guard,
            wire,
        }
    }
}

fn most_in_flight(spec: &AgentSpec) -> u32 {
    spec.endpoints.iter().fold(0, |sum, endpoint| {
        sum.saturating_add(endpoint.max_in_flight)
    })
}

//! What keeps calls from an agent, as its view shows it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    agent::Agent,
    domain::{Breaker, BreakerState, Pause, Throttle, Timestamp},
};

/// A pause of an agent by an operator.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentPause)]
pub struct PauseView {
    /// When it ends; null: when an operator resumes the agent.
    #[schema(value_type = Option<String>, required, format = DateTime)]
    until: Option<Timestamp>,
    #[schema(required, example = "maintenance of the database")]
    reason: Option<String>,
    #[schema(example = "operator:ann")]
    by: String,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
}

/// What the service asked for: no call until then.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentThrottle)]
pub struct ThrottleView {
    #[schema(value_type = String, format = DateTime)]
    until: Timestamp,
    #[schema(example = "the service responded 429 Too Many Requests")]
    reason: String,
    /// The instance that got the response.
    #[schema(example = "node-1")]
    by: String,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
}

impl ThrottleView {
    /// `None` if the service asked for nothing, or the time is over.
    pub fn of(agent: &Agent) -> Option<Self> {
        let throttle = agent.control().control.throttle;
        let Throttle {
            until,
            reason,
            by,
            since,
        } = throttle.filter(|_| agent.is_throttled())?;
        Some(Self {
            until,
            reason,
            by,
            since,
        })
    }
}

/// The breaker of one endpoint.
#[derive(Serialize, ToSchema)]
#[schema(as = BreakerStatus)]
pub struct BreakerView {
    #[schema(example = "http://10.0.0.5:8080")]
    endpoint: String,
    /// `closed`: it is called. `open`: it is not, until `until`. `half_open`: one instance makes a few calls, whose
    /// results decide. `forced_open` and `forced_closed`: an operator decided so, until it is reset.
    #[schema(example = "open")]
    state: &'static str,
    /// Null while it is closed.
    #[schema(required, example = "20 of 24 calls in 30s failed")]
    reason: Option<String>,
    /// The instance or operator that changed it last; null while it is closed.
    #[schema(required, example = "operator:ann")]
    by: Option<String>,
    #[schema(value_type = Option<String>, required, format = DateTime)]
    since: Option<Timestamp>,
    /// Open: when a few calls are made again. Half-open: when another instance may make them instead.
    #[schema(value_type = Option<String>, required, format = DateTime)]
    until: Option<Timestamp>,
}

impl PauseView {
    /// `None` if it is not paused.
    pub fn of(agent: &Agent) -> Option<Self> {
        let pause = agent.control().control.pause;
        let Pause {
            until,
            reason,
            by,
            since,
        } = pause.filter(|_| agent.is_paused())?;
        Some(Self {
            until,
            reason,
            by,
            since,
        })
    }
}

impl BreakerView {
    /// One for each endpoint; `None` if the agent has no breaker.
    pub fn all(agent: &Agent) -> Option<Vec<Self>> {
        agent.spec().breaker.as_ref()?;
        let known = agent.control().control.breakers;
        let endpoints = agent.spec().endpoints.iter();
        let views = endpoints.map(|endpoint| Self::new(&endpoint.url, known.get(&endpoint.url)));
        Some(views.collect())
    }

    fn new(endpoint: &str, breaker: Option<&Breaker>) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            state: match breaker.map(|breaker| &breaker.state) {
                None => "closed",
                Some(BreakerState::Open { .. }) => "open",
                Some(BreakerState::HalfOpen { .. }) => "half_open",
                Some(BreakerState::ForcedOpen) => "forced_open",
                Some(BreakerState::ForcedClosed) => "forced_closed",
            },
            reason: breaker.map(|breaker| breaker.reason.clone()),
            by: breaker.map(|breaker| breaker.by.clone()),
            since: breaker.map(|breaker| breaker.since),
            until: breaker.and_then(Breaker::until),
        }
    }
}

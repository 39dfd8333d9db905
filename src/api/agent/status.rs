//! The reasons for which an agent or an endpoint gets no calls, or fewer, as the views of agents show them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    agent::Agent,
    domain::{
        agent::{
            AdaptiveLimit, AgentControl, Breaker, BreakerState, EndpointState, Pause, Throttle,
        },
        values::{InstanceId, Span, Timestamp},
        view::DurationSchema,
    },
    store::Operations,
};

/// A pause of an agent, by an operator or in a window of downtime.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentPause)]
pub struct PauseView {
    /// The end of the pause; null: it ends when an operator resumes the agent.
    #[schema(required)]
    until: Option<Timestamp>,
    #[schema(required, example = "maintenance of the database")]
    reason: Option<String>,
    /// An operator, or `downtime` in a window of the agent's `downtime`.
    #[schema(example = "operator:ann")]
    by: String,
    since: Timestamp,
}

/// The service asked for no calls until a time.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentThrottle)]
pub struct ThrottleView {
    until: Timestamp,
    #[schema(example = "the service responded 429 Too Many Requests")]
    reason: String,
    /// The instance that got the response.
    #[schema(example = "node-1")]
    by: String,
    since: Timestamp,
}

impl ThrottleView {
    /// Returns `None` if the service asked for nothing, or that time is over.
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

/// The state of the agent's retry budget in this instance.
#[derive(Serialize, ToSchema)]
#[schema(as = RetryBudgetStatus)]
pub struct RetryBudgetView {
    /// Calls of this instance in the last ten seconds. `budget_percent` of them may be retries.
    #[schema(example = 1200)]
    calls: u64,
    /// The time that a retry that is wanted now waits for the retries before it.
    #[schema(value_type = DurationSchema, example = "4s")]
    parked_for: Span,
}

impl RetryBudgetView {
    /// Returns `None` if the agent has no budget.
    pub fn of(agent: &Agent) -> Option<Self> {
        let in_use = agent.retry_budget()?;
        Some(Self {
            calls: in_use.calls,
            parked_for: in_use.parked_for.into(),
        })
    }
}

/// The breaker of one endpoint.
#[derive(Serialize, ToSchema)]
#[schema(as = BreakerStatus)]
pub struct BreakerView {
    #[schema(example = "http://10.0.0.5:8080")]
    endpoint: String,
    /// `closed`: the endpoint is called. `open`: it is not, until `until`. `half_open`: one instance makes a few
    /// calls, whose results decide. `forced_open` and `forced_closed`: an operator decided so, until the breaker is
    /// reset.
    #[schema(example = "open")]
    state: &'static str,
    /// Null while the breaker is closed.
    #[schema(required, example = "20 of 24 calls in 30s failed")]
    reason: Option<String>,
    /// The instance or operator that changed the breaker last; null while it is closed.
    #[schema(required, example = "operator:ann")]
    by: Option<String>,
    #[schema(required)]
    since: Option<Timestamp>,
    /// Open: the time at which a few calls are made again. Half-open: the time at which another instance may make
    /// them instead.
    #[schema(required)]
    until: Option<Timestamp>,
}

impl PauseView {
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns `None` if the agent is not paused.
    pub fn of(agent: &Agent) -> Option<Self> {
        let Pause {
            until,
            reason,
            by,
            since,
        } = agent.pause()?;
        Some(Self {
            until,
            reason,
            by,
            since,
        })
    }
}

impl BreakerView {
    /// Returns one view for each endpoint; `None` if the agent has no breaker.
    pub fn all(agent: &Agent) -> Option<Vec<Self>> {
        agent.spec().breaker.as_ref()?;
        let known = agent.control().control.breakers;
        let endpoints = agent.spec().endpoints.iter();
        let views = endpoints.map(|endpoint| Self::new(&endpoint.url, known.get(&endpoint.url)));
        Some(views.collect())
    }

    pub fn is_closed(&self) -> bool {
        self.state == "closed"
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

/// The state of an endpoint. The state of its breaker is in `breakers`.
#[derive(Serialize, ToSchema)]
#[schema(as = EndpointStatus)]
pub struct EndpointView {
    #[schema(example = "http://10.0.0.5:8080")]
    url: String,
    /// `healthy`: it takes new calls. `ejected`: it has failed several times in a row, and gets none until `until`.
    /// `unhealthy`: its health checks fail, and it gets none until they succeed. `draining`: it gets no new work.
    #[schema(example = "ejected")]
    state: &'static str,
    /// Null while the endpoint is healthy.
    #[schema(required, example = "5 calls in a row failed")]
    reason: Option<String>,
    /// The instance that saw the failures; null while the endpoint is healthy.
    #[schema(required, example = "node-1")]
    by: Option<String>,
    #[schema(required)]
    since: Option<Timestamp>,
    /// Ejected: the time at which the endpoint takes calls again.
    #[schema(required)]
    until: Option<Timestamp>,
    /// Calls of this instance that are in flight there.
    #[schema(example = 2)]
    in_flight: u32,
    /// Only during the slow start of the endpoint: the most calls of this instance that may be in flight there. It
    /// grows while they succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 6)]
    slow_start: Option<u32>,
    /// Only if the agent is adaptive: the most calls of this instance that may be in flight there.
    #[serde(skip_serializing_if = "Option::is_none")]
    adaptive: Option<AdaptiveLimitView>,
    /// Only of an endpoint that is draining, and only where a single agent is read: the work that is left there.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<LeftView>,
}

/// The most calls of this instance that may be in flight to an endpoint, and the numbers from which that limit
/// follows.
#[derive(Serialize, ToSchema)]
#[schema(as = AdaptiveLimit)]
pub struct AdaptiveLimitView {
    /// The limit now.
    #[schema(example = 6)]
    limit: u32,
    #[schema(example = 2)]
    least: u32,
    #[schema(example = 64)]
    most: u32,
    /// The median duration of recent calls. Null before some have ended.
    #[schema(value_type = Option<DurationSchema>, required, example = "110ms")]
    latency: Option<Span>,
    /// The duration of calls while few are in flight. `latency` is compared with it unless `slow_after` is given.
    #[schema(value_type = Option<DurationSchema>, required, example = "100ms")]
    lowest_latency: Option<Span>,
    /// The reason for the last fall of the limit; null if it has not fallen, or has come back since.
    #[schema(
        required,
        example = "fell from 9 to 6: 2 of 12 calls were refused or broke off; the last one: the service responded 503 Service Unavailable"
    )]
    reason: Option<String>,
}

impl AdaptiveLimitView {
    fn new(limit: &AdaptiveLimit) -> Self {
        Self {
            limit: limit.limit(),
            least: limit.least(),
            most: limit.most(),
            latency: limit.latency(),
            lowest_latency: limit.lowest_latency(),
            reason: limit.reason().map(str::to_owned),
        }
    }
}

/// The work that is left at an endpoint that is drained. It can be stopped when there are no calls, every instance
/// has reported its calls, and there are no operations.
#[derive(Serialize, ToSchema)]
#[schema(as = EndpointLeft)]
pub struct LeftView {
    /// Calls in flight, of all instances together, to about a second.
    #[schema(example = 3)]
    calls: u64,
    /// The live instances that have not reported their calls yet.
    #[schema(max_items = 1000, example = json!(["node-3"]))]
    unconfirmed: Vec<String>,
    /// Operations that began there and are still polled, or are to be cancelled.
    #[schema(example = 2)]
    operations: usize,
    /// True if the agent has more operations than the 10,000 that were looked at: there may be more of them here.
    is_at_least: bool,
}

impl EndpointView {
    pub fn is_healthy(&self) -> bool {
        self.state == "healthy"
    }

    pub fn is_draining(&self) -> bool {
        self.state == "draining"
    }

    /// Adds the work that is left at the endpoint. `living` are the instances that are alive.
    pub fn with_left(
        self,
        control: &AgentControl,
        living: &[InstanceId],
        operations: &Operations,
    ) -> Self {
        let known = control.left.get(&self.url);
        let of = |instance: &InstanceId| known.and_then(|left| left.get(instance.as_str()));
        let calls = living.iter().filter_map(of).map(|calls| u64::from(*calls));
        let unheard = living.iter().filter(|instance| of(instance).is_none());
        let left = LeftView {
            calls: calls.sum(),
            unconfirmed: unheard.map(ToString::to_string).collect(),
            operations: operations.at(&self.url),
            is_at_least: operations.is_at_least,
        };
        Self {
            left: Some(left),
            ..self
        }
    }

    /// Returns one view for each endpoint; `None` if the agent has no breaker, ejection, health checks or adaptive
    /// limit, and drains no endpoint.
    pub fn all(agent: &Agent) -> Option<Vec<Self>> {
        let spec = agent.spec();
        let drains = spec.endpoints.iter().any(|endpoint| endpoint.drain);
        let limits = agent.limits();
        if !spec.watches_calls() && !drains {
            return None;
        }
        let mut slow_starts = agent.slow_starts().into_iter();
        let mut limits = limits.iter().flatten();
        let endpoints = agent.spec().endpoints.iter().zip(agent.endpoints());
        let views = endpoints.map(|(endpoint, (state, in_flight))| Self {
            in_flight,
            slow_start: slow_starts.next().flatten(),
            adaptive: limits.next().map(AdaptiveLimitView::new),
            ..Self::new(&endpoint.url, state)
        });
        Some(views.collect())
    }

    fn new(url: &str, state: EndpointState) -> Self {
        let healthy = Self {
            url: url.to_owned(),
            state: "healthy",
            reason: None,
            by: None,
            since: None,
            until: None,
            in_flight: 0,
            slow_start: None,
            adaptive: None,
            left: None,
        };
        match state {
            EndpointState::Healthy => healthy,
            EndpointState::Ejected(ejection) => Self {
                state: "ejected",
                reason: Some(ejection.reason),
                by: Some(ejection.by),
                since: Some(ejection.since),
                until: Some(ejection.until),
                ..healthy
            },
            EndpointState::Draining => Self {
                state: "draining",
                ..healthy
            },
            EndpointState::Unhealthy(unhealthy) => Self {
                state: "unhealthy",
                reason: Some(unhealthy.reason),
                by: Some(unhealthy.by),
                since: Some(unhealthy.since),
                ..healthy
            },
        }
    }
}

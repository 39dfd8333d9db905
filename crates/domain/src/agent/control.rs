//! The reasons that keep calls from an agent: a pause by an operator, and the breakers, ejections and failed checks of
//! its endpoints. One record for each agent, which all instances share; every change of it is decided here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    agent::{
        downtime::{DowntimeWindow, Downtimes},
        ejection::Ejection,
        health::Unhealthy,
        spec::AgentSpec,
    },
    message::alert::AlertNotice,
    task::alert_kind::AlertKind,
    values::{
        ids::{AgentName, InstanceId, ReceiverName},
        time::{Span, Timestamp},
    },
};

/// The least time that an instance has to probe an endpoint; after it another instance may.
const LEAST_PROBE: Span = Span::from_secs(10);
/// The additional time for which an endpoint is left to the instance that probes it.
const TAKE_OVER_AFTER: Span = Span::from_secs(2);
/// A slip in a response of the service must not stop all calls for days.
pub const LONGEST_THROTTLE: Span = Span::from_secs(300);
/// Decisions about endpoints that the agent no longer has are kept up to this number: an instance with an older
/// specification must not forget the breaker of an endpoint that it does not know.
const MOST_ENDPOINTS: usize = 64;
/// Counts of instances that left the cluster long ago stay until the endpoint is removed.
const MOST_INSTANCES: usize = 100;

/// The actions of operators and instances, and the state that holds now because of them. An agent without a record is
/// not paused, and all its breakers are closed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AgentControl {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// An operator resumed the agent in a window of downtime: no window holds before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awake_until: Option<Timestamp>,
    /// The service asked to be left alone for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Throttle>,
    /// By the URL of the endpoint. One that is not here is closed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub breakers: BTreeMap<String, Breaker>,
    /// By the URL of the endpoint, also those whose time is over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ejections: BTreeMap<String, Ejection>,
    /// By the URL of the endpoint: those whose checks fail.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unhealthy: BTreeMap<String, Unhealthy>,
    /// The number of calls of each instance that are left at endpoints that are drained, by the URL of the endpoint.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<String, BTreeMap<String, u32>>,
}

/// Planned downtime: no call is made, and its steps wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pause {
    /// `None`: until an operator resumes the agent.
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub by: String,
    pub since: Timestamp,
}

/// No call is made until then, because the service asked for that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Throttle {
    pub until: Timestamp,
    pub reason: String,
    /// The instance that got the response.
    pub by: String,
    pub since: Timestamp,
}

/// The author of a pause in a window of downtime.
const BY_DOWNTIME: &str = "downtime";

impl Pause {
    fn of(window: &DowntimeWindow) -> Self {
        Self {
            until: Some(window.end),
            reason: window.reason.clone(),
            by: BY_DOWNTIME.to_owned(),
            since: window.start,
        }
    }

    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// A breaker that is not simply closed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Breaker {
    #[serde(flatten)]
    pub state: BreakerState,
    pub reason: String,
    /// An operator, or the instance that saw the failures.
    pub by: String,
    /// In this state.
    pub since: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum BreakerState {
    /// No call is made until then.
    Open { until: Timestamp },
    /// One instance makes a few calls. If nothing has come of it by then, another may.
    HalfOpen {
        prober: InstanceId,
        until: Timestamp,
    },
    /// An operator opened it: until an operator decides otherwise.
    ForcedOpen,
    /// An operator closed it: it does not open whatever fails.
    ForcedClosed,
}

/// The actions of an operator on breakers.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantArray, Serialize,
)]
#[strum(serialize_all = "snake_case")]
pub enum BreakerAction {
    Open,
    Close,
    Reset,
}

impl BreakerAction {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControlChange {
    Pause {
        until: Option<Timestamp>,
        reason: Option<String>,
    },
    Resume,
    /// By an operator, for these endpoints.
    Breakers {
        endpoints: Vec<String>,
        action: BreakerAction,
        reason: Option<String>,
    },
    /// A response asked an instance to leave the service alone for so long.
    Throttle {
        wait: Span,
        reason: String,
    },
    /// The agent has another specification: what is left of endpoints and limits that it has no more is forgotten.
    Respecified,
    /// The checks of an endpoint have come to this; an error says what was wrong.
    Checked {
        url: String,
        result: Result<(), String>,
    },
    /// So many calls of the instance are left at an endpoint that is drained.
    Left {
        url: String,
        calls: u32,
    },
    /// By an instance.
    Endpoint {
        url: String,
        seen: Observation,
    },
}

impl ControlChange {
    /// Returns the type of the change in the ledger. `None`: what the change adds to the state of the agent is of interest only
    /// while it lasts, and may change with every call.
    pub fn event(&self) -> Option<&'static str> {
        Some(match self {
            Self::Pause { .. } => "agent.paused",
            Self::Resume => "agent.resumed",
            Self::Breakers { .. } => "agent.breaker_set",
            Self::Checked { result: Ok(()), .. } => "agent.endpoint_healthy",
            Self::Checked { .. } => "agent.endpoint_unhealthy",
            Self::Endpoint { seen, .. } => match seen {
                Observation::Tripped { .. } | Observation::Relapsed { .. } => {
                    "agent.breaker_opened"
                }
                Observation::Failing { .. } => "agent.endpoint_failing",
                Observation::Due => "agent.breaker_half_open",
                Observation::Recovered => "agent.breaker_closed",
            },
            Self::Throttle { .. } | Self::Respecified | Self::Left { .. } => return None,
        })
    }

    /// Returns the reason that the operator gave, or that an instance saw.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Pause { reason, .. } | Self::Breakers { reason, .. } => reason.as_deref(),
            Self::Checked { result, .. } => result.as_ref().err().map(String::as_str),
            Self::Endpoint {
                seen:
                    Observation::Tripped { reason }
                    | Observation::Relapsed { reason }
                    | Observation::Failing { reason },
                ..
            } => Some(reason),
            _ => None,
        }
    }
}

/// The observation of an endpoint by an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observation {
    /// Too many calls failed while the breaker was closed.
    Tripped { reason: String },
    /// It has been open for long enough.
    Due,
    /// So many of this instance's canaries succeeded as it takes.
    Recovered,
    /// One of them failed.
    Relapsed { reason: String },
    /// So many calls in a row failed as it takes to be ejected.
    Failing { reason: String },
}

/// The change of an alert of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlAlertChange {
    Raise,
    /// `has_grown`: webhooks hear of it, because the trouble has grown.
    Reword {
        has_grown: bool,
    },
    Close,
}

/// The author and the time of a change of a control.
#[derive(Clone, Copy, Debug)]
pub struct ControlledBy<'a> {
    pub instance: &'a InstanceId,
    /// The operator; an instance has none.
    pub operator: Option<&'a str>,
    pub now: Timestamp,
}

impl ControlledBy<'_> {
    fn name(&self) -> String {
        match self.operator {
            Some(operator) => format!("operator:{operator}"),
            None => self.instance.to_string(),
        }
    }

    fn breaker(&self, state: BreakerState, reason: String) -> Breaker {
        Breaker {
            state,
            reason,
            by: self.name(),
            since: self.now,
        }
    }
}

impl AgentControl {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The pause that holds now, with a window of downtime where there is one: the one that lasts longer.
    pub fn pause_at(&self, window: Option<&DowntimeWindow>, now: Timestamp) -> Option<Pause> {
        let pause = self.pause.as_ref().filter(|pause| pause.holds_at(now));
        let is_awake = self.awake_until.is_some_and(|until| until > now);
        let window = window.filter(|window| now < window.end && !is_awake);
        match (pause, window) {
            (Some(pause), Some(window)) if pause.until.is_some_and(|until| until < window.end) => {
                Some(Pause::of(window))
            }
            (Some(pause), _) => Some(pause.clone()),
            (None, window) => window.map(Pause::of),
        }
    }

    /// The endpoints that an alert of this kind is about, each with the reason.
    fn alerted(&self, kind: AlertKind) -> BTreeMap<&str, &str> {
        match kind {
            AlertKind::BreakerOpen => { self.breakers.iter() }
                .filter(|(_, breaker)| breaker.state != BreakerState::ForcedClosed)
                .map(|(url, breaker)| (url.as_str(), breaker.reason.as_str()))
                .collect(),
            AlertKind::EndpointUnhealthy => { self.unhealthy.iter() }
                .map(|(url, known)| (url.as_str(), known.reason.as_str()))
                .collect(),
            _ => BTreeMap::new(),
        }
    }

    /// Returns the change of the agent's alert of this kind that follows from the change of the control. The alert
    /// names the endpoints, so it changes with them, but not with their reasons: otherwise each failed check of a
    /// service that is down would change it.
    pub fn alert_change(&self, before: &Self, kind: AlertKind) -> Option<ControlAlertChange> {
        let (was, is) = (before.alerted(kind), self.alerted(kind));
        match (was.is_empty(), is.is_empty()) {
            (true, false) => Some(ControlAlertChange::Raise),
            (false, true) => Some(ControlAlertChange::Close),
            _ if was.keys().eq(is.keys()) => None,
            _ => Some(ControlAlertChange::Reword {
                has_grown: is.keys().any(|url| !was.contains_key(url)),
            }),
        }
    }

    /// When it is to be looked at again: a pause, throttle or ejection ends, or an endpoint may be probed.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let pause = self.pause.as_ref().and_then(|pause| pause.until);
        let throttle = self.throttle.as_ref().map(|throttle| throttle.until);
        let ejections = self.ejections.values();
        let returns = ejections
            .filter(|ejection| ejection.holds_at(now))
            .map(|ejection| ejection.until);
        let ends = pause.into_iter().chain(throttle).chain(returns);
        let ends = ends.filter(|until| *until > now);
        let probes = self
            .breakers
            .iter()
            .filter(|(url, _)| !self.unhealthy.contains_key(*url));
        let probes = probes.filter_map(|(_, breaker)| breaker.until());
        probes.chain(ends).min()
    }

    /// The endpoints of the agent that may be probed now.
    pub fn due_probes(&self, spec: &AgentSpec, now: Timestamp) -> Vec<String> {
        let due = |breaker: &Breaker| breaker.until().is_some_and(|until| until <= now);
        let breakers = self.breakers.iter();
        breakers
            .filter(|(url, breaker)| due(breaker) && takes_new(spec, url))
            .filter(|(url, _)| !self.unhealthy.contains_key(*url))
            .map(|(url, _)| url.clone())
            .collect()
    }

    /// Makes the change. False where it does not apply: what an instance saw may be older than what was decided since.
    pub fn apply(
        &mut self,
        change: &ControlChange,
        spec: &AgentSpec,
        by: ControlledBy<'_>,
    ) -> bool {
        let before = self.clone();
        match change {
            ControlChange::Pause { until, reason } => {
                self.pause = Some(Pause {
                    until: *until,
                    reason: reason.clone(),
                    by: by.name(),
                    since: by.now,
                });
            }
            ControlChange::Resume => {
                self.pause = None;
                let window = Downtimes::new(&spec.downtime).holds_at(by.now);
                self.awake_until = window.map(|window| window.end);
            }
            ControlChange::Respecified => {
                self.forget_strangers(spec);
            }
            ControlChange::Throttle { wait, reason } => self.leave_alone(*wait, reason, spec, by),
            ControlChange::Breakers {
                endpoints,
                action,
                reason,
            } => {
                for url in endpoints {
                    self.force(url, *action, reason.as_deref(), by);
                }
            }
            ControlChange::Left { url, calls } => {
                if has_endpoint(spec, url) && !takes_new(spec, url) {
                    let left = self.left.entry(url.clone()).or_default();
                    left.insert(by.instance.to_string(), *calls);
                    while left.len() > MOST_INSTANCES {
                        left.pop_first();
                    }
                }
            }
            ControlChange::Checked { url, result } => self.check(url, result, spec, by),
            ControlChange::Endpoint {
                url,
                seen: Observation::Failing { reason },
            } => self.eject(url, reason, spec, by),
            ControlChange::Endpoint { url, seen } => self.observe(url, seen, spec, by),
        }
        if self.breakers.len() > MOST_ENDPOINTS {
            self.breakers.retain(|url, _| has_endpoint(spec, url));
        }
        if self.ejections.len() > MOST_ENDPOINTS {
            self.ejections.retain(|url, _| has_endpoint(spec, url));
        }
        if self.unhealthy.len() > MOST_ENDPOINTS {
            self.unhealthy.retain(|url, _| has_endpoint(spec, url));
        }
        *self != before
    }

    /// Returns whether the control says something of an endpoint or a limit that the agent does not have.
    pub fn has_strangers(&self, spec: &AgentSpec) -> bool {
        self.clone().forget_strangers(spec)
    }

    /// Forgets the parts for endpoints and limits that the agent does not have. Returns whether there were any.
    pub fn forget_strangers(&mut self, spec: &AgentSpec) -> bool {
        let before = self.clone();
        self.breakers
            .retain(|url, _| spec.breaker.is_some() && takes_new(spec, url));
        self.ejections
            .retain(|url, _| spec.ejection.is_some() && takes_new(spec, url));
        self.unhealthy
            .retain(|url, _| spec.health.is_some() && takes_new(spec, url));
        self.left
            .retain(|url, _| has_endpoint(spec, url) && !takes_new(spec, url));
        self.awake_until.take_if(|_| spec.downtime.is_empty());
        self.throttle.take_if(|_| spec.rate_limit.is_none());
        *self != before
    }

    /// The latest time that the service has asked for counts, and only for an agent with a rate limit: another service
    /// may mean the one call.
    fn leave_alone(&mut self, wait: Span, reason: &str, spec: &AgentSpec, by: ControlledBy<'_>) {
        let until = by.now + wait.min(LONGEST_THROTTLE);
        let is_later = self
            .throttle
            .as_ref()
            .is_none_or(|known| until > known.until);
        if spec.rate_limit.is_some() && is_later {
            self.throttle = Some(Throttle {
                until,
                reason: reason.to_owned(),
                by: by.name(),
                since: by.now,
            });
        }
    }

    fn force(
        &mut self,
        url: &str,
        action: BreakerAction,
        reason: Option<&str>,
        by: ControlledBy<'_>,
    ) {
        let state = match action {
            BreakerAction::Open => BreakerState::ForcedOpen,
            BreakerAction::Close => {
                // The endpoint gets calls again, so others may be ejected in its place: its ejection must not count beside theirs.
                self.ejections.remove(url);
                BreakerState::ForcedClosed
            }
            BreakerAction::Reset => {
                self.breakers.remove(url);
                self.ejections.remove(url);
                return;
            }
        };
        let reason = reason.unwrap_or("by an operator").to_owned();
        self.breakers
            .insert(url.to_owned(), by.breaker(state, reason));
    }

    fn check(
        &mut self,
        url: &str,
        result: &Result<(), String>,
        spec: &AgentSpec,
        by: ControlledBy<'_>,
    ) {
        let Err(reason) = result else {
            self.unhealthy.remove(url);
            return;
        };
        if spec.health.is_some() && takes_new(spec, url) && !self.unhealthy.contains_key(url) {
            let unhealthy = Unhealthy {
                reason: reason.clone(),
                by: by.name(),
                since: by.now,
            };
            self.unhealthy.insert(url.to_owned(), unhealthy);
        }
    }

    /// Ejects an endpoint, and forgets the endpoints that were ejected long ago.
    fn eject(&mut self, url: &str, reason: &str, spec: &AgentSpec, by: ControlledBy<'_>) {
        let Some(ejection) = &spec.ejection else {
            return;
        };
        if !self.may_eject(url, spec, by.now) {
            return;
        }
        self.ejections
            .retain(|_, known| known.times_left(ejection, by.now) > 0);
        let before = self.ejections.get(url);
        let next = Ejection::new(ejection, before, reason.to_owned(), by.name(), by.now);
        self.ejections.insert(url.to_owned(), next);
    }

    fn observe(&mut self, url: &str, seen: &Observation, spec: &AgentSpec, by: ControlledBy<'_>) {
        let Some(breaker) = &spec.breaker else {
            return;
        };
        let open = |reason: &str| {
            let until = by.now + breaker.open_for;
            by.breaker(BreakerState::Open { until }, reason.to_owned())
        };
        let current = self.breakers.get(url);
        let is_mine = matches!(current.map(|current| &current.state),
            Some(BreakerState::HalfOpen { prober, .. }) if prober == by.instance);
        let next = match (seen, current) {
            (Observation::Tripped { reason }, None) => open(reason),
            (Observation::Due, Some(current))
                if current.until().is_some_and(|until| {
                    // The instance that probes goes on first, if it lives.
                    let is_of_another =
                        matches!(current.state, BreakerState::HalfOpen { .. }) && !is_mine;
                    let from = if is_of_another {
                        until + TAKE_OVER_AFTER
                    } else {
                        until
                    };
                    from <= by.now
                }) =>
            {
                let state = BreakerState::HalfOpen {
                    prober: by.instance.clone(),
                    until: by.now + breaker.open_for.max(LEAST_PROBE),
                };
                by.breaker(state, current.reason.clone())
            }
            (Observation::Recovered, Some(_)) if is_mine => {
                self.breakers.remove(url);
                return;
            }
            (Observation::Relapsed { reason }, Some(_)) if is_mine => open(reason),
            _ => return,
        };
        self.breakers.insert(url.to_owned(), next);
    }
}

fn has_endpoint(spec: &AgentSpec, url: &str) -> bool {
    spec.endpoints.iter().any(|known| known.url == url)
}

/// One that is drained does not.
fn takes_new(spec: &AgentSpec, url: &str) -> bool {
    let mut endpoints = spec.endpoints.iter();
    endpoints.any(|known| known.url == url && !known.drain)
}

impl Breaker {
    /// When the endpoint may be probed, or by another instance.
    pub fn until(&self) -> Option<Timestamp> {
        match self.state {
            BreakerState::Open { until } | BreakerState::HalfOpen { until, .. } => Some(until),
            BreakerState::ForcedOpen | BreakerState::ForcedClosed => None,
        }
    }
}

/// Under which an alert of an agent is open at most once. No configured receiver and no origin has such a name.
pub fn control_alert_subject(agent: &AgentName, kind: AlertKind) -> ReceiverName {
    ReceiverName::new(match kind {
        AlertKind::EndpointUnhealthy => format!("health:{agent}"),
        _ => format!("agent:{agent}"),
    })
}

/// The alert of an agent's breakers, or of endpoints that fail their checks: one, however many these are. `of`: how many
/// endpoints the agent has.
pub fn control_alert(
    kind: AlertKind,
    id: Uuid,
    agent: &AgentName,
    control: &AgentControl,
    of: usize,
    at: Timestamp,
) -> AlertNotice {
    let alerted = control.alerted(kind);
    let named: Vec<_> = { alerted.iter() }
        .map(|(url, reason)| format!("{url} ({reason})"))
        .collect();
    let what = match kind {
        AlertKind::EndpointUnhealthy => "the checks fail",
        _ => "the breakers are open",
    };
    let message = format!(
        "agent {agent}: {what} at {} of {of} endpoints, which get no steps: {}",
        alerted.len(),
        named.join(", ")
    );
    AlertNotice {
        receiver: Some(control_alert_subject(agent, kind)),
        ..AlertNotice::raised(id, kind.as_str(), &message, at)
    }
}

#[cfg(test)]
mod tests;

//! The endpoints of an agent together: at least half of them stay, and those that have few calls each are judged by the calls
//! of all.

use std::time::Duration;

use super::{
    agent_stop::AgentStop,
    breaker_report::BreakerReport,
    endpoint_guard::{CallPermit, EndpointGuard, HealthSample},
    phase::Phase,
};
use crate::{
    agent::{
        adaptive::LoadSample,
        breaker::{CallSample, reason_to_open_all},
        control::{AgentControl, Breaker, BreakerState, Observation},
        ejection::{Ejection, may_eject},
        endpoint_state::EndpointState,
        health::Unhealthy,
        spec::AgentSpec,
    },
    values::{
        ids::{AgentName, InstanceId},
        time::Timestamp,
    },
};

/// The number of calls that show whether an endpoint works again, where the agent has no breaker that says so.
const CANARIES: u32 = 3;
/// The part of a failure that a reason quotes, in bytes: enough to see what is wrong.
const LONGEST_WHY: usize = 200;

#[derive(Debug)]
pub(super) struct EndpointSet {
    pub agent: AgentName,
    instance: InstanceId,
    pub spec: AgentSpec,
    /// They have the order of the specification.
    pub all: Vec<EndpointGuard>,
    /// The latest epoch of the endpoints that are gone.
    last_epoch: u64,
}

/// The changes that the end of a call has made.
#[derive(Default)]
pub(super) struct CallEffect {
    /// The calls that the endpoints take.
    pub capacity: bool,
    /// The adaptive limit of the endpoint has fallen.
    pub limit_fell: bool,
    pub reports: Vec<BreakerReport>,
}

impl EndpointSet {
    pub fn new(agent: AgentName, instance: InstanceId) -> Self {
        Self {
            agent,
            instance,
            spec: AgentSpec::default(),
            all: Vec::new(),
            last_epoch: 0,
        }
    }

    /// Gives the agent another specification. Endpoints that stay keep what was seen of them. Returns the URLs of those that
    /// are gone.
    pub fn configure(
        &mut self,
        spec: &AgentSpec,
        control: &AgentControl,
        store_now: Timestamp,
    ) -> Vec<String> {
        let known = &self.spec;
        let is_new = known.breaker != spec.breaker || known.ejection != spec.ejection;
        self.spec.clone_from(spec);
        let mut before = std::mem::take(&mut self.all);
        for endpoint in &spec.endpoints {
            let known = { before.iter() }.position(|known| known.url() == endpoint.url);
            let is_known = known.is_some();
            let mut guard = match known {
                Some(known) => before.swap_remove(known),
                None => EndpointGuard::new(endpoint, self.last_epoch),
            };
            guard.spec.clone_from(endpoint);
            guard.configure_limit(spec);
            let phase = self.recorded_phase(&mut guard, control, store_now);
            let has_moved = !guard.phase.is_reported() && !guard.phase.is_same(&phase);
            if is_new || !is_known || has_moved {
                guard.enter(phase);
            }
            if let Some(closed) = guard.phase.closed_mut()
                && !spec.watches_calls()
            {
                closed.slow_start = None;
            }
            self.all.push(guard);
        }
        let last = before.iter().map(|gone| gone.epoch).max();
        self.last_epoch = self.last_epoch.max(last.unwrap_or_default());
        before.into_iter().map(|gone| gone.spec.url).collect()
    }

    /// The record has changed from `before`. An endpoint whose report is not recorded stays in its phase, unless the change
    /// concerns it or has come of its report (`reported` is its URL).
    pub fn follow_change(
        &mut self,
        before: &AgentControl,
        control: &AgentControl,
        reported: Option<&str>,
        store_now: Timestamp,
    ) {
        let mut all = std::mem::take(&mut self.all);
        for endpoint in &mut all {
            let url = endpoint.url();
            let is_same = of_endpoint(before, url) == of_endpoint(control, url);
            // A change of its ejection or its health says nothing of its canaries.
            let is_same_breaker = before.breakers.get(url) == control.breakers.get(url);
            if endpoint.phase.is_reported() && is_same && reported != Some(url) {
                continue;
            }
            endpoint.phase.becomes_recorded();
            let phase = self.recorded_phase(endpoint, control, store_now);
            if !endpoint.phase.is_same(&phase) {
                endpoint.enter(phase);
            } else if !is_same_breaker {
                endpoint.replace_canaries();
            }
        }
        self.all = all;
    }

    /// Time has passed: an ejection may be over.
    pub fn follow_time(&mut self, control: &AgentControl, store_now: Timestamp) {
        let mut all = std::mem::take(&mut self.all);
        for endpoint in &mut all {
            let phase = self.recorded_phase(endpoint, control, store_now);
            if !endpoint.phase.is_reported() && !endpoint.phase.is_same(&phase) {
                endpoint.enter(phase);
            }
        }
        self.all = all;
    }

    /// Returns the phase of the endpoint by the record, and notes in which state the record has it.
    fn recorded_phase(
        &self,
        endpoint: &mut EndpointGuard,
        control: &AgentControl,
        store_now: Timestamp,
    ) -> Phase {
        endpoint.state = control.endpoint_state(&endpoint.spec, &self.spec, store_now);
        let breaker = control.breakers.get(endpoint.url());
        let breaker = breaker.filter(|_| self.spec.breaker.is_some());
        let breaker = breaker.map(|known| &known.state);
        Phase::recorded(breaker, &endpoint.state, &self.instance)
    }

    pub fn begin(&mut self, url: &str, now: Duration, is_full: bool) -> Option<CallPermit> {
        let mut all = self.all.iter_mut();
        let endpoint = all.find(|known| known.url() == url)?;
        Some(endpoint.begin(now, is_full))
    }

    pub fn end(
        &mut self,
        url: &str,
        permit: CallPermit,
        health: HealthSample<'_>,
        load: LoadSample<'_>,
        now: Duration,
        clock: Duration,
    ) -> CallEffect {
        let mut effect = CallEffect::default();
        let mut all = self.all.iter();
        let Some(at) = all.position(|known| known.url() == url) else {
            return effect;
        };
        let canaries = self.canaries();
        let endpoint = &mut self.all[at];
        let before = endpoint.share(canaries);
        if endpoint.take_back(permit) {
            let load = match load {
                LoadSample::Refused(why) => LoadSample::Refused(short(why)),
                other => other,
            };
            effect.limit_fell = endpoint.adapt(permit, now, clock, load);
            let took = now.saturating_sub(permit.began);
            effect.reports = match health {
                HealthSample::Unclear => Vec::new(),
                HealthSample::Succeeded => self.judge(at, None, took, now),
                HealthSample::Failed(why) => self.judge(at, Some(short(why)), took, now),
            };
        }
        effect.capacity = !effect.reports.is_empty() || before != self.all[at].share(canaries);
        effect
    }

    /// Decides about a call of the present phase. `why` says what was wrong with it, if it failed.
    fn judge(
        &mut self,
        at: usize,
        why: Option<&str>,
        took: Duration,
        now: Duration,
    ) -> Vec<BreakerReport> {
        let canaries = self.canaries();
        let breaker = self.spec.breaker.as_ref();
        let sample = CallSample {
            failed: why.is_some(),
            slow: breaker.is_some_and(|spec| spec.is_slow(took.into())),
        };
        let endpoint = &mut self.all[at];
        match &mut endpoint.phase {
            Phase::Closed(closed) => {
                closed.grow(canaries, endpoint.spec.max_in_flight, sample);
                self.judge_closed(at, why, sample, now)
            }
            Phase::HalfOpen(known) => {
                let seen = known.judge(canaries, sample, took.into(), why);
                let report = seen.map(|seen| endpoint.report(&self.agent, seen));
                report.into_iter().collect()
            }
            Phase::ForcedClosed | Phase::Open { .. } | Phase::Out { .. } => Vec::new(),
        }
    }

    /// Decides about a call to an endpoint whose breaker is closed.
    fn judge_closed(
        &mut self,
        at: usize,
        why: Option<&str>,
        sample: CallSample,
        now: Duration,
    ) -> Vec<BreakerReport> {
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let with_cause = |reason: String| match why {
            None => reason,
            Some(why) => format!("{reason}; the last one: {why}"),
        };
        let endpoint = &mut self.all[at];
        let Some(closed) = endpoint.phase.closed_mut() else {
            return Vec::new();
        };
        if let Some(breaker) = &self.spec.breaker {
            if let Some(reason) = closed.window.add(breaker, millis, sample) {
                let reason = with_cause(reason);
                return vec![endpoint.report(&self.agent, Observation::Tripped { reason })];
            }
            if (sample.failed || sample.slow)
                && self.all.len() > 1
                && let Some(reason) = self.reason_to_open_all(millis)
            {
                let reason = with_cause(reason);
                return self.open_all(&reason);
            }
        }
        let Some(after) = self.spec.ejection.as_ref().map(|ejection| ejection.after) else {
            return Vec::new();
        };
        let closed = self.all[at].phase.closed_mut();
        let failures = closed.map_or(0, |closed| closed.count_failure(sample.failed));
        if failures < after || !self.may_eject() {
            return Vec::new();
        }
        let reason = with_cause(match after {
            1 => "a call failed".to_owned(),
            _ => format!("{after} calls in a row failed"),
        });
        vec![self.all[at].report(&self.agent, Observation::Failing { reason })]
    }

    /// Returns why the endpoints that get calls all have to be opened, if they must.
    fn reason_to_open_all(&mut self, millis: u64) -> Option<String> {
        let breaker = self.spec.breaker.as_ref()?;
        let closed = { self.all.iter_mut() }.filter_map(|known| known.phase.closed_mut());
        reason_to_open_all(breaker, millis, closed.map(|closed| &mut closed.window))
    }

    /// Opens the endpoints that get calls. One that had none of late says nothing.
    fn open_all(&mut self, reason: &str) -> Vec<BreakerReport> {
        let had_calls = |endpoint: &&mut EndpointGuard| {
            { endpoint.phase.closed() }.is_some_and(|closed| !closed.window.is_empty())
        };
        let failing = self.all.iter_mut().filter(had_calls);
        failing
            .map(|endpoint| {
                let reason = reason.to_owned();
                endpoint.report(&self.agent, Observation::Tripped { reason })
            })
            .collect()
    }

    /// Returns whether one more endpoint may be ejected, by what this process knows.
    fn may_eject(&self) -> bool {
        let all = self.all.iter();
        let all = all.filter(|endpoint| !endpoint.spec.drain);
        let out = all.clone().filter(|known| !known.phase.takes_calls());
        may_eject(out.count(), all.count())
    }

    /// Returns the number of calls that the endpoints may have in flight together.
    pub fn most_calls(&self) -> u32 {
        let canaries = self.canaries();
        let shares = self.all.iter().map(|endpoint| endpoint.share(canaries));
        let most = sum(shares.clone().map(|share| share.most));
        if most == 0 {
            return 0;
        }
        // Calls that are still in flight to an open endpoint hold slots, which the other endpoints must not lack.
        most.saturating_add(sum(shares.map(|share| share.left)))
    }

    pub fn canaries(&self) -> u32 {
        let breaker = self.spec.breaker.as_ref();
        breaker.map_or(CANARIES, |breaker| breaker.canaries)
    }

    /// Returns why no endpoint takes calls, if none does.
    pub fn stop(&self, control: &AgentControl, store_now: Timestamp) -> Option<AgentStop> {
        let takes_calls = |endpoint: &EndpointGuard| endpoint.phase.takes_calls();
        if self.all.is_empty() || self.all.iter().any(takes_calls) {
            return None;
        }
        let (mut until, mut opened, mut unhealthy) = (None::<Timestamp>, None, None);
        for endpoint in &self.all {
            let breaker = control.breakers.get(endpoint.url());
            let next = match (&endpoint.state, &self.spec.health) {
                (EndpointState::Unhealthy(known), Some(health)) => {
                    unhealthy.get_or_insert(&known.reason);
                    Some(known.next_check(health, store_now))
                }
                (EndpointState::Ejected(ejection), _) => Some(ejection.until),
                (EndpointState::Draining, _) => None,
                _ => {
                    opened = opened.or(breaker.map(|breaker| &breaker.reason));
                    match breaker.map(|breaker| &breaker.state) {
                        Some(BreakerState::Open { until }) => Some(*until),
                        _ => None,
                    }
                }
            };
            until = until.into_iter().chain(next).min();
        }
        Some(match (opened, unhealthy) {
            (None, Some(reason)) => AgentStop::Unhealthy {
                until,
                reason: reason.clone(),
            },
            (Some(reason), _) => AgentStop::Breaker {
                until,
                reason: reason.clone(),
            },
            (None, None) => AgentStop::Breaker {
                until,
                reason: "too many calls failed".to_owned(),
            },
        })
    }
}

type RecordOfEndpoint<'c> = (
    Option<&'c Breaker>,
    Option<&'c Ejection>,
    Option<&'c Unhealthy>,
);

fn of_endpoint<'c>(control: &'c AgentControl, url: &str) -> RecordOfEndpoint<'c> {
    (
        control.breakers.get(url),
        control.ejections.get(url),
        control.unhealthy.get(url),
    )
}

pub(super) fn sum(counts: impl Iterator<Item = u32>) -> u32 {
    counts.fold(0, u32::saturating_add)
}

/// Cuts the text to what a reason quotes.
pub(super) fn short(why: &str) -> &str {
    &why[..why.floor_char_boundary(LONGEST_WHY)]
}

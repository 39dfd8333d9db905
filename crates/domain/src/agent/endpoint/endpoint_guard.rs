//! The guard of one endpoint: its phase, the calls in flight, and the limit that adapts to them.

use std::time::Duration;

use super::{
    breaker_report::BreakerReport,
    phase::{ClosedPhase, Phase},
};
use crate::{
    agent::{
        adaptive::{AdaptiveLimit, LoadSample},
        breaker::SlowStart,
        control::{ControlChange, Observation},
        endpoint_state::EndpointState,
        spec::{AgentSpec, Endpoint},
    },
    values::ids::AgentName,
};

/// A call shows this of the health of its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HealthSample<'a> {
    Succeeded,
    /// The call failed, and why.
    Failed(&'a str),
    /// It says nothing of the endpoint.
    Unclear,
}

/// The right to one call. The guard gets it back when the call has ended, however it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the call counts as under way until its permit comes back"]
pub struct CallPermit {
    /// The epoch of the endpoint when the call began.
    pub(super) epoch: u64,
    /// The round of the canaries when the call began; zero for other calls.
    round: u32,
    /// The time at which the call began, of a clock that never goes back.
    pub began: Duration,
}

/// The slots that an endpoint needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndpointShare {
    /// The most calls that it may have in flight.
    pub most: u32,
    /// The calls that are still in flight although it may have none.
    pub left: u32,
}

#[derive(Clone, Debug)]
pub struct EndpointGuard {
    pub(super) spec: Endpoint,
    /// The state by the record when it was last looked at, its breaker apart.
    pub(super) state: EndpointState,
    pub(super) phase: Phase,
    /// The number of the phase: it grows with each that the endpoint enters. A call that began in an earlier one decides
    /// nothing.
    pub(super) epoch: u64,
    /// The number of calls of this epoch that have not ended.
    under_way: u32,
    /// The number of calls of earlier epochs that have not ended.
    earlier: u32,
    /// `None` unless the agent is adaptive.
    pub(super) adaptive: Option<AdaptiveLimit>,
}

impl EndpointGuard {
    /// `epoch` must be later than that of every call that may still be in flight to an endpoint with this URL.
    pub(super) fn new(spec: &Endpoint, epoch: u64) -> Self {
        Self {
            spec: spec.clone(),
            state: EndpointState::default(),
            phase: Phase::Closed(ClosedPhase::default()),
            epoch,
            under_way: 0,
            earlier: 0,
            adaptive: None,
        }
    }

    pub fn url(&self) -> &str {
        &self.spec.url
    }

    /// Returns the state by the record when it was last looked at, its breaker apart.
    pub fn state(&self) -> &EndpointState {
        &self.state
    }

    pub fn adaptive(&self) -> Option<&AdaptiveLimit> {
        self.adaptive.as_ref()
    }

    /// Moves the endpoint to a phase. Calls of before decide nothing any more.
    pub(super) fn enter(&mut self, mut phase: Phase) {
        if let Phase::Closed(closed) = &mut phase
            && !self.phase.takes_calls()
        {
            closed.slow_start = Some(SlowStart::default());
        }
        self.phase = phase;
        self.epoch += 1;
        self.earlier += std::mem::take(&mut self.under_way);
    }

    /// Returns the calls in flight, including those that began in earlier epochs.
    #[cfg(test)]
    pub(super) fn calls(&self) -> u32 {
        self.under_way + self.earlier
    }

    /// Lets an observation hold here at once, and returns the report with which it will hold for the other instances.
    pub(super) fn report(&mut self, agent: &AgentName, seen: Observation) -> BreakerReport {
        match (&seen, &mut self.phase) {
            (Observation::Tripped { .. } | Observation::Relapsed { .. }, _) => {
                self.enter(Phase::Open { is_reported: true });
            }
            (Observation::Failing { .. }, _) => self.enter(Phase::Out { is_reported: true }),
            (Observation::Recovered, Phase::HalfOpen(canaries)) => canaries.is_reported = true,
            // Only the record says when a canary is due.
            (Observation::Recovered | Observation::Due, _) => {}
        }
        BreakerReport {
            agent: agent.clone(),
            change: ControlChange::Endpoint {
                url: self.spec.url.clone(),
                seen,
            },
            epoch: self.epoch,
        }
    }

    /// Returns whether the endpoint waits until the record has this report.
    pub(super) fn awaits(&self, report: &BreakerReport) -> bool {
        let ControlChange::Endpoint { url, .. } = &report.change else {
            return false;
        };
        *url == self.spec.url && self.phase.is_reported() && self.epoch == report.epoch
    }

    /// The record has changed for this endpoint, which stays in its phase: the time of its canaries was over, and it goes
    /// on. Those that hang must not keep others from showing more.
    pub(super) fn replace_canaries(&mut self) {
        if let Phase::HalfOpen(canaries) = &mut self.phase {
            canaries.round += 1;
            canaries.hanging = self.under_way;
        }
    }

    /// Returns the most calls that it may have in flight now.
    pub(super) fn most(&self, canaries: u32) -> u32 {
        let max = self.spec.max_in_flight;
        let adapted = self.adaptive.as_ref().map_or(max, AdaptiveLimit::limit);
        match &self.phase {
            Phase::Closed(ClosedPhase {
                slow_start: Some(slow_start),
                ..
            }) => {
                // Calls of earlier epochs may hang: they must not keep the others out.
                let most = slow_start.most(canaries).min(adapted);
                max.min(self.earlier.saturating_add(most))
            }
            Phase::Closed(_) | Phase::ForcedClosed => max.min(adapted),
            Phase::Open { .. } | Phase::Out { .. } => 0,
            Phase::HalfOpen(known) => {
                let hanging = self.earlier + known.hanging;
                max.min(hanging.saturating_add(canaries.min(adapted)))
            }
        }
    }

    pub(super) fn share(&self, canaries: u32) -> EndpointShare {
        EndpointShare {
            most: self.most(canaries),
            left: if self.phase.is_shut() {
                self.earlier
            } else {
                0
            },
        }
    }

    /// Returns how many calls it may get, if it has just recovered.
    pub(super) fn slow_start(&self, canaries: u32) -> Option<u32> {
        let slow_start = self.phase.closed()?.slow_start?;
        Some(slow_start.most(canaries).min(self.spec.max_in_flight))
    }

    /// A call begins. `is_full`: no slot is left for the next one.
    pub(super) fn begin(&mut self, now: Duration, is_full: bool) -> CallPermit {
        self.under_way += 1;
        if let Some(adaptive) = &mut self.adaptive {
            let in_flight = self.under_way.saturating_add(self.earlier);
            adaptive.began(in_flight, is_full || in_flight >= adaptive.limit());
        }
        let round = match &self.phase {
            Phase::HalfOpen(canaries) => canaries.round,
            _ => 0,
        };
        CallPermit {
            epoch: self.epoch,
            round,
            began: now,
        }
    }

    /// A call has ended. Returns whether it says something of the phase: it began in this one.
    pub(super) fn take_back(&mut self, permit: CallPermit) -> bool {
        if permit.epoch != self.epoch {
            self.earlier = self.earlier.saturating_sub(1);
            return false;
        }
        self.under_way = self.under_way.saturating_sub(1);
        if let Phase::HalfOpen(canaries) = &mut self.phase {
            let is_hanging = permit.round < canaries.round;
            canaries.hanging = canaries.hanging.saturating_sub(u32::from(is_hanging));
        }
        true
    }

    /// The agent is adaptive from now on, or no more; what was seen of the endpoint stays.
    pub(super) fn configure_limit(&mut self, spec: &AgentSpec) {
        let max = self.spec.max_in_flight;
        let Some(spec) = &spec.adaptive else {
            self.adaptive = None;
            return;
        };
        match &mut self.adaptive {
            Some(known) => known.configure(spec, max),
            new => *new = Some(AdaptiveLimit::new(spec, max)),
        }
    }

    /// A call has ended, and shows how much the endpoint can take. Returns whether its limit has fallen. `clock` is the time
    /// that all instances share, about.
    pub(super) fn adapt(
        &mut self,
        permit: CallPermit,
        now: Duration,
        clock: Duration,
        load: LoadSample<'_>,
    ) -> bool {
        let is_called = self.phase.takes_calls();
        let Some(adaptive) = self.adaptive.as_mut().filter(|_| is_called) else {
            return false;
        };
        let before = adaptive.limit();
        adaptive.ended(permit.began, now, clock, load) && adaptive.limit() < before
    }
}

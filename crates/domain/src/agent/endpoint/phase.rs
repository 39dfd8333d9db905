//! The phases of an endpoint in this process, each with what it has to remember.

use crate::{
    agent::{
        breaker::{CallSample, CallWindow, SlowStart},
        control::{BreakerState, Observation},
        endpoint_state::EndpointState,
    },
    values::{ids::InstanceId, time::Span},
};

/// The phase says which calls this process may make to an endpoint.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It gets calls, and their results decide whether it gets more.
    Closed(ClosedPhase),
    /// An operator closed its breaker: it gets calls, whatever fails.
    ForcedClosed,
    /// It gets no call: its breaker is open, or half-open for another instance.
    Open { is_reported: bool },
    /// Its breaker is half-open, and this instance makes the canaries.
    HalfOpen(CanaryPhase),
    /// It gets no call: it is ejected or drained, or its checks fail.
    Out { is_reported: bool },
}

#[derive(Clone, Debug, Default)]
pub(super) struct ClosedPhase {
    pub window: CallWindow,
    /// The number of calls in a row that failed.
    pub failures: u32,
    /// The endpoint was not called before, and gets more calls step by step.
    pub slow_start: Option<SlowStart>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct CanaryPhase {
    /// The number of canaries that succeeded.
    pub succeeded: u32,
    /// The number of times that the time of the canaries was over without a result. Each time, other calls replace
    /// those that hang.
    pub round: u32,
    /// The number of canaries of earlier rounds that have not ended.
    pub hanging: u32,
    /// This process waits until the record has the result.
    pub is_reported: bool,
}

impl Phase {
    /// Returns the phase by the record, which holds where this process waits for no report of its own.
    pub fn recorded(
        breaker: Option<&BreakerState>,
        state: &EndpointState,
        instance: &InstanceId,
    ) -> Self {
        if !state.is_healthy() {
            return Self::Out { is_reported: false };
        }
        match breaker {
            None => Self::Closed(ClosedPhase::default()),
            Some(BreakerState::ForcedClosed) => Self::ForcedClosed,
            Some(BreakerState::HalfOpen { prober, .. }) if prober == instance => {
                Self::HalfOpen(CanaryPhase::default())
            }
            Some(
                BreakerState::Open { .. }
                | BreakerState::HalfOpen { .. }
                | BreakerState::ForcedOpen,
            ) => Self::Open { is_reported: false },
        }
    }

    pub fn takes_calls(&self) -> bool {
        matches!(self, Self::Closed(_) | Self::ForcedClosed)
    }

    /// Returns whether not even a canary may begin.
    pub fn is_shut(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Out { .. })
    }

    /// Returns whether both are the same phase, whatever has been seen in it.
    pub fn is_same(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Returns whether this process has reported a change that the record does not have yet.
    pub fn is_reported(&self) -> bool {
        match self {
            Self::Closed(_) | Self::ForcedClosed => false,
            Self::Open { is_reported } | Self::Out { is_reported } => *is_reported,
            Self::HalfOpen(canaries) => canaries.is_reported,
        }
    }

    /// The record has decided about the report.
    pub fn becomes_recorded(&mut self) {
        match self {
            Self::Closed(_) | Self::ForcedClosed => {}
            Self::Open { is_reported } | Self::Out { is_reported } => *is_reported = false,
            Self::HalfOpen(canaries) => canaries.is_reported = false,
        }
    }

    pub fn closed(&self) -> Option<&ClosedPhase> {
        match self {
            Self::Closed(closed) => Some(closed),
            _ => None,
        }
    }

    pub fn closed_mut(&mut self) -> Option<&mut ClosedPhase> {
        match self {
            Self::Closed(closed) => Some(closed),
            _ => None,
        }
    }
}

impl ClosedPhase {
    /// A call has ended. The slow start is over when it allows `max` calls.
    pub fn grow(&mut self, canaries: u32, max: u32, sample: CallSample) {
        if let Some(slow_start) = &mut self.slow_start {
            slow_start.add(canaries, sample);
            self.slow_start.take_if(|start| start.most(canaries) >= max);
        }
    }

    /// A call has ended. Returns how many have failed in a row.
    pub fn count_failure(&mut self, failed: bool) -> u32 {
        self.failures = match failed {
            true => self.failures.saturating_add(1),
            false => 0,
        };
        self.failures
    }
}

impl CanaryPhase {
    /// A canary has ended. `why` says what was wrong with it, if it failed.
    pub fn judge(
        &mut self,
        canaries: u32,
        sample: CallSample,
        took: Span,
        why: Option<&str>,
    ) -> Option<Observation> {
        if self.is_reported {
            return None;
        }
        if sample.failed || sample.slow {
            let reason = match why {
                Some(why) => format!("it was tried again and failed: {why}"),
                None => format!("it was tried again and took {took}"),
            };
            return Some(Observation::Relapsed { reason });
        }
        self.succeeded += 1;
        (self.succeeded >= canaries).then_some(Observation::Recovered)
    }
}

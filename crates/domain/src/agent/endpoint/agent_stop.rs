//! Why an agent is not called, in the words of a waiting step, of a check, and of the history.

use crate::{
    agent::control::{Pause, Throttle},
    values::{rate::RateLimitSpec, time::Timestamp},
};

/// Why an agent is not called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentStop {
    Paused(Pause),
    /// No endpoint takes calls, and some have breakers that are not closed. `until` is the time of the next look, where
    /// it is known.
    Breaker {
        until: Option<Timestamp>,
        reason: String,
    },
    /// No endpoint takes calls, because their checks fail. `until` is the time of the next check.
    Unhealthy {
        until: Option<Timestamp>,
        reason: String,
    },
    /// The service asked for that.
    Throttled(Throttle),
    /// Its rate lets no further call begin now.
    Rate(RateLimitSpec),
    /// This instance lacks a secret that its requests need.
    Secret(String),
}

impl AgentStop {
    /// Returns why the agent cannot be checked now; `None` if a call only has to wait a little.
    pub fn why(&self) -> Option<String> {
        match self {
            Self::Paused(_) => Some("the agent is paused".to_owned()),
            Self::Breaker { reason, .. } => Some(format!(
                "the breakers of all its endpoints are open: {reason}"
            )),
            Self::Unhealthy { reason, .. } => Some(format!("no endpoint is healthy: {reason}")),
            Self::Secret(why) => Some(format!("it needs a secret that cannot be used: {why}")),
            Self::Throttled(_) | Self::Rate(_) => None,
        }
    }

    /// Returns what the history says once it is over.
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Paused(pause) => match &pause.reason {
                Some(reason) => format!("it was paused by {}: {reason}", pause.by),
                None => format!("it was paused by {}", pause.by),
            },
            Self::Breaker { reason, .. } => format!("its breaker was open: {reason}"),
            Self::Unhealthy { reason, .. } => format!("its checks failed: {reason}"),
            Self::Throttled(throttle) => {
                format!("its service asked for that: {}", throttle.reason)
            }
            Self::Rate(limit) => format!("its rate was used up: {}", limit.rate),
            Self::Secret(message) => message.clone(),
        }
    }
}

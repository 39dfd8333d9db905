//! The settings that all agents share.

use std::time::Duration;

use super::address::AddressPolicy;
use crate::domain::Endpoint;

/// What holds for all agents of an instance.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The largest output of a step, in bytes.
    pub max_output: usize,
    pub connect_timeout: Duration,
    /// Which addresses may be called.
    pub addresses: AddressPolicy,
    /// For the origins of steps that name a URL; a registered agent says it per endpoint.
    pub default_max_in_flight: u32,
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            max_output: 256 * 1024,
            connect_timeout: Duration::from_secs(5),
            addresses: AddressPolicy::default(),
            default_max_in_flight: Endpoint::default_max_in_flight(),
        }
    }
}

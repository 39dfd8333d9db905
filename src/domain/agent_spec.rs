//! What is known of an agent: where its service answers and how hard to try.

use serde::{Deserialize, Serialize};

use super::Span;

/// A registered agent, as `PUT /v1/agents/{name}` and the configuration file give it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    pub endpoints: Vec<Endpoint>,
    #[serde(default)]
    pub retry: RetrySpec,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// `http://` or `https://`, with an optional base path; no query, fragment or user.
    pub url: String,
    /// Calls under way at once, from one instance.
    #[serde(default = "Endpoint::default_max_in_flight")]
    pub max_in_flight: u32,
}

impl Endpoint {
    pub const fn default_max_in_flight() -> u32 {
        64
    }
}

/// Waits between the tries of one call: full jitter between zero and `initial * factor^n`, at most `max`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    pub initial: Span,
    pub max: Span,
    pub factor: u32,
}

impl Default for RetrySpec {
    fn default() -> Self {
        Self {
            initial: Span::from_millis(100),
            max: Span::from_secs(10),
            factor: 2,
        }
    }
}

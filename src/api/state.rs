//! What every handler can reach.

use std::sync::Arc;

use crate::{
    agent::Agents,
    config::Config,
    domain::{AgentName, KnownAgents, Limits},
    store::Store,
    telemetry::Metrics,
};

pub use super::{operations::Gauges, workflows::Workflows};

/// Shared by all requests of an instance.
pub struct App {
    pub store: Store,
    pub agents: Arc<Agents>,
    pub config: Config,
    pub limits: Limits,
    pub metrics: Metrics,
    pub stop: tokio_util::sync::CancellationToken,
    /// The latest version of each workflow in use.
    pub workflows: Workflows,
    pub gauges: Gauges,
}

/// Who may be called, as policy and registration stand now.
impl KnownAgents for App {
    fn knows(&self, agent: &AgentName) -> bool {
        self.agents.get(agent).is_some()
    }

    fn allows_url(&self, url: &str) -> Result<(), String> {
        if self.config.allows_url_steps() {
            return Ok(());
        }
        Err(format!(
            "steps that name a URL ({url}) are not allowed here: register an agent with PUT /v1/agents/{{name}}, or set calls.allow_url_steps"
        ))
    }
}

//! What every handler can reach.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use crate::{
    agent::{Agents, Registered},
    config::{Config, Token},
    courier::Receivers,
    domain::{
        AgentName, Definition, FieldFault, InstanceId, KnownAgents, Limits, Payload, Policies,
        nearest, parse_steps,
    },
    instance::Hold,
    store::{Store, StoreError},
    telemetry::Metrics,
};

use super::apart::apart;
pub use super::{operations::Gauges, workflows::Workflows};

/// A definition that is longer, in bytes, is compiled apart. Most are read in less time than that costs.
const LONG: usize = 16 * 1024;

/// Shared by all requests of an instance.
pub struct App {
    pub store: Store,
    pub agents: Arc<Agents>,
    pub registered: Arc<Registered>,
    /// Who messages are written to, and whose requests are admitted: as SIGHUP read them last.
    pub receivers: Arc<ArcSwap<Receivers>>,
    pub tokens: Arc<ArcSwap<Vec<Token>>>,
    pub config: Config,
    pub limits: Limits,
    pub metrics: Metrics,
    pub stop: tokio_util::sync::CancellationToken,
    /// The latest version of each workflow in use.
    pub workflows: Arc<Workflows>,
    pub gauges: Gauges,
    pub instance: InstanceId,
    pub hold: Arc<Hold>,
    /// Places for callers who wait for a task to change, or follow it. There are fewer than the listener takes
    /// connections, so that however many wait, requests that end at once come through.
    pub waits: Arc<Semaphore>,
}

impl App {
    /// Compiles steps. An agent that is not known here may have just been registered at another
    /// instance: before a fault is told, that is looked up.
    pub async fn compile(
        &self,
        steps: &Payload,
        policies: &Policies,
    ) -> Result<Compiled, StoreError> {
        let compile = || {
            let compile = || parse_steps(steps, "/steps", policies, &self.limits, self);
            match steps.as_json().len() > LONG {
                true => apart(compile),
                false => compile(),
            }
        };
        let compiled = compile();
        if compiled.is_ok() {
            return Ok(compiled);
        }
        self.registered.refresh(&*self.store.reader).await?;
        Ok(compile())
    }
}

/// A definition, or all that is wrong with it.
type Compiled = Result<Definition, Vec<FieldFault>>;

/// Who may be called, as policy and registration stand now.
impl KnownAgents for App {
    fn knows(&self, agent: &AgentName) -> bool {
        self.agents.get(agent).is_some()
    }

    fn nearest(&self, agent: &AgentName) -> Option<AgentName> {
        let agents = self.agents.list();
        let names = agents.iter().map(|agent| agent.name().as_str());
        nearest(agent.as_str(), names).map(AgentName::new)
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

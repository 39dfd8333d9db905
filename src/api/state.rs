//! The state that every handler can access.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use crate::{
    agent::{AgentRefresher, Agents},
    config::{AccessToken, Config},
    delivery::Receivers,
    domain::{
        definition::{
            DEFINITION_BUDGET, Definition, KnownAgents, Limits, Policies, parse_steps_within,
        },
        message::Sender,
        task::ReplyKey,
        template::{Budget, Payload},
        values::{AgentName, FieldFault, InstanceId, nearest},
    },
    instance::Hold,
    scheduler::Local,
    store::{SharedFeature, Store, Validation},
    telemetry::Metrics,
};

use super::{
    Problem,
    agent::check::RunningChecks,
    bulkhead::{EvaluationBulkhead, EvaluationPermit},
    byte_budget::ByteBudget,
};
pub use super::{
    definition::workflows::WorkflowCache, task::ended::EndedTasks, upkeep::operations::Gauges,
};

/// A longer definition, in bytes, needs a permit to be compiled. Most definitions compile in less time than it takes
/// to get a permit.
const LONG: usize = 16 * 1024;

/// A definition that exceeds this cost while it compiles needs a permit as well. In units of the evaluation budget;
/// about a millisecond.
const AT_ONCE: u64 = Budget::EVALUATION / 16;

/// Shared by all requests of an instance.
pub struct App {
    pub store: Store,
    /// The part of the service that hands steps to workers.
    pub local: Arc<Local>,
    pub agents: Arc<Agents>,
    pub registered: Arc<AgentRefresher>,
    /// The receivers of messages and the tokens of callers, as the last SIGHUP or the start read them.
    pub receivers: Arc<ArcSwap<Receivers>>,
    pub tokens: Arc<ArcSwap<Vec<AccessToken>>>,
    /// The settings of the start.
    pub config: Config,
    /// The settings in force: those of the start, with what the last SIGHUP changed.
    pub in_force: Arc<ArcSwap<Config>>,
    pub limits: Limits,
    pub metrics: Metrics,
    /// Cancelled at the begin of the drain: the instance still accepts everything, and load balancers should notice
    /// that it is about to stop.
    pub draining: tokio_util::sync::CancellationToken,
    pub stop: tokio_util::sync::CancellationToken,
    /// The active version of each workflow in use.
    pub workflows: Arc<WorkflowCache>,
    pub gauges: Gauges,
    pub ended_tasks: EndedTasks,
    pub bulkhead: EvaluationBulkhead,
    pub instance: InstanceId,
    /// Makes the links of the people who are asked.
    pub sender: Arc<ArcSwap<Sender>>,
    /// Recognises the tokens of replies that come later.
    pub reply_key: ReplyKey,
    /// True if calls carry an address for later replies.
    pub takes_later_replies: bool,
    pub hold: Arc<Hold>,
    /// Permits for callers who wait for a task or follow it. There are fewer than connections, so that short
    /// requests always get through.
    pub waits: Arc<Semaphore>,
    pub checks: RunningChecks,
    /// The budgets for the memory that callers make the service use, in bytes.
    pub responses: Arc<ByteBudget>,
    pub requests: Arc<ByteBudget>,
}

impl App {
    /// Compiles steps, unless a task in memory has the same ones. An agent that is unknown here may just have been
    /// registered at another instance: registrations are read again before a fault is reported.
    pub async fn compile(
        &self,
        steps: &RawValue,
        policies: &Policies,
        permit: Option<&EvaluationPermit<'_>>,
    ) -> Result<Compiled, Problem> {
        let inline = &self.store.definitions.inline;
        let text = inline.text(steps.get(), policies.as_json());
        if let Some(known) = inline.get(&text, Validation::Submitted)
            && known.is_still_allowed(self)
        {
            return Ok(Ok(known));
        }
        let steps = Payload::new(steps.to_owned());
        let mut compiled = self.compile_as_known(&steps, policies, permit).await?;
        if compiled.is_err() {
            self.registered.refresh(&self.store.reader).await?;
            compiled = self.compile_as_known(&steps, policies, permit).await?;
        }
        if let Ok(definition) = &compiled
            && definition.names_times()
        {
            // The time is the store's, which is read only if the definition has a time.
            let now = self.store.reader.now().await?;
            let faults = definition.time_faults(now);
            if !faults.is_empty() {
                return Ok(Err(faults));
            }
        }
        Ok(compiled.map(|definition| {
            let definition = Arc::new(definition);
            inline.put(&text, &definition, Validation::Submitted);
            definition
        }))
    }

    /// Checks that every instance knows workflows that hide the payloads of their tasks. The error says what to do.
    pub fn hides_bodies_everywhere(&self) -> Result<(), String> {
        if self.store.features.has(SharedFeature::AttemptRules) {
            return Ok(());
        }
        Err("is not known to an older instance of Provost that uses this database: update that one, or send the definition again an hour after it has ended".to_owned())
    }

    async fn compile_as_known(
        &self,
        steps: &Payload,
        policies: &Policies,
        permit: Option<&EvaluationPermit<'_>>,
    ) -> Result<Result<Definition, Vec<FieldFault>>, Problem> {
        let compile = |budget: &Budget| {
            parse_steps_within(steps, "/steps", policies, &self.limits, self, budget)
        };
        let length = steps.as_json().len() + policies.as_json().map_or(0, str::len);
        if permit.is_none() && length <= LONG {
            let budget = Budget::new(AT_ONCE);
            let compiled = compile(&budget);
            if !budget.is_used_up() {
                return Ok(compiled);
            }
        }
        let compile = || compile(&Budget::of_several(DEFINITION_BUDGET));
        Ok(match permit {
            Some(permit) => permit.run(compile),
            None => self.bulkhead.enter().await?.run(compile),
        })
    }
}

/// The definition, or all its faults.
type Compiled = Result<Arc<Definition>, Vec<FieldFault>>;

/// The agents and URLs that steps may name, by the configuration and the registrations.
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

    fn takes_later_replies(&self) -> Result<(), String> {
        if self.takes_later_replies {
            return Ok(());
        }
        Err("needs an address that the service can reply to: set public_url to the URL under which services reach Provost".to_owned())
    }

    fn reaches_people(&self) -> Result<(), String> {
        if self.takes_later_replies {
            return Ok(());
        }
        Err("needs an address for the links of the people that are asked: set public_url to the URL under which they reach Provost".to_owned())
    }

    fn reads_attempt_rules(&self) -> Result<(), String> {
        if self.store.features.has(SharedFeature::AttemptRules) {
            return Ok(());
        }
        Err("has a rule for its attempts, a limit from the input, a policy by status or a race, which an older instance of Provost that uses this database cannot read: update that one, or send the definition again an hour after it has ended".to_owned())
    }

    fn passes_links_on(&self, name: &str) -> Result<(), String> {
        self.receivers.load().passes_links_on(name)
    }
}

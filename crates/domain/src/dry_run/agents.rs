//! What a definition asks of agents that cannot do it, or to whom it means nothing: those with queues, and those whose
//! workers fetch their work. An agent may be registered anew at any time, so these are warnings.

use super::{Warning, WarningCode};
use crate::{
    agent_spec::{AgentMode, AgentSpec, RetrySpec},
    definition::{Definition, ReplyRule, StepDefinition},
    ids::AgentName,
    queue_address::QUEUE_SCHEME,
};

/// What a dry run knows of an agent.
#[derive(Clone, Debug)]
pub struct PlannedAgent {
    pub mode: AgentMode,
    /// Whether an endpoint is a queue.
    pub has_queue: bool,
    pub retry: RetrySpec,
}

impl From<&AgentSpec> for PlannedAgent {
    fn from(spec: &AgentSpec) -> Self {
        let mut endpoints = spec.endpoints.iter();
        Self {
            mode: spec.mode,
            has_queue: endpoints.any(|endpoint| endpoint.url.starts_with(QUEUE_SCHEME)),
            retry: spec.retry.clone(),
        }
    }
}

pub(super) fn check(
    definition: &Definition,
    agent_of: &dyn Fn(&AgentName) -> Option<PlannedAgent>,
    warnings: &mut Vec<Warning>,
) {
    for index in definition.forward() {
        let step = definition.step(index);
        let Some(agent) = agent_of(step.agent()) else {
            continue;
        };
        let pointer = format!("/steps/{}", index.at());
        let mut warn = |field: &str, message: String| {
            warnings.push(Warning {
                code: WarningCode::AgentCannot,
                step: Some(step.name.clone()),
                pointer: format!("{pointer}/{field}"),
                message: format!("agent `{}` {message}", step.agent()),
            });
        };
        if let Some(message) = reply_fault(step, &agent) {
            warn("reply", message.to_owned());
        }
        let undo = step.undo.map(|undo| definition.step(undo));
        if let Some(message) = undo.and_then(|undo| reply_fault(undo, &agent)) {
            warn("undo/reply", message.to_owned());
        }
        if step.cancel.is_some() {
            if agent.mode == AgentMode::Pull {
                let message = "has the mode pull, whose workers learn from their heartbeats that a step is no longer awaited: remove `cancel`, which is never sent";
                warn("cancel", message.to_owned());
            } else if agent.has_queue {
                let message = "has a queue, where only steps and undos are sent: remove `cancel`, or give the agent a URL; the request would fail";
                warn("cancel", message.to_owned());
            }
        }
        if let Some(probe) = &step.probe
            && probe.outcome.is_none()
            && agent.mode == AgentMode::Pull
        {
            let message = "has the mode pull, whose workers reply without a status, so every output means done: let the probe have an `outcome`, such as \"'done' if response.body.found else 'not_done'\"";
            warn("probe", message.to_owned());
        }
        if step.probe.is_some() && agent.has_queue {
            let message = "has a queue, where only steps and undos are sent: remove `probe`, or give the agent a URL; the probe would fail, and an operator would have to decide";
            warn("probe", message.to_owned());
        }
    }
}

fn reply_fault(step: &StepDefinition, agent: &PlannedAgent) -> Option<&'static str> {
    match (&step.reply, agent.mode) {
        (ReplyRule::Response, _) => None,
        (_, AgentMode::Pull) => Some(
            "has the mode pull, whose workers send every reply: remove `reply`, which means nothing to them",
        ),
        (ReplyRule::Poll(_), AgentMode::Call) if agent.has_queue => Some(
            "has a queue, and what is sent to a queue cannot be polled: remove `reply`, or give the agent a URL; the step would end in error",
        ),
        (ReplyRule::Poll(_) | ReplyRule::Callback, AgentMode::Call) => None,
    }
}

//! Warns of parts of a definition that its agents cannot fulfil or ignore: agents with queues, and agents whose workers
//! fetch their work. An agent may be registered again at any time, so these are warnings.

use std::sync::Arc;

use super::{Warning, WarningCode};
use crate::{
    agent::{
        check::{AgentCheck, CheckPoint, CheckVerdict},
        spec::{AgentMode, AgentSpec, RetrySpec},
    },
    definition::{Definition, Method, ReplyRule, StepDefinition},
    values::{ids::AgentName, queue_address::QUEUE_SCHEME},
};

/// The data about an agent that a dry run uses.
#[derive(Clone, Debug)]
pub struct PlannedAgent {
    pub mode: AgentMode,
    /// True if an endpoint is a queue.
    pub has_queue: bool,
    pub retry: RetrySpec,
    /// True if the agent says that its service deduplicates.
    pub says_idempotent: bool,
    /// Its last check, if the agent was not changed since.
    pub check: Option<Arc<AgentCheck>>,
}

impl From<&AgentSpec> for PlannedAgent {
    fn from(spec: &AgentSpec) -> Self {
        let mut endpoints = spec.endpoints.iter();
        Self {
            mode: spec.mode,
            has_queue: endpoints.any(|endpoint| endpoint.url.starts_with(QUEUE_SCHEME)),
            retry: spec.retry.clone(),
            says_idempotent: spec.idempotent,
            check: None,
        }
    }
}

impl PlannedAgent {
    /// Returns whether its service is known to do the work of each key once: the agent says so, or its last check found it.
    pub fn is_idempotent(&self) -> bool {
        let check = self.check.as_ref();
        self.says_idempotent || check.is_some_and(|check| check.status == CheckVerdict::Passed)
    }
}

pub(super) fn check(
    definition: &Definition,
    agent_of: &dyn Fn(&AgentName) -> Option<PlannedAgent>,
    warnings: &mut Vec<Warning>,
) {
    for index in definition.forward() {
        let step = definition.step(index);
        let Some((name, agent)) = step.agent().and_then(|name| Some((name, agent_of(name)?)))
        else {
            continue;
        };
        let pointer = step.pointer_of("");
        warnings.extend(failed_check(step, name, &agent, &pointer));
        let mut warn = |field: &str, message: String| {
            warnings.push(Warning {
                code: WarningCode::AgentCannot,
                step: Some(step.name.clone()),
                pointer: format!("{pointer}/{field}"),
                message: format!("agent `{name}` {message}"),
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

/// Returns a warning if the service failed a check of a property that this step relies on.
fn failed_check(
    step: &StepDefinition,
    name: &AgentName,
    agent: &PlannedAgent,
    pointer: &str,
) -> Option<Warning> {
    let check = agent.check.as_ref()?;
    let failed = check.failed().filter(|point| relies_on(step, *point));
    let failed: Vec<_> = failed.map(CheckPoint::as_str).collect();
    if failed.is_empty() {
        return None;
    }
    Some(Warning {
        code: WarningCode::AgentFailedCheck,
        step: Some(step.name.clone()),
        pointer: pointer.to_owned(),
        message: format!(
            "the service of agent `{name}` failed what this step relies on when {} was checked ({}): {}; GET /v1/agents/{name} says what was seen, `provost agent check {name}` checks it again",
            check.request,
            check.checked_at,
            failed.join(", "),
        ),
    })
}

/// Returns whether the step, its probe or its undo fails or does harm if this point fails.
fn relies_on(step: &StepDefinition, point: CheckPoint) -> bool {
    match point {
        CheckPoint::Work
        | CheckPoint::ErrorClasses
        | CheckPoint::RetryAfter
        | CheckPoint::Size
        | CheckPoint::Latency => true,
        // A read may be repeated.
        CheckPoint::Again
        | CheckPoint::TwiceAtOnce
        | CheckPoint::AfterDroppedAnswer
        | CheckPoint::AfterCompleteBy
        | CheckPoint::LateRequest => step.method() != Some(Method::Get),
        CheckPoint::Undo
        | CheckPoint::UndoTwice
        | CheckPoint::UndoBeforeWork
        | CheckPoint::WorkAfterUndo => step.undo.is_some(),
        CheckPoint::ProbeBeforeWork
        | CheckPoint::ProbeDuringWork
        | CheckPoint::ProbeAfterWork
        | CheckPoint::ProbeOutput => step.probe.is_some(),
        CheckPoint::ProbeAfterUndo => step.probe.is_some() && step.undo.is_some(),
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

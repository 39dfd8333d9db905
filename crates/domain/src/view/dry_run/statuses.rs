//! Warns of policies for statuses that never get to them: a call that is made again after a status has no permanent error with
//! it, and one that is not made again exhausts nothing.

use super::{PlannedAgent, Warning, WarningCode};
use crate::{
    agent::{AgentMode, answer::is_transient},
    definition::{AttemptRules, Definition, RetriedFault, StatusPattern, StatusPolicies},
    values::ids::AgentName,
};

const RETRIED: &str = "the call is made again after that, and `on_exhausted` says what follows; or name in `retry.on` what it is made again after";
const NOT_RETRIED: &str = "the call is not made again after that, and `on_permanent` says what follows; or name it in `retry.on`";
const OF_WORKERS: &str = "a worker fetches the step, and the error of a worker has no status: give one policy for all errors";

pub(super) fn check(
    definition: &Definition,
    agent_of: &dyn Fn(&AgentName) -> Option<PlannedAgent>,
    warnings: &mut Vec<Warning>,
) {
    for index in definition.forward() {
        let step = definition.step(index);
        let undo = step.undo.map(|undo| definition.step(undo));
        for (of, called) in [("", Some(step)), ("undo/", undo)] {
            let Some((called, rules)) =
                called.and_then(|step| Some((step, step.attempts.as_ref()?)))
            else {
                continue;
            };
            let agent = called.agent().and_then(agent_of);
            let is_fetched = agent.is_some_and(|agent| agent.mode == AgentMode::Pull);
            for (field, policies, retried, why) in [
                ("on_permanent", &rules.on_permanent, true, RETRIED),
                ("on_exhausted", &rules.on_exhausted, false, NOT_RETRIED),
            ] {
                let patterns = policies.iter().flat_map(StatusPolicies::patterns);
                let useless = patterns
                    .filter(|pattern| is_fetched || is_retried(rules, *pattern) == Some(retried));
                let useless: Vec<_> = useless.map(|pattern| pattern.to_string()).collect();
                let never = match useless.len() {
                    0 => continue,
                    1 => "never applies",
                    _ => "never apply",
                };
                let why = if is_fetched { OF_WORKERS } else { why };
                let warning = Warning {
                    code: WarningCode::StatusNeverApplies,
                    step: Some(step.name.clone()),
                    pointer: step.pointer_of(&format!("{of}{field}")),
                    message: format!("{} {never}: {why}", useless.join(", ")),
                };
                // The steps of a choice are written once.
                let is_same = |other: &Warning| {
                    (&other.pointer, &other.message) == (&warning.pointer, &warning.message)
                };
                if !warnings.iter().any(is_same) {
                    warnings.push(warning);
                }
            }
        }
    }
}

/// Returns whether a call is made again after all statuses of a pattern, or after none of them. `None`: that depends.
fn is_retried(rules: &AttemptRules, pattern: StatusPattern) -> Option<bool> {
    let on = rules.retry.as_ref().and_then(|retry| retry.on.as_ref());
    let is_retried = |status: u16| match on {
        Some(on) => on
            .iter()
            .any(|retried| matches!(retried, RetriedFault::Status(own) if own.matches(status))),
        None => is_transient(status),
    };
    // A success is an error too where it cannot be read, or where `failed` says so.
    let mut statuses = (300..600).filter(|status| pattern.matches(*status));
    let first = is_retried(statuses.next()?);
    statuses
        .all(|status| is_retried(status) == first)
        .then_some(first)
}

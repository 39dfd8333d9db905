//! Warns of policies for statuses that never get to them: a call that is made again after a status has no permanent error with
//! it, and one that is not made again exhausts nothing.

use super::{Warning, WarningCode};
use crate::{
    agent::answer::is_transient,
    definition::{AttemptRules, Definition, RetriedFault, StatusPattern, StatusPolicies},
};

pub(super) fn check(definition: &Definition, warnings: &mut Vec<Warning>) {
    for index in definition.forward() {
        let step = definition.step(index);
        let undo = step.undo.map(|undo| definition.step(undo));
        let rules = [
            ("", step.attempts.as_ref()),
            ("undo/", undo.and_then(|undo| undo.attempts.as_ref())),
        ];
        for (of, rules) in rules {
            let Some(rules) = rules else { continue };
            let mut warn = |field: &str,
                            policies: Option<&StatusPolicies>,
                            is_useless: &dyn Fn(StatusPattern) -> bool,
                            why: &str| {
                let patterns = policies.into_iter().flat_map(StatusPolicies::patterns);
                let useless: Vec<_> = patterns
                    .filter(|pattern| is_useless(*pattern))
                    .map(|pattern| pattern.to_string())
                    .collect();
                if useless.is_empty() {
                    return;
                }
                warnings.push(Warning {
                    code: WarningCode::StatusNeverApplies,
                    step: Some(step.name.clone()),
                    pointer: step.pointer_of(&format!("{of}{field}")),
                    message: format!("{} never applies: {why}", useless.join(", ")),
                });
            };
            warn(
                "on_permanent",
                rules.on_permanent.as_ref(),
                &|pattern| is_retried(rules, pattern) == Some(true),
                "the call is made again after that, and `on_exhausted` says what follows; or name in `retry.on` what it is made again after",
            );
            warn(
                "on_exhausted",
                rules.on_exhausted.as_ref(),
                &|pattern| is_retried(rules, pattern) == Some(false),
                "the call is not made again after that, and `on_permanent` says what follows; or name it in `retry.on`",
            );
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

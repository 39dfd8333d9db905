//! Forward each step after those that it follows, back each after those that followed it.

use std::collections::HashMap;

use super::{
    Accepted, Call, Evidence, Finding, Kind, Record, Rule,
    calls::said,
    evidence::{Happened, subject},
};

type Effects<'a> = HashMap<(&'a str, &'a str), Happened>;

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let happened = evidence.ledger.happened();
    let accepted: HashMap<&str, &Accepted> = evidence
        .accepted
        .iter()
        .map(|task| (task.id.as_str(), task))
        .collect();
    for call in &evidence.ledger.calls {
        let (Some(task), Some(record)) = (
            accepted.get(call.task.as_str()),
            evidence.records.get(&call.task),
        ) else {
            continue;
        };
        findings.extend(match call.kind {
            Kind::Work => forward(task, record, call, &happened),
            Kind::Undo => back(task, record, call, &happened),
            Kind::Probe | Kind::Poll | Kind::Cancel => None,
        });
    }
}

/// What a step follows was done, or set aside, when the step was called.
fn forward(
    task: &Accepted,
    record: &Record,
    call: &Call,
    happened: &Effects<'_>,
) -> Option<Finding> {
    let step = task.plan.step(&call.step)?;
    let missing = step.after.iter().find(|before| {
        let effect = happened.get(&(task.id.as_str(), before.as_str()));
        let done = effect.is_some_and(|effect| effect.done.iter().any(|done| *done <= call.at));
        let aside = record.set_aside(before).is_some_and(|at| at <= call.at);
        let is_uncalled = task.plan.step(before).is_some_and(|step| step.uncalled);
        let happened = is_uncalled && record.was_processed(before).is_some_and(|at| at <= call.at);
        !done && !aside && !happened
    })?;
    let what = format!("{missing}, which it follows, was not done: {}", said(call));
    Some(Rule::ForwardOrder.of(&task.id, what))
}

/// What followed a step no longer stood, or cannot be undone, when the step was undone.
fn back(task: &Accepted, record: &Record, call: &Call, happened: &Effects<'_>) -> Option<Finding> {
    let followers = task.plan.followers(subject(&call.step));
    let standing = followers.into_iter().find(|step| {
        let effect = happened.get(&(task.id.as_str(), step.name.as_str()));
        let stood = effect.is_some_and(|effect| effect.stood(call.at));
        let aside = record.set_aside(&format!("{}.undo", step.name));
        step.undo && stood && aside.is_none_or(|at| at > call.at)
    })?;
    let what = format!(
        "{}, which followed, still stood: {}",
        standing.name,
        said(call)
    );
    Some(Rule::BackwardOrder.of(&task.id, what))
}

//! Checks the order: each step is called after those that it follows, and undone after those that follow it.

use std::collections::HashMap;

use super::{
    Accepted, Call, Evidence, Finding, Kind, Record, Rule,
    calls::said,
    evidence::{At, Entry, Happened, is_revert, subject},
};

type Effects<'a> = HashMap<(&'a str, &'a str), Happened>;

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let happened = evidence.ledger.happened();
    let accepted: HashMap<&str, &Accepted> = evidence
        .accepted
        .iter()
        .map(|task| (task.id.as_str(), task))
        .collect();
    for task in &evidence.accepted {
        let Some(record) = evidence.records.get(&task.id) else {
            continue;
        };
        for entry in &record.history {
            if entry.kind == "step.began"
                && let Some(step) = &entry.step
                && let Some(missing) =
                    not_done(task, record, step, moment_of(record, entry), &happened)
            {
                let what = format!("{missing}, which it follows, was not done: {entry:?}");
                findings.push(Rule::ForwardOrder.of(&task.id, what));
            }
        }
    }
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

/// Returns the latest moment that the record has up to an entry: another instance, whose clock is ahead, may have written what
/// came before it.
fn moment_of(record: &Record, entry: &Entry) -> At {
    let before = record
        .history
        .iter()
        .filter(|before| before.version <= entry.version);
    before.map(|before| before.at).max().unwrap_or(entry.at)
}

/// Checks that the steps that a step follows were done, or set aside, when the step was called.
fn forward(
    task: &Accepted,
    record: &Record,
    call: &Call,
    happened: &Effects<'_>,
) -> Option<Finding> {
    let missing = not_done(task, record, &call.step, call.at, happened)?;
    let what = format!("{missing}, which it follows, was not done: {}", said(call));
    Some(Rule::ForwardOrder.of(&task.id, what))
}

/// Returns a step that a step follows and that was neither done nor set aside at a moment.
fn not_done<'a>(
    task: &'a Accepted,
    record: &Record,
    step: &str,
    at: At,
    happened: &Effects<'_>,
) -> Option<&'a String> {
    let plan = task.plan_at(at);
    let step = plan.step(step)?;
    let is_missing = |before: &&String| {
        let effect = happened.get(&(task.id.as_str(), before.as_str()));
        let done = effect.is_some_and(|effect| effect.done.iter().any(|done| *done <= at));
        let aside = record.set_aside(before).is_some_and(|aside| aside <= at);
        let is_uncalled = plan.step(before).is_some_and(|step| step.uncalled);
        let processed = record.was_processed(before);
        let happened = is_uncalled && processed.is_some_and(|processed| processed <= at);
        !done && !aside && !happened
    };
    let mut missing = step.after.iter().filter(is_missing);
    match step.race {
        None => missing.next(),
        // One of those that are missing is named for all.
        Some(race) => {
            let count = missing.clone().count();
            let is_won = step.after.len() - count >= race.any;
            missing.next().filter(|_| !is_won)
        }
    }
}

/// Checks that when a step was undone, no effect stood of the steps that follow it, except one that cannot be undone.
fn back(task: &Accepted, record: &Record, call: &Call, happened: &Effects<'_>) -> Option<Finding> {
    if is_revert(&call.step) {
        // The steps that follow the race go on.
        return None;
    }
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

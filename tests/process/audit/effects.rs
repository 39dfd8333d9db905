//! Checks that the recorded effects are those that the services made.

use std::collections::HashMap;

use super::{
    Accepted, Evidence, Finding, Kind, Record, Rule,
    calls::said,
    evidence::{Call, Entry, Found, Happened, PlannedStep, is_revert, subject},
};

type Effects<'a> = HashMap<(&'a str, &'a str), Happened>;

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let happened = evidence.ledger.happened();
    let mut undos: HashMap<&str, Vec<&Call>> = HashMap::new();
    for call in &evidence.ledger.calls {
        if call.kind == Kind::Undo {
            undos.entry(&call.task).or_default().push(call);
        }
    }
    for task in &evidence.accepted {
        let Some(record) = evidence.records.get(&task.id) else {
            continue;
        };
        for step in &task.plan.steps {
            of_step(task, record, step, &happened, findings);
        }
        for call in undos.get(task.id.as_str()).into_iter().flatten() {
            findings.extend(needless(task, record, call));
            findings.extend(past_pivot(task, call, &happened));
        }
    }
}

fn of_step(
    task: &Accepted,
    record: &Record,
    step: &PlannedStep,
    happened: &Effects<'_>,
    findings: &mut Vec<Finding>,
) {
    if step.uncalled {
        return;
    }
    let name = &step.name;
    let nothing = Happened::default();
    let effect = happened.get(&(task.id.as_str(), name.as_str()));
    let effect = effect.unwrap_or(&nothing);
    let state = record
        .steps
        .get(name)
        .map(String::as_str)
        .unwrap_or_default();
    let undo = format!("{name}.undo");
    let revert = format!("{name}.revert");
    let is_set_aside = |step: &str| record.set_aside(step).is_some();
    let by_hand = is_set_aside(name) || is_set_aside(&undo) || is_set_aside(&revert);
    if effect.done.len() > 1 {
        let what = format!("{name} was done at {:?}", effect.done);
        findings.push(Rule::EffectTwice.of(&task.id, what));
    }
    if by_hand {
        return;
    }
    if state == "processed" && effect.done.is_empty() {
        let what = format!("{name} is processed, and its service did nothing");
        findings.push(Rule::DoneNowhere.of(&task.id, what));
    }
    if state == "undone" && effect.undone.is_none() && effect.withdrawn.is_none() {
        let what = format!("{name} is undone, and its service undid nothing");
        findings.push(Rule::UndoneNowhere.of(&task.id, what));
    }
    // The step that undoes the loser of a race is there from the beginning, and is done once the task is.
    let mut reverts = record.of_step(&revert);
    // A rerun has it wait again, and says nothing of the race.
    let is_decided = |entry: &Entry| !["cancelled", "waiting"].contains(&entry.to.as_str());
    let has_lost = record.state == "processed"
        && reverts.any(|entry| is_decided(entry) && !entry.reason.ends_with("is needed"));
    if (record.state == "undone" || has_lost) && step.undo && effect.stands() {
        let at = effect.done[0];
        let what = format!("{name} is {state} in the record, and was done at {at}");
        findings.push(Rule::EffectStands.of(&task.id, what));
    }
}

/// Finds an undo of a step that was never done, if Provost could know that: either no attempt of the step had an
/// unknown effect, or the step has a probe.
fn needless(task: &Accepted, record: &Record, call: &Call) -> Option<Finding> {
    let met_nothing = matches!(
        call.found,
        Found::Nothing | Found::Withdrawn | Found::UnderWay
    );
    let step = task.plan.step(subject(&call.step))?;
    if !met_nothing || record.set_aside(&step.name).is_some() {
        return None;
    }
    let left_open = record.of_step(&step.name).any(|entry| entry.unknown);
    if left_open && !step.probe {
        return None;
    }
    Some(Rule::UndoneNeedlessly.of(&task.id, said(call)))
}

fn past_pivot(task: &Accepted, call: &Call, happened: &Effects<'_>) -> Option<Finding> {
    let done = task.plan.steps.iter().find(|step| {
        let effect = happened.get(&(task.id.as_str(), step.name.as_str()));
        step.pivot && effect.is_some_and(|effect| !effect.done.is_empty())
    });
    // The losers of a race are undone although what follows them goes on.
    let pivot = &done.filter(|_| !is_revert(&call.step))?.name;
    let what = format!("the pivot {pivot} is done: {}", said(call));
    Some(Rule::UndonePastPivot.of(&task.id, what))
}

//! Checks children: a step with a task has one child for each attempt that needs one; the step ends as the child does;
//! and if a parent is undone or cancelled, so are its children.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use super::{
    Accepted, Evidence, Finding, Kind, Record, Rule,
    calls::said,
    evidence::{At, Call, Entry, Happened, Parent, PlannedStep, is_revert, subject},
    queued::soon_after,
};

/// The time within which a parent has its children cancelled, while nothing is in trouble.
const OBEYED_WITHIN: Duration = Duration::from_secs(10);

/// The children of each step, by the id of the task and the name of the step.
type Children<'a> = HashMap<(&'a str, &'a str), Vec<(&'a str, &'a Record)>>;

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut children: Children<'_> = HashMap::new();
    for (id, record) in &evidence.records {
        if let Some(parent) = &record.parent {
            let siblings = children.entry((&parent.task, &parent.step)).or_default();
            siblings.push((id, record));
            findings.extend(asked_for(evidence, id, record, parent));
        }
    }
    let effects = evidence.ledger.happened();
    for task in &evidence.accepted {
        let Some(record) = evidence.records.get(&task.id) else {
            continue;
        };
        for step in task.plan.steps.iter().filter(|step| step.child.is_some()) {
            let none = Vec::new();
            let of_step = children.get(&(task.id.as_str(), step.name.as_str()));
            let of_step = of_step.unwrap_or(&none);
            made(evidence, task, record, step, findings);
            ends(task, record, step, of_step, findings);
            goes_down(evidence, task, record, step, of_step, findings);
        }
    }
    let accepted: HashMap<&str, &Accepted> = evidence
        .accepted
        .iter()
        .map(|task| (task.id.as_str(), task))
        .collect();
    for call in &evidence.ledger.calls {
        if call.kind == Kind::Undo
            && let Some(task) = accepted.get(call.task.as_str())
        {
            findings.extend(back(evidence, &accepted, task, call, &children, &effects));
        }
    }
}

/// Checks that the parent knows the child, and has asked for a child of this workflow.
fn asked_for(evidence: &Evidence, id: &str, child: &Record, parent: &Parent) -> Option<Finding> {
    let above = evidence.records.get(&parent.task);
    let plan = evidence.accepted.iter().find(|task| task.id == parent.task);
    let planned = plan.and_then(|task| task.plan.step(&parent.step));
    let workflow = child.workflow.as_ref().map(|(name, _)| name);
    if planned.is_none_or(|step| step.child.as_ref() != workflow) {
        let what = format!("it is of {workflow:?}, for {parent:?}, which asks for {planned:?}");
        return Some(Rule::ChildUnasked.of(id, what));
    }
    let mut notes = above?.of_step(&parent.step);
    let note = notes.find(|entry| entry.kind == "step.child" && entry.reason.contains(id));
    let begins = child.history.first();
    match note {
        None => Some(Rule::ChildUnasked.of(id, format!("{parent:?} does not name it"))),
        Some(note) if note.attempt != parent.attempt => {
            let what = format!("it is for {parent:?}, and there {note:?}");
            Some(Rule::ChildUnasked.of(id, what))
        }
        // The note and the child are saved in one transaction.
        Some(note) if begins.is_none_or(|begins| begins.at != note.at) => {
            let what = format!("it was made at {:?}, and {note:?}", begins.map(|b| b.at));
            Some(Rule::ChildUnasked.of(id, what))
        }
        Some(_) => None,
    }
}

/// Checks that each attempt has at most one child, which is on record.
fn made(
    evidence: &Evidence,
    task: &Accepted,
    record: &Record,
    step: &PlannedStep,
    findings: &mut Vec<Finding>,
) {
    let mut known = HashSet::new();
    for note in record.of_step(&step.name) {
        if note.kind != "step.child" {
            continue;
        }
        if !known.insert(note.attempt) {
            let what = format!("a second one for an attempt: {note:?}");
            findings.push(Rule::ChildUnasked.of(&task.id, what));
        }
        let is_there = evidence.records.iter().any(|(id, child)| {
            let parent = child.parent.as_ref();
            note.reason.contains(id) && parent.is_some_and(|parent| parent.task == task.id)
        });
        if !is_there {
            findings.push(Rule::ChildMissing.of(&task.id, format!("{note:?}")));
        }
    }
}

fn has_ended(child: &Record, at: At, states: &[&str]) -> bool {
    let mut entries = child.history.iter().filter(|entry| entry.at <= at);
    entries.any(|entry| entry.step.is_none() && states.contains(&entry.to.as_str()))
}

/// Checks that a step ends only once its child has ended, and is done only if its child is.
fn ends(
    task: &Accepted,
    record: &Record,
    step: &PlannedStep,
    children: &[(&str, &Record)],
    findings: &mut Vec<Finding>,
) {
    let cancelled = cancelled(record);
    for entry in record.of_step(&step.name) {
        let is_over = entry.from.as_deref() == Some("processing") && entry.to != "processing";
        let is_cancelled = cancelled.is_some_and(|by| by.version == entry.version);
        if !is_over || is_cancelled {
            continue;
        }
        let of_attempt = children.iter().find(|(_, child)| {
            let parent = child.parent.as_ref();
            parent.is_some_and(|parent| parent.attempt == entry.attempt)
        });
        let states: &[&str] = match entry.kind.as_str() {
            "step.processed" => &["processed"],
            _ => &["processed", "undone", "cancelled"],
        };
        match of_attempt {
            Some((_, child)) if has_ended(child, entry.at, states) => {}
            None if entry.kind != "step.processed" => {}
            other => {
                let id = other.map(|(id, _)| id);
                let what = format!("its child {id:?} was not {states:?}: {entry:?}");
                findings.push(Rule::ChildDisagrees.of(&task.id, what));
            }
        }
    }
}

fn cancelled(record: &Record) -> Option<&Entry> {
    record.history.iter().find(|e| e.kind == "task.cancelled")
}

/// Checks that children end with their parents, and before the step is undone that their own step followed.
fn goes_down(
    evidence: &Evidence,
    task: &Accepted,
    record: &Record,
    step: &PlannedStep,
    children: &[(&str, &Record)],
    findings: &mut Vec<Finding>,
) {
    const GIVEN_UP: &[&str] = &["undone", "cancelled"];
    let undo = format!("{}.undo", step.name);
    let undone = record.of_step(&undo).find(|e| e.kind == "step.processed");
    let by_hand = record.set_aside(&undo).is_some();
    for (id, child) in children {
        if let Some(undone) = undone.filter(|undone| !has_ended(child, undone.at, GIVEN_UP)) {
            let what = format!("its child {id} was not: {undone:?}");
            findings.push(Rule::ChildStands.of(&task.id, what));
        } else if record.state == "undone" && !by_hand && !GIVEN_UP.contains(&child.state.as_str())
        {
            let what = format!("its child {id} is {}", child.state);
            findings.push(Rule::ChildStands.of(&task.id, what));
        }
        let Some(cancelled) = cancelled(record) else {
            continue;
        };
        let by = soon_after(evidence, cancelled.at, OBEYED_WITHIN);
        let late = child.history.iter().find(|entry| {
            let begins = ["step.claimed", "step.began"].contains(&entry.kind.as_str());
            let forward = |step: &String| !step.ends_with(".undo");
            begins && entry.at > by && entry.step.as_ref().is_some_and(forward)
        });
        if let Some(late) = late {
            let what = format!("its parent was cancelled at {}: {late:?}", cancelled.at);
            findings.push(Rule::ChildStands.of(id, what));
        }
        if !["processed", "undone", "cancelled"].contains(&child.state.as_str()) {
            let what = format!("its parent is cancelled, and it is {}", child.state);
            findings.push(Rule::ChildStands.of(id, what));
        }
    }
}

/// Checks that when a step was undone, no effect stood of the children of the steps that follow it.
fn back(
    evidence: &Evidence,
    accepted: &HashMap<&str, &Accepted>,
    task: &Accepted,
    call: &Call,
    children: &Children<'_>,
    effects: &HashMap<(&str, &str), Happened>,
) -> Option<Finding> {
    if is_revert(&call.step) {
        // The steps that follow the race go on.
        return None;
    }
    let record = evidence.records.get(&task.id)?;
    let followers = task.plan.followers(subject(&call.step)).into_iter();
    let mut below: Vec<&str> = followers
        .filter(|step| record.set_aside(&format!("{}.undo", step.name)).is_none())
        .filter_map(|step| children.get(&(task.id.as_str(), step.name.as_str())))
        .flatten()
        .map(|(id, _)| *id)
        .collect();
    while let Some(id) = below.pop() {
        let (Some(child), Some(plan)) = (evidence.records.get(id), accepted.get(id)) else {
            continue;
        };
        for step in &plan.plan.steps {
            let further = children.get(&(id, step.name.as_str()));
            below.extend(further.into_iter().flatten().map(|(id, _)| *id));
            let effect = effects.get(&(id, step.name.as_str()));
            let by_hand = record_says(child, &step.name);
            if step.undo && !by_hand && effect.is_some_and(|effect| effect.stood(call.at)) {
                let what = format!(
                    "{} of its child {id} still stood: {}",
                    step.name,
                    said(call)
                );
                return Some(Rule::BackwardOrder.of(&task.id, what));
            }
        }
    }
    None
}

/// Returns whether the effect of a step may stand: an operator has decided so, or the task was cancelled.
fn record_says(record: &Record, step: &str) -> bool {
    let undo = format!("{step}.undo");
    record.set_aside(step).is_some()
        || record.set_aside(&undo).is_some()
        || cancelled(record).is_some()
}

/// Returns whether all running steps of a task wait for a child or a further descendant that needs an operator.
pub fn waits_for_operator(evidence: &Evidence, id: &str) -> bool {
    let mut found: BTreeMap<&str, &Record> = BTreeMap::new();
    for (child, record) in &evidence.records {
        if record
            .parent
            .as_ref()
            .is_some_and(|parent| parent.task == id)
        {
            found.insert(child, record);
        }
    }
    let Some(record) = evidence.records.get(id) else {
        return false;
    };
    let live = record.steps.iter().filter(|(name, state)| {
        let is_group = record.steps.contains_key(&format!("{name}[0]"));
        !is_group && ["pending", "processing"].contains(&state.as_str())
    });
    let live: Vec<_> = live.map(|(name, _)| subject(name)).collect();
    let stuck = |step: &&str| {
        found.iter().any(|(child, record)| {
            let of_step = record
                .parent
                .as_ref()
                .is_some_and(|parent| parent.step == **step);
            of_step && (record.state == "error" || waits_for_operator(evidence, child))
        })
    };
    !live.is_empty() && live.iter().all(stuck)
}

//! Checks items: each is a step like any other, no more of them run at once than is allowed, and their group ends after
//! them, with the state that follows from theirs.

use std::collections::{BTreeMap, HashMap};

use super::{
    Accepted, Evidence, Finding, Kind, Record, Rule,
    calls::said,
    evidence::{At, Attempt, Call, PlannedItems, PlannedStep},
};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut calls: HashMap<&str, Vec<&Call>> = HashMap::new();
    for call in &evidence.ledger.calls {
        if call.kind == Kind::Work && call.step.ends_with(']') {
            calls.entry(&call.task).or_default().push(call);
        }
    }
    for task in &evidence.accepted {
        let Some(record) = evidence.records.get(&task.id) else {
            continue;
        };
        for group in &task.plan.steps {
            let Some(planned) = group.items else { continue };
            let items = items(task, &group.name);
            agree(task, record, (group, planned), &items, findings);
            at_once(task, record, (&group.name, planned), &items, findings);
            let calls = calls.get(task.id.as_str());
            let calls = calls.map_or(&[][..], Vec::as_slice);
            in_flight(task, record, (&group.name, planned), calls, findings);
        }
    }
}

fn items<'a>(task: &'a Accepted, group: &str) -> Vec<&'a str> {
    let items = task.plan.steps.iter();
    let items = items.filter(|step| step.of.as_deref() == Some(group));
    items.map(|item| item.name.as_str()).collect()
}

/// Checks that there are as many items as the list has, and that each of them is done whenever the group is. A step
/// with `repeat` is done once its condition is true, unless an operator has decided so.
fn agree(
    task: &Accepted,
    record: &Record,
    (group, planned): (&PlannedStep, PlannedItems),
    items: &[&str],
    findings: &mut Vec<Finding>,
) {
    let mut states: BTreeMap<&str, &str> = BTreeMap::new();
    let mut has_begun = false;
    for entry in &record.history {
        let Some(step) = entry.step.as_deref() else {
            continue;
        };
        if step != group.name {
            states.insert(step, &entry.to);
            continue;
        }
        has_begun |= entry.kind == "step.began";
        if entry.kind != "step.processed" {
            continue;
        }
        let state = |item: &&&str| states.get(**item).copied().unwrap_or("waiting");
        let mut done = vec!["processed", "skipped"];
        if let Some(iterations) = planned.iterations {
            // The remaining iterations were not needed.
            done.push("waiting");
            let ended = items.iter().filter(|item| state(item) != "waiting").count();
            if ended < iterations && !entry.by.starts_with("operator") {
                let what = format!("only {ended} iterations have ended: {entry:?}");
                findings.push(Rule::ItemsDisagree.of(&task.id, what));
            }
        }
        let open = items.iter().find(|item| !done.contains(&state(item)));
        if let Some(item) = open {
            let what = format!("{item} is {}: {entry:?}", state(&item));
            findings.push(Rule::ItemsDisagree.of(&task.id, what));
        }
    }
    let prefix = format!("{}[", group.name);
    let recorded = record.steps.keys();
    let recorded = recorded.filter(|step| step.starts_with(&prefix) && step.ends_with(']'));
    let expected = match (has_begun, planned.iterations) {
        (false, _) => 0..=0,
        (true, None) => items.len()..=items.len(),
        (true, Some(_)) => 1..=items.len(),
    };
    let recorded = recorded.count();
    if !expected.contains(&recorded) {
        let name = &group.name;
        let what = format!("{name} has {recorded} items on record, and its list has {expected:?}");
        findings.push(Rule::ItemsDisagree.of(&task.id, what));
    }
}

/// Checks by the record how many items ran at once.
fn at_once(
    task: &Accepted,
    record: &Record,
    (group, planned): (&str, PlannedItems),
    items: &[&str],
    findings: &mut Vec<Finding>,
) {
    let mut live: Vec<&str> = Vec::new();
    for entry in &record.history {
        let Some(step) = entry.step.as_deref().filter(|step| items.contains(step)) else {
            continue;
        };
        live.retain(|other| *other != step);
        // An item that waits for a retry lets others run.
        if entry.to == "processing" || entry.kind == "step.ready" {
            live.push(step);
        }
        if live.len() > planned.at_once {
            let what = format!("{live:?} of {group} run, at {}: {entry:?}", entry.at);
            findings.push(Rule::ItemsTooMany.of(&task.id, what));
            return;
        }
    }
}

/// Checks how many items ran at once by the calls that came for attempts that were not over.
fn in_flight(
    task: &Accepted,
    record: &Record,
    (group, planned): (&str, PlannedItems),
    calls: &[&Call],
    findings: &mut Vec<Finding>,
) {
    let prefix = format!("{group}[");
    let calls: Vec<_> = calls
        .iter()
        .filter(|call| call.step.starts_with(&prefix))
        .collect();
    let mut attempts: HashMap<&str, Vec<Attempt>> = HashMap::new();
    for call in &calls {
        let of_item = attempts.entry(&call.step);
        of_item.or_insert_with(|| record.attempts(&call.step));
    }
    let runs = |call: &Call, at: At| {
        let attempt = call.attempt.checked_sub(1);
        let attempt = attempt.and_then(|number| attempts[call.step.as_str()].get(number));
        attempt.is_some_and(|attempt| attempt.ended.is_none_or(|ended| ended > at))
    };
    for (number, call) in calls.iter().enumerate() {
        if !runs(call, call.at) {
            continue;
        }
        let others = calls[..number].iter().filter(|other| runs(other, call.at));
        let mut open: Vec<_> = others.map(|other| other.step.as_str()).collect();
        open.push(&call.step);
        open.sort_unstable();
        open.dedup();
        if open.len() > planned.at_once {
            let what = format!("{open:?} of {group} are called at once: {}", said(call));
            findings.push(Rule::ItemsTooMany.of(&task.id, what));
            return;
        }
    }
}

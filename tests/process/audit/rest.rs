//! Checks that every accepted task exists and is at rest, that its history is whole, and that every instance ran until
//! it was stopped.

use std::collections::{BTreeMap, BTreeSet};

use super::{Accepted, Evidence, Finding, Plan, Record, Rule, children, subject};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut asked = BTreeMap::new();
    for task in &evidence.accepted {
        let id = &task.id;
        if let Some(other) = asked.insert(id.as_str(), &task.key) {
            let what = format!("it is the answer to {other} and to {}", task.key);
            findings.push(Rule::TaskUnasked.of(id, what));
        }
        match evidence.records.get(id) {
            None => {
                let what = format!("{} was accepted, and is not in the record", task.key);
                findings.push(Rule::TaskMissing.of(id, what));
            }
            Some(record) if record.key != task.key => {
                let what = format!("it was accepted as {}, and is {}", task.key, record.key);
                findings.push(Rule::TaskMissing.of(id, what));
            }
            Some(record) => of_task(evidence, task, record, findings),
        }
    }
    for (id, record) in &evidence.records {
        if !asked.contains_key(id.as_str()) {
            let what = format!("it has the key {}", record.key);
            findings.push(Rule::TaskUnasked.of(id, what));
        }
    }
    for exit in &evidence.exits {
        let what = format!("instance {} at {}: {}", exit.instance, exit.at, exit.said);
        findings.push(Rule::ProcessEnded.of_all(what));
    }
    let panics = evidence.panics.iter();
    findings.extend(panics.map(|line| Rule::ProcessPanicked.of_all(line)));
    let answers = evidence.answers.iter();
    findings.extend(answers.map(|answer| Rule::AnswerUnexpected.of_all(answer)));
    let miscounts = evidence.miscounts.iter();
    findings.extend(miscounts.map(|what| Rule::AlertMiscounted.of_all(what)));
}

/// Checks that each step in error has one open alert, and that no other step has any. A failed step whose policy is to
/// undo the task needs no operator.
fn alerts(id: &str, record: &Record, findings: &mut Vec<Finding>) {
    let is_undoing = record
        .history
        .iter()
        .any(|entry| entry.kind == "task.undoing");
    let in_error = record.steps.iter().filter(|(name, state)| {
        *state == "error" && record.state == "error" && (!is_undoing || name.ends_with(".undo"))
    });
    let mut in_error: Vec<_> = in_error.map(|(name, _)| name).collect();
    // A group is in error because of its items, and these have the alerts.
    let groups: BTreeSet<_> = in_error
        .iter()
        .filter_map(|step| Some(step.split_once('[')?.0))
        .collect();
    in_error.retain(|step| !groups.contains(step.as_str()));
    let mut found: Vec<_> = record.alerts.iter().collect();
    // If the time of the task is over, the group is in error by itself, and has an alert too.
    found.retain(|step| !groups.contains(step.as_str()));
    found.sort_unstable();
    if let Some(step) = in_error.iter().find(|step| !found.contains(step)) {
        let what = format!("nobody is told of the step {step}");
        findings.push(Rule::ErrorWithoutAlert.of(id, what));
    } else if found != in_error {
        let what = format!("alerts are open for {found:?}, and {in_error:?} are in error");
        findings.push(Rule::AlertWithoutError.of(id, what));
    }
}

fn of_task(evidence: &Evidence, task: &Accepted, record: &Record, findings: &mut Vec<Finding>) {
    let id = &task.id;
    let live = record.steps.iter().find(|(_, state)| {
        let still = ["pending", "processing"].contains(&state.as_str());
        still && record.state != "cancelled"
    });
    match (record.state.as_str(), live) {
        ("processed" | "undone" | "cancelled" | "error", None) => {}
        _ if children::waits_for_operator(evidence, id) => {}
        (state, live) => {
            let what = format!("it is {state}, with the step {live:?}");
            findings.push(Rule::TaskNotAtRest.of(id, what));
        }
    }
    alerts(id, record, findings);
    if let Err(what) = whole(&task.plan, record) {
        findings.push(Rule::HistoryBroken.of(id, what));
    }
    if let Some(what) = untold(record) {
        findings.push(Rule::ChangeUntold.of(id, what));
    }
    if let Some(what) = begun_unadmitted(record) {
        findings.push(Rule::BegunUnadmitted.of(id, what));
    }
    if let Some(what) = claimed_too_late(record) {
        findings.push(Rule::ClaimedTooLate.of(id, what));
    }
}

/// Checks that every entry begins at the state where the one before it ended. Versions without an entry are heartbeats,
/// polls and cancellations, which are possible only while a promised reply is open. They also occur if a supervisor
/// looked at a task that was paused at the same moment: the overdue time is then removed from the record.
fn whole(plan: &Plan, record: &Record) -> Result<(), String> {
    let mut version = 0;
    let mut task = None;
    let mut steps: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut dropping: BTreeSet<&str> = BTreeSet::new();
    let (mut undoing, mut paused) = (false, false);
    for entry in &record.history {
        let number = entry.version;
        undoing |= entry.kind == "task.undoing";
        // A service is asked to cancel its work while the task is undone, and when the step is not needed any more.
        let is_cancelled = plan.steps.iter().any(|step| {
            let name = step.name.as_str();
            let is_running = steps.get(name) == Some(&"processing");
            step.cancel && is_running && (undoing || dropping.contains(name))
        });
        let is_silent = !open.is_empty() || is_cancelled || paused;
        let follows = number == version || number == version + 1;
        if !(follows || is_silent && number > version) {
            return Err(format!("version {number} comes after {version}"));
        }
        version = number;
        paused = match entry.kind.as_str() {
            "task.paused" | "task.pause_began" => true,
            "task.resumed" => false,
            _ => paused,
        };
        let from = entry.from.as_deref();
        let before = match &entry.step {
            Some(step) => {
                match (entry.kind.as_str(), entry.to.as_str()) {
                    ("step.deferred", _) => drop(open.insert(step)),
                    ("step.dropping", _) => drop(dropping.insert(step)),
                    (_, "processing") => {}
                    _ => {
                        open.remove(step.as_str());
                        dropping.remove(step.as_str());
                    }
                }
                let before = steps.insert(step, &entry.to);
                Some(before.unwrap_or("waiting"))
            }
            None => task.replace(entry.to.as_str()),
        };
        if from != before {
            return Err(format!("it was {before:?} before {entry:?}"));
        }
    }
    if version != record.version {
        return Err(format!(
            "its version is {}, and its history ends at {version}",
            record.version
        ));
    }
    if task != Some(record.state.as_str()) {
        return Err(format!(
            "it is {}, and its history ends {task:?}",
            record.state
        ));
    }
    let mut unbegun = 0;
    for (step, state) in &record.steps {
        let last = steps.get(step.as_str()).copied().unwrap_or("waiting");
        // One entry is for all items that never began.
        if last == "waiting" && state == "cancelled" && step.ends_with(']') {
            unbegun += 1;
            continue;
        }
        let item = step
            .strip_suffix(".undo")
            .filter(|item| item.ends_with(']'));
        let is_needless =
            item.is_some_and(|item| record.attempts(item).is_empty() && !record.began(item));
        if !(last == "waiting" && state == "skipped" && is_needless) && last != state {
            return Err(format!("{step} is {state}, and its history ends {last}"));
        }
    }
    let counted = record.history.iter().filter_map(|entry| {
        let (_, said) =
            (entry.kind == "step.items_cancelled").then(|| entry.reason.rsplit_once(": "))??;
        said.split(' ').next()?.parse::<usize>().ok()
    });
    let counted: usize = counted.sum();
    if counted != unbegun {
        return Err(format!(
            "{unbegun} items never began, and its history has {counted}"
        ));
    }
    Ok(())
}

/// Checks that nothing of a task begins once it is cancelled, and that only undos begin once it is being undone.
fn claimed_too_late(record: &Record) -> Option<String> {
    let mut undoing = false;
    let mut cancelled = false;
    for entry in &record.history {
        match (entry.kind.as_str(), entry.step.as_deref()) {
            ("task.undoing", _) => undoing = true,
            ("task.cancelled", _) => cancelled = true,
            ("step.claimed" | "step.began", Some(step))
                if cancelled || undoing && subject(step) == step =>
            {
                return Some(format!("{step} was claimed at {}", entry.at));
            }
            _ => {}
        }
    }
    None
}

/// Checks that each change of the task's state is named after its new state, whatever the cause is.
fn untold(record: &Record) -> Option<String> {
    let mut of_task = record.history.iter().filter(|entry| entry.step.is_none());
    let untold = of_task.find(|entry| {
        let is_change = entry.from.as_ref().is_some_and(|from| *from != entry.to);
        is_change && entry.kind != format!("task.{}", entry.to)
    });
    untold.map(|entry| format!("{entry:?}"))
}

/// Checks that nothing of a task began before it was admitted, if it waited for that.
fn begun_unadmitted(record: &Record) -> Option<String> {
    let mut kinds = record.history.iter().map(|entry| entry.kind.as_str());
    let admitted = kinds.rposition(|kind| kind == "task.admitted")?;
    let mut before = record.history[..admitted].iter();
    let begun = before.find(|entry| ["step.claimed", "step.began"].contains(&entry.kind.as_str()));
    begun.map(|entry| format!("it was admitted later: {entry:?}"))
}

//! Checks moves: a task that moves to another version of its workflow continues with the steps and requests of that
//! version, and with none that only the version before had.

use super::{
    Accepted, Evidence, Finding, Kind, Record, Rule,
    calls::said,
    evidence::{At, Plan, subject},
};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    for task in &evidence.accepted {
        if let Some(record) = evidence.records.get(&task.id) {
            findings.extend(chain(task, record));
            findings.extend(begun(task, record));
            findings.extend(steps(task, record));
        }
    }
    for call in &evidence.ledger.calls {
        let task = evidence.accepted.iter().find(|task| task.id == call.task);
        let record = evidence.records.get(&call.task);
        let (Kind::Work, Some(task), Some(record)) = (call.kind, task, record) else {
            continue;
        };
        let attempts = record.attempts(&call.step);
        let Some(attempt) = call.attempt.checked_sub(1).and_then(|at| attempts.get(at)) else {
            continue;
        };
        let planned = task.plan_at(attempt.claimed).step(&call.step);
        if let Some(planned) = planned.filter(|step| step.made_by != call.made_by) {
            let what = format!(
                "it has the request of version {}, and not of {}: {}",
                call.made_by,
                planned.made_by,
                said(call)
            );
            findings.push(Rule::MoveBroken.of(&call.task, what));
        }
    }
}

/// Checks that each move begins at the version where the one before ended, while the task is running.
fn chain(task: &Accepted, record: &Record) -> Option<Finding> {
    let mut version = None;
    for entry in &record.history {
        let Some((from, to)) = entry.versions else {
            continue;
        };
        let is_under_way =
            ["pending", "processing", "paused", "error"].contains(&entry.to.as_str());
        if version.is_some_and(|version| version != from) || !is_under_way {
            let what = format!("it was of version {version:?}: {entry:?}");
            return Some(Rule::MoveBroken.of(&task.id, what));
        }
        version = Some(to);
    }
    let last = record.workflow.as_ref().map(|(_, version)| *version);
    let what = format!("it has moved to {version:?}, and is of {last:?}");
    (version.is_some() && version != last).then(|| Rule::MoveBroken.of(&task.id, what))
}

/// Checks that each step that begins is a step of the version at that time.
fn begun(task: &Accepted, record: &Record) -> Option<Finding> {
    let is_known = |plan: &Plan, step: &str| plan.step(subject(step)).is_some();
    record.history.iter().find_map(|entry| {
        let begins = ["step.claimed", "step.began"].contains(&entry.kind.as_str());
        let step = entry.step.as_deref().filter(|_| begins)?;
        let what = || format!("its version has no such step: {entry:?}");
        (!is_known(task.plan_at(entry.at), step)).then(|| Rule::MoveBroken.of(&task.id, what()))
    })
}

/// Checks that the record has the steps of the last version, and no others.
fn steps(task: &Accepted, record: &Record) -> Option<Finding> {
    let own = |name: &&str| !name.ends_with(']');
    let planned = task.plan.steps.iter().map(|step| step.name.as_str());
    let mut planned: Vec<_> = planned.filter(own).collect();
    let recorded = record.steps.keys().map(String::as_str);
    let mut recorded: Vec<_> = recorded.filter(own).filter(|n| subject(n) == *n).collect();
    planned.sort_unstable();
    recorded.sort_unstable();
    let what = format!("its steps are {recorded:?}, and of its version {planned:?}");
    (planned != recorded).then(|| Rule::MoveBroken.of(&task.id, what))
}

impl Accepted {
    /// Returns the plan of the version that the task had at a moment.
    pub fn plan_at(&self, at: At) -> &Plan {
        let mut earlier = self.earlier.iter();
        let plan = earlier.find(|(until, _)| *until > at);
        plan.map_or(&self.plan, |(_, plan)| plan)
    }
}

//! Checks asks: each recorded decision was sent by a person through their link, each person decides once for each
//! question, and a step is done when enough people have approved, or one has rejected.

use std::collections::{HashMap, HashSet};

use super::{
    Accepted, Evidence, Finding, Record, Rule,
    evidence::{At, Entry, PlannedAsk},
};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut kept: HashMap<(&str, &str, &str, &str), At> = HashMap::new();
    for task in &evidence.accepted {
        let Some(record) = evidence.records.get(&task.id) else {
            continue;
        };
        for step in &task.plan.steps {
            let Some(ask) = &step.ask else { continue };
            let entries = record.of_step(&step.name);
            for entry in entries.filter(|entry| entry.kind == "step.decided") {
                if let Some((person, choice)) = decided(entry) {
                    let subject = (task.id.as_str(), step.name.as_str(), person, choice);
                    kept.entry(subject).or_insert(entry.at);
                    findings.extend(sent(evidence, task, ask, entry, person, choice));
                } else {
                    findings.push(Rule::DecidedByNobody.of(&task.id, format!("{entry:?}")));
                }
            }
            rounds(task, record, &step.name, ask, findings);
        }
    }
    for decision in &evidence.decisions {
        let subject = (
            decision.task.as_str(),
            decision.step.as_str(),
            decision.person.as_str(),
            decision.choice.as_str(),
        );
        let is_kept = kept
            .get(&subject)
            .is_some_and(|at| *at <= decision.answered);
        if decision.status == 200 && !is_kept {
            findings.push(Rule::DecisionLost.of(&decision.task, format!("{decision:?}")));
        }
    }
}

/// Returns the person and their choice.
fn decided(entry: &Entry) -> Option<(&str, &str)> {
    let person = entry.by.strip_prefix("person:")?;
    let choice = ["approve", "reject"].into_iter();
    let mut choice = choice.filter(|choice| entry.reason.contains(choice));
    Some((person, choice.next()?))
}

/// Checks that the decision was sent by a person who was asked, before it was recorded.
fn sent(
    evidence: &Evidence,
    task: &Accepted,
    ask: &PlannedAsk,
    entry: &Entry,
    person: &str,
    choice: &str,
) -> Option<Finding> {
    let mut decisions = evidence.decisions.iter();
    let is_sent = decisions.any(|decision| {
        decision.task == task.id
            && Some(&decision.step) == entry.step.as_ref()
            && decision.person == person
            && decision.choice == choice
            && decision.sent <= entry.at
    });
    let is_asked = ask.of.iter().any(|of| of == person);
    let what = format!("of {ask:?}: {entry:?}");
    (!is_sent || !is_asked).then(|| Rule::DecidedByNobody.of(&task.id, what))
}

/// Splits the entries of a step at each of its begins.
fn rounds(
    task: &Accepted,
    record: &Record,
    step: &str,
    ask: &PlannedAsk,
    findings: &mut Vec<Finding>,
) {
    let mut approved: HashSet<&str> = HashSet::new();
    let mut known: HashSet<&str> = HashSet::new();
    let mut done_at: Option<(At, u64)> = None;
    for entry in record.of_step(step) {
        match entry.kind.as_str() {
            "step.began" => {
                approved.clear();
                known.clear();
                done_at = None;
            }
            "step.decided" => {
                let Some((person, choice)) = decided(entry) else {
                    continue;
                };
                if done_at.is_some() || !known.insert(person) {
                    let what = format!("it was decided at {done_at:?} by {known:?}: {entry:?}");
                    findings.push(Rule::DecidedTwice.of(&task.id, what));
                }
                if choice == "approve" {
                    approved.insert(person);
                }
                if choice != "approve" || approved.len() >= ask.approvals {
                    done_at = Some((entry.at, entry.version));
                    let is_done = record.of_step(step).any(|other| {
                        other.kind == "step.processed" && other.version == entry.version
                    });
                    if !is_done {
                        let what = format!("it is not done by what decides: {entry:?}");
                        findings.push(Rule::DecisionLost.of(&task.id, what));
                    }
                }
            }
            "step.processed" if done_at.is_none_or(|(_, version)| version != entry.version) => {
                let what = format!("{approved:?} have approved, of {ask:?}: {entry:?}");
                findings.push(Rule::DecidedByNobody.of(&task.id, what));
            }
            _ => {}
        }
    }
}

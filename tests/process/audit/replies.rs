//! Checks that every receiver got the messages that follow from the history, in that order, each under one id.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Accepted, Delivery, Evidence, Finding, Record, Rule};

/// The subject of a message: its kind, its step, and the version of the task.
type Subject<'a> = (&'a str, Option<&'a str>, u64);

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut of_tasks: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
    for delivery in &evidence.deliveries {
        of_tasks.entry(&delivery.task).or_default().push(delivery);
    }
    for task in &evidence.accepted {
        let came = of_tasks.get(task.id.as_str());
        if let Some(record) = evidence.records.get(&task.id) {
            of_task(task, record, came.map_or(&[], Vec::as_slice), findings);
        }
    }
    for task in &evidence.accepted {
        of_tasks.remove(task.id.as_str());
    }
    for (task, came) in of_tasks {
        let what = format!("nobody submitted it: {:?}", came[0].kind);
        findings.push(Rule::MessageUnexplained.of(task, what));
    }
}

fn of_task(task: &Accepted, record: &Record, came: &[&Delivery], findings: &mut Vec<Finding>) {
    let expected = expected(task, record);
    let mut bodies: HashMap<&str, &str> = HashMap::new();
    let mut arrived: Vec<Subject<'_>> = Vec::new();
    let mut taken: HashSet<Subject<'_>> = HashSet::new();
    for delivery in came {
        let subject: Subject<'_> = (&delivery.kind, delivery.step.as_deref(), delivery.version);
        if delivery.taken {
            taken.insert(subject);
        }
        match bodies.insert(&delivery.id, &delivery.body) {
            None => arrived.push(subject),
            Some(before) if before == delivery.body => {}
            Some(_) => {
                let what = format!("{subject:?} came with other words under {}", delivery.id);
                findings.push(Rule::MessageUnexplained.of(&task.id, what));
            }
        }
    }
    for subject in &expected {
        if !taken.contains(subject) {
            let came = arrived.contains(subject);
            let what = format!("{subject:?} was never taken; whether it came: {came}");
            findings.push(Rule::MessageMissing.of(&task.id, what));
        }
    }
    let mut left = expected.clone();
    for subject in &arrived {
        match left.iter().position(|expected| expected == subject) {
            Some(at) => drop(left.remove(at)),
            None => {
                let what = format!("{subject:?} is not to be told, or came under a second id");
                findings.push(Rule::MessageUnexplained.of(&task.id, what));
            }
        }
    }
    let mut known = expected.clone();
    known.retain(|subject| arrived.contains(subject));
    arrived.retain(|subject| expected.contains(subject));
    if known.len() == arrived.len() && known != arrived {
        let what = format!("{arrived:?} came, in place of {known:?}");
        findings.push(Rule::MessageOrder.of(&task.id, what));
    }
}

/// Returns the subjects of the messages that the receiver must get, in order.
fn expected<'a>(task: &'a Accepted, record: &'a Record) -> Vec<Subject<'a>> {
    let told = record.history.iter().map(|entry| {
        // For a receiver, a step that was resolved is done.
        let kind = match entry.kind.as_str() {
            "step.resolved" => "step.processed",
            kind => kind,
        };
        (kind, entry.step.as_deref(), entry.version)
    });
    told.filter(|(kind, ..)| task.plan.events.iter().any(|event| event == kind))
        .collect()
}

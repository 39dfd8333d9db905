//! Checks that a later reply counts once, unless it came too late, and that only time, the service or an operator ends
//! an attempt whose reply was promised.

use std::collections::{BTreeMap, HashMap};

use super::{
    Accepted, Evidence, Finding, Heartbeat, Promised, Record, Reply, Rule,
    evidence::{At, Entry},
};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    for reply in &evidence.ledger.replies {
        if let Some(record) = evidence.records.get(&reply.of.task) {
            findings.extend(of_reply(evidence, record, reply));
        }
    }
    let mut beats: HashMap<&Promised, Vec<&Heartbeat>> = HashMap::new();
    for beat in &evidence.ledger.heartbeats {
        match beat.status {
            204 => beats.entry(&beat.of).or_default().push(beat),
            409 => findings.extend(of_heartbeat(evidence, beat)),
            503 => {}
            _ => findings.push(Rule::AnswerUnexpected.of(&beat.of.task, format!("{beat:?}"))),
        }
    }
    for task in &evidence.accepted {
        let Some(record) = evidence.records.get(&task.id) else {
            continue;
        };
        ended_once(task, record, findings);
        broken(&task.id, record, findings);
        for step in &task.plan.steps {
            let Some(within) = step.heartbeat_within else {
                continue;
            };
            for entry in record.of_step(&step.name) {
                if !entry.reason.contains("sent no heartbeat within") {
                    continue;
                }
                let of = Promised {
                    task: task.id.clone(),
                    step: step.name.clone(),
                    attempt: entry.attempt,
                };
                let beats = beats.get(&of).into_iter().flatten();
                if let Some(beat) = beats.max_by_key(|beat| beat.sent)
                    && entry.at < beat.sent.plus(within)
                {
                    let what = format!("{of:?} was silent at {}, and {beat:?}", entry.at);
                    findings.push(Rule::HeartbeatIgnored.of(&task.id, what));
                }
            }
        }
    }
}

fn ends(entry: &Entry) -> bool {
    entry.from.as_deref() == Some("processing") && entry.to != "processing"
}

pub fn end_of<'a>(record: &'a Record, of: &'a Promised) -> Option<&'a Entry> {
    let mut entries = record.of_step(&of.step);
    entries.find(|entry| ends(entry) && entry.attempt == of.attempt)
}

fn of_reply(evidence: &Evidence, record: &Record, reply: &Reply) -> Option<Finding> {
    let task = &reply.of.task;
    let end = end_of(record, &reply.of);
    // The reply to another step may be the cause of undoing the task, or of the end of a race.
    let is_dropped = |end: &Entry| {
        let reasons = ["no longer awaited", "does not need it any more"];
        reasons.iter().any(|reason| end.reason.contains(reason))
    };
    let by_service = end.is_some_and(|end| end.by == "service" && !is_dropped(end));
    let slack = evidence.stalls.allowance(reply.answered);
    let said = || format!("{reply:?}; its attempt ended: {end:?}");
    if reply.again.iter().any(|again| *again != reply.status) {
        return Some(Rule::ReplyRepeated.of(task, said()));
    }
    match reply.status {
        204 if !by_service => Some(Rule::ReplyLost.of(task, said())),
        204 => None,
        409 if by_service || end.is_none_or(|end| end.at > reply.answered.plus(slack)) => {
            Some(Rule::ReplyRefused.of(task, said()))
        }
        409 => None,
        _ => Some(Rule::AnswerUnexpected.of(task, said())),
    }
}

/// Checks that a heartbeat that was refused came after the end of its attempt.
fn of_heartbeat(evidence: &Evidence, beat: &Heartbeat) -> Option<Finding> {
    let record = evidence.records.get(&beat.of.task)?;
    let end = end_of(record, &beat.of);
    let slack = evidence.stalls.allowance(beat.answered);
    let is_over = end.is_some_and(|end| end.at <= beat.answered.plus(slack));
    let what = || format!("{beat:?}; its attempt ended: {end:?}");
    (!is_over).then(|| Rule::ReplyRefused.of(&beat.of.task, what()))
}

/// Checks that no attempt ends twice.
fn ended_once(task: &Accepted, record: &Record, findings: &mut Vec<Finding>) {
    let mut ended: BTreeMap<(&str, usize), At> = BTreeMap::new();
    for entry in &record.history {
        let Some(step) = entry.step.as_deref() else {
            continue;
        };
        // A group that continues with some of its items continues with the same attempt.
        if task
            .plan
            .step(step)
            .is_some_and(|step| step.items.is_some())
        {
            continue;
        }
        // The reply to a probe makes a step done whose last attempt ended long ago.
        let is_probed = entry.reason.starts_with("its probe found");
        let is_done = entry.by == "service" && entry.kind == "step.processed" && !is_probed;
        let is_end = ends(entry) || is_done;
        if is_end && let Some(before) = ended.insert((step, entry.attempt), entry.at) {
            let what = format!("it had ended at {before}: {entry:?}");
            findings.push(Rule::AttemptEndedTwice.of(&task.id, what));
        }
    }
}

/// Checks that an attempt whose reply was promised is not released: neither by a restart, nor because an instance is
/// lost.
fn broken(task: &str, record: &Record, findings: &mut Vec<Finding>) {
    let mut promised: BTreeMap<&str, bool> = BTreeMap::new();
    for entry in &record.history {
        let Some(step) = entry.step.as_deref() else {
            continue;
        };
        if entry.kind == "step.deferred" {
            promised.insert(step, true);
        } else if entry.to != "processing" && promised.insert(step, false) == Some(true) {
            let is_lost = entry.kind == "step.expired" && entry.reason.contains("was lost");
            if entry.kind == "step.released" || is_lost {
                findings.push(Rule::PromiseBroken.of(task, format!("{entry:?}")));
            }
        }
    }
}

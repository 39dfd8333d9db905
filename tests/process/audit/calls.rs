//! Checks that every call carries the one key of its step, and belongs to an attempt that was running by the record.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Call, Evidence, Finding, Kind, Rule, Trouble,
    evidence::{At, Attempt, subject},
};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    keys(evidence, findings);
    let mut known: BTreeMap<(&str, &str), Vec<Attempt>> = BTreeMap::new();
    for call in &evidence.ledger.calls {
        let Some(record) = evidence.records.get(&call.task) else {
            let what = format!(
                "it is not in the record, and its step {} was called",
                call.step
            );
            findings.push(Rule::TaskMissing.of(&call.task, what));
            continue;
        };
        let attempts = known.entry((&call.task, &call.step));
        let attempts = attempts.or_insert_with(|| record.attempts(&call.step));
        let attempt = call.attempt.checked_sub(1).and_then(|at| attempts.get(at));
        match attempt {
            None => {
                let what = format!("no attempt {} is recorded: {}", call.attempt, said(call));
                findings.push(Rule::CallUnclaimed.of(&call.task, what));
            }
            Some(attempt) if call.at.plus(evidence.skew) < attempt.claimed => {
                let early = attempt.claimed.after(call.at);
                let what = format!("{early} ms before its claim was saved: {}", said(call));
                findings.push(Rule::CallUnclaimed.of(&call.task, what));
            }
            Some(attempt) => findings.extend(late(evidence, call, attempt)),
        }
    }
}

/// Finds a call after the end of its attempt, except for those that [`super`] allows.
fn late(evidence: &Evidence, call: &Call, attempt: &Attempt) -> Option<Finding> {
    let ended = attempt.ended?.max(waited_until(evidence, call, attempt));
    let allowance = evidence.stalls.allowance(call.at);
    if call.at <= ended.plus(allowance) || was_suspended(evidence, call.at, attempt, ended) {
        return None;
    }
    let what = format!(
        "{} ms after the end of the attempt, at {ended}: {} by {}",
        call.at.after(ended),
        said(call),
        attempt.by
    );
    Some(Rule::CallLate.of(&call.task, what))
}

/// Returns the time until which a request may wait in a queue. That is its complete-by, which the broker counts from
/// the arrival of the request. If a network was in trouble, the request may have arrived only after it recovered.
fn waited_until(evidence: &Evidence, call: &Call, attempt: &Attempt) -> At {
    let Some(complete_by) = call.waited_until else {
        return At::default();
    };
    let time = complete_by.0 - attempt.claimed.0;
    let during = |trouble: &&Trouble| trouble.from <= complete_by && trouble.to >= attempt.claimed;
    let arrived = evidence.troubles.iter().filter(during);
    let latest = arrived.map(|trouble| At(trouble.to.0 + time)).max();
    latest.unwrap_or_default().max(complete_by)
}

/// Returns whether the instance that made the attempt was suspended when the attempt ended, and had just continued when
/// the call came.
fn was_suspended(evidence: &Evidence, at: At, attempt: &Attempt, ended: At) -> bool {
    let allowance = evidence.stalls.allowance(at);
    evidence.suspensions.iter().any(|stopped| {
        let by_it = match &stopped.instance {
            Some(name) => attempt.by == format!("scheduler:{name}"),
            None => true,
        };
        by_it
            && stopped.from <= ended.plus(allowance)
            && ended <= stopped.to.plus(allowance)
            && at <= stopped.to.plus(allowance)
    })
}

fn keys(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut of_steps: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut owners: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let work = |call: &Call| -> Option<String> {
        match call.kind {
            Kind::Work => None,
            Kind::Undo => call.undoes.clone(),
            Kind::Probe | Kind::Poll | Kind::Cancel => Some(call.key.clone()),
        }
    };
    for call in &evidence.ledger.calls {
        if let Kind::Work | Kind::Undo = call.kind {
            // An undo of a step has one key, whether its task is undone or it has lost a race.
            let owner = match call.kind {
                Kind::Undo => (
                    call.task.as_str(),
                    call.undoes.as_deref().unwrap_or_default(),
                ),
                _ => (call.task.as_str(), call.step.as_str()),
            };
            of_steps.entry(owner).or_default().insert(&call.key);
            let other = *owners.entry(&call.key).or_insert(owner);
            if other != owner {
                let what = format!("{} has the key of {other:?}: {}", call.step, call.key);
                findings.push(Rule::KeyUnstable.of(&call.task, what));
            }
        }
    }
    for ((task, step), keys) in &of_steps {
        if keys.len() > 1 {
            let what = format!("{step} was called under {keys:?}");
            findings.push(Rule::KeyUnstable.of(task, what));
        }
    }
    for call in &evidence.ledger.calls {
        let of_work = of_steps.get(&(call.task.as_str(), subject(&call.step)));
        if let (Some(named), Some(keys)) = (work(call), of_work)
            && !keys.contains(named.as_str())
        {
            let what = format!("the work was called under {keys:?}: {}", said(call));
            findings.push(Rule::KeyUnstable.of(&call.task, what));
        }
    }
}

pub(super) fn said(call: &Call) -> String {
    let Call {
        at,
        kind,
        step,
        attempt,
        key,
        found,
        ..
    } = call;
    format!("{kind:?} of {step}, attempt {attempt}, under {key} at {at}, which met {found:?}")
}

//! Checks that an attempt that was fetched went to the one worker that the record names, and stays with that worker
//! until it replies or the time of the attempt is over.

use std::collections::HashMap;

use super::{Evidence, Fetched, Finding, Promised, Rule, promises::end_of};

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut known: HashMap<&Promised, &Fetched> = HashMap::new();
    for fetched in &evidence.ledger.fetched {
        let Promised {
            task,
            step,
            attempt,
        } = &fetched.of;
        if let Some(before) = known.insert(&fetched.of, fetched) {
            let what = format!("{fetched:?}, and before {before:?}");
            findings.push(Rule::FetchedTwice.of(task, what));
        }
        let Some(record) = evidence.records.get(task) else {
            continue;
        };
        let mut claims = record.of_step(step).filter(|e| e.kind == "step.claimed");
        let claim = claims.nth(attempt - 1);
        let by = format!("fetched by worker {}", fetched.worker);
        // An attempt that the record does not have is found by the checks of calls.
        let is_other = |reason: &str| reason != by && !reason.starts_with(&format!("{by}: "));
        if let Some(claim) = claim.filter(|claim| is_other(&claim.reason)) {
            let what = format!("{fetched:?}, and by the record {claim:?}");
            findings.push(Rule::FetchedByAnother.of(task, what));
        }
        let Some(end) = end_of(record, &fetched.of) else {
            continue;
        };
        let is_lost = end.kind == "step.expired" && end.reason.contains("was lost");
        if end.kind == "step.released" || is_lost {
            let what = format!("{fetched:?}, and then {end:?}");
            findings.push(Rule::PromiseBroken.of(task, what));
        }
    }
}

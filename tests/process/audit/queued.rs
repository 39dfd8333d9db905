//! Checks that a reply that the broker has confirmed stays in its queue until an instance has committed it: it ends its
//! attempt, unless something else has ended the attempt before it could be taken.

use std::time::Duration;

use super::{Evidence, Finding, Rule, evidence::At, promises::end_of};

/// The time after which a service that lost its connection to the broker has connected again, so that its reply is
/// there.
const RECOVERED_WITHIN: Duration = Duration::from_secs(12);
/// The time within which a reply is taken while nothing is in trouble, on a busy machine.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

pub fn check(evidence: &Evidence, findings: &mut Vec<Finding>) {
    for reply in &evidence.ledger.queued_replies {
        let Some(record) = evidence.records.get(&reply.of.task) else {
            continue;
        };
        let end = end_of(record, &reply.of);
        let by_service = end.is_some_and(|end| end.by == "service");
        let taken_by = soon_after(evidence, reply.confirmed, TAKEN_WITHIN);
        if !by_service && end.is_none_or(|end| end.at > taken_by) {
            let what = format!("{reply:?}, to be taken by {taken_by}; its attempt ended: {end:?}");
            findings.push(Rule::ReplyLost.of(&reply.of.task, what));
        }
    }
}

/// Returns the time by which something is done that takes `within` while nothing is in trouble. It may have been sent
/// to an instance that is in trouble, and other instances may not have recovered from an earlier trouble.
pub fn soon_after(evidence: &Evidence, from: At, within: Duration) -> At {
    let slack = evidence.stalls.allowance(from);
    let mut by = from.plus(within + slack);
    let mut troubles = evidence.troubles.clone();
    troubles.sort_by_key(|trouble| trouble.from);
    for trouble in troubles {
        let recovered = trouble.to.plus(RECOVERED_WITHIN + within + slack);
        if trouble.from <= by && recovered >= from {
            by = by.max(recovered);
        }
    }
    by
}

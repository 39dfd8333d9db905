//! The changes shortly before something failed: one of them may be why.

use jiff::Timestamp;

use crate::{
    changes::record::{ChangePage, LedgerChange},
    params::Params,
    visit::Visit,
};

/// The types of changes after which something may fail.
const TYPES: &str = "workflow.*,agent.put,agent.deleted,agent.paused,agent.resumed,agent.breaker_set,schedule.*,instance.*";

/// The time in seconds that counts as shortly before.
const SHORTLY: i64 = 3_600;

/// The most changes of a list.
const MOST: usize = 5;

/// Returns the changes within the hour before a time, the newest first. There are none if they are too far back to be looked
/// for, or if the API refuses them: the page does not need them.
pub async fn before(visit: &Visit, at: &str) -> Vec<LedgerChange> {
    let Ok(at) = at.parse::<Timestamp>() else {
        return Vec::new();
    };
    let query = Params::from_iter([("types", TYPES), ("limit", "50")]);
    let target = format!("/v1/changes{}", query.query());
    let Ok(page) = visit.get::<ChangePage>(&target).await else {
        return Vec::new();
    };
    shortly_before(page.items, at)
}

fn shortly_before(changes: Vec<LedgerChange>, at: Timestamp) -> Vec<LedgerChange> {
    let is_shortly = |change: &LedgerChange| {
        let then: Option<Timestamp> = change.at.parse().ok();
        let seconds = then.map(|then| at.as_second() - then.as_second());
        then.is_some_and(|then| then <= at) && seconds.is_some_and(|seconds| seconds <= SHORTLY)
    };
    let mut found: Vec<_> = changes.into_iter().filter(is_shortly).collect();
    found.truncate(MOST);
    found
}

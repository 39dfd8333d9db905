//! The log line of each bulk command: the caller, the command, the selection, and the number of tasks or messages
//! that it changed.

use serde_json::{Map, Value, value::RawValue};
use tracing::info;

use crate::api::extract::Caller;
use crate::domain::values::shortened;
use crate::{
    clock::{self, Instant},
    store::BulkJobRecord,
};

/// The most bytes of a selection in the log.
const LONGEST_SELECTION: usize = 500;

/// The most bytes of a reason in the log. The history of each task has the whole reason.
const LONGEST_REASON: usize = 200;

/// Members of a request that select nothing, or are data.
const NO_SELECTION: [&str; 9] = [
    "changes", "cursor", "dry_run", "first", "limit", "output", "patch", "rate", "reason",
];

/// A running bulk command. The log line is written when this is dropped, also if the caller has disconnected and the
/// command goes no further.
pub struct BulkLog<'a> {
    caller: &'a Caller,
    command: &'static str,
    selection: String,
    reason: Option<String>,
    began: Instant,
    pub counts: BulkCounts,
}

/// The numbers in the log line.
#[derive(Clone, Copy, Default)]
pub struct BulkCounts {
    pub matched: u64,
    pub accepted: u64,
    pub refused: u64,
}

impl<'a> BulkLog<'a> {
    /// Returns `None` for a dry run, which changes nothing.
    pub fn begin(
        caller: &'a Caller,
        command: &'static str,
        body: &RawValue,
        dry_run: bool,
    ) -> Option<Self> {
        (!dry_run).then(|| {
            let body: Map<String, Value> = serde_json::from_str(body.get()).unwrap_or_default();
            Self {
                caller,
                command,
                reason: body
                    .get("reason")
                    .and_then(Value::as_str)
                    .map(|reason| shortened(reason, LONGEST_REASON)),
                selection: selection(body),
                began: clock::instant(),
                counts: BulkCounts::default(),
            }
        })
    }
}

impl Drop for BulkLog<'_> {
    fn drop(&mut self) {
        let Self {
            command, counts, ..
        } = self;
        let BulkCounts {
            matched,
            accepted,
            refused,
        } = *counts;
        let took_seconds = self.began.elapsed().as_secs_f64();
        info!(by = %self.caller.name, command, selection = self.selection, reason = self.reason, matched, accepted, refused, took_seconds, "a bulk command was carried out");
    }
}

/// Writes the log line of a job that runs no longer.
pub fn carried_out(record: &BulkJobRecord) {
    let BulkJobRecord { id, order, job, .. } = record;
    let body: Map<String, Value> = serde_json::from_str(&order.body).unwrap_or_default();
    let reason = order.reason.as_deref();
    let reason = reason.map(|reason| shortened(reason, LONGEST_REASON));
    let (command, selection) = (order.action.as_str(), selection(body));
    let (matched, accepted, refused) = (job.matched, job.accepted, job.refused);
    let last = job.entries.last().map_or(order.at, |entry| entry.at);
    let took_seconds = last.since(order.at).as_secs_f64();
    info!(by = %order.by, job = %id, state = job.state.as_str(), command, selection, reason, matched, accepted, refused, took_seconds, "a bulk command was carried out");
}

fn selection(mut body: Map<String, Value>) -> String {
    body.retain(|name, _| !NO_SELECTION.contains(&name.as_str()));
    if let Some(Value::Array(ids)) = body.get("ids") {
        let count = ids.len();
        body.insert("ids".to_owned(), Value::from(format!("{count} ids")));
    }
    shortened(&Value::Object(body).to_string(), LONGEST_SELECTION)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(body: &Value) -> String {
        selection(body.as_object().unwrap().clone())
    }

    #[test]
    fn the_log_has_the_filters_and_how_many_ids_but_no_data() {
        let body = json!({ "state": "error", "labels": { "a": "b" }, "reason": "x", "output": { "pin": 1 } });
        assert_eq!(shown(&body), r#"{"state":"error","labels":{"a":"b"}}"#);
        assert_eq!(shown(&json!({ "ids": ["1", "2"] })), r#"{"ids":"2 ids"}"#);
        let long = shown(&json!({ "key": "ü".repeat(1000) }));
        assert!(long.len() < LONGEST_SELECTION + 4, "{long}");
    }
}

//! A bulk command and its tasks in words, as in `retry 403 tasks of workflow order, that failed by 2026-01-31T10:42:00.000Z`.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::{Map, Value};

use super::action::BulkAction;
use crate::task::status::TaskStatus;
use crate::values::{Timestamp, shortened};

/// The most bytes of a value in a sentence.
const LONGEST_VALUE: usize = 100;
/// The most filters in a sentence.
const MOST_FILTERS: usize = 20;

/// The number of tasks that a command is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskCount {
    pub tasks: u64,
    /// True if there may be more.
    pub is_at_least: bool,
}

/// Returns a sentence about the selection in the body of a request. A filter without a phrase of its own is named as it
/// is in the body.
pub fn sentence(
    action: BulkAction,
    body: &Map<String, Value>,
    count: TaskCount,
    at: Timestamp,
) -> String {
    let mut text = action.as_str().to_owned();
    if let Some(step) = body.get("step").and_then(Value::as_str) {
        let _ = write!(text, " step {}", shortened(step, LONGEST_VALUE));
    }
    let of = if text.contains(" step ") { " of" } else { "" };
    let least = if count.is_at_least { " at least" } else { "" };
    let noun = if count.tasks == 1 { "task" } else { "tasks" };
    let _ = write!(text, "{of}{least} {} {noun}", count.tasks);
    let from = body.get("from").and_then(Value::as_str);
    if let Some(from) = from {
        let _ = write!(text, " from step {}", shortened(from, LONGEST_VALUE));
    }
    let fails = are_in_error(action, body);
    if let Some(ids) = body.get("ids").and_then(Value::as_array) {
        let noun = if ids.len() == 1 { "id" } else { "ids" };
        let _ = write!(text, " by {} {noun}", ids.len());
        return text;
    }
    // The workflow is what most people name first.
    let filters: BTreeMap<_, _> = (body.iter())
        .map(|(name, value)| ((name != "workflow", name), value))
        .collect();
    let filters = filters
        .into_iter()
        .map(|((_, name), value)| (name, value))
        .filter_map(|(name, value)| phrase(name, value, fails));
    let filters: Vec<_> = filters.take(MOST_FILTERS).collect();
    if !filters.is_empty() {
        let comma = if from.is_some() { "," } else { "" };
        let _ = write!(text, "{comma} {}", filters.join(", "));
    }
    let word = if fails {
        "that failed by"
    } else {
        "created by"
    };
    let comma = if filters.is_empty() { "" } else { "," };
    let _ = write!(text, "{comma} {word} {at}");
    text
}

/// Returns whether the command selects tasks in error only, by the state that is named or by its own.
fn are_in_error(action: BulkAction, body: &Map<String, Value>) -> bool {
    match body.get("state").and_then(Value::as_str) {
        Some(state) => state == TaskStatus::Error.as_str(),
        None => action.states() == [TaskStatus::Error],
    }
}

/// Returns the words for a filter, `None` for a member of the request that selects nothing or that the command implies.
fn phrase(name: &str, value: &Value, fails: bool) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let text = shortened(&text, LONGEST_VALUE);
    Some(match name {
        "all" | "as_of" | "changes" | "cursor" | "dry_run" | "first" | "from" | "from_version"
        | "input" | "limit" | "output" | "patch" | "rate" | "reason" | "step" | "to_version" => {
            return None;
        }
        "state" if fails => return None,
        "state" => format!("in state {text}"),
        "workflow" => format!("of workflow {text}"),
        "agent" if fails => format!("with a step that failed at agent {text}"),
        "agent" => format!("with a step at agent {text}"),
        "parent" => format!("of the steps of task {text}"),
        "labels" => {
            let labels = value.as_object()?.iter();
            let labels = labels.map(|(label, value)| {
                let value = value.as_str().unwrap_or_default();
                format!("{label}={value}")
            });
            let labels = labels.collect::<Vec<_>>().join(" and ");
            format!("with label {}", shortened(&labels, LONGEST_VALUE))
        }
        "created_after" => format!("created after {text}"),
        "created_before" => format!("created before {text}"),
        "cause" => format!("for cause {text}"),
        "text" => format!("with {text:?} in their keys or messages"),
        "bulk" => format!("of bulk job {text}"),
        "bulk_result" => format!("with result {text}"),
        "at_risk" if *value == Value::Bool(true) => "that will be late".to_owned(),
        "at_risk" => return None,
        name => format!("with {} {text}", name.replace('_', " ")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn say(action: BulkAction, body: &Value, tasks: u64) -> String {
        let count = TaskCount {
            tasks,
            is_at_least: false,
        };
        let at = Timestamp::parse("2026-01-31T10:42:00Z").unwrap();
        sentence(action, body.as_object().unwrap(), count, at)
    }

    #[test]
    fn a_sentence_names_the_command_the_count_and_every_filter() {
        let body =
            json!({ "agent": "payments", "workflow": "order", "reason": "x", "dry_run": true });
        assert_eq!(
            say(BulkAction::Retry, &body, 403),
            "retry 403 tasks of workflow order, with a step that failed at agent payments, that failed by 2026-01-31T10:42:00.000Z"
        );
        let body = json!({ "state": "paused", "labels": { "a": "b", "c": "d" } });
        assert_eq!(
            say(BulkAction::Cancel, &body, 1),
            "cancel 1 task with label a=b and c=d, in state paused, created by 2026-01-31T10:42:00.000Z"
        );
        let body = json!({ "step": "notify", "all": true, "output": { "pin": 7 } });
        assert_eq!(
            say(BulkAction::Skip, &body, 2),
            "skip step notify of 2 tasks that failed by 2026-01-31T10:42:00.000Z"
        );
        assert_eq!(
            say(BulkAction::Undo, &json!({ "ids": ["1", "2", "3"] }), 2),
            "undo 2 tasks by 3 ids"
        );
    }

    #[test]
    fn a_sentence_says_when_tasks_failed_if_it_is_about_tasks_in_error() {
        let body = json!({ "from": "reserve", "workflow": "order" });
        assert_eq!(
            say(BulkAction::Rerun, &body, 2),
            "rerun 2 tasks from step reserve, of workflow order, that failed by 2026-01-31T10:42:00.000Z"
        );
        let body = json!({ "from": "reserve", "state": "paused" });
        assert_eq!(
            say(BulkAction::Rerun, &body, 2),
            "rerun 2 tasks from step reserve, in state paused, created by 2026-01-31T10:42:00.000Z"
        );
        let body = json!({ "state": "error" });
        assert_eq!(
            say(BulkAction::Cancel, &body, 2),
            "cancel 2 tasks that failed by 2026-01-31T10:42:00.000Z"
        );
    }

    #[test]
    fn a_filter_that_this_does_not_know_is_named_and_long_values_are_cut() {
        let body = json!({ "failed_step": "charge" });
        let said = say(BulkAction::Retry, &body, 3);
        assert!(said.contains("with failed step charge"), "{said}");
        let said = say(BulkAction::Retry, &json!({ "key": "ü".repeat(1000) }), 3);
        assert!(said.len() < 250, "{said}");
    }
}

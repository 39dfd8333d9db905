//! The values of options that have rules of their own. A wrong one is a wrong argument, and no request is sent.

use jiff::Timestamp;
use provost_domain::values::{Rate, SPAN_FORMS, Span, Timestamp as ApiTime};
use uuid::Uuid;

use crate::output::span_of;

/// The names of all filters of tasks.
pub const FILTERS: [&str; 14] = [
    "state",
    "workflow",
    "key",
    "agent",
    "alert",
    "cause",
    "text",
    "bulk",
    "bulk_result",
    "parent",
    "label",
    "created_after",
    "created_before",
    "at_risk",
];

pub const TASK_STATES: [&str; 8] = [
    "pending",
    "processing",
    "paused",
    "processed",
    "error",
    "undoing",
    "undone",
    "cancelled",
];
pub const MESSAGE_STATES: [&str; 2] = ["pending", "dead"];
pub const BULK_RESULTS: [&str; 3] = ["accepted", "refused", "failed_again"];
pub const OVERLAPS: [&str; 4] = ["skip", "queue", "replace", "allow"];

/// Reads the fingerprint of a cause.
pub fn fingerprint(text: &str) -> Result<String, String> {
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    match text.len() == 16 && text.chars().all(is_hex) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is not a fingerprint, which has 16 digits such as 5f1d0a7c93b2e846: provost failures lists them"
        )),
    }
}

pub fn uuid(text: &str) -> Result<String, String> {
    match Uuid::try_parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("{text:?} is not an id")),
    }
}

/// Reads a duration that the server gets as it was written.
pub fn duration(text: &str) -> Result<String, String> {
    match Span::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("{text:?} is not {SPAN_FORMS}")),
    }
}

/// Reads a time that the server gets as it was written.
pub fn time(text: &str) -> Result<String, String> {
    match ApiTime::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!(
            "{text:?} is not a time such as 2026-03-01T00:00:00Z"
        )),
    }
}

/// Reads a time, or how long ago it was. The clock is read when the command begins.
pub fn past(text: &str) -> Result<String, String> {
    past_at(text, Timestamp::now()).map(|_| text.to_owned())
}

/// Returns a time of the API from a time, or from how long ago it was.
pub fn past_at(text: &str, now: Timestamp) -> Result<String, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at.to_string());
    }
    let ago = span_of(text).ok().and_then(|ago| now.checked_sub(ago).ok());
    ago.map(|at| at.to_string()).ok_or_else(|| {
        format!("{text:?} is not a time such as 2026-03-01T00:00:00Z, or a duration such as 2h")
    })
}

pub fn rate(text: &str) -> Result<String, String> {
    match Rate::parse(text).is_some_and(|rate| rate.calls > 0) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a rate such as 20/s, 100/m or 5/h")),
    }
}

/// Reads a version of a workflow.
pub fn version(text: &str) -> Result<String, String> {
    let is_number = text.parse::<u32>().is_ok_and(|number| number > 0);
    match is_number || matches!(text, "latest" | "active") {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is not a version: give a number, latest or active"
        )),
    }
}

/// Reads one of some words.
pub fn word(text: &str, words: &[&str]) -> Result<(), String> {
    match words.contains(&text) {
        true => Ok(()),
        false => Err(format!("{text:?} is none of {}", words.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_server_takes_are_wrong_arguments() {
        assert!(fingerprint("5f1d0a7c93b2e846").is_ok());
        assert!(duration("1h30m").is_ok() && time("2026-03-01T00:00:00Z").is_ok());
        assert!(past("2h").is_ok() && past("2026-03-01T00:00:00Z").is_ok());
        assert!(rate("20/s").is_ok() && version("latest").is_ok() && version("3").is_ok());
        for (wrong, read) in [
            ("zzz", fingerprint as fn(&str) -> Result<String, String>),
            ("5F1D0A7C93B2E846", fingerprint),
            ("abc", duration),
            ("", duration),
            ("tomorrow", time),
            ("2h", time),
            ("yesterday", past),
            ("20", rate),
            ("0/s", rate),
            ("newest", version),
            ("0", version),
            ("order-1", uuid),
        ] {
            assert!(read(wrong).unwrap_err().contains(&format!("{wrong:?}")));
        }
        assert!(word("bad", &TASK_STATES).unwrap_err().contains("error"));
    }
}

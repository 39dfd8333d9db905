//! Responses of the API about a task, as far as its pages read them. Values of people's own, such as inputs and
//! outputs, stay the JSON text that came: a number keeps all its digits.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

pub type Raw = Box<RawValue>;

#[derive(Deserialize)]
pub struct Task {
    pub id: String,
    pub key: Option<String>,
    pub workflow: Option<String>,
    pub workflow_version: Option<u32>,
    pub state: String,
    /// An operator's pause holds the task, also while its state is `error`.
    #[serde(default)]
    pub paused: bool,
    #[serde(default)]
    pub priority: i64,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub created_at: String,
    pub start_at: Option<String>,
    pub complete_by: Option<String>,
    pub at_risk: Option<AtRisk>,
    pub ended_at: Option<String>,
    pub version: u64,
    pub error: Option<Fault>,
    pub input: Raw,
    pub output: Option<Raw>,
    pub output_error: Option<String>,
    pub parent: Option<Parent>,
    pub reply_to: Option<Raw>,
    pub undo: Option<TaskUndo>,
    #[serde(default)]
    pub steps: Vec<Step>,
}

impl Task {
    /// Returns what people call the task: its key, or its id if it has none.
    pub fn name(&self) -> &str {
        self.key
            .as_deref()
            .filter(|key| !key.is_empty())
            .unwrap_or(&self.id)
    }

    /// Returns the ETag with which a command is refused if the task has changed since.
    pub fn etag(&self) -> String {
        format!("\"{}\"", self.version)
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "processed" | "undone" | "cancelled")
    }

    /// Returns whether an operator has paused the task. The state of one in error says nothing about that.
    pub fn is_paused(&self) -> bool {
        self.paused || self.state == "paused"
    }

    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.name == name)
    }

    /// Returns the step that the page opens with: the one that the error names, or another one that failed.
    pub fn failed_step(&self) -> Option<&Step> {
        let named = self.error.as_ref().and_then(|fault| fault.step.as_deref());
        let list = |name: &str| name.split('[').next().unwrap_or_default().to_owned();
        let by_error = named.and_then(|name| self.step(name).or_else(|| self.step(&list(name))));
        let failed = |step: &&Step| step.state == "error";
        by_error
            .filter(failed)
            .or_else(|| self.steps.iter().find(failed))
    }
}

#[derive(Deserialize)]
pub struct AtRisk {
    pub predicted_end: Option<String>,
    pub agent: String,
}

#[derive(Deserialize)]
pub struct Parent {
    pub task: String,
    pub step: String,
}

#[derive(Deserialize)]
pub struct TaskUndo {
    pub at: String,
    pub by: String,
    pub reason: Option<String>,
    #[serde(default)]
    pub passed_over: Vec<String>,
}

#[derive(Deserialize)]
pub struct Fault {
    #[serde(default)]
    pub kind: String,
    pub message: String,
    pub status: Option<u16>,
    pub body: Option<String>,
    #[serde(default)]
    pub at: String,
    pub outcome: Option<String>,
    pub step: Option<String>,
    #[serde(default)]
    pub cancelled: bool,
}

impl Fault {
    /// Returns the message without the words that every response has, such as `422 Unprocessable Entity`.
    pub fn short(&self) -> &str {
        self.message
            .strip_prefix("the service responded ")
            .unwrap_or(&self.message)
    }

    /// Returns what the service itself says in the body: its message, if it is a usual one.
    pub fn words(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_str(self.body.as_deref()?).ok()?;
        let text = |value: &serde_json::Value| value.as_str().map(|text| clipped(text, 160));
        let members = ["message", "detail", "error_description", "title", "error"];
        let inside =
            |value: &serde_json::Value| members.iter().find_map(|name| text(value.get(name)?));
        text(&body)
            .or_else(|| inside(&body))
            .or_else(|| inside(body.get("error")?))
    }
}

#[derive(Deserialize)]
pub struct Step {
    pub name: String,
    #[serde(default)]
    pub kind: String,
    pub agent: Option<String>,
    pub state: String,
    pub undoes: Option<String>,
    #[serde(default)]
    pub after: Vec<String>,
    #[serde(default)]
    pub attempt: u32,
    #[serde(default)]
    pub failure_count: u32,
    #[serde(default)]
    pub max_failures: u32,
    pub outcome: Option<String>,
    /// The fate of a step that runs and is not needed any more: `cancel` or `undo`.
    pub lost: Option<String>,
    pub locked_by: Option<String>,
    pub complete_by: Option<String>,
    pub awaited_reply: Option<AwaitedReply>,
    pub ready_at: Option<String>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub blocked_by: Option<Blocked>,
    pub ask: Option<StepAsk>,
    pub child: Option<Child>,
    pub item: Option<Raw>,
    pub items: Option<Items>,
    pub output: Option<Raw>,
    pub error: Option<Fault>,
    pub last_fault: Option<Fault>,
}

#[derive(Deserialize)]
pub struct AwaitedReply {
    pub since: String,
    pub worker: Option<String>,
    pub heartbeat_at: Option<String>,
    pub progress: Option<f64>,
    pub message: Option<String>,
}

#[derive(Deserialize)]
pub struct StepAsk {
    #[serde(default)]
    pub title: String,
}

#[derive(Deserialize)]
pub struct Child {
    pub id: String,
    pub state: Option<String>,
}

#[derive(Deserialize)]
pub struct Items {
    pub total: Option<u64>,
    #[serde(default)]
    pub states: BTreeMap<String, u64>,
    #[serde(default)]
    pub max_parallel: u32,
}

impl Step {
    /// Returns whether the step waits for an event that a signal reports, or will do so. Asks are answered on pages of their own.
    pub fn awaits_signal(&self) -> bool {
        let awaits = matches!(self.state.as_str(), "waiting" | "pending" | "processing");
        self.kind == "signal" && self.ask.is_none() && awaits
    }

    pub fn has_call_under_way(&self) -> bool {
        self.kind == "call" && self.state == "processing" && self.items.is_none()
    }
}

impl Items {
    pub fn in_state(&self, state: &str) -> u64 {
        self.states.get(state).copied().unwrap_or(0)
    }

    pub fn count(&self) -> u64 {
        self.total.unwrap_or_else(|| self.states.values().sum())
    }
}

/// Why a step does not run. The reasons have different fields; those of later versions are shown by their names.
#[derive(Default, Deserialize)]
pub struct Blocked {
    pub reason: String,
    #[serde(default)]
    pub steps: Vec<String>,
    pub more: Option<u32>,
    pub until: Option<String>,
    pub task: Option<String>,
    pub state: Option<String>,
    pub waiting: Option<u64>,
    pub running: Option<u64>,
    pub error: Option<u64>,
    pub iterations: Option<u64>,
    pub max_parallel: Option<u64>,
    pub agent: Option<String>,
    pub ahead: Option<u64>,
    #[serde(default)]
    pub ahead_is_at_least: bool,
    pub rate: Option<String>,
    pub by: Option<String>,
    pub message: Option<String>,
    pub instance: Option<String>,
}

#[derive(Default, Deserialize)]
pub struct History {
    pub items: Vec<Entry>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct Entry {
    pub seq: String,
    pub at: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub step: Option<String>,
    pub attempt: Option<u32>,
    pub from: Option<String>,
    #[serde(default)]
    pub to: String,
    #[serde(default)]
    pub by: String,
    pub reason: Option<String>,
    pub ready_at: Option<String>,
    pub outcome: Option<String>,
    pub error: Option<Fault>,
    pub versions: Option<Versions>,
}

impl Entry {
    /// Returns the version of the task that the change of this entry made.
    pub fn version(&self) -> u64 {
        self.seq
            .split('.')
            .next()
            .and_then(|version| version.parse().ok())
            .unwrap_or(0)
    }
}

#[derive(Deserialize)]
pub struct Versions {
    pub from: u32,
    pub to: u32,
}

#[derive(Default, Deserialize)]
pub struct AttemptList {
    pub items: Vec<AttemptRecord>,
}

#[derive(Deserialize)]
pub struct AttemptRecord {
    pub attempt: u32,
    #[serde(default)]
    pub purpose: String,
    pub result: Option<String>,
    pub claimed_at: Option<String>,
    pub ended_at: Option<String>,
    pub next_at: Option<String>,
    pub instance: Option<String>,
    pub endpoint: Option<String>,
    pub request: Option<SentRequest>,
    pub response: Option<Came>,
    #[serde(default)]
    pub times: Times,
    pub reason: Option<String>,
    pub error: Option<Fault>,
}

#[derive(Deserialize)]
pub struct SentRequest {
    #[serde(default)]
    pub as_sent: bool,
    #[serde(default)]
    pub method: String,
    #[serde(default)]
    pub url: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: Option<SentBody>,
}

#[derive(Deserialize)]
pub struct SentBody {
    pub start: Option<String>,
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub sha256: String,
}

#[derive(Deserialize)]
pub struct Came {
    pub status: u16,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: Option<String>,
}

#[derive(Default, Deserialize)]
pub struct Times {
    pub began_at: Option<String>,
    pub connected_at: Option<String>,
    pub sent_at: Option<String>,
    pub responded_at: Option<String>,
}

#[derive(Default, Deserialize)]
pub struct StepPage {
    pub items: Vec<Step>,
    pub next_cursor: Option<String>,
}

/// Returns the milliseconds since 1970 of a time as the API writes it.
pub fn millis(at: &str) -> Option<i64> {
    at.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

/// Returns a length of time in milliseconds as a person says it.
pub fn span(millis: i64) -> String {
    let millis = millis.max(0);
    let tenths = |value: i64, unit: i64, name: &str| {
        let tenths = value * 10 / unit;
        if tenths >= 100 || tenths % 10 == 0 {
            format!("{} {name}", tenths / 10)
        } else {
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
    };
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => tenths(millis, 1_000, "s"),
        60_000..3_600_000 => tenths(millis, 60_000, "min"),
        _ => crate::parts::duration_in_words(millis / 1_000),
    }
}

/// Returns a duration as the API writes it, such as `1s695ms`, as a person says it. Another text stays as it is.
pub fn readable_duration(text: &str) -> String {
    let mut millis = 0_i64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, after) = after.split_at(letters);
        let length = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return text.to_owned(),
        };
        let Some(part) = number
            .parse::<i64>()
            .ok()
            .and_then(|number| number.checked_mul(length))
        else {
            return text.to_owned();
        };
        millis = millis.saturating_add(part);
        rest = after;
    }
    span(millis)
}

/// Returns the time between two, if both are known.
pub fn between(from: Option<&str>, to: Option<&str>) -> Option<i64> {
    Some(millis(to?)? - millis(from?)?)
}

/// Returns at most this many characters of a text, with an ellipsis if it is longer.
pub fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text
            .chars()
            .take(most.saturating_sub(1))
            .chain(['…'])
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        for (millis, words) in [
            (42, "42 ms"),
            (1_000, "1 s"),
            (9_140, "9.1 s"),
            (31_000, "31 s"),
            (78_000, "1.3 min"),
            (31 * 60_000, "31 min"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(span(millis), words);
        }
    }

    #[test]
    fn durations_of_the_api_are_said_as_spans() {
        for (text, words) in [
            ("76ms", "76 ms"),
            ("1s695ms", "1.6 s"),
            ("2h5m", "2 h 5 min"),
            ("soon", "soon"),
            ("9999999999999999999s", "9999999999999999999s"),
        ] {
            assert_eq!(readable_duration(text), words);
        }
    }

    #[test]
    fn the_words_of_a_service_are_found_in_usual_bodies() {
        let words = |body: &str| {
            let fault = Fault {
                kind: String::new(),
                message: String::new(),
                status: None,
                body: Some(body.to_owned()),
                at: String::new(),
                outcome: None,
                step: None,
                cancelled: false,
            };
            fault.words()
        };
        assert_eq!(
            words(r#"{"error":"invalid","message":"currency is required"}"#).unwrap(),
            "currency is required"
        );
        assert_eq!(words(r#"{"error":{"message":"no"}}"#).unwrap(), "no");
        assert_eq!(words("<html>"), None);
        assert_eq!(clipped("äöüß", 3), "äö…");
    }
}

//! A schedule as `GET /v1/schedules` has it.

use serde::Deserialize;

use crate::changed::LineRow;

/// A page of `GET /v1/schedules`.
#[derive(Deserialize)]
pub struct SchedulePage {
    pub items: Vec<ScheduleHead>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct ScheduleHead {
    pub name: String,
    pub cron: Option<String>,
    pub timezone: Option<String>,
    pub every: Option<String>,
    pub state: String,
    pub next_fire_time: Option<String>,
    pub queued: u64,
    pub failing: Option<String>,
}

impl ScheduleHead {
    /// Returns the rule of the fire times.
    pub fn rule(&self) -> String {
        match (&self.cron, &self.every) {
            (Some(cron), _) => format!("{cron} {}", self.timezone.as_deref().unwrap_or("UTC")),
            (None, Some(every)) => format!("every {every}"),
            (None, None) => String::from("–"),
        }
    }

    /// Returns the class, the shape and the word of the state.
    pub fn badge(&self) -> (&'static str, &'static str, &str) {
        match (self.failing.is_some(), self.state.as_str()) {
            (true, _) => ("error", "error", "failing"),
            (_, "active") => ("ok", "ok", "active"),
            (_, "paused") => ("paused", "paused", "paused"),
            (_, "ended") => ("processed", "processed", "ended"),
            (_, other) => ("pending", "pending", other),
        }
    }
}

/// A schedule as `GET /v1/schedules/{name}` has it.
#[derive(Deserialize)]
pub struct Schedule {
    #[serde(flatten)]
    pub head: ScheduleHead,
    pub workflow: String,
    pub description: Option<String>,
    pub pause: Option<SchedulePause>,
    #[serde(default)]
    pub next: Vec<FireTime>,
    #[serde(default)]
    pub runs: Vec<Run>,
    #[serde(default)]
    pub changes: Vec<Change>,
}

impl Schedule {
    /// Returns its changes that are on record.
    pub fn lines(&self) -> Vec<LineRow> {
        let lines = self.changes.iter().map(|change| {
            let reason = change.reason.as_deref();
            LineRow::done(&change.at, &change.by, &change.action, reason)
        });
        lines.collect()
    }
}

#[derive(Deserialize)]
pub struct SchedulePause {
    pub at: String,
    pub by: String,
    pub reason: Option<String>,
}

#[derive(Deserialize)]
pub struct FireTime {
    pub fire_time: String,
    pub local_time: Option<String>,
}

#[derive(Deserialize)]
pub struct Run {
    pub fire_time: String,
    pub source: String,
    pub state: String,
    pub task: Option<String>,
    pub reason: Option<String>,
    pub late_by: Option<String>,
}

impl Run {
    pub fn badge(&self) -> (&'static str, &'static str) {
        match self.state.as_str() {
            "started" => ("processed", "processed"),
            "failed" => ("error", "error"),
            "skipped" => ("pending", "skipped"),
            _ => ("pending", "pending"),
        }
    }
}

#[derive(Deserialize)]
pub struct Change {
    pub at: String,
    pub by: String,
    pub action: String,
    pub reason: Option<String>,
}

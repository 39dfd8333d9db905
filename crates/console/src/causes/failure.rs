//! A cause as `GET /v1/failures` has it, and its row in a list.

use serde::Deserialize;

use crate::{
    parts::{Html, Spark, counted, duration_in_words, number},
    shell::Shell,
};

/// A page of `GET /v1/failures`.
#[derive(Deserialize)]
pub struct FailurePage {
    pub items: Vec<Failure>,
    #[serde(default)]
    pub more_causes: bool,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct Failure {
    pub fingerprint: String,
    pub sentence: String,
    pub open: bool,
    pub workflow: Option<String>,
    pub step: String,
    pub agent: Option<String>,
    pub kind: Option<String>,
    pub tasks: u64,
    pub steps: u64,
    pub more: bool,
    pub failures: u64,
    pub first_at: String,
    pub last_at: String,
    pub growing: bool,
    pub trend: Trend,
    pub example: Option<Example>,
    #[serde(default)]
    pub remedies: Vec<Remedy>,
}

#[derive(Deserialize)]
pub struct Trend {
    pub by_hour: Vec<u64>,
    pub by_quarter: Vec<u64>,
}

#[derive(Deserialize)]
pub struct Example {
    pub task: String,
    pub key: Option<String>,
    pub step: String,
    pub attempt: Option<u64>,
    pub message: String,
}

impl Example {
    pub fn name(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.task)
    }
}

#[derive(Deserialize)]
pub struct Remedy {
    #[serde(rename = "do")]
    pub command: String,
    pub when: String,
}

impl Failure {
    /// Returns the number of tasks, as far as they were counted.
    pub fn count(&self) -> String {
        match self.more {
            true => format!("more than {}", number(self.tasks.saturating_sub(1))),
            false => number(self.tasks),
        }
    }

    pub fn count_with_noun(&self) -> String {
        match self.more {
            true => format!("{} tasks", self.count()),
            false => counted(self.tasks, "task", "tasks"),
        }
    }

    /// Returns the noun that follows the count.
    pub fn noun(&self) -> &'static str {
        match (self.tasks, self.more) {
            (1, false) => "task",
            _ => "tasks",
        }
    }

    /// Returns the verb that follows the count and the noun.
    pub fn need(&self) -> &'static str {
        match self.noun() {
            "task" => "needs",
            _ => "need",
        }
    }

    /// Returns the place of the failure: `order › charge · agent payments · permanent`.
    pub fn place(&self) -> String {
        let mut place = match &self.workflow {
            Some(workflow) => format!("{workflow} › {}", self.step),
            None => self.step.clone(),
        };
        for (noun, value) in [("agent ", &self.agent), ("", &self.kind)] {
            if let Some(value) = value {
                place = format!("{place} · {noun}{}", value.replace('_', " "));
            }
        }
        if self.steps > self.tasks {
            place = format!("{place} · {} steps", number(self.steps));
        }
        place
    }

    pub fn last_day(&self) -> u64 {
        self.trend.by_hour.iter().sum()
    }

    /// Returns the chart of the last 24 hours.
    pub fn spark(&self) -> Html {
        let title = format!(
            "{} in the last 24 hours, by hour; {} in the last hour",
            counted(self.last_day(), "failure", "failures"),
            number(self.trend.by_hour.last().copied().unwrap_or(0)),
        );
        Spark::new(&title, &self.trend.by_hour)
    }

    /// Returns how the number of failures develops.
    pub fn development(&self, page: &Shell) -> String {
        if self.growing {
            let latest: u64 = self.trend.by_quarter.iter().rev().take(2).sum();
            return format!("growing: {} in half an hour", number(latest));
        }
        match self.last_at.parse::<jiff::Timestamp>() {
            Ok(last) => {
                let seconds = page.now.as_second() - last.as_second();
                format!("none for {}", duration_in_words(seconds))
            }
            Err(_) => String::new(),
        }
    }
}

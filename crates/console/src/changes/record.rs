//! A change as `GET /v1/changes` has it, and its sentence.

use serde::Deserialize;

use crate::{
    params::encoded,
    parts::{actor, sentence_end},
    shell::Shell,
};

/// A page of `GET /v1/changes`.
#[derive(Deserialize)]
pub struct ChangePage {
    pub items: Vec<LedgerChange>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct LedgerChange {
    pub at: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub subject: String,
    #[serde(default)]
    pub name: String,
    pub step: Option<String>,
    pub command: Option<String>,
    pub by: String,
    pub role: Option<String>,
    pub address: Option<String>,
    pub reason: Option<String>,
    #[serde(default)]
    pub differences: Vec<ChangedValue>,
    #[serde(default)]
    pub more_differences: bool,
}

/// A value before and after a change.
#[derive(Clone, Deserialize)]
pub struct ChangedValue {
    pub pointer: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

impl ChangedValue {
    /// Returns the place of the value in its document.
    pub fn place(&self) -> &str {
        match self.pointer.strip_prefix('/') {
            Some(place) => place,
            None => "all of it",
        }
    }
}

/// The look of a line: the class of its colour, and its shape.
pub struct Look {
    pub class: &'static str,
    pub shape: &'static str,
}

impl LedgerChange {
    /// Returns the change in words, without what was changed: `paused`, `version activated`.
    pub fn action(&self) -> String {
        let (subject, action) = self.kind.split_once('.').unwrap_or(("", &self.kind));
        let words = match (subject, action) {
            ("ask", "decided") => {
                let choice = self.reason.as_deref().unwrap_or("decided");
                return format!("{choice} at");
            }
            ("task", "command") => self.command.as_deref().unwrap_or("command"),
            ("workflow", "registered") => return self.with_reason("registered"),
            ("bulk_job", "added") => "begun",
            ("agent" | "schedule", "put") if self.is_new() => "registered",
            ("agent" | "schedule", "put") => "changed",
            ("agent", "breaker_set") => "breaker set",
            ("instance", "settings") => "started with other settings",
            ("instance", "released") => "released from its hold",
            ("ledger", "restored") => "restored on another server",
            (_, other) => return other.replace('_', " "),
        };
        words.replace('_', " ")
    }

    fn with_reason(&self, action: &str) -> String {
        match &self.reason {
            Some(version) => format!("{version} {action}"),
            None => action.to_owned(),
        }
    }

    /// Returns whether the document did not exist before.
    fn is_new(&self) -> bool {
        let whole = self.differences.first();
        whole.is_some_and(|whole| whole.pointer.is_empty() && whole.before.is_none())
    }

    /// Returns the kind of the thing that was changed, as a noun.
    pub fn noun(&self) -> String {
        match self.subject.as_str() {
            "bulk_job" => String::from("bulk job"),
            other => other.to_owned(),
        }
    }

    /// Returns the name of the thing that was changed. The ledger has none.
    pub fn shown_name(&self) -> &str {
        match self.subject.as_str() {
            "ledger" => "",
            _ => &self.name,
        }
    }

    /// Returns whether the name is an id, which is not read as a word.
    pub fn has_id(&self) -> bool {
        matches!(
            self.subject.as_str(),
            "task" | "bulk_job" | "alert" | "message"
        )
    }

    /// Returns the address of the page of the thing, if it has one.
    pub fn link(&self, page: &Shell) -> Option<String> {
        let is_deleted = self.kind.ends_with(".deleted");
        Some(match self.subject.as_str() {
            _ if is_deleted => return None,
            "task" => page.task(&self.name),
            "workflow" => page.workflow(&self.name),
            "agent" => page.agent(&self.name),
            "schedule" => page.schedule(&self.name),
            "bulk_job" => page.bulk(&self.name),
            "message" => page.to(&format!("/messages/{}", encoded(&self.name))),
            "instance" => page.to("/instances"),
            _ => return None,
        })
    }

    /// Returns the reason as the end of the sentence, if it is not in the action already.
    pub fn because(&self) -> Option<&str> {
        let is_in_action = matches!(&*self.kind, "workflow.registered" | "ask.decided");
        self.reason.as_deref().filter(|_| !is_in_action)
    }

    /// Returns whether a person gave the reason. That of a bulk job begins with its own words.
    pub fn is_quoted(&self) -> bool {
        self.is_by_person() && self.subject != "bulk_job"
    }

    fn is_by_person(&self) -> bool {
        self.by.starts_with("operator:") || self.by.starts_with("person:")
    }

    /// Returns the party that made the change: its name, its role and its address.
    pub fn origin(&self) -> String {
        let mut prefixes = ["instance:", "person:"].into_iter();
        let name = prefixes.find_map(|prefix| self.by.strip_prefix(prefix));
        let name = name.unwrap_or(actor(&self.by));
        let parts = [Some(name), self.role.as_deref(), self.address.as_deref()];
        sentence_end(&parts)
    }

    pub fn look(&self) -> Look {
        let (subject, action) = self.kind.split_once('.').unwrap_or_default();
        let (class, shape) = match (subject, action) {
            (_, "breaker_opened") => ("bad", "open"),
            (_, "endpoint_failing" | "endpoint_unhealthy") => ("bad", "error"),
            (_, "breaker_closed" | "endpoint_healthy") => ("good", "processed"),
            ("ledger", _) => ("bad", "warn"),
            (_, "paused" | "stopped") => ("hand", "paused"),
            (_, "resumed" | "released" | "triggered" | "backfilled") => ("hand", "processing"),
            (_, "put" | "registered" | "activated" | "settings") => ("hand", "edit"),
            (_, "deleted") => ("hand", "cancelled"),
            (_, "breaker_set") => ("hand", "open"),
            _ if self.is_by_person() => ("hand", "hand"),
            _ => ("", "dot"),
        };
        // Colour is for what people did, and for trouble.
        let class = match class {
            "hand" if !self.is_by_person() => "",
            class => class,
        };
        Look { class, shape }
    }
}

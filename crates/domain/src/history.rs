//! What happened to a task: one event a change, in order, enough to tell the whole story later.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    fault::{Effect, Fault},
    ids::{Attempt, StepName},
    lease::Term,
    time::Timestamp,
};

/// Who made a change. Written as `scheduler:<instance>`, `supervisor:<instance>#<term>`,
/// `operator:<name>` and so on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Actor(Arc<str>);

impl Actor {
    pub fn submitter() -> Self {
        Self("submitter".into())
    }

    pub fn scheduler(instance: &str) -> Self {
        Self(format!("scheduler:{instance}").into())
    }

    pub fn supervisor(instance: &str, term: Term) -> Self {
        Self(format!("supervisor:{instance}#{term}").into())
    }

    /// The service that a step calls, by its own request.
    pub fn service() -> Self {
        Self("service".into())
    }

    /// Who was asked, and has decided by a link of their own.
    pub fn person(name: &str) -> Self {
        Self(format!("person:{name}").into())
    }

    pub fn operator(name: &str) -> Self {
        Self(format!("operator:{name}").into())
    }

    pub fn is_operator(&self) -> bool {
        self.0.starts_with("operator:")
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Event {
    /// Whether it is one that a task's parent is to learn of: the task ended, or came to be in error, or is not any more.
    pub fn concerns_parent(&self) -> bool {
        let is_word = |word: &str| matches!(word, "processed" | "undone" | "cancelled" | "error");
        self.step.is_none() && (is_word(&self.to) || self.from.as_deref().is_some_and(is_word))
    }
}

/// One change of a task or of one of its steps. It is stored as the JSON that the API shows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// `task.<state>` or `step.<what happened>`.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// The state before; absent when the change made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Cow<'static, str>>,
    /// The state after.
    pub to: Cow<'static, str>,
    pub by: Actor,
    /// Why, in words for an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// From when the step may run; on a claim, since when it could have: it stood in line until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_count: Option<u32>,
    /// `unknown`: the step may have taken effect without its outcome being known.
    #[serde(rename = "outcome", default, skip_serializing_if = "Effect::is_known")]
    pub effect: Effect,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// Of `task.migrated`: of its workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionChange>,
}

/// A task moved from one version of its workflow to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionChange {
    pub from: u32,
    pub to: u32,
}

//! The history of a task: one event for each change, in order, with enough detail to reconstruct the task's course.

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::values::{
    fault::{Effect, Fault},
    ids::{Attempt, StepName},
    lease::Term,
    time::Timestamp,
};

/// The party that made a change. Written as `scheduler:<instance>`, `supervisor:<instance>#<term>`, `operator:<name>`
/// and so on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Actor(Arc<str>);

impl Actor {
    pub fn submitter() -> Self {
        // Each task that is read becomes a draft that begins with this actor: it costs no allocation.
        static SUBMITTER: LazyLock<Actor> = LazyLock::new(|| Actor("submitter".into()));
        SUBMITTER.clone()
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

    /// A person who was asked, and has decided through a link of their own.
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
    /// Returns whether the task's parent must be informed of the event: the task has ended, is in error, or is no
    /// longer.
    pub fn concerns_parent(&self) -> bool {
        let is_word = |word: &str| matches!(word, "processed" | "undone" | "cancelled" | "error");
        self.step.is_none() && (is_word(&self.to) || self.from.as_deref().is_some_and(is_word))
    }
}

// The store keeps an event as the JSON that the API shows.
/// One change of a task or of one of its steps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = HistoryEvent)]
pub struct Event {
    /// `task.accepted`, `step.claimed`, `step.retrying`, `step.expired` and so on. An open set: later versions of
    /// Provost may add types, which clients should ignore.
    #[serde(rename = "type")]
    #[schema(example = "step.claimed")]
    pub kind: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "charge")]
    pub step: Option<StepName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, example = 1)]
    pub attempt: Option<Attempt>,
    /// The previous state of the step or of the task; absent if the change created it. An open set, as `type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "pending")]
    pub from: Option<Cow<'static, str>>,
    /// The new state of the step or of the task. An open set, as `type`.
    #[schema(example = "processing")]
    pub to: Cow<'static, str>,
    /// `submitter`, or `scheduler:`, `supervisor:` or `operator:` and a name; for the supervisor with its term, as in
    /// `supervisor:worker-1#4`.
    #[schema(value_type = String, example = "scheduler:node-1")]
    pub by: Actor,
    /// The reason, in words for an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time from which the step may run; for a claim, the time from which it could have: it was queued until the
    /// claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_count: Option<u32>,
    /// `unknown`: the step may have taken effect, but Provost does not know.
    #[serde(rename = "outcome", default, skip_serializing_if = "Effect::is_known")]
    pub effect: Effect,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// The versions of the workflow, for `task.migrated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionChange>,
}

/// The versions of the workflow between which a task moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VersionChange {
    #[schema(example = 3)]
    pub from: u32,
    #[schema(example = 4)]
    pub to: u32,
}

impl Event {
    /// The first entry of a history: a task was submitted.
    pub fn submission(state: &'static str, by: Actor) -> Self {
        Self::new("task.accepted", state, by)
    }

    /// The state of a task has changed.
    pub fn task_change(
        kind: &'static str,
        from: &'static str,
        to: &'static str,
        by: Actor,
    ) -> Self {
        Self {
            from: Some(from.into()),
            ..Self::new(kind, to, by)
        }
    }

    /// Something happened to a task that stays in its state.
    pub fn task_note(kind: &'static str, state: &'static str, by: Actor) -> Self {
        Self::task_change(kind, state, state, by)
    }

    /// The state of a step has changed.
    pub fn step_change(
        kind: &'static str,
        step: StepName,
        from: &'static str,
        to: &'static str,
        by: Actor,
    ) -> Self {
        Self {
            step: Some(step),
            ..Self::task_change(kind, from, to, by)
        }
    }

    /// Something happened to a step that stays in its state.
    pub fn step_note(kind: &'static str, step: StepName, state: &'static str, by: Actor) -> Self {
        Self::step_change(kind, step, state, state, by)
    }

    fn new(kind: &'static str, to: &'static str, by: Actor) -> Self {
        Self {
            kind: kind.into(),
            step: None,
            attempt: None,
            from: None,
            to: to.into(),
            by,
            reason: None,
            ready_at: None,
            failure_count: None,
            effect: Effect::Known,
            error: None,
            versions: None,
        }
    }
}

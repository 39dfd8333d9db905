//! Two tasks beside each other, from `GET /v1/tasks/{id}/diff/{other}`: the sentence first, then what differs.

use askama::Template;
use serde::Deserialize;

use super::{
    excerpt,
    record::{Raw, readable_duration},
};
use crate::shell::Shell;

#[derive(Deserialize)]
pub struct Difference {
    pub sentence: String,
    pub a: TaskSide,
    pub b: TaskSide,
    pub definition: Definitions,
    pub submission: Values,
    pub input: Values,
    #[serde(default)]
    pub steps: Vec<ComparedStep>,
    #[serde(default)]
    pub more_steps: bool,
}

#[derive(Deserialize)]
pub struct TaskSide {
    pub id: Option<String>,
    pub key: Option<String>,
    pub workflow: Option<String>,
    pub workflow_version: Option<u32>,
    pub state: Option<String>,
    pub duration: Option<String>,
}

impl TaskSide {
    pub fn name(&self) -> String {
        self.key
            .clone()
            .or_else(|| self.id.clone())
            .unwrap_or_else(|| String::from("the new task"))
    }

    pub fn duration(&self) -> Option<String> {
        self.duration.as_deref().map(readable_duration)
    }

    pub fn workflow(&self) -> String {
        match (&self.workflow, self.workflow_version) {
            (Some(name), Some(version)) => format!("{name} {version}"),
            (Some(name), None) => name.clone(),
            (None, _) => String::from("inline steps"),
        }
    }
}

#[derive(Deserialize)]
pub struct Definitions {
    #[serde(default)]
    pub same: bool,
    pub differences: Values,
}

#[derive(Default, Deserialize)]
pub struct Values {
    pub items: Vec<Value>,
    #[serde(default)]
    pub more: bool,
}

#[derive(Deserialize)]
pub struct Value {
    pub pointer: String,
    pub a: Option<Compared>,
    pub b: Option<Compared>,
    pub follows_from: Option<String>,
}

impl Value {
    /// Returns whether the value differs for a reason of its own, and not because ids and keys differ.
    pub fn matters(&self) -> bool {
        self.follows_from.is_none()
    }
}

#[derive(Deserialize)]
pub struct Compared {
    pub value: Option<Raw>,
    pub excerpt: Option<String>,
    #[serde(default)]
    pub bytes: u64,
}

impl Compared {
    pub fn text(&self) -> String {
        match (&self.value, &self.excerpt) {
            (Some(value), _) => excerpt::brief(value.get(), 80),
            (None, Some(excerpt)) => format!("{excerpt} ({} bytes)", self.bytes),
            (None, None) => String::from("null"),
        }
    }
}

#[derive(Deserialize)]
pub struct ComparedStep {
    pub name: String,
    #[serde(default)]
    pub differs: Vec<String>,
    pub a: Option<StepSide>,
    pub b: Option<StepSide>,
    pub request: Option<Values>,
    pub response: Option<Values>,
}

#[derive(Deserialize)]
pub struct StepSide {
    pub state: String,
    #[serde(default)]
    pub attempts: u32,
    pub duration: Option<String>,
    pub reason: Option<String>,
    pub attempt: Option<ComparedAttempt>,
}

#[derive(Deserialize)]
pub struct ComparedAttempt {
    pub status: Option<u16>,
    pub endpoint: Option<String>,
    pub instance: Option<String>,
}

impl StepSide {
    pub fn words(&self) -> String {
        let attempt = self.attempt.as_ref();
        let status = attempt
            .and_then(|attempt| attempt.status)
            .map(|status| status.to_string());
        let attempts = (self.attempts > 1).then(|| format!("{} attempts", self.attempts));
        let at = attempt.and_then(|attempt| attempt.endpoint.clone());
        let by = attempt
            .and_then(|attempt| attempt.instance.as_ref())
            .map(|instance| format!("by {instance}"));
        let reason = self.reason.clone().filter(|_| status.is_none());
        [
            status,
            reason,
            self.duration.as_deref().map(readable_duration),
            attempts,
            at,
            by,
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
    }
}

/// A list of values that differ, with its title.
pub struct ValueSection<'d> {
    pub title: String,
    pub values: Vec<&'d Value>,
    pub left_out: usize,
    pub more: bool,
}

#[derive(Template)]
#[template(path = "task/compare.html")]
pub struct ComparePage {
    pub page: Shell,
    pub id: String,
    pub with: String,
    pub difference: Difference,
}

impl ComparePage {
    pub fn task_link(&self) -> String {
        self.page.task(&self.id)
    }

    pub fn link(&self, side: &TaskSide) -> Option<String> {
        side.id.as_deref().map(|id| self.page.task(id))
    }

    /// Returns the sections that have differences, those of the step that differs most first.
    pub fn sections(&self) -> Vec<ValueSection<'_>> {
        let difference = &self.difference;
        let mut lists = Vec::new();
        for step in difference
            .steps
            .iter()
            .filter(|step| !step.differs.is_empty())
        {
            lists.push((
                format!("{}: what was sent", step.name),
                step.request.as_ref(),
            ));
            lists.push((format!("{}: what came", step.name), step.response.as_ref()));
        }
        lists.push((
            String::from("Definition"),
            Some(&difference.definition.differences),
        ));
        lists.push((String::from("Input"), Some(&difference.input)));
        lists.push((String::from("Submission"), Some(&difference.submission)));
        let sections = lists.into_iter().filter_map(|(title, values)| {
            let values = values?;
            let shown: Vec<&Value> = values
                .items
                .iter()
                .filter(|value| value.matters())
                .collect();
            let left_out = values.items.len() - shown.len();
            (!shown.is_empty()).then_some(ValueSection {
                title,
                values: shown,
                left_out,
                more: values.more,
            })
        });
        sections.collect()
    }
}

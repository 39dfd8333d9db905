//! The check of an agent from the console: the request of a person, and what the service did with it.

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    command_page::{CommandPage, Field},
    form::read_form,
    params::encoded,
    respond,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// A step to begin with.
const EXAMPLE: &str = r#"{
  "request": { "path": "/", "body": "{{ input }}" },
  "input": {}
}"#;

/// The response of `POST /v1/agents/{name}/check`.
#[derive(Deserialize)]
pub struct Check {
    pub status: String,
    pub checked_at: String,
    #[serde(default)]
    pub findings: Vec<Finding>,
    #[serde(default)]
    pub exchanges: Vec<CheckedCall>,
}

#[derive(Deserialize)]
pub struct Finding {
    pub name: String,
    pub status: String,
    pub seen: String,
    pub means: String,
}

#[derive(Deserialize)]
pub struct CheckedCall {
    pub number: u32,
    pub purpose: String,
    pub method: String,
    pub path: String,
    pub status: Option<u16>,
    pub fault: Option<String>,
    pub millis: u64,
}

#[derive(Template)]
#[template(path = "agent_check.html")]
pub struct CheckPage {
    pub page: Shell,
    pub agent: String,
    pub check: Check,
}

impl Check {
    /// Returns the result in words.
    pub fn sentence(&self) -> &'static str {
        match self.status.as_str() {
            "passed" => "it does what steps rely on",
            "failed" => "it does not do all that steps rely on",
            _ => "not all that steps rely on could be seen",
        }
    }
}

impl Finding {
    /// Returns the class and the icon of the status.
    pub fn badge(&self) -> (&'static str, &'static str) {
        match self.status.as_str() {
            "passed" => ("ok", "ok"),
            "failed" => ("error", "error"),
            "not_applicable" => ("pending", "pending"),
            _ => ("paused", "warn"),
        }
    }

    /// Returns the status or the point in words.
    pub fn words(text: &str) -> String {
        text.replace('_', " ")
    }

    /// Returns the place in the list: what failed comes first, and what steps do not rely on comes last.
    fn place(&self) -> usize {
        let order = ["failed", "inconclusive", "passed", "not_applicable"];
        let place = order.iter().position(|status| *status == self.status);
        place.unwrap_or(1)
    }
}

impl CheckPage {
    pub fn again(&self) -> String {
        self.page.agent_command(&self.agent, "check")
    }
}

pub async fn preview(Path(name): Path<String>, visit: Visit) -> Response {
    respond::page(StatusCode::OK, &build_preview(&visit, &name, EXAMPLE))
}

fn build_preview(visit: &Visit, name: &str, step: &str) -> CommandPage {
    let title = format!("Check agent {name} with requests of a step");
    let page = visit.shell(Section::Agents, title.clone());
    CommandPage {
        action: page.agent_command(name, "check"),
        back: page.agent(name),
        button: format!("Check {name}"),
        asks_reason: false,
        reason: String::new(),
        is_final: true,
        needs_admin: true,
        fault: None,
        consequences: vec![
            String::from(
                "The service is called about a dozen times, as steps would call it: twice under one Idempotency-Key, after a lost response, after complete_by. It does real work, which is undone if the step has an undo.",
            ),
            String::from(
                "The check takes up to a minute, or as long as the member within says. Its result is kept with the agent, and dry runs warn of it.",
            ),
        ],
        fields: vec![Field::text(
            "step",
            "A step as a workflow has it, with its input, as JSON",
            step,
        )],
        title,
        page,
    }
}

pub async fn check(Path(name): Path<String>, visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    let step = form.text("step");
    match send(&visit, &name, step).await {
        Ok(mut check) => {
            check.findings.sort_by_key(Finding::place);
            let page = visit.shell(Section::Agents, format!("Check of agent {name}"));
            let agent = name;
            respond::page(StatusCode::OK, &CheckPage { page, agent, check })
        }
        Err(refusal) if matches!(refusal.status, 400 | 409 | 422) => {
            let page = build_preview(&visit, &name, step).refused(&refusal);
            respond::page(refusal.status(), &page)
        }
        Err(refusal) => visit.refused(&refusal),
    }
}

async fn send(visit: &Visit, name: &str, step: &str) -> Result<Check, Refusal> {
    let body = RawValue::from_string(step.to_owned()).map_err(|fault| {
        Refusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The step is not JSON",
            format!("{fault}; correct the step"),
        )
    })?;
    let target = format!("/v1/agents/{}/check", encoded(name));
    visit.post(&target, HeaderMap::new(), &body).await
}

//! The submission of one task of a workflow: its preview, and the command.

use std::collections::BTreeMap;

use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    assets::hex,
    command_page::{CommandPage, Field},
    form::read_form,
    params::{Params, encoded},
    respond,
    service::Refusal,
    shell::Section,
    visit::Visit,
};

/// The members of a submission, each as JSON text.
pub type Submission = BTreeMap<&'static str, Box<RawValue>>;

/// Returns a submission of this version with an input that a person typed. It is passed on as it was typed, with all its digits.
pub fn submission(name: &str, version: u32, input: &str) -> Result<Submission, Refusal> {
    let bad = |fault: serde_json::Error| {
        Refusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The input is not JSON",
            format!("{fault}; correct the input"),
        )
    };
    Ok(Submission::from([
        ("workflow", to_raw_value(name).map_err(bad)?),
        ("workflow_version", to_raw_value(&version).map_err(bad)?),
        (
            "input",
            RawValue::from_string(input.to_owned()).map_err(bad)?,
        ),
    ]))
}

fn version_of(params: &Params) -> Result<u32, Refusal> {
    let text = params.text("version").trim();
    text.parse()
        .map_err(|_| Refusal::of_value("version", text, "the number of a version, such as 2"))
}

pub async fn preview(Path(name): Path<String>, visit: Visit) -> Response {
    let page = build_preview(&visit, &name, &visit.query);
    visit.show(page)
}

fn build_preview(visit: &Visit, name: &str, typed: &Params) -> Result<CommandPage, Refusal> {
    let version = version_of(typed)?;
    let title = format!("Submit a task of workflow {name}");
    let page = visit.shell(Section::Workflows, title.clone());
    let once = hex(&rand::random::<[u8; 16]>());
    Ok(CommandPage {
        action: page.to(&format!("/workflows/{}/submit", encoded(name))),
        back: page.workflow(name),
        button: title.clone(),
        asks_reason: false,
        reason: String::new(),
        is_final: false,
        needs_admin: false,
        fault: None,
        consequences: vec![
            format!("A task of version {version} begins at once, and its steps are called."),
            String::from(
                "The key is a name by which you find the task; it does not keep a second task from having it.",
            ),
        ],
        fields: vec![
            Field::text("input", "Input, as JSON", typed.text("input")),
            Field::new(
                "key",
                "Key, such as the number of the order",
                typed.text("key"),
            ),
            Field::hidden("version", &version.to_string()),
            Field::hidden("once", &once),
        ],
        title,
        page,
    })
}

#[derive(Deserialize)]
struct Submitted {
    id: String,
}

pub async fn submit(Path(name): Path<String>, visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    match send(&visit, &name, &form).await {
        Ok(task) => visit.go(&format!("/tasks/{}", encoded(&task))),
        Err(refusal) if matches!(refusal.status, 400 | 422) => {
            match build_preview(&visit, &name, &form) {
                Ok(page) => respond::page(refusal.status(), &page.refused(&refusal)),
                Err(refusal) => visit.refused(&refusal),
            }
        }
        Err(refusal) => visit.refused(&refusal),
    }
}

async fn send(visit: &Visit, name: &str, form: &Params) -> Result<String, Refusal> {
    let mut body = submission(name, version_of(form)?, form.text("input"))?;
    if let Some(key) = form.get("key").filter(|key| !key.is_empty()) {
        body.extend(to_raw_value(key).ok().map(|key| ("key", key)));
    }
    let mut headers = HeaderMap::new();
    if let Ok(once) = HeaderValue::try_from(form.text("once")) {
        headers.insert(HeaderName::from_static("idempotency-key"), once);
    }
    let submitted: Submitted = visit.post("/v1/tasks", headers, &body).await?;
    Ok(submitted.id)
}

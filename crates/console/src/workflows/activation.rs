//! The activation of a version of a workflow: its preview, and the command.

use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::page::Activation;
use crate::{
    changed::{self, LineRow, is_change},
    command_page::{CommandPage, Field},
    form::read_form,
    params::{Params, encoded},
    service::Refusal,
    shell::Section,
    visit::Visit,
};

/// The part of a workflow that the preview needs.
#[derive(Deserialize)]
struct Active {
    active_version: u64,
    #[serde(default)]
    activations: Vec<Activation>,
}

impl Active {
    fn lines(&self) -> Vec<LineRow> {
        let lines = self.activations.iter().map(|activation| {
            let what = format!("version {} activated", activation.version);
            let reason = activation.reason.as_deref();
            LineRow::done(&activation.at, &activation.by, what, reason)
        });
        lines.collect()
    }
}

pub async fn preview(Path(name): Path<String>, visit: Visit) -> Response {
    let page = build_preview(&visit, &name).await;
    visit.show(page)
}

async fn build_preview(visit: &Visit, name: &str) -> Result<CommandPage, Refusal> {
    let target = format!("/v1/workflows/{}", encoded(name));
    let (workflow, tag) = visit.get_tagged::<Active>(&target).await?;
    let version = version_of(&visit.query)?.to_string();
    let title = format!("Activate version {version} of workflow {name}");
    let page = visit.shell(Section::Workflows, title.clone());
    let mut fields = vec![Field::new("version", "Version", &version)];
    if let Some(tag) = tag {
        fields.push(Field::hidden("if_match", &tag));
    }
    Ok(CommandPage {
        action: page.to(&format!("/workflows/{}/activate", encoded(name))),
        back: page.workflow(name),
        button: title.clone(),
        asks_reason: true,
        reason: String::new(),
        is_final: false,
        needs_admin: true,
        fault: None,
        consequences: vec![
            format!(
                "New tasks follow version {version}; they follow version {} now.",
                workflow.active_version
            ),
            String::from("Tasks that exist keep their version, unless they are moved."),
        ],
        fields,
        title,
        page,
    })
}

/// Returns the version that the address or the form names.
fn version_of(params: &Params) -> Result<u64, Refusal> {
    let text = params.text("version").trim();
    text.parse()
        .map_err(|_| Refusal::of_value("version", text, "the number of a version, such as 2"))
}

pub async fn activate(Path(name): Path<String>, visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    let mut body = match version_of(&form) {
        Ok(version) => json!({ "version": version }),
        Err(refusal) => return visit.refused(&refusal),
    };
    if let Some(reason) = form.get("reason") {
        body["reason"] = reason.into();
    }
    let mut headers = HeaderMap::new();
    if let Some(tag) = form.get("if_match").and_then(|tag| tag.parse().ok()) {
        headers.insert(http::header::IF_MATCH, tag);
    }
    let target = format!("/v1/workflows/{}/activate", encoded(&name));
    let sent: Result<Value, Refusal> = visit.post(&target, headers, &body).await;
    match sent {
        Ok(_) => visit.go(&format!("/workflows/{}", encoded(&name))),
        Err(refusal) if is_change(&refusal) => {
            let of = format!("/v1/workflows/{}", encoded(&name));
            let now = visit.get::<Active>(&of).await;
            let changes = now.map(|workflow| workflow.lines());
            let sent = changed::Refused {
                section: Section::Workflows,
                list: "workflows",
                path: format!("/workflows/{}", encoded(&name)),
                name: format!("workflow {name}"),
                command: "activate",
                form: &form,
                has_preview: true,
            };
            changed::respond(&visit, refusal, &sent, changes.unwrap_or_default())
        }
        Err(refusal) => visit.refused(&refusal),
    }
}

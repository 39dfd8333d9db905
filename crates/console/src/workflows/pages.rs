//! The list of workflows, the page of one with its versions and the difference of two, and the activation of a version.

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    command_page::{CommandPage, Field},
    form::read_form,
    json::{Line, difference, only_changes},
    params::{Params, encoded},
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

#[derive(Deserialize)]
struct WorkflowPage {
    items: Vec<WorkflowHead>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct WorkflowHead {
    name: String,
    version: u64,
    active_version: u64,
    description: Option<String>,
    created_at: String,
}

#[derive(Deserialize)]
struct Workflow {
    #[serde(flatten)]
    head: WorkflowHead,
    #[serde(default)]
    activations: Vec<Activation>,
}

#[derive(Deserialize)]
struct Activation {
    version: u64,
    from_version: u64,
    at: String,
    by: String,
    reason: Option<String>,
}

/// The steps of a version, as they were registered.
#[derive(Deserialize)]
struct Definition {
    steps: Box<RawValue>,
}

#[derive(Template)]
#[template(path = "workflows.html")]
struct WorkflowsPage {
    page: Shell,
    workflows: Vec<WorkflowHead>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "workflow.html")]
struct OneWorkflowPage {
    page: Shell,
    workflow: Workflow,
    versions: Vec<WorkflowHead>,
    /// The version that is shown, and the one that it is compared with.
    shown: u64,
    compared: Option<u64>,
    steps: Vec<Line>,
}

impl OneWorkflowPage {
    fn version(&self, version: &u64) -> String {
        self.page.to(&format!(
            "/workflows/{}?version={version}",
            encoded(&self.workflow.head.name)
        ))
    }

    fn diff(&self, version: &u64) -> String {
        format!(
            "{}&diff={}",
            self.version(version),
            self.workflow.head.active_version
        )
    }

    fn activate(&self, version: &u64) -> String {
        self.page.to(&format!(
            "/workflows/{}/activate?version={version}",
            encoded(&self.workflow.head.name)
        ))
    }

    fn tasks_in_error(&self) -> String {
        let query = Params::from_iter([
            ("state", "error"),
            ("workflow", self.workflow.head.name.as_str()),
        ]);
        self.page.to(&format!("/tasks{}", query.query()))
    }

    fn is_admin(&self) -> bool {
        self.page.person.role == crate::service::Role::Admin
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build_list(&visit).await;
    visit.show(page)
}

async fn build_list(visit: &Visit) -> Result<WorkflowsPage, Refusal> {
    let mut query = Params::from_iter([("limit", "50")]);
    if let Some(cursor) = visit.query.get("after") {
        query = query.with("cursor", cursor);
    }
    let list: WorkflowPage = visit
        .get(&format!("/v1/workflows{}", query.query()))
        .await?;
    Ok(WorkflowsPage {
        page: visit.shell(Section::Workflows, "Workflows"),
        next: next_page(&Params::default(), list.next_cursor.as_deref()),
        workflows: list.items,
    })
}

pub async fn show(Path(name): Path<String>, visit: Visit) -> Response {
    let page = build(&visit, &name).await;
    visit.show(page)
}

async fn definition(visit: &Visit, name: &str, version: u64) -> Result<Definition, Refusal> {
    visit
        .get(&format!(
            "/v1/workflows/{}/versions/{version}",
            encoded(name)
        ))
        .await
}

async fn build(visit: &Visit, name: &str) -> Result<OneWorkflowPage, Refusal> {
    let target = format!("/v1/workflows/{}", encoded(name));
    let versions = format!("{target}/versions?limit=20");
    let (workflow, versions) = tokio::join!(
        visit.get::<Workflow>(&target),
        visit.get::<WorkflowPage>(&versions)
    );
    let (workflow, versions) = (workflow?, versions?);
    let number = |name: &str| {
        visit
            .query
            .get(name)
            .and_then(|text| text.parse::<u64>().ok())
    };
    let shown = number("version").unwrap_or(workflow.head.active_version);
    let compared = number("diff").filter(|compared| *compared != shown);
    let this = definition(visit, name, shown).await?;
    let other = match compared {
        Some(compared) => definition(visit, name, compared).await?,
        None => definition(visit, name, shown).await?,
    };
    Ok(OneWorkflowPage {
        page: visit.shell(Section::Workflows, format!("Workflow {name}")),
        steps: match compared {
            Some(_) => only_changes(by_name(other.steps.get(), this.steps.get())),
            None => by_name(other.steps.get(), this.steps.get()),
        },
        versions: versions.items,
        workflow,
        shown,
        compared,
    })
}

/// Compares the steps of two versions by their names.
fn by_name(before: &str, after: &str) -> Vec<Line> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let object = |steps: &str| -> Option<String> {
        let steps: Vec<&RawValue> = serde_json::from_str(steps).ok()?;
        let members: Option<Vec<_>> = steps
            .iter()
            .map(|step| {
                let named: Named = serde_json::from_str(step.get()).ok()?;
                Some(format!("{}:{}", json!(named.name), step.get()))
            })
            .collect();
        Some(format!("{{{}}}", members?.join(",")))
    };
    match (object(before), object(after)) {
        (Some(before), Some(after)) => difference(&before, &after),
        _ => difference(before, after),
    }
}

pub async fn preview(Path(name): Path<String>, visit: Visit) -> Response {
    let page = build_preview(&visit, &name).await;
    visit.show(page)
}

async fn build_preview(visit: &Visit, name: &str) -> Result<CommandPage, Refusal> {
    let target = format!("/v1/workflows/{}", encoded(name));
    let (workflow, tag) = visit.get_tagged::<Workflow>(&target).await?;
    let version = visit.query.text("version").to_owned();
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
        is_final: false,
        consequences: vec![
            format!(
                "New tasks follow version {version}; they follow version {} now.",
                workflow.head.active_version
            ),
            String::from("Tasks that exist keep their version, unless they are moved."),
        ],
        fields,
        title,
        page,
    })
}

pub async fn activate(Path(name): Path<String>, visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    let mut body = json!({ "version": form.text("version").trim().parse::<u64>().unwrap_or(0) });
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
        Err(refusal) => visit.refused(&refusal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_two_versions_are_compared_by_their_names() {
        let lines = by_name(
            r#"[{"name":"a","agent":"x"},{"name":"b","agent":"y"}]"#,
            r#"[{"name":"b","agent":"z"},{"name":"c","agent":"x"}]"#,
        );
        let changed: Vec<_> = lines.iter().filter(|line| line.mark != ' ').collect();
        let text: Vec<_> = changed
            .iter()
            .map(|line| format!("{}{}", line.mark, line.text.trim()))
            .collect();
        assert!(
            text.contains(&String::from("-\"agent\": \"y\"")),
            "{text:?}"
        );
        assert!(
            text.contains(&String::from("+\"agent\": \"z\"")),
            "{text:?}"
        );
        assert!(text.contains(&String::from("-\"a\": {")), "{text:?}");
        assert!(text.contains(&String::from("+\"c\": {")), "{text:?}");
    }
}

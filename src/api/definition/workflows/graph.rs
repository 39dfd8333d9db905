//! Draws a workflow.

use std::sync::Arc;

use axum::{extract::State, http::HeaderMap, response::Response};

use super::{VersionChoice, no_such_workflow, resolve};
use crate::{
    api::{
        App, Problem,
        extract::{NamePath, PlainName, Query},
        view::drawing::{PictureQuery, form, picture},
    },
    domain::{values::WorkflowName, view::draw},
};

/// Draw a workflow
///
/// Its steps with their agents and conditions, their dependencies, their undo actions (dashed) and the pivot, as
/// Mermaid or as DOT for Graphviz.
#[utoipa::path(
    get, path = "/v1/workflows/{name}/graph", tag = "workflows", operation_id = "workflow_graph",
    params(
        ("name" = PlainName, Path, description = "The workflow's name", example = "order"),
        ("version" = Option<u32>, Query, minimum = 1, description = "Counted from 1; the default is the latest", example = 3),
        PictureQuery,
    ),
    responses((status = 200, description = "The diagram",
        content((String = "text/vnd.mermaid"), (String = "text/vnd.graphviz")))),
)]
pub(super) async fn graph(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    headers: HeaderMap,
    mut query: Query,
) -> Result<Response, Problem> {
    let form = form(&mut query, &headers)?;
    let version = query.integer("version", 1..=i64::from(u32::MAX))?;
    query.finish()?;
    // The number is within the range of versions.
    let version = version.map(|version| version as u32);
    let name = WorkflowName::new(name);
    let choice = version.map_or(VersionChoice::Latest, VersionChoice::Number);
    let Some(known) = resolve(&app, &name, choice).await? else {
        return Err(no_such_workflow(&name, version));
    };
    let title = format!("{name}, version {}", known.workflow.version);
    Ok(picture(form, draw(&title, &known.definition, None, form)))
}

//! Draws a task.

use std::sync::Arc;

use axum::{extract::State, http::HeaderMap, response::Response};

use super::{load, with_etag};
use crate::{
    api::{
        App, Problem,
        extract::{Query, TaskParams, TaskPath},
        view::drawing::{PictureQuery, form, picture},
    },
    domain::view::draw,
};

/// Draw a task
///
/// Its steps coloured by state, with their dependencies and undo actions, as Mermaid or as DOT for Graphviz.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/graph", tag = "tasks", operation_id = "task_graph",
    params(TaskParams, PictureQuery),
    responses((status = 200, description = "The diagram; the task's version is the ETag",
        content((String = "text/vnd.mermaid"), (String = "text/vnd.graphviz")))),
)]
pub(super) async fn graph(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    headers: HeaderMap,
    mut query: Query,
) -> Result<Response, Problem> {
    let form = form(&mut query, &headers)?;
    query.finish()?;
    let task = load(&app, id).await?;
    let state = task.status().as_str();
    let title = match &task.details.workflow {
        Some(workflow) => format!("{} {id}: {state}", workflow.name),
        None => format!("{id}: {state}"),
    };
    let drawn = draw(&title, &task.details.definition, Some(&task), form);
    Ok(with_etag(picture(form, drawn), &task))
}

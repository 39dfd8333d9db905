//! Tasks: submitted, read, commanded.

mod bulk;
mod clone;
mod commands;
mod events;
mod graph;
mod places;
mod read;
mod submit;
mod summary;
mod undo_plan;

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::places::with_places;
use super::{App, Problem, extract::LONGEST_WAIT};
use crate::{
    domain::{AgentName, Task, TaskId, TaskView},
    store::{Accepted, Interest, Watch},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(submit::submit, read::list))
        .routes(routes!(bulk::retry_tasks))
        .routes(routes!(bulk::undo_tasks))
        .routes(routes!(bulk::cancel_tasks))
        .routes(routes!(bulk::skip_tasks))
        .routes(routes!(read::get))
        .routes(routes!(events::history))
        .routes(routes!(graph::graph))
        .routes(routes!(events::events))
        .routes(routes!(clone::clone))
        .routes(routes!(commands::cancel))
        .routes(routes!(commands::pause))
        .routes(routes!(commands::resume))
        .routes(routes!(undo_plan::show))
        .routes(routes!(commands::undo))
        .routes(routes!(commands::retry))
        .routes(routes!(commands::retry_step))
        .routes(routes!(commands::skip_step))
        .routes(routes!(commands::resolve_step))
}

async fn load(app: &App, id: TaskId) -> Result<Arc<Task>, Problem> {
    match app.store.reader.task(id).await? {
        Some(task) => Ok(Arc::new(task)),
        None => Err(no_such_task(id)),
    }
}

fn no_such_task(id: TaskId) -> Problem {
    Problem::new(
        super::problem::Kind::NoSuchTask,
        format!("there is no task {id}; ended tasks are deleted after the retention time"),
    )
}

/// The task that an accepted command concerns.
async fn accepted(app: &App, accepted: Accepted) -> Result<Arc<Task>, Problem> {
    match accepted {
        Accepted::Now(task) => Ok(task),
        Accepted::Before(id) => load(app, id).await,
    }
}

/// Waits until the task has come to rest since `known`, the service stops, or the wait is over.
async fn settled(app: &App, watch: &mut Watch, known: &Task, wait: Duration) -> Option<Arc<Task>> {
    tokio::select! {
        task = watch.newer(known.version) => Some(task),
        () = app.stop.cancelled() => None,
        () = tokio::time::sleep(wait.min(LONGEST_WAIT.duration())) => None,
    }
}

fn watch(app: &App, id: TaskId) -> Watch {
    app.store.watchers.watch(id, Interest::Settled)
}

/// The task as body, its version as ETag.
async fn render(app: &App, status: StatusCode, task: &Task) -> Result<Response, Problem> {
    // What was committed is answered for, even if the store cannot be asked any more where its steps stand.
    let now = app.store.reader.now().await.unwrap_or(task.created_at);
    let view = TaskView::new(task, now);
    let knows = |agent: &AgentName| app.agents.get(agent).is_some();
    let placed = with_places(view, task, &*app.store.reader, knows).await;
    let view = placed.unwrap_or_else(|_| TaskView::new(task, now));
    Ok(with_etag(json(status, &view), task))
}

fn with_etag(mut response: Response, task: &Task) -> Response {
    if let Ok(etag) = HeaderValue::from_str(&format!("\"{}\"", task.version)) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

fn json<T: serde::Serialize>(status: StatusCode, body: &T) -> Response {
    // Everything that is answered has string keys and finite numbers, and so always serialises.
    let body = serde_json::to_vec(body).unwrap_or_default();
    let headers = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )];
    (status, headers, Body::from(body)).into_response()
}

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
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use tracing::debug;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::places::{count_ahead, tell_other_reasons};
use super::{App, Problem, extract::LONGEST_WAIT};
use crate::{
    domain::{AgentName, Task, TaskId, TaskView},
    store::{Interest, Submitted, Watch},
};

/// How many seconds later a caller may ask again for a task that is under way.
const POLL_AFTER: &str = "1";

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
async fn accepted(app: &App, accepted: Submitted) -> Result<Arc<Task>, Problem> {
    match accepted {
        Submitted::New(task) => Ok(task),
        Submitted::Replayed(id) => load(app, id).await,
    }
}

/// What came of waiting for a task.
#[derive(PartialEq)]
enum Waited {
    Settled(Arc<Task>),
    InVain,
    /// Too many wait already.
    Refused,
}

/// Waits until the task has come to rest since `known`, the service stops, or the wait is over.
async fn settled(app: &App, watch: &mut Watch, known: &Task, wait: Duration) -> Waited {
    let Ok(_place) = app.waits.try_acquire() else {
        return Waited::Refused;
    };
    tokio::select! {
        task = watch.newer(known.version) => Waited::Settled(task),
        () = app.stop.cancelled() => Waited::InVain,
        () = tokio::time::sleep(wait.min(LONGEST_WAIT.duration())) => Waited::InVain,
    }
}

fn say_replayed(response: &mut Response) {
    let name = HeaderName::from_static("idempotency-replayed");
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static("true"));
}

fn watch(app: &App, id: TaskId) -> Watch {
    app.store.watchers.watch(id, Interest::Settled)
}

/// The task as body, its version as ETag. It reads nothing more: this is on the way of every submission.
async fn render(app: &App, status: StatusCode, task: &Task) -> Response {
    let view = view(app, task).await;
    with_etag(to_poll(json(status, &view), task), task)
}

/// While a task is under way, when to ask for it again.
fn to_poll(mut response: Response, task: &Task) -> Response {
    if !task.is_settled() {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static(POLL_AFTER));
    }
    response
}

/// As [`render`], with the places of its steps in the queues of their agents.
async fn render_with_places(app: &App, task: &Task) -> Response {
    let mut view = view(app, task).await;
    // The task was read: without these places it is worth an answer as well.
    if let Err(error) = count_ahead(&mut view, task, &*app.store.reader).await {
        debug!(%error, "places in the queues of agents could not be counted");
    }
    with_etag(to_poll(json(StatusCode::OK, &view), task), task)
}

async fn view<'a>(app: &App, task: &'a Task) -> TaskView<'a> {
    // What was committed is answered for, even if the store cannot be asked any more.
    let now = app.store.reader.now().await.unwrap_or(task.created_at);
    let mut view = TaskView::new(task, now);
    let knows = |agent: &AgentName| app.agents.get(agent).is_some();
    tell_other_reasons(&mut view, knows, app.hold.is_held());
    view
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

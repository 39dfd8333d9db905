//! Tasks: submission, reads and commands.

pub(crate) mod alerts;
pub(crate) mod ask;
pub(crate) mod ask_html;
pub(crate) mod ask_page;
pub(crate) mod bulk;
pub(crate) mod bulk_log;
pub(crate) mod ended;
pub(crate) mod replies;

mod attempts;
mod clone;
mod commands;
mod difference;
pub(in crate::api) mod events;
pub(super) mod failures;
mod graph;
pub(in crate::api) mod hidden_bodies;
mod message;
mod migrate;
mod queue_position;
mod read;
mod scheduled;
mod signals;
mod steps;
mod submit;
mod summary;
mod undo_plan;

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper::body::Body as HttpBody;
use tracing::debug;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use self::message::{refusal_address, submit_message};
pub use self::scheduled::{check_scheduled, submit_run};
use self::{
    hidden_bodies::{hidden, hide_in_task},
    queue_position::{count_ahead, explain_key_limits, explain_other_reasons},
};
use super::{
    App, Problem,
    byte_budget::{SMALL, ShortForm},
    extract::LONGEST_WAIT,
};
use crate::{
    clock,
    domain::{
        queue::LaneRule,
        task::Task,
        values::{AgentName, TaskId},
        view::{Extent, StepView, TaskView},
    },
    store::{Submitted, Watch},
};

/// Retry-After, in seconds, for a task that is still running.
const POLL_AFTER: &str = "1";

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(submit::submit, read::list))
        .routes(routes!(bulk::retry_tasks))
        .routes(routes!(bulk::undo_tasks))
        .routes(routes!(bulk::cancel_tasks))
        .routes(routes!(bulk::skip_tasks))
        .routes(routes!(bulk::rerun_tasks))
        .routes(routes!(bulk::migrate_tasks))
        .routes(routes!(bulk::clone_tasks))
        .routes(routes!(bulk::resolve_tasks))
        .routes(routes!(bulk::pause_tasks))
        .routes(routes!(bulk::resume_tasks))
        .routes(routes!(read::get))
        .routes(routes!(steps::list))
        .routes(routes!(failures::list))
        .routes(routes!(failures::get))
        .routes(routes!(attempts::list))
        .routes(routes!(attempts::get))
        .routes(routes!(difference::compare))
        .routes(routes!(events::history))
        .routes(routes!(graph::graph))
        .routes(routes!(events::events))
        .routes(routes!(clone::clone))
        .routes(routes!(commands::cancel))
        .routes(routes!(commands::pause))
        .routes(routes!(commands::resume))
        .routes(routes!(commands::start))
        .routes(routes!(undo_plan::show))
        .routes(routes!(migrate::migrate))
        .routes(routes!(commands::undo))
        .routes(routes!(commands::retry))
        .routes(routes!(commands::retry_step))
        .routes(routes!(commands::skip_step))
        .routes(routes!(commands::resolve_step))
        .routes(routes!(commands::cancel_step))
        .routes(routes!(signals::signal_step))
        .routes(routes!(signals::signal_by_key))
}

/// Reads a task. A large one counts for the budget of responses until this request has its response.
async fn load(app: &App, id: TaskId) -> Result<Arc<Task>, Problem> {
    match app.store.reader.task(id).await? {
        Some(task) => {
            app.responses.hold(task.memory())?;
            Ok(Arc::new(task))
        }
        None => Err(no_such_task(id)),
    }
}

fn no_such_task(id: TaskId) -> Problem {
    Problem::new(
        super::problem::ProblemKind::NoSuchTask,
        format!("task {id} does not exist; ended tasks are deleted after the retention time"),
    )
}

/// Returns the task that a successful command changed.
async fn accepted(app: &App, accepted: Submitted) -> Result<Arc<Task>, Problem> {
    match accepted {
        Submitted::New(task) => Ok(task),
        Submitted::Replayed(id) => load(app, id).await,
    }
}

/// The result of waiting for a task.
#[derive(PartialEq)]
enum TaskWaitResult {
    Settled(Arc<Task>),
    NotSettled,
    /// Too many callers wait already.
    Refused,
}

/// Waits until the task has settled since the version `known` (it ended or needs an operator), the service stops, or
/// the time is over. The wait keeps no task in memory.
async fn wait_until_settled(
    app: &App,
    watch: &mut Watch,
    known: u64,
    wait: Duration,
) -> TaskWaitResult {
    let Ok(_place) = app.waits.try_acquire() else {
        return TaskWaitResult::Refused;
    };
    tokio::select! {
        task = watch.newer(known) => TaskWaitResult::Settled(task),
        () = app.stop.cancelled() => TaskWaitResult::NotSettled,
        () = clock::sleep(wait.min(LONGEST_WAIT.duration())) => TaskWaitResult::NotSettled,
    }
}

fn mark_as_replayed(response: &mut Response) {
    let name = HeaderName::from_static("idempotency-replayed");
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static("true"));
}

fn watch(app: &App, id: TaskId) -> Watch {
    app.store.watchers.watch(id)
}

/// Renders the task as the body and its version as the ETag. It reads nothing but the time, because every submission
/// calls it.
async fn render(app: &App, status: StatusCode, task: &Task) -> Response {
    let view = view(app, task).await;
    let mut response = json(status, &view);
    if HttpBody::size_hint(response.body()).lower() > SMALL as u64 {
        let (short, extent) = (TaskView::snapshot(task, Extent::Head), Extent::Head);
        response.extensions_mut().insert(ShortForm {
            body: serde_json::to_vec(&short).unwrap_or_default().into(),
            left_out: extent.left_out().join(", "),
        });
    }
    with_etag(with_retry_after(response, task), task)
}

/// Sets the interval at which to poll a task that is still running.
fn with_retry_after(mut response: Response, task: &Task) -> Response {
    if !task.is_settled() {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static(POLL_AFTER));
    }
    response
}

/// Renders the task as [`render`] does, with the positions of its steps in the queues of their agents. `hides_bodies`:
/// without its payloads.
async fn render_with_positions(app: &App, task: &Task, hides_bodies: bool) -> Response {
    let mut view = view(app, task).await;
    // The task is returned also if the positions cannot be read.
    let rule = |agent: &AgentName| app.agents.lane_rule(agent);
    let lane = |agent: &AgentName, step| {
        let rule = rule(agent).unwrap_or_else(|| LaneRule::undivided().into());
        rule.lane(task, step)
    };
    let reader = &app.store.reader;
    let explained = async {
        if task.overdue_at().is_some() && task.start_at.is_none() {
            view.set_at_risk(reader.at_risk_of(task.id()).await?);
        }
        explain_key_limits(&mut view.steps, task, rule, reader).await?;
        count_ahead(&mut view.steps, task, lane, reader).await
    };
    if let Err(error) = explained.await {
        debug!(%error, "could not count positions in agent queues");
    }
    let response = match hides_bodies {
        true => json(StatusCode::OK, &hidden(&view, hide_in_task)),
        false => json(StatusCode::OK, &view),
    };
    with_etag(with_retry_after(response, task), task)
}

async fn view<'a>(app: &App, task: &'a Task) -> TaskView<'a> {
    // A committed change is returned even if the store has become unreachable.
    let now = app.store.reader.now().await.unwrap_or(task.created_at);
    let mut view = TaskView::new(task, now);
    explain(app, &mut view.steps);
    view
}

/// Adds the reason why steps do not run that seem to wait only for a slot.
fn explain(app: &App, steps: &mut [StepView<'_>]) {
    let mode = |agent: &AgentName| app.agents.get(agent).map(|agent| agent.spec().mode);
    let limit = |agent: &AgentName| app.agents.get(agent)?.blocking_limit();
    let adapted = |agent: &AgentName| app.agents.get(agent)?.adapted_limit();
    let recovering = |agent: &AgentName| app.agents.get(agent)?.slow_start_limit();
    let stopped = |agent: &AgentName| app.agents.get(agent)?.stopped();
    let is_held = app.hold.is_held();
    explain_other_reasons(steps, mode, limit, adapted, recovering, stopped, is_held);
}

fn with_etag(mut response: Response, task: &Task) -> Response {
    if let Ok(etag) = HeaderValue::from_str(&format!("\"{}\"", task.version)) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

fn json<T: serde::Serialize>(status: StatusCode, body: &T) -> Response {
    // Every response has string keys and finite numbers, and therefore always serialises.
    let mut body = serde_json::to_vec(body).unwrap_or_default();
    if body.len() > SMALL {
        // The budget counts the length of a body, so a body that waits to be sent may take no more memory than that.
        body.shrink_to_fit();
    }
    let headers = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )];
    (status, headers, Body::from(body)).into_response()
}

//! The plan of an undo: the calls that it would make, before it is requested.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    hidden_bodies::{hidden, hide_in_plan, hides_bodies},
    json, load, with_etag,
};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, Query, TaskParams, TaskPath},
    },
    domain::{
        task::TaskStatus,
        values::TaskId,
        view::{UndoPlan, undo_plan},
    },
};

/// The most child tasks that are read for one plan.
const MOST_CHILDREN: usize = 100;

/// The calls that an undo would make, and the steps that it leaves out.
#[derive(Serialize, ToSchema)]
#[schema(as = UndoPlan)]
struct PlanView {
    #[schema(value_type = Uuid)]
    task: TaskId,
    #[schema(value_type = TaskStatus)]
    state: &'static str,
    /// The task's ETag. Send it as If-Match to `POST /v1/tasks/{id}/undo`, which is then refused if the task has
    /// changed since.
    #[schema(example = "\"7\"")]
    fingerprint: String,
    #[serde(flatten)]
    plan: UndoPlan,
}

/// Get the plan of an undo
///
/// The calls that an undo would make, in order, with the probes that come first; the calls in flight that it waits
/// for or drops; and the steps that it skips, each with the reason. Nothing is changed. Send the plan's ETag
/// (`fingerprint`) as If-Match when you request the undo: the undo is then refused with 412 if the task has changed
/// in the meantime. For a task that is being undone, the plan contains what remains to be done. For a task that
/// cannot be undone, `possible` is false and `reason` says why.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/undo-plan", tag = "operate", operation_id = "undo_plan",
    params(TaskParams),
    responses((status = 200, description = "The plan; `fingerprint` is also its ETag", body = PlanView)),
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    // The permit is taken before the task is loaded: otherwise many loaded tasks could queue here.
    let permit = app.bulkhead.enter().await?;
    let task = load(&app, id).await?;
    let now = app.store.reader.now().await?;
    let mut plan = permit.run(|| undo_plan(&task, now));
    let children: Vec<_> = plan.children().take(MOST_CHILDREN).collect();
    for child in children {
        // Children are read one at a time, because each may be large. The plan says nothing about a child that cannot
        // be read.
        for child in app.store.reader.tasks_of(&[child]).await?.tasks {
            plan.check_child(&child, now);
        }
    }
    let view = PlanView {
        task: id,
        state: task.status().as_str(),
        fingerprint: format!("\"{}\"", task.version),
        plan,
    };
    let hides_bodies = hides_bodies(&app, &caller, &task).await?;
    Ok(permit.run(|| {
        let response = match hides_bodies {
            true => json(StatusCode::OK, &hidden(&view, hide_in_plan)),
            false => json(StatusCode::OK, &view),
        };
        with_etag(response, &task)
    }))
}

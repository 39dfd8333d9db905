//! What an undo would do, shown before it is asked for.
#![expect(dead_code, reason = "the shapes are for the OpenAPI document")]

use std::{collections::BTreeMap, sync::Arc};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{json, load, with_etag};
use crate::{
    api::{
        App, Problem,
        extract::{Query, TaskParams, TaskPath},
    },
    domain::{
        Because, DurationText, Json, Method, OnUndo, StepStatus, TaskId, TaskStatus, UndoPlan,
        Until, Why, undo_plan,
    },
};

#[derive(Serialize)]
struct PlanView {
    task: TaskId,
    state: &'static str,
    fingerprint: String,
    #[serde(flatten)]
    plan: UndoPlan,
}

/// What an undo would do.
#[derive(ToSchema)]
#[schema(as = UndoPlan)]
pub struct UndoPlanBody {
    #[schema(format = Uuid)]
    task: String,
    #[schema(example = "processing")]
    state: TaskStatus,
    /// Pass it as If-Match to `POST /v1/tasks/{id}/undo`: it is refused if the task has moved since. The
    /// task's ETag.
    #[schema(example = "\"7\"")]
    fingerprint: String,
    /// Whether an undo would begin if it were asked for now.
    possible: bool,
    /// The undo has begun: the plan is what is left of it.
    under_way: bool,
    /// Why it is not possible: the task has ended, is past its pivot, or is being undone already.
    reason: Option<String>,
    /// Calls under way.
    running: Vec<RunningBody>,
    /// What would be called, in an order in which it could be.
    calls: Vec<PlannedUndoBody>,
    passed_over: Vec<PassedOverBody>,
}

/// A call under way, and what becomes of it.
#[derive(ToSchema)]
#[schema(as = RunningCall)]
pub struct RunningBody {
    #[schema(example = "ship")]
    step: String,
    #[schema(format = DateTime)]
    complete_by: String,
    /// `wait`: it is waited for until its complete-by; `drop`: it is dropped at once.
    #[schema(example = "wait")]
    on_undo: OnUndo,
}

#[derive(ToSchema)]
#[schema(as = PlannedUndo)]
pub struct PlannedUndoBody {
    #[schema(example = "charge.undo")]
    step: String,
    #[schema(example = "charge")]
    undoes: String,
    /// The state of what undoes the step; `waiting` before the undo has begun.
    #[schema(example = "waiting")]
    state: StepStatus,
    /// Counted from 1: the calls of a stage can be made side by side once those before have ended.
    #[schema(example = 1)]
    stage: u32,
    /// What must be over before: what undoes the steps that followed, and their calls under way.
    #[schema(example = json!(["ship.undo"]))]
    after: Vec<String>,
    /// `processed`: the step is done; `unknown`: it may have taken effect; `running`: its call is under way,
    /// and how that ends decides.
    #[schema(example = "processed")]
    because: Because,
    #[schema(example = "30s")]
    complete_within: DurationText,
    /// Asked before: it says whether there is anything to undo.
    probe: Option<PlannedProbeBody>,
    /// The call, where it can be shown.
    request: Option<PlannedRequestBody>,
    /// Why it cannot be shown.
    cannot_render: Option<CannotRenderBody>,
}

#[derive(ToSchema)]
#[schema(as = PlannedProbe)]
pub struct PlannedProbeBody {
    /// Only asked if the call under way ends without an answer.
    only_if_unknown: bool,
    request: Option<PlannedRequestBody>,
    cannot_render: Option<CannotRenderBody>,
}

/// A call as it would be made.
#[derive(ToSchema)]
#[schema(as = PlannedRequest)]
pub struct PlannedRequestBody {
    /// The agent, or the origin of the step's URL.
    #[schema(example = "payments")]
    agent: String,
    /// The step's URL, where it has one.
    #[schema(example = "http://127.0.0.1:9000")]
    url: Option<String>,
    #[schema(example = "DELETE")]
    method: Method,
    /// Behind the agent's endpoint, or the URL.
    #[schema(example = "/charges/ch_1")]
    path: String,
    /// What the definition says. `***` stands for a value whose name hints at a secret.
    #[schema(example = json!({}))]
    headers: BTreeMap<String, String>,
    #[schema(value_type = Json, required = false, example = json!({"charge": "ch_1"}))]
    body: Option<String>,
    /// The length of a body of more than 64 KiB, which is not shown.
    body_bytes: Option<u32>,
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge.undo")]
    idempotency_key: Option<String>,
    /// Sent as Provost-Undoes: the key of the calls that are undone.
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge")]
    undoes_key: Option<String>,
    /// Sent as Provost-Probes: the key of the calls that are asked about.
    probes_key: Option<String>,
}

#[derive(ToSchema)]
#[schema(as = CannotRender)]
pub struct CannotRenderBody {
    /// `call_ended`: the undo reads the output of a call under way; `probe_answered`: the probe will give it;
    /// `never`: the undo would fail and need an operator.
    #[schema(example = "probe_answered")]
    until: Until,
    #[schema(example = "`output.id` cannot be rendered: there is no `output` here")]
    message: String,
}

#[derive(ToSchema)]
#[schema(as = PassedOver)]
pub struct PassedOverBody {
    #[schema(example = "notify")]
    step: String,
    /// `never_began`; `took_no_effect`, where its service refused it for good or its probe said so;
    /// `skipped`; `no_undo`, where it stays as it is; `undo_skipped`, likewise; or `undone` already.
    #[schema(example = "no_undo")]
    why: Why,
    #[schema(example = "it has no `undo`: what it did stays as it is")]
    message: String,
}

/// See what an undo would do
///
/// The calls that it would make, in their order, with the probes that are asked first; which calls under way
/// are waited for or dropped; which steps are passed over, and why. Nothing is changed. Pass the
/// `fingerprint` as If-Match when you ask for the undo: it is then refused if the task has moved in the
/// meantime (412). Of a task that is being undone it shows what is left to do. Of one that cannot be undone,
/// `possible` is false and `reason` says why.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/undo-plan", tag = "operate", operation_id = "undo_plan",
    params(TaskParams),
    responses((status = 200, description = "The plan; its fingerprint is the ETag too", body = UndoPlanBody)),
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    // Before the task is loaded: many of them could wait in line otherwise.
    let permit = app.bulkhead.enter().await?;
    let task = load(&app, id).await?;
    let now = app.store.reader.now().await?;
    Ok(permit.run(|| {
        let view = PlanView {
            task: id,
            state: task.status().as_str(),
            fingerprint: format!("\"{}\"", task.version),
            plan: undo_plan(&task, now),
        };
        with_etag(json(StatusCode::OK, &view), &task)
    }))
}

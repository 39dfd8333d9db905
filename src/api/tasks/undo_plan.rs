//! The plan of an undo: what it would do, before it is requested.
#![expect(dead_code, reason = "the shapes are for the OpenAPI document")]

use std::{collections::BTreeMap, sync::Arc};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{json, load, with_etag};
use crate::api::openapi::words::{
    AvailableAfterSchema, DurationSchema, JsonSchema, MethodSchema, NotUndoneReasonSchema,
    OnUndoSchema, StepStateSchema, TaskStateSchema, UndoReasonSchema,
};
use crate::{
    api::{
        App, Problem,
        extract::{Query, TaskParams, TaskPath},
    },
    domain::{TaskId, UndoPlan, undo_plan},
};

/// So many tasks of steps are read for one plan.
const MOST_CHILDREN: usize = 100;

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
    state: TaskStateSchema,
    /// The task's ETag. Send it as If-Match to `POST /v1/tasks/{id}/undo`, which is then refused if the task has
    /// changed since.
    #[schema(example = "\"7\"")]
    fingerprint: String,
    /// Whether an undo would start if it were requested now.
    possible: bool,
    /// The undo has started: the plan contains what remains to be done.
    under_way: bool,
    /// The reason if it is not possible: the task has ended, is past its pivot, or is being undone already.
    reason: Option<String>,
    /// Calls in flight.
    running: Vec<RunningBody>,
    /// The calls of the undo, in a possible order.
    calls: Vec<PlannedUndoBody>,
    passed_over: Vec<PassedOverBody>,
    /// Of steps with `for_each`: how many items there are beside the fifty of each kind that the plan names.
    more_items: Option<Vec<MoreItemsBody>>,
}

/// Items of a list that the plan does not name.
#[derive(ToSchema)]
#[schema(as = MoreItems)]
pub struct MoreItemsBody {
    /// The step with `for_each`.
    #[schema(example = "import")]
    step: String,
    /// How many more of its items have a call in flight.
    #[schema(example = 0)]
    running: u32,
    /// How many more of them are undone by a call.
    #[schema(example = 950)]
    calls: u32,
    /// How many more of them are passed over.
    #[schema(example = 0)]
    passed_over: u32,
}

/// A call in flight, and what happens to it.
#[derive(ToSchema)]
#[schema(as = RunningCall)]
pub struct RunningBody {
    #[schema(example = "ship")]
    step: String,
    #[schema(format = DateTime)]
    complete_by: String,
    /// `wait`: the undo waits for it until its complete-by; `drop`: the call is dropped at once.
    #[schema(example = "wait")]
    on_undo: OnUndoSchema,
}

#[derive(ToSchema)]
#[schema(as = PlannedUndo)]
pub struct PlannedUndoBody {
    #[schema(example = "charge.undo")]
    step: String,
    #[schema(example = "charge")]
    undoes: String,
    /// The state of the step's undo; `waiting` before the undo has started.
    #[schema(example = "waiting")]
    state: StepStateSchema,
    /// Counted from 1: the calls of a stage can run in parallel once the earlier stages have ended.
    #[schema(example = 1)]
    stage: u32,
    /// What must end before this call: the undos of the steps that followed, and their calls in flight.
    #[schema(example = json!(["ship.undo"]))]
    after: Vec<String>,
    /// `processed`: the step is done; `unknown`: it may have taken effect; `running`: its call is in flight, and
    /// its result decides.
    #[schema(example = "processed")]
    because: UndoReasonSchema,
    #[schema(example = "30s")]
    complete_within: DurationSchema,
    /// The request that is made first, to find out whether there is anything to undo.
    probe: Option<PlannedProbeBody>,
    /// The call, if it can be rendered.
    request: Option<PlannedRequestBody>,
    /// The reason why the call cannot be rendered.
    cannot_render: Option<CannotRenderBody>,
    /// No call is made: the task of the step is undone.
    task: Option<PlannedTaskBody>,
}

/// A task that is undone with its parent.
#[derive(ToSchema)]
#[schema(as = PlannedTask)]
pub struct PlannedTaskBody {
    /// The last one of the step; null if none was made.
    #[schema(required, format = Uuid)]
    id: Option<String>,
    /// Why it can no longer be undone, if that is so: the undo of the step would be in error. It is not in the ETag, and
    /// only said of the first 100 tasks.
    #[schema(
        example = "step ship is a pivot and is processed: the task can only be completed, not undone"
    )]
    cannot_be_undone: Option<String>,
}

#[derive(ToSchema)]
#[schema(as = PlannedProbe)]
pub struct PlannedProbeBody {
    /// Only made if the call in flight ends without a response.
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
    /// The step's URL, if it has one.
    #[schema(example = "http://127.0.0.1:9000")]
    url: Option<String>,
    #[schema(example = "DELETE")]
    method: MethodSchema,
    /// The path, appended to the agent's endpoint or the URL.
    #[schema(example = "/charges/ch_1")]
    path: String,
    /// The headers in the definition. `***` replaces a value whose name suggests a secret.
    #[schema(example = json!({}))]
    headers: BTreeMap<String, String>,
    #[schema(value_type = JsonSchema, required = false, example = json!({"charge": "ch_1"}))]
    body: Option<String>,
    /// The length of a body that is too long to show (more than 64 KiB).
    body_bytes: Option<u32>,
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge.undo")]
    idempotency_key: Option<String>,
    /// Sent as Provost-Undoes: the Idempotency-Key of the step that is undone.
    #[schema(example = "019c7a5e-0000-7000-8000-000000000000:charge")]
    undoes_key: Option<String>,
    /// Sent as Provost-Probes: the Idempotency-Key of the step that is probed.
    probes_key: Option<String>,
}

#[derive(ToSchema)]
#[schema(as = CannotRender)]
pub struct CannotRenderBody {
    /// `call_ended`: the undo uses the output of a call in flight; `probe_answered`: the probe will return it;
    /// `never`: the undo would fail and need an operator.
    #[schema(example = "probe_answered")]
    until: AvailableAfterSchema,
    #[schema(example = "`output.id` cannot be rendered: there is no `output` here")]
    message: String,
}

#[derive(ToSchema)]
#[schema(as = PassedOver)]
pub struct PassedOverBody {
    #[schema(example = "notify")]
    step: String,
    /// `never_began`; `took_no_effect` (the service refused it permanently, or the probe said so); `skipped`;
    /// `no_undo` (its effect remains); `undo_skipped` (its effect remains); or `undone` already.
    #[schema(example = "no_undo")]
    why: NotUndoneReasonSchema,
    #[schema(example = "it has no `undo`: its effect remains")]
    message: String,
}

/// Get the plan of an undo
///
/// The calls that an undo would make, in order, with the probes that come first; which calls in flight it waits for
/// or drops; and which steps it skips, and why. Nothing is changed. Send the plan's ETag (`fingerprint`) as
/// If-Match when you request the undo: the undo is then refused with 412 if the task has changed in the meantime.
/// For a task that is being undone, the plan contains what remains to be done. For a task that cannot be undone,
/// `possible` is false and `reason` says why.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/undo-plan", tag = "operate", operation_id = "undo_plan",
    params(TaskParams),
    responses((status = 200, description = "The plan; `fingerprint` is also its ETag", body = UndoPlanBody)),
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    // Taken before the task is loaded: otherwise many loaded tasks could queue here.
    let permit = app.bulkhead.enter().await?;
    let task = load(&app, id).await?;
    let now = app.store.reader.now().await?;
    let mut plan = permit.run(|| undo_plan(&task, now));
    let children: Vec<_> = plan.children().take(MOST_CHILDREN).collect();
    for child in children {
        // One at a time, because each may be large. Of one that cannot be read nothing is known.
        for child in app.store.reader.tasks_of(&[child]).await?.tasks {
            plan.look_at_child(&child, now);
        }
    }
    let view = PlanView {
        task: id,
        state: task.status().as_str(),
        fingerprint: format!("\"{}\"", task.version),
        plan,
    };
    Ok(permit.run(|| with_etag(json(StatusCode::OK, &view), &task)))
}

//! One command for many tasks. A dry run evaluates the command for as many tasks as one request may, and changes nothing.
//! The command itself is a job: [`mod@create`] records it, [`mod@process`] carries it out batch by batch on any instance, and
//! [`mod@jobs`] shows its progress.

mod apply;
mod clone;
mod create;
mod dry_run;
mod examples;
pub(crate) mod jobs;
mod migrate;
mod outcome;
mod patch;
mod process;
mod request;
mod send;
mod view;

use std::sync::Arc;

use axum::{extract::State, http::Method, response::Response};
use utoipa::ToSchema;
use uuid::Uuid;

pub use self::process::{BulkProgress, fail, process};
use self::{dry_run::BulkResult, request::BulkRequest, view::BulkJobView};
use crate::api::openapi::words::{JsonSchema, LabelsSchema, TaskStateSchema};
use crate::{
    api::{
        App, Problem,
        extract::{Caller, ConditionHeaders, Conditions, JsonBody, Query, idempotency},
        problem::ProblemBody,
    },
    domain::task::BulkAction,
};

/// The selection of tasks, and the limits of the request.
#[derive(ToSchema)]
#[schema(as = BulkCommand)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkCommandBody {
    /// These tasks; alternatively use filters. A task is selected if it matches every filter.
    #[schema(max_items = 1000)]
    ids: Option<Vec<Uuid>>,
    /// One of the states in which the command is possible. The description of the command says which tasks it is for if none
    /// is named.
    #[schema(example = "error")]
    state: Option<TaskStateSchema>,
    #[schema(example = "order")]
    workflow: Option<String>,
    key: Option<String>,
    /// Tasks with a step of this agent. If the command or `state` selects tasks in error only: tasks with a step that
    /// failed at this agent.
    #[schema(example = "payments")]
    agent: Option<String>,
    /// Tasks with a step that this alert is about, as long as it is not closed.
    alert: Option<uuid::Uuid>,
    /// Tasks with a step that needs a person for the cause with this fingerprint: `GET /v1/failures` lists them.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    cause: Option<String>,
    /// Tasks with this text in their key, or in the message of one of the first 100 steps that need a person. Case does not
    /// matter.
    #[schema(min_length = 1, max_length = 200)]
    text: Option<String>,
    /// Tasks of this bulk job.
    bulk: Option<Uuid>,
    /// With `bulk`: the tasks with this result. Default: `accepted`.
    #[schema(example = "failed_again")]
    bulk_result: Option<jobs::BulkResultSchema>,
    /// Tasks of the steps of this task.
    parent: Option<Uuid>,
    labels: Option<LabelsSchema>,
    #[schema(format = DateTime)]
    created_after: Option<String>,
    #[schema(format = DateTime)]
    created_before: Option<String>,
    /// Only tasks that, as far as is known, will be late.
    at_risk: Option<bool>,
    /// The time of a dry run, its `as_of`: tasks that were created after it are not touched, nor those in error that failed after
    /// it. So the command is for what the dry run has shown. Default: the time of the command.
    #[schema(format = DateTime)]
    as_of: Option<String>,
    /// Instead of ids and filters: every task in a state in which the command is possible.
    #[schema(default = false)]
    all: Option<bool>,
    /// Change nothing: count the tasks that would accept the command, and the reasons of the others.
    #[schema(default = false, example = true)]
    dry_run: Option<bool>,
    /// The reason, recorded in the history of each task.
    reason: Option<String>,
    /// The most tasks that begin in a time: a number in a second (`s`), a minute (`m`) or an hour (`h`). Default: as fast
    /// as other work allows.
    #[schema(example = "20/s", pattern = "^[0-9]+/[smh]$")]
    rate: Option<String>,
    /// The job stops after this many tasks, and continues with the others when it is resumed.
    #[schema(example = 5, minimum = 1, maximum = 1_000_000_000)]
    first: Option<u64>,
    /// The most tasks of a dry run. To find those that match, it examines as many tasks, or 10,000 if that is more.
    #[schema(default = 10000, minimum = 1, maximum = 100_000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous dry run, to continue there. Repeat the rest of the body; only `limit`, `first`,
    /// `rate` and `reason` may differ.
    #[schema(pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The change of the failed requests, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkRetry)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkRetryBody {
    /// Changes to the request body of the step in error, as a JSON Merge Patch (RFC 7396): members are added or replaced,
    /// and null removes a member. Its texts may have expressions, which read what those of the step read. At most 64 KiB.
    #[schema(value_type = JsonSchema, required = false, example = json!({"currency": "EUR"}))]
    patch: Option<String>,
    /// With `patch`: the step whose request is changed and that is retried. Default: the only step in error.
    #[schema(example = "charge")]
    step: Option<String>,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The failed steps to skip, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkSkip)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkSkipBody {
    /// Skip only this step, if it is in error. Default: every step in error.
    #[schema(example = "notify")]
    step: Option<String>,
    /// With `step`: the step's output for later steps.
    #[schema(value_type = JsonSchema, required = false, example = json!({"sent": false}))]
    output: Option<String>,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The step that runs again, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkRerun)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkRerunBody {
    /// The step: it and all steps that follow it run again, including completed ones.
    #[schema(example = "charge")]
    from: String,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The failed step that was done outside Provost, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkResolve)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkResolveBody {
    /// The step, if it is in error; the name of a list means its items in error.
    #[schema(example = "charge")]
    step: String,
    /// The step's output for later steps, the same for each task.
    #[schema(value_type = JsonSchema, example = json!({"paid": true}))]
    output: String,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The changes of the clones, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkClone)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkCloneBody {
    /// The changes, the same for each clone; everything else is copied from its task. At most 64 KiB.
    changes: Option<super::clone::CloneBody>,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The version that the tasks move to, and the selection of tasks.
#[derive(ToSchema)]
#[schema(as = BulkMigration)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct BulkMigrationBody {
    /// The number of a version of each task's own workflow, or `active` or `latest`.
    to_version: super::clone::VersionBody,
    /// Only tasks that have this version. Default: any other.
    #[schema(minimum = 1, example = 3)]
    from_version: Option<u32>,
    #[serde(flatten)]
    selection: BulkCommandBody,
}

/// The job; of a dry run, the counts.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub enum BulkResultOrJob {
    Job(Box<BulkJobView>),
    Result(Box<BulkResult>),
}

/// Declares the handler of a command for many tasks.
macro_rules! bulk_command {
    ($name:ident, $path:literal, $body:ty, $example:expr, $action:expr, $summary:literal, $description:literal) => {
        #[doc = $summary]
        ///
        #[doc = $description]
        ///
        /// Select tasks by ids, or by the filters of the list. The command is a job, which every instance may carry out:
        /// the response has its URL, `GET /v1/bulk/{id}` its progress. With `Prefer: wait=10` the response comes when the
        /// job has ended, or after ten seconds. Each task is changed separately, oldest first; a task that refuses the
        /// command is listed with the reason and does not affect the others. Tasks that came or failed after the request
        /// are not touched. With `dry_run` the same rules are evaluated for each task and nothing is changed: the
        /// response has the counts and three examples.
        #[utoipa::path(
            post, path = $path, tag = "operate",
            request_body(content = $body, example = $example),
            params(ConditionHeaders),
            responses(
                (status = 202, description = "The job, which runs; Location is the URL to poll", body = BulkJobView),
                (status = 200, description = "With Prefer: wait, the job, which runs no longer; with dry_run, the counts", body = BulkResultOrJob),
                (status = 422, description = "The content is invalid; `errors` lists every fault with its JSON pointer", body = ProblemBody, content_type = "application/problem+json"),
                (status = 503, description = "The store cannot commit, or too many jobs run. Of a dry run, `matched`, `accepted` and `next_cursor` are the progress: continue from there", body = ProblemBody, content_type = "application/problem+json"),
            )
        )]
        pub(super) async fn $name(
            State(app): State<Arc<App>>,
            caller: Caller,
            conditions: Conditions,
            query: Query,
            JsonBody(body): JsonBody,
        ) -> Result<Response, Problem> {
            query.finish()?;
            let of_changes = match $action {
                BulkAction::Clone => clone::faults(&app, &body).await?,
                _ => Vec::new(),
            };
            let request = BulkRequest::read($action, &body, of_changes)?;
            if request.dry_run {
                return dry_run::run(&app, &caller, $action, &request, &body).await;
            }
            let key = idempotency(&conditions, &caller, &Method::POST, $path, body.get().as_bytes());
            create::run(&app, &caller, $action, request, &body, &conditions, key).await
        }
    };
}

bulk_command!(
    retry_tasks,
    "/v1/tasks/retry",
    BulkRetryBody,
    json!({"workflow": "order", "agent": "payments", "dry_run": true}),
    BulkAction::Retry,
    "Retry the failed steps of many tasks",
    "For tasks in error, including those whose undo failed."
);
bulk_command!(
    undo_tasks,
    "/v1/tasks/undo",
    BulkCommandBody,
    json!({"workflow": "order", "labels": {"campaign": "spring"}, "dry_run": true}),
    BulkAction::Undo,
    "Undo many tasks",
    "For tasks that are pending, processing, paused or in error; with `\"state\": \"processed\"`, for those that are done."
);
bulk_command!(
    cancel_tasks,
    "/v1/tasks/cancel",
    BulkCommandBody,
    json!({"workflow": "order", "state": "paused", "dry_run": true}),
    BulkAction::Cancel,
    "Cancel many tasks",
    "For tasks that have not ended. Completed steps are not undone, and a half-finished undo stops."
);
bulk_command!(
    skip_tasks,
    "/v1/tasks/skip",
    BulkSkipBody,
    json!({"step": "notify", "workflow": "order", "dry_run": true}),
    BulkAction::Skip,
    "Skip the failed steps of many tasks",
    "For tasks in error: skips every step in error, or the one that `step` names. Steps that are not in error are never skipped."
);

bulk_command!(
    rerun_tasks,
    "/v1/tasks/rerun",
    BulkRerunBody,
    json!({"from": "reserve", "workflow": "order", "dry_run": true}),
    BulkAction::Rerun,
    "Rerun many tasks from a step",
    "For tasks in error; with `state`, for those that are pending, processing or paused. The step and all steps that depend on it run again, as with `from` of the retry of one task."
);
bulk_command!(
    resolve_tasks,
    "/v1/tasks/resolve",
    BulkResolveBody,
    json!({"step": "charge", "output": {"paid": true}, "workflow": "order", "dry_run": true}),
    BulkAction::Resolve,
    "Resolve a failed step of many tasks",
    "For tasks in error: records that the step was done outside Provost, with one output for all of them. Steps that are not in error are never resolved."
);
bulk_command!(
    pause_tasks,
    "/v1/tasks/pause",
    BulkCommandBody,
    json!({"workflow": "order", "reason": "the warehouse moves", "dry_run": true}),
    BulkAction::Pause,
    "Pause many tasks",
    "For tasks that have not ended and are not paused. Calls in flight are completed, and no further step begins."
);
bulk_command!(
    resume_tasks,
    "/v1/tasks/resume",
    BulkCommandBody,
    json!({"workflow": "order", "dry_run": true}),
    BulkAction::Resume,
    "Resume many tasks",
    "For paused tasks."
);

bulk_command!(
    migrate_tasks,
    "/v1/tasks/migrate",
    BulkMigrationBody,
    json!({"workflow": "order", "to_version": 4, "dry_run": true}),
    BulkAction::Migrate,
    "Move many tasks to another version of their workflow",
    "For tasks that have not ended and are not being undone. Those that have the version already, or have another one than `from_version`, are left out, and count only in `total`. `unmapped` of a dry run names the steps that prevent moves."
);

bulk_command!(
    clone_tasks,
    "/v1/tasks/clone",
    BulkCloneBody,
    json!({"workflow": "order", "state": "error", "changes": {"workflow_version": "latest"}, "dry_run": true}),
    BulkAction::Clone,
    "Clone many tasks",
    "For tasks that are in error, cancelled or undone; with `state`, for those in any state. Each clone is a new task, and the original is not changed."
);

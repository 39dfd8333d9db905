//! Commands on one task, from operators and submitters.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, FromRequestParts, OriginalUri, Request, State},
    http::{Method, StatusCode},
    response::Response,
};
use serde_json::value::RawValue;

use super::{accepted, load, mark_as_replayed, render};
use crate::api::openapi::words::JsonSchema;
use crate::{
    api::{
        App, Problem,
        extract::{
            Caller, CommandHeaders, Conditions, OptionalJsonBody, Query, StepParams, TaskParams,
            TaskPath, TaskStepPath, idempotency,
        },
        problem::{ProblemBody, ProblemKind},
    },
    domain::{
        task::{Command, Task},
        template::Payload,
        values::{Fields, StepIndex, TaskId},
        view::TaskView,
    },
    store::{Apply, Submitted},
};

/// The parts that every command has: the caller, the trace and the preconditions.
pub(super) struct CommandRequest {
    app: Arc<App>,
    caller: Caller,
    conditions: Conditions,
    method: Method,
    path: String,
    body: Option<Box<RawValue>>,
}

impl FromRequest<Arc<App>> for CommandRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let app = state.clone();
        let caller = Caller::from_request_parts(&mut parts, state).await?;
        let conditions = Conditions::from_request_parts(&mut parts, state).await?;
        Query::from_request_parts(&mut parts, state)
            .await?
            .finish()?;
        let method = parts.method.clone();
        let path = match parts.extensions.get::<OriginalUri>() {
            Some(uri) => uri.path().to_owned(),
            None => parts.uri.path().to_owned(),
        };
        let request = Request::from_parts(parts, body);
        let OptionalJsonBody(body) = OptionalJsonBody::from_request(request, state).await?;
        Ok(Self {
            app,
            caller,
            conditions,
            method,
            path,
            body,
        })
    }
}

impl CommandRequest {
    /// Parses the fields of the body; a missing body has none.
    pub fn fields<T>(&self, read: impl FnOnce(&mut Fields<'_>) -> T) -> Result<T, Problem> {
        let mut fields = match &self.body {
            Some(body) => Fields::of(body, "").map_err(Problem::invalid)?,
            None => Fields::default(),
        };
        let value = read(&mut fields);
        fields.finish().map_err(Problem::invalid)?;
        Ok(value)
    }

    /// Returns the body as it was sent.
    pub fn body(&self) -> Option<Box<RawValue>> {
        self.body.clone()
    }

    /// Returns the version that the task must have.
    pub fn if_match(&self) -> Option<u64> {
        self.conditions.if_match
    }

    pub async fn send(&self, task: TaskId, command: Command) -> Result<Response, Problem> {
        let body = self.body.as_deref().map_or("", RawValue::get);
        let idempotency = idempotency(
            &self.conditions,
            &self.caller,
            &self.method,
            &self.path,
            body.as_bytes(),
        );
        let applied = self
            .app
            .store
            .ordered_by(self.caller.origin())
            .apply(
                Apply::new(task, command, self.caller.operator())
                    .at_version(self.conditions.if_match)
                    .under_key(idempotency),
            )
            .await?;
        let is_replayed = matches!(applied, Submitted::Replayed(_));
        let task = accepted(&self.app, applied).await?;
        let mut response = render(&self.app, StatusCode::OK, &task).await;
        if is_replayed {
            mark_as_replayed(&mut response);
        }
        Ok(response)
    }
}

/// Returns the step's index. It needs no lock: an index never becomes that of another step, also if the task moves to
/// another version.
pub(super) async fn find(
    app: &App,
    id: TaskId,
    name: &str,
) -> Result<(Arc<Task>, StepIndex), Problem> {
    let task = load(app, id).await?;
    match task.find(name) {
        Some(step) => Ok((task, step)),
        None if let Some(group) = task.group_of_unknown(name) => {
            let (state, group) = (task.status().as_str(), task.definition(group));
            let step = &group.name;
            let detail = match group.repeat() {
                Some(_) => format!(
                    "{name} has not come to be: send the request again once step {step} is repeated so often"
                ),
                None => format!(
                    "the list of step {step} is not known yet, and neither are its items: send the request again once the step has begun"
                ),
            };
            Err(Problem::new(ProblemKind::WrongStepState, detail).with("state", state))
        }
        None => {
            let steps = task.own_indexes().map(|step| task.definition(step));
            let names: Vec<_> = steps.map(|step| step.name.as_str()).collect();
            Err(Problem::new(
                ProblemKind::NoSuchStep,
                format!(
                    "the task has no step {name:?}; its steps are {}",
                    names.join(", ")
                ),
            ))
        }
    }
}

/// Declares the handler of a command that takes an optional reason and no step.
macro_rules! task_command {
    ($name:ident, $operation:literal, $path:literal, $summary:literal, $description:literal, $command:expr) => {
        #[doc = $summary]
        ///
        #[doc = $description]
        #[utoipa::path(
            post, path = $path, tag = "operate", operation_id = $operation,
            params(TaskParams, CommandHeaders),
            request_body(content = Option<ReasonBody>, description = "Optional"),
            responses(
                (status = 200, description = "The task after the command", body = TaskView),
                (status = 409, description = "The task's state does not allow it; `state` is the current state", body = ProblemBody, content_type = "application/problem+json"),
                (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
            )
        )]
        pub(super) async fn $name(TaskPath(id): TaskPath, request: CommandRequest) -> Result<Response, Problem> {
            let reason = request.fields(reason)?;
            let command: fn(Option<String>) -> Command = $command;
            request.send(id, command(reason)).await
        }
    };
}

/// The reason, recorded in the history.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ReasonBody {
    #[schema(example = "the customer withdrew the order")]
    reason: Option<String>,
}

task_command!(
    cancel,
    "cancel_task",
    "/v1/tasks/{id}/cancel",
    "Cancel a task",
    "Ends the task where it is. Calls in flight are dropped; it is unknown whether they took effect. Completed steps are not undone.",
    |reason| Command::Cancel { reason }
);
task_command!(
    pause,
    "pause_task",
    "/v1/tasks/{id}/pause",
    "Pause a task",
    "Calls in flight may finish; no new call starts until the task is resumed.",
    |reason| Command::Pause { reason }
);
task_command!(
    resume,
    "resume_task",
    "/v1/tasks/{id}/resume",
    "Resume a paused task",
    "Ready steps start at once.",
    |reason| Command::Resume { reason }
);
task_command!(
    start,
    "start_task",
    "/v1/tasks/{id}/start",
    "Start a task now",
    "Begins a task that waits for its `start_at`. `complete_within` counts from now.",
    |reason| Command::Start { reason }
);
task_command!(
    undo,
    "undo_task",
    "/v1/tasks/{id}/undo",
    "Undo a task",
    "Undoes every step that took effect or may have taken effect; each step is undone after the steps that followed it. Steps without `undo` are skipped. `GET /v1/tasks/{id}/undo-plan` shows the calls in advance; send the plan's ETag as If-Match to refuse the undo if the task has changed since.",
    |reason| Command::Undo { reason }
);

/// The step from which the task continues.
#[derive(utoipa::ToSchema)]
#[schema(as = TaskRetry)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct TaskRetryBody {
    /// Rerun this step and all steps that follow it, including completed ones. Default: only the failed steps.
    #[schema(example = "charge")]
    from: Option<String>,
    #[schema(example = "the prices were wrong")]
    reason: Option<String>,
}

/// Retry the failed steps of a task, or rerun it from a step
///
/// Without `from`: Provost clears the failures of every step in error, and the task continues where it stopped.
/// With `from`: that step and all steps that depend on it, directly or indirectly, run again, including completed
/// ones. Failures are counted from zero, conditions are evaluated again, and each output stays until a new one
/// replaces it. The calls carry the same Idempotency-Keys as before: a service that remembers a key may return its
/// recorded response. If the task is undone, a step that had completed and has not yet run again is undone too.
///
/// `from` is refused while one of these steps is being called, if a completed pivot is among them, and if the task
/// is being undone.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/retry", tag = "operate", operation_id = "retry_task",
    params(TaskParams, CommandHeaders),
    request_body(content = Option<TaskRetryBody>, description = "Optional"),
    responses(
        (status = 200, description = "The task after the command", body = TaskView),
        (status = 409, description = "The state of the task or of a step does not allow it", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn retry(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let (from, reason) =
        request.fields(|fields| (fields.string("from", LONGEST_STEP), reason(fields)))?;
    let command = match from {
        Some(from) => Command::RetryFrom {
            step: find(&app, id, &from).await?.1,
            reason,
        },
        None => Command::Retry {
            step: None,
            body: None,
            reason,
        },
    };
    request.send(id, command).await
}

/// A changed request.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
#[schema(as = StepRetry)]
pub struct RetryTaskBody {
    /// Replaces the rendered request body, from now on.
    #[schema(value_type = JsonSchema, required = false, example = json!({"amount": 30, "card": "tok_visa"}))]
    input: Option<String>,
    #[schema(example = "the customer gave another card")]
    reason: Option<String>,
}

/// Retry a failed step
///
/// The step runs again under its stable Idempotency-Key with its failures cleared, and the task continues from
/// there. `input` replaces its rendered request body. A step that waits for a later retry is retried at once.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/steps/{name}/retry", tag = "operate",
    params(StepParams, CommandHeaders),
    request_body(content = Option<RetryTaskBody>, description = "Optional"),
    responses(
        (status = 200, description = "The task after the command", body = TaskView),
        (status = 409, description = "The step is not in error", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn retry_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let (body, reason) =
        request.fields(|fields| (fields.raw("input").map(Payload::new), reason(fields)))?;
    let (_, step) = find(&app, id, &name).await?;
    let command = Command::Retry {
        step: Some(step),
        body,
        reason,
    };
    request.send(id, command).await
}

/// Replaces the step's own output.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct OutputBody {
    /// The step's output for later steps; the default is null.
    #[schema(value_type = JsonSchema, required = false, example = json!({"id": "ch_1"}))]
    output: Option<String>,
    #[schema(example = "charged manually in the payment console")]
    reason: Option<String>,
}

/// Skip a step
///
/// The steps that follow treat it as done; its output is `output`, or null.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/steps/{name}/skip", tag = "operate",
    params(StepParams, CommandHeaders),
    request_body(content = Option<OutputBody>, description = "Optional"),
    responses(
        (status = 200, description = "The task after the command", body = TaskView),
        (status = 409, description = "The step is neither in error nor pending", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn skip_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let (output, reason) = outcome(&request)?;
    let (_, step) = find(&app, id, &name).await?;
    let command = Command::Skip {
        step,
        output,
        reason,
    };
    request.send(id, command).await
}

/// Resolve a step
///
/// Records that the step's work was done outside Provost: the step becomes processed with `output`, and the task
/// continues.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/steps/{name}/resolve", tag = "operate",
    params(StepParams, CommandHeaders),
    request_body(content = Option<OutputBody>, description = "Optional"),
    responses(
        (status = 200, description = "The task after the command", body = TaskView),
        (status = 409, description = "The step is neither in error nor pending", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn resolve_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let (output, reason) = outcome(&request)?;
    let (_, step) = find(&app, id, &name).await?;
    let command = Command::Resolve {
        step,
        output: output.unwrap_or_else(Payload::null),
        reason,
    };
    request.send(id, command).await
}

/// Cancel a step
///
/// Ends the running call of the step, whose outcome stays unknown. No policy applies: the step is in error, and an
/// operator retries, resolves or skips it, or undoes the task, which undoes the step too. A step that is not needed any
/// more, because its task is undone or a race has cancelled it, is cancelled, and what waits for it goes on. The step is
/// `processing` until the call is known to have ended. Where it has `cancel` and its reply is awaited, the service is first
/// asked to cancel its work; a second request does not wait for that.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/steps/{name}/cancel", tag = "operate",
    params(StepParams, CommandHeaders),
    request_body(content = Option<ReasonBody>, description = "Optional"),
    responses(
        (status = 200, description = "The task after the command", body = TaskView),
        (status = 409, description = "The step has no call under way", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn cancel_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let reason = request.fields(reason)?;
    let (_, step) = find(&app, id, &name).await?;
    request.send(id, Command::CancelStep { step, reason }).await
}

fn outcome(request: &CommandRequest) -> Result<(Option<Payload>, Option<String>), Problem> {
    request.fields(|fields| (fields.raw("output").map(Payload::new), reason(fields)))
}

/// Longer than the name of any step, including its undo.
pub(super) const LONGEST_STEP: usize = 100;

/// The longest reason, in bytes: enough for a sentence or two, because it is stored permanently.
const LONGEST_REASON: usize = 1000;

pub(super) fn reason(fields: &mut Fields<'_>) -> Option<String> {
    fields.string("reason", LONGEST_REASON)
}

//! What an operator, or the submitter, asks of a task.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, FromRequestParts, OriginalUri, Request, State},
    http::{Method, StatusCode},
    response::Response,
};
use serde_json::value::RawValue;

use super::{accepted, load, render, say_replayed};
use crate::{
    api::{
        App, Problem,
        extract::{
            Caller, CommandHeaders, Conditions, OptionalJsonBody, Query, StepParams, TaskParams,
            TaskPath, TaskStepPath, idempotency,
        },
        problem::{Kind, ProblemBody},
    },
    domain::{Command, Fields, Json, Payload, StepIndex, Task, TaskId, TaskView},
    store::{Apply, Submitted},
};

/// Who asks, how, and under which conditions: the same for every command.
pub(super) struct Asked {
    app: Arc<App>,
    caller: Caller,
    conditions: Conditions,
    method: Method,
    path: String,
    body: Option<Box<RawValue>>,
}

impl FromRequest<Arc<App>> for Asked {
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

impl Asked {
    /// Reads the body's fields; a body that is not given has none.
    fn fields<T>(&self, read: impl FnOnce(&mut Fields<'_>) -> T) -> Result<T, Problem> {
        let mut fields = match &self.body {
            Some(body) => Fields::of(body, "").map_err(Problem::invalid)?,
            None => Fields::default(),
        };
        let value = read(&mut fields);
        fields.finish().map_err(Problem::invalid)?;
        Ok(value)
    }

    async fn send(self, task: TaskId, command: Command) -> Result<Response, Problem> {
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
            .apply(Apply {
                task,
                command,
                by: self.caller.operator(),
                if_version: self.conditions.if_match,
                idempotency,
            })
            .await?;
        let is_replayed = matches!(applied, Submitted::Replayed(_));
        let task = accepted(&self.app, applied).await?;
        let mut response = render(&self.app, StatusCode::OK, &task).await;
        if is_replayed {
            say_replayed(&mut response);
        }
        Ok(response)
    }
}

/// The step's place; which steps a task has never changes, so this need not be decided under lock.
async fn find(app: &App, id: TaskId, name: &str) -> Result<(Arc<Task>, StepIndex), Problem> {
    let task = load(app, id).await?;
    match task.find(name) {
        Some(step) => Ok((task, step)),
        None => {
            let steps = task.indexes().map(|step| task.definition(step));
            let names: Vec<_> = steps.map(|step| step.name.as_str()).collect();
            Err(Problem::new(
                Kind::NoSuchStep,
                format!("the task has no step {name:?}; it has {}", names.join(", ")),
            ))
        }
    }
}

/// Declares the handler of a command that takes an optional reason and needs no step.
macro_rules! task_command {
    ($name:ident, $path:literal, $summary:literal, $description:literal, $command:expr) => {
        #[doc = $summary]
        ///
        #[doc = $description]
        #[utoipa::path(
            post, path = $path, tag = "operate",
            params(TaskParams, CommandHeaders),
            request_body(content = Option<ReasonBody>, description = "May be left out"),
            responses(
                (status = 200, description = "The task afterwards", body = TaskView),
                (status = 409, description = "The task's state does not allow it; `state` says which it is", body = ProblemBody, content_type = "application/problem+json"),
                (status = 412, description = "The task has changed since If-Match", body = ProblemBody, content_type = "application/problem+json"),
            )
        )]
        pub(super) async fn $name(TaskPath(id): TaskPath, asked: Asked) -> Result<Response, Problem> {
            let reason = asked.fields(reason)?;
            let command: fn(Option<String>) -> Command = $command;
            asked.send(id, command(reason)).await
        }
    };
}

/// Why, for the history.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ReasonBody {
    #[schema(example = "the customer withdrew the order")]
    reason: Option<String>,
}

task_command!(
    cancel,
    "/v1/tasks/{id}/cancel",
    "Cancel a task",
    "Ends it where it is. Calls under way are dropped; whether they took effect is unknown. What is done stays done.",
    |reason| Command::Cancel { reason }
);
task_command!(
    pause,
    "/v1/tasks/{id}/pause",
    "Pause a task",
    "Calls under way may finish; nothing more of it is started until it is resumed.",
    |reason| Command::Pause { reason }
);
task_command!(
    resume,
    "/v1/tasks/{id}/resume",
    "Resume a paused task",
    "Steps that are ready start at once.",
    |reason| Command::Resume { reason }
);
task_command!(
    undo,
    "/v1/tasks/{id}/undo",
    "Undo a task",
    "Undoes every step that took effect, or may have: each after the steps that followed it. Steps without `undo` are passed over. `GET /v1/tasks/{id}/undo-plan` shows beforehand what will be called; with its `fingerprint` as If-Match the undo is refused if the task has moved since.",
    |reason| Command::Undo { reason }
);

/// Where a task goes on.
#[derive(utoipa::ToSchema)]
#[schema(as = TaskRetry)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct TaskRetryBody {
    /// This step and all that follow it run again, those that are done among them. Left out: the failed
    /// steps alone.
    #[schema(example = "charge")]
    from: Option<String>,
    #[schema(example = "the prices were wrong")]
    reason: Option<String>,
}

/// Resubmit the failed steps of a task, or run it again from a step on
///
/// Without `from`: the failures of every step in error are forgotten, and the task goes on from where it
/// stood. With `from`: that step and all that follow it, near or far, run again, done or not. Failures count
/// anew, conditions are judged again, and each output stands until it is replaced. The calls carry the
/// Idempotency-Keys that they carried before: a service that remembers them may answer from its memory. A
/// step that was done and has not run again yet is still undone when the task is.
///
/// `from` is refused while one of these steps is being called, where a pivot among them is done, and for a
/// task that is being undone.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/retry", tag = "operate",
    params(TaskParams, CommandHeaders),
    request_body(content = Option<TaskRetryBody>, description = "May be left out"),
    responses(
        (status = 200, description = "The task afterwards", body = TaskView),
        (status = 409, description = "The state of the task or of a step does not allow it", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn retry(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    asked: Asked,
) -> Result<Response, Problem> {
    let (from, reason) =
        asked.fields(|fields| (fields.string("from", LONGEST_STEP), reason(fields)))?;
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
    asked.send(id, command).await
}

/// A changed request.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct RetryBody {
    /// Sent as the request body in place of the rendered one, from now on.
    #[schema(value_type = Json, required = false, example = json!({"amount": 30, "card": "tok_visa"}))]
    input: Option<String>,
    #[schema(example = "the customer gave another card")]
    reason: Option<String>,
}

/// Resubmit a failed step
///
/// The step runs again under its stable Idempotency-Key, with its failures forgotten, and the task
/// goes on from there. `input` replaces its rendered request body. A step that waits for a later try
/// is tried at once.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/steps/{name}/retry", tag = "operate",
    params(StepParams, CommandHeaders),
    request_body(content = Option<RetryBody>, description = "May be left out"),
    responses(
        (status = 200, description = "The task afterwards", body = TaskView),
        (status = 409, description = "The step is not in error", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn retry_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    asked: Asked,
) -> Result<Response, Problem> {
    let (body, reason) =
        asked.fields(|fields| (fields.raw("input").map(Payload::new), reason(fields)))?;
    let (_, step) = find(&app, id, &name).await?;
    let command = Command::Retry {
        step: Some(step),
        body,
        reason,
    };
    asked.send(id, command).await
}

/// What stands in for the step's own output.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct OutputBody {
    /// What later steps see as its output; null if left out.
    #[schema(value_type = Json, required = false, example = json!({"id": "ch_1"}))]
    output: Option<String>,
    #[schema(example = "charged by hand in the payment console")]
    reason: Option<String>,
}

/// Go on without a step
///
/// The step counts as done for the steps that follow; they see `output`, or null.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/steps/{name}/skip", tag = "operate",
    params(StepParams, CommandHeaders),
    request_body(content = Option<OutputBody>, description = "May be left out"),
    responses(
        (status = 200, description = "The task afterwards", body = TaskView),
        (status = 409, description = "The step is neither in error nor pending", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn skip_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    asked: Asked,
) -> Result<Response, Problem> {
    let (output, reason) = outcome(&asked)?;
    let (_, step) = find(&app, id, &name).await?;
    let command = Command::Skip {
        step,
        output,
        reason,
    };
    asked.send(id, command).await
}

/// Say that a step was done by hand
///
/// The step becomes processed with `output`, and the task goes on.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/steps/{name}/resolve", tag = "operate",
    params(StepParams, CommandHeaders),
    request_body(content = Option<OutputBody>, description = "May be left out"),
    responses(
        (status = 200, description = "The task afterwards", body = TaskView),
        (status = 409, description = "The step is neither in error nor pending", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since If-Match", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn resolve_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    asked: Asked,
) -> Result<Response, Problem> {
    let (output, reason) = outcome(&asked)?;
    let (_, step) = find(&app, id, &name).await?;
    let command = Command::Resolve {
        step,
        output: output.unwrap_or_else(Payload::null),
        reason,
    };
    asked.send(id, command).await
}

fn outcome(asked: &Asked) -> Result<(Option<Payload>, Option<String>), Problem> {
    asked.fields(|fields| (fields.raw("output").map(Payload::new), reason(fields)))
}

/// More than any step's name has, with what undoes it.
pub(super) const LONGEST_STEP: usize = 100;

/// The longest reason, in bytes: enough for a sentence or two, and it is kept for good.
const LONGEST_REASON: usize = 1000;

pub(super) fn reason(fields: &mut Fields<'_>) -> Option<String> {
    fields.string("reason", LONGEST_REASON)
}

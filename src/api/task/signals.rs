//! Signals: a caller reports the event that a step awaits.

use std::sync::Arc;

use axum::{extract::State, response::Response};

use super::commands::{CommandRequest, find};
use crate::{
    api::{
        App, Problem,
        definition::payload_check::check_payload,
        extract::{CommandHeaders, SignalParams, SignalPath, StepParams, TaskStepPath},
        openapi::words::JsonSchema,
        problem::{ProblemBody, ProblemKind},
        task::replies::digest,
    },
    domain::{
        definition::{SchemaOwner, StepWork},
        task::Command,
        template::Payload,
        values::TaskId,
        view::TaskView,
    },
};

/// Signal a step
///
/// Reports the event that the step awaits; the body, any JSON, becomes its output. A signal that comes before the
/// step is ready is kept for it. The first signal counts: the same one again changes nothing and returns the task,
/// another one is refused.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/signals/{name}", tag = "tasks",
    params(StepParams, CommandHeaders),
    request_body(content = JsonSchema, description = "The output of the step; without a body it is null", example = json!({"approved": true})),
    responses(
        (status = 200, description = "The task after the signal", body = TaskView),
        (status = 409, description = "The step has another signal, or awaits none (any more)", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "The payload does not match the step's `schema` (`invalid`), or its `match` is false (`signal-mismatch`)", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn signal_step(
    State(app): State<Arc<App>>,
    TaskStepPath(id, name): TaskStepPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    send(&app, id, &name, request).await
}

/// Signal a step by the key of its task
///
/// Signals the task with this key and of this workflow that has not ended, as by its id.
#[utoipa::path(
    post, path = "/v1/signals/{workflow}/{key}/{name}", tag = "tasks",
    params(SignalParams, CommandHeaders),
    request_body(content = JsonSchema, description = "The output of the step; without a body it is null", example = json!({"approved": true})),
    responses(
        (status = 200, description = "The task after the signal", body = TaskView),
        (status = 409, description = "Several tasks have this key, or the step has another signal, or awaits none (any more)", body = ProblemBody, content_type = "application/problem+json"),
        (status = 412, description = "The task has changed since the version in If-Match", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "The payload does not match the step's `schema` (`invalid`), or its `match` is false (`signal-mismatch`)", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn signal_by_key(
    State(app): State<Arc<App>>,
    SignalPath {
        workflow,
        key,
        name,
    }: SignalPath,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let found = app.store.reader.tasks_of_key(&workflow, &key).await?;
    let task = match (&found.live[..], found.ended) {
        ([task], _) => *task,
        // The task has ended: the request may be a repetition of the signal.
        ([], Some(ended)) => ended,
        ([], None) => {
            return Err(Problem::new(
                ProblemKind::NoSuchTask,
                format!(
                    "of the newest 100 tasks with the key {key:?} none is of workflow {workflow:?}: submit it first, or signal it by its id; ended tasks are deleted after the retention time"
                ),
            ));
        }
        ([first, second, ..], _) => {
            return Err(Problem::new(
                ProblemKind::AmbiguousKey,
                format!(
                    "several tasks of workflow {workflow:?} have the key {key:?} and have not ended, among them {first} and {second}: signal one of them by its id"
                ),
            ));
        }
    };
    send(&app, task, &name, request).await
}

async fn send(
    app: &App,
    task: TaskId,
    name: &str,
    request: CommandRequest,
) -> Result<Response, Problem> {
    let (found, step) = find(app, task, name).await?;
    let payload = request.body().map_or_else(Payload::null, Payload::new);
    let limit = app.config.limits.max_output.as_usize();
    if payload.as_json().len() > limit {
        return Err(Problem::new(
            ProblemKind::BodyTooLarge,
            format!(
                "the signal is longer than {limit} bytes: send less, or raise limits.max_output"
            ),
        ));
    }
    if let StepWork::Signal(rule) = &found.definition(step).work
        && let Some(schema) = &rule.schema
    {
        let owner = SchemaOwner::of(found.details.workflow.as_ref());
        check_payload(app, schema, owner, &payload, "", None).await?;
    }
    let digest = digest("signal", payload.as_json());
    let command = Command::Signal {
        step,
        payload,
        digest,
    };
    request.send(task, command).await
}

//! Clones a task with changes: an operator's remedy for a task that cannot succeed as it is.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::State,
    http::{Method, StatusCode},
    response::Response,
};
use serde_json::value::RawValue;

use super::{
    commands::reason,
    json, load,
    submit::{
        Submission, accept, check_input, check_start, complete_within, key_prefix, labels,
        new_details, priority, start_at,
    },
};
use crate::api::openapi::words::{DurationSchema, JsonSchema, LabelsSchema};
use crate::{
    api::{
        App, Problem,
        auth::Access,
        definition::workflows::{self, VersionChoice},
        extract::{
            Caller, ConditionHeaders, Conditions, OptionalJsonBody, Query, TaskMatch, TaskParams,
            TaskPath, TraceHeaders, idempotency,
        },
    },
    domain::{
        definition::Definition,
        task::{Details, QueueNamedBy, ReplyTo},
        template::Payload,
        values::{FieldFault, Fields, LONGEST_NAME, Priority, Span, Timestamp, WorkflowRef, text},
        view::{PlannedClone, ReplyToView, TaskDifference, TaskView, clone_difference},
    },
    store::CommandError,
};

/// The changes; everything else is copied from the task.
#[derive(utoipa::ToSchema)]
#[schema(as = Clone)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct CloneBody {
    /// Replaces the task's whole input.
    #[schema(value_type = JsonSchema, required = false)]
    input: Option<String>,
    /// Changes to the task's input, as a JSON Merge Patch (RFC 7396): members are added or replaced, and null
    /// removes a member. Not together with `input`.
    #[schema(value_type = JsonSchema, required = false, example = json!({"card": "tok_other"}))]
    input_patch: Option<String>,
    #[schema(example = "order-1001", max_length = 255)]
    key: Option<String>,
    /// Replaces all of the task's labels.
    labels: Option<LabelsSchema>,
    #[schema(minimum = -100, maximum = 100)]
    priority: Option<i8>,
    #[schema(example = "15m")]
    complete_within: Option<DurationSchema>,
    /// The time at which the new task begins, as in a submission. Default: at once, also if the original began at a
    /// set time.
    #[schema(value_type = Option<String>, format = DateTime, example = "2026-02-03T04:05:06Z")]
    start_at: Option<String>,
    /// Another version of the task's workflow: its number, `latest` or `active`. Default: the task's own version.
    workflow_version: Option<VersionBody>,
    /// Replaces the task's own `reply_to`; null: no messages are sent.
    reply_to: Option<ReplyToView<'static>>,
    /// Recorded in the history of the new task.
    #[schema(example = "the first card was declined")]
    reason: Option<String>,
}

/// A version of a workflow.
#[derive(utoipa::ToSchema)]
#[schema(as = WorkflowVersion, example = "latest")]
#[serde(untagged)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub enum VersionBody {
    Number(u32),
    Latest(Latest),
}

#[derive(utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = LatestVersion)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub enum Latest {
    /// The one that was registered last.
    Latest,
    /// The version of tasks that name none.
    Active,
}

/// The new task; with `dry_run`, its differences from the original.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub enum TaskOrDifference {
    Task(Box<TaskView<'static>>),
    Difference(Box<TaskDifference>),
}

/// Clone a task
///
/// Creates a new task with the input, key, labels, priority, time limit, reply address and definition of this one,
/// except for the changes in the body. It is a submission like any other: durable before the response, with
/// Idempotency-Keys of its own for its calls. Its history names the task it was cloned from. That task may have
/// ended and is not changed: its effects are neither undone nor reused. With `dry_run=true` nothing is stored: the
/// response compares the task with the clone as it would be submitted, without differences of the definitions for callers
/// that may not read workflows.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/clone", tag = "operate", operation_id = "clone_task",
    params(
        TaskParams,
        ("dry_run" = Option<bool>, Query, description = "Return only the differences from the original", example = false),
        ConditionHeaders,
        TaskMatch,
        TraceHeaders,
    ),
    request_body(content = Option<CloneBody>, description = "Optional"),
    responses(
        (status = 202, description = "Accepted and durable; Location is the URL to poll", body = TaskView),
        (status = 200, description = "With Prefer: wait, the new task ended or needed an operator in time; with dry_run, the differences from the original", body = TaskOrDifference),
        (status = 412, description = "The task has changed since the version in If-Match", body = crate::api::problem::ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn clone(
    State(app): State<Arc<App>>,
    TaskPath(id): TaskPath,
    caller: Caller,
    conditions: Conditions,
    mut query: Query,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    let dry_run = query.boolean("dry_run")?.unwrap_or(false);
    query.finish()?;
    let task = load(&app, id).await?;
    if let Some(expected) = conditions
        .if_match
        .filter(|version| *version != task.version)
    {
        let current = task.version;
        return Err(CommandError::VersionMismatch { expected, current }.into());
    }
    let mut submission = clone_submission(&app, &task.details, body.as_deref()).await?;
    if dry_run {
        let details = new_details(submission, id, &conditions);
        let planned = PlannedClone {
            details: &details,
            shows_definition: Access::Read.allows(caller.role),
        };
        let permit = app.bulkhead.enter().await?;
        return Ok(permit.run(|| json(StatusCode::OK, &clone_difference(&task, &planned))));
    }
    let path = format!("/v1/tasks/{id}/clone");
    let body = body.as_deref().map_or("", RawValue::get);
    let keyed =
        |path: &str| idempotency(&conditions, &caller, &Method::POST, path, body.as_bytes());
    // The original may have been lost and submitted again under another id. Its key prefix is the same.
    let stable =
        { task.details.key_prefix.as_deref() }.map(|prefix| format!("/v1/tasks/{prefix}/clone"));
    let stable = keyed(stable.as_deref().unwrap_or(&path));
    submission.key_prefix = key_prefix(&app, stable.as_ref());
    let idempotency = keyed(&path);
    accept(&app, submission, &conditions, idempotency).await
}

pub(super) async fn clone_submission(
    app: &App,
    details: &Details,
    body: Option<&RawValue>,
) -> Result<Submission, Problem> {
    let mut fields = match body {
        Some(body) => Fields::of(body, "").map_err(Problem::invalid)?,
        None => Fields::default(),
    };
    let input = input(
        &mut fields,
        &details.input,
        app.config.limits.max_request.as_usize(),
    );
    let CloneChanges {
        key,
        labels,
        priority,
        complete_within,
        start_at,
        reply_to,
        reason,
    } = CloneChanges::read(app, &mut fields).await?;
    let reply_to = reply_to.unwrap_or_else(|| details.reply_to.as_deref().cloned());
    let (workflow, definition) = definition(app, &mut fields, details).await?;
    if start_at.is_some() {
        check_start(&mut fields, &definition);
    }
    fields.finish().map_err(Problem::invalid)?;
    // An unchanged input of an unchanged workflow is not checked: if the schema was added to the task's definition
    // later, the input may lack fields that the schema requires.
    if input != details.input || workflow != details.workflow {
        check_input(app, workflow.as_ref(), &definition, &input, None).await?;
    }
    let origin = format!("cloned from {}", details.id);
    Ok(Submission {
        workflow,
        definition,
        key: key.or_else(|| details.key.as_deref().map(str::to_owned)),
        input,
        priority: priority.unwrap_or(details.priority),
        complete_within: complete_within.or(details.complete_within),
        start_at,
        labels: labels.unwrap_or_else(|| details.labels.clone()),
        reply_to,
        reason: Some(match reason {
            Some(reason) => format!("{origin}: {reason}"),
            None => origin,
        }),
        key_prefix: None,
    })
}

/// The changes that do not depend on the task.
struct CloneChanges {
    key: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    priority: Option<Priority>,
    complete_within: Option<Span>,
    start_at: Option<Timestamp>,
    /// `None`: the address of the task stays.
    reply_to: Option<Option<ReplyTo>>,
    reason: Option<String>,
}

impl CloneChanges {
    async fn read(app: &App, fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self {
            key: fields.string("key", LONGEST_NAME),
            labels: fields.has("labels").then_some(labels(fields)),
            priority: priority(fields),
            complete_within: complete_within(fields),
            start_at: start_at(app, fields).await?,
            reply_to: {
                let is_given = fields.has("reply_to");
                let receivers = app.receivers.load();
                let reply_to = ReplyTo::read(fields, &**receivers, None, QueueNamedBy::Request);
                is_given.then_some(reply_to)
            },
            reason: reason(fields),
        })
    }
}

/// Returns the faults of changes that no task can be cloned with. `pointer` leads to them.
pub(super) async fn faults_of_changes(
    app: &App,
    changes: &RawValue,
    pointer: &str,
) -> Result<Vec<FieldFault>, Problem> {
    let mut fields = match Fields::of(changes, pointer) {
        Ok(fields) => fields,
        Err(faults) => return Ok(faults),
    };
    let longest = app.config.limits.max_request.as_usize();
    let of_no_task = Payload::new(RawValue::NULL.to_owned());
    input(&mut fields, &of_no_task, longest);
    CloneChanges::read(app, &mut fields).await?;
    version(&mut fields, "workflow_version");
    Ok(fields.finish().err().unwrap_or_default())
}

fn input(fields: &mut Fields<'_>, input: &Payload, longest: usize) -> Payload {
    match (fields.value("input"), fields.value("input_patch")) {
        (None, None) => input.clone(),
        (Some(whole), None) => Payload::new(whole.to_owned()),
        (None, Some(patch)) => {
            let patched = input.merged(patch);
            if patched.as_json().len() > longest {
                let message =
                    format!("makes the input longer than {longest} bytes: see limits.max_request");
                fields.fault("input_patch", message);
            }
            patched
        }
        (Some(_), Some(_)) => {
            fields.fault("input_patch", "give either input or input_patch, not both");
            input.clone()
        }
    }
}

/// Returns the definition of the new task. Inline steps are validated by the current rules and registrations, as in
/// any submission.
async fn definition(
    app: &App,
    fields: &mut Fields<'_>,
    details: &Details,
) -> Result<(Option<WorkflowRef>, Arc<Definition>), Problem> {
    let wanted = fields.peek("workflow_version").map(str::to_owned);
    let Some(workflow) = &details.workflow else {
        fields.value("workflow_version");
        if wanted.is_some() {
            fields.fault(
                "workflow_version",
                "requires a workflow, but the task has inline steps: omit it",
            );
        }
        let source = &details.definition.source;
        let compiled = app
            .compile(source.raw(), &details.definition.policies, None)
            .await?;
        let compiled = compiled.map_err(not_accepted)?;
        return Ok((None, compiled));
    };
    let version = version(fields, "workflow_version");
    // The definition of the task is not used: after a migration its steps have the indexes of its earlier version.
    let version = version.unwrap_or(VersionChoice::Number(workflow.version));
    match workflows::resolve(app, &workflow.name, version).await? {
        Some(known) => Ok((Some(known.workflow), known.definition)),
        None => {
            let name = &workflow.name;
            let message = format!(
                "workflow {name:?} has no such version; GET /v1/workflows/{name}/versions lists them"
            );
            fields.fault("workflow_version", message);
            Ok((details.workflow.clone(), details.definition.clone()))
        }
    }
}

/// Parses the number of a version, or a word for one.
pub(super) fn version(fields: &mut Fields<'_>, name: &'static str) -> Option<VersionChoice> {
    let word = fields.peek(name).and_then(text);
    let choice = match word.as_deref() {
        Some("latest") => VersionChoice::Latest,
        Some("active") => VersionChoice::Active,
        _ => {
            let version = fields.integer(name, 1..=i64::from(u32::MAX))?;
            // The number is within the range of versions.
            return Some(VersionChoice::Number(version as u32));
        }
    };
    fields.value(name);
    Some(choice)
}

/// Reports faults in the task's own steps, which the body does not contain.
fn not_accepted(faults: Vec<FieldFault>) -> Problem {
    let faults = faults.into_iter().map(|fault| FieldFault {
        message: format!(
            "{}: {}, in the steps of the original task",
            fault.pointer, fault.message
        ),
        pointer: String::new(),
    });
    Problem::invalid(faults.collect())
}

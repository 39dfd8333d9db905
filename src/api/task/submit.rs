//! Submission: saves a task and the first state of its steps in one transaction.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use serde_json::value::RawValue;

use super::{TaskWaitResult, accepted, mark_as_replayed, render, wait_until_settled, watch};
use crate::api::openapi::words::{DurationSchema, JsonSchema, LabelsSchema};
use crate::{
    api::{
        App, Problem,
        bulkhead::EvaluationPermit,
        definition::{payload_check::check_payload, shapes, workflows},
        extract::{
            Caller, ConditionHeaders, Conditions, DefinitionBody, Query, TraceHeaders, idempotency,
        },
        problem::{ProblemBody, ProblemKind},
        view::dry_run,
    },
    domain::{
        definition::{Definition, OnConflict, Policies, SchemaOwner},
        task::{Details, QueueNamedBy, ReplyQueue, ReplyTo},
        template::Payload,
        values::{
            FieldFault, Fields, LONGEST_NAME, MOST_LABELS, Priority, Span, TaskId, Timestamp,
            WorkflowName, WorkflowRef,
        },
        view::{DryRunReport, ReplyToView, TaskFields, TaskView},
    },
    store::{Idempotency, Submitted},
};

/// The body of a submission.
#[derive(utoipa::ToSchema)]
#[schema(as = Submission)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct SubmissionBody {
    /// A registered workflow; alternatively give `steps`.
    #[schema(example = "order")]
    workflow: Option<String>,
    /// The workflow's version; the default is the active one.
    #[schema(minimum = 1)]
    workflow_version: Option<u32>,
    /// Inline steps, instead of a workflow.
    steps: Option<Vec<shapes::StepBody>>,
    /// The caller's own id: searchable, and sent with every call as Provost-Task-Key.
    #[schema(example = "order-1001", max_length = 255)]
    key: Option<String>,
    /// The value of `input` in the steps' expressions.
    #[schema(value_type = JsonSchema, required = false, example = json!({"sku": "book-7", "quantity": 1, "card": "tok_visa"}))]
    input: Option<String>,
    /// Steps of tasks with a higher priority are claimed first.
    #[schema(default = 0, example = 0, minimum = -100, maximum = 100)]
    priority: Option<i8>,
    /// The time limit of the whole task; the default is the workflow's.
    #[schema(value_type = Option<DurationSchema>, example = "15m")]
    complete_within: Option<String>,
    /// The time at which the task begins, at most ten years from now: `complete_within` counts from then. A time in
    /// the past is now.
    #[schema(value_type = Option<String>, format = DateTime, example = "2026-02-03T04:05:06Z")]
    start_at: Option<String>,
    /// Only with inline steps; a workflow has its own.
    #[serde(flatten)]
    policies: shapes::PoliciesBody,
    /// Up to 32 labels, which filters can use.
    labels: Option<LabelsSchema>,
    /// The receiver of messages about the task: signed CloudEvents, at least once, in order.
    reply_to: Option<ReplyToView<'static>>,
}

/// The stored task; with `dry_run`, the dry-run report.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub enum TaskOrDryRunReport {
    Task(Box<TaskView<'static>>),
    Report(DryRunReport),
}

/// A parsed and validated submission.
pub(super) struct Submission {
    pub workflow: Option<WorkflowRef>,
    pub definition: Arc<Definition>,
    pub key: Option<String>,
    pub input: Payload,
    pub priority: Priority,
    pub complete_within: Option<Span>,
    pub start_at: Option<Timestamp>,
    pub labels: BTreeMap<String, String>,
    pub reply_to: Option<ReplyTo>,
    /// The reason for the history: that of a clone names the original task.
    pub reason: Option<String>,
    /// The prefix of the steps' idempotency keys, if it is not the task's id.
    pub key_prefix: Option<Arc<str>>,
}

/// Submit a task
///
/// The task and the state of each of its steps are on disk before the response. With `Prefer: wait=10` the response
/// comes when the task has ended or needs an operator (200), or after ten seconds with the task as it is (202). With
/// `Idempotency-Key`, a repeated request creates nothing and returns the task that the first one created. With
/// `dry_run=true` nothing is stored: the response has the steps that would run, and the time that they may take.
#[utoipa::path(
    post, path = "/v1/tasks", tag = "tasks", operation_id = "submit_task",
    params(
        ("dry_run" = Option<bool>, Query, description = "Return only a dry-run report", example = false),
        ConditionHeaders,
        TraceHeaders,
    ),
    request_body(content(
        (SubmissionBody = "application/json", example = json!({
            "workflow": "order",
            "key": "order-1001",
            "input": { "sku": "book-7", "quantity": 1, "card": "tok_visa" },
            "labels": { "customer": "acme" },
        })),
        (SubmissionBody = "application/yaml"),
    )),
    responses(
        (status = 202, description = "Accepted and durable; Location is the URL to poll", body = TaskView),
        (status = 200, description = "With Prefer: wait, the task ended or needed an operator in time; with dry_run, the dry-run report", body = TaskOrDryRunReport),
        (status = 400, description = "The body is not JSON", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "The content is invalid; `errors` lists every fault with its JSON pointer", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "The store cannot commit (`store-full`, `store-unavailable`), the service is stopping (`stopping`), or too many long or costly definitions are being compiled (`busy`). Nothing was accepted, unless the detail says that it may have been", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn submit(
    State(app): State<Arc<App>>,
    caller: Caller,
    conditions: Conditions,
    mut query: Query,
    DefinitionBody(body): DefinitionBody,
) -> Result<Response, Problem> {
    let dry_run = query.boolean("dry_run")?.unwrap_or(false);
    query.finish()?;
    if dry_run {
        let permit = app.bulkhead.enter().await?;
        let submission = read(&app, &body, Some(&permit), None).await?;
        let fields = TaskFields {
            complete_within: submission.complete_within,
            input: Some(&submission.input),
            key: submission.key.as_deref(),
            labels: Some(&submission.labels),
            now: None,
        };
        return dry_run::respond(&app, &submission.definition, &fields, &permit).await;
    }
    let mut submission = read(&app, &body, None, None).await?;
    let idempotency = idempotency(
        &conditions,
        &caller,
        &Method::POST,
        "/v1/tasks",
        body.get().as_bytes(),
    );
    submission.key_prefix = key_prefix(&app, idempotency.as_ref());
    accept(&app, submission, &conditions, idempotency).await
}

/// Returns the prefix of the keys of a task that is submitted under an `Idempotency-Key`. It is derived from that
/// key, so that the task has the same one if it is lost and submitted again.
pub(super) fn key_prefix(app: &App, idempotency: Option<&Idempotency>) -> Option<Arc<str>> {
    let Idempotency { key, fingerprint } = idempotency?;
    Some(app.store.key_prefixes()?.of_request(key, fingerprint))
}

/// Stores a submission and returns its task, at once or when the task has ended or needs an operator.
pub(super) async fn accept(
    app: &App,
    submission: Submission,
    conditions: &Conditions,
    idempotency: Option<Idempotency>,
) -> Result<Response, Problem> {
    if app.stop.is_cancelled() {
        return Err(Problem::new(
            ProblemKind::Stopping,
            "the service is stopping and accepts no more tasks: submit to another instance, or to this one after its restart",
        ));
    }
    let Some(wait) = conditions.prefer_wait else {
        let id = app.store.new_task_id();
        let stored = store(app, submission, id, conditions, idempotency).await?;
        let replayed = matches!(stored, Submitted::Replayed(_));
        let task = accepted(app, stored).await?;
        let mut response = render(app, StatusCode::ACCEPTED, &task).await;
        locate(&mut response, task.id(), replayed);
        return Ok(response);
    };
    let id = app.store.new_task_id();
    // The subscription comes before the task exists: the task may end before this code continues.
    let mut watching = app.store.watchers.watch_new(id);
    let stored = store(app, submission, id, conditions, idempotency).await?;
    let replayed = matches!(stored, Submitted::Replayed(_));
    let mut task = accepted(app, stored).await?;
    if replayed {
        watching = watch(app, task.id());
        // The task may have settled before the subscription.
        task = super::load(app, task.id()).await?;
    }
    let mut has_waited = true;
    if !task.is_settled() {
        let (id, known) = (task.id(), task.version);
        drop(task);
        let rested = wait_until_settled(app, &mut watching, known, wait).await;
        has_waited = rested != TaskWaitResult::Refused;
        task = match rested {
            TaskWaitResult::Settled(rested) => rested,
            TaskWaitResult::NotSettled | TaskWaitResult::Refused => super::load(app, id).await?,
        };
    }
    let status = if task.is_settled() {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    let mut response = render(app, status, &task).await;
    if has_waited && let Ok(applied) = format!("wait={}", wait.as_secs()).parse() {
        let name = HeaderName::from_static("preference-applied");
        response.headers_mut().insert(name, applied);
    }
    locate(&mut response, task.id(), replayed);
    Ok(response)
}

fn locate(response: &mut Response, id: TaskId, replayed: bool) {
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/tasks/{id}")) {
        headers.insert(header::LOCATION, location);
    }
    headers.insert(header::VARY, HeaderValue::from_static("prefer"));
    if replayed {
        mark_as_replayed(response);
    }
}

async fn store(
    app: &App,
    submission: Submission,
    id: TaskId,
    conditions: &Conditions,
    idempotency: Option<Idempotency>,
) -> Result<Submitted, Problem> {
    let reason = submission.reason.clone();
    let details = new_details(submission, id, conditions);
    Ok(app.store.submit(details, reason, idempotency).await?)
}

pub(super) fn new_details(submission: Submission, id: TaskId, conditions: &Conditions) -> Details {
    Details {
        id,
        key: submission.key.map(Into::into),
        workflow: submission.workflow,
        definition: submission.definition,
        input: submission.input,
        labels: submission.labels,
        priority: submission.priority,
        complete_within: submission.complete_within,
        start_at: submission.start_at,
        trace: conditions.trace.clone(),
        reply_to: submission.reply_to.map(Box::new),
        parent: None,
        key_prefix: submission.key_prefix,
    }
}

/// The rules for a submission that comes from a queue or a schedule.
#[derive(Default)]
pub(super) struct MessageSource {
    /// The only workflow that it may submit.
    pub workflow: Option<WorkflowName>,
    /// The queue for its replies, unless its body names another.
    pub reply_to: Option<ReplyQueue>,
    /// The party that has named the queue for replies that is in its body.
    pub queue_named_by: QueueNamedBy,
    /// True if it is the submission of a schedule, which has no inline steps.
    pub is_scheduled: bool,
}

/// Parses a submission and reports all its faults at once.
pub(super) async fn read(
    app: &App,
    body: &RawValue,
    permit: Option<&EvaluationPermit<'_>>,
    source: Option<MessageSource>,
) -> Result<Submission, Problem> {
    let mut fields = Fields::of(body, "").map_err(Problem::invalid)?;
    let source = source.unwrap_or_default();
    let workflow = fields.string("workflow", 64);
    let only = source.workflow;
    let workflow = only_workflow(&mut fields, workflow, only.as_ref());
    let workflow_version = fields.integer("workflow_version", 1..=i64::from(u32::MAX));
    // If only one workflow is allowed, `only_workflow` has refused steps already.
    let steps = fields.value("steps").filter(|_| only.is_none());
    let key = fields.string("key", LONGEST_NAME);
    let input = fields.raw("input").map_or_else(Payload::null, Payload::new);
    let priority = priority(&mut fields);
    let complete_within = complete_within(&mut fields);
    let start_at = start_at(app, &mut fields).await?;
    let labels = labels(&mut fields);
    let reply_to = ReplyTo::read(
        &mut fields,
        &**app.receivers.load(),
        source.reply_to,
        source.queue_named_by,
    );
    let policies = Policies::read(&mut fields);

    let mut chosen = None;
    match (workflow, steps) {
        (Some(name), None) => {
            if policies.as_json().is_some() {
                fields.fault(
                    "workflow",
                    "has its own policies: omit on_exhausted, on_permanent, on_deadline, undoable_for, output, input_schema and finally",
                );
            }
            let name = WorkflowName::new(name);
            let version = workflow_version.and_then(|version| u32::try_from(version).ok());
            match workflows::resolve(app, &name, version).await? {
                Some(known) => {
                    chosen = Some((
                        Some(known.workflow),
                        known.definition,
                        known.complete_within,
                    ));
                }
                None => match version {
                    Some(version) if workflows::resolve(app, &name, None).await?.is_some() => {
                        let message = format!(
                            "workflow {name:?} has no version {version}; GET /v1/workflows/{name}/versions lists them"
                        );
                        fields.fault("workflow_version", message);
                    }
                    _ => {
                        let remedy = match app.workflows.nearest(&name) {
                            Some(meant) => format!("did you mean {meant:?}?"),
                            None if source.is_scheduled => {
                                format!("register it with PUT /v1/workflows/{name}")
                            }
                            None => format!(
                                "register it with PUT /v1/workflows/{name}, or give inline steps"
                            ),
                        };
                        fields.fault(
                            "workflow",
                            format!("workflow {name:?} does not exist; {remedy}"),
                        );
                    }
                },
            }
        }
        (None, Some(steps)) => {
            if workflow_version.is_some() {
                fields.fault("workflow_version", "requires workflow: omit it");
            }
            match app.compile(steps, &policies, permit).await? {
                Ok(definition) => chosen = Some((None, definition, None)),
                Err(faults) => fields.extend(faults),
            }
        }
        (Some(_), Some(_)) => {
            fields.fault("steps", "give either workflow or steps, not both");
        }
        (None, None) => fields.missing("workflow", "give the name of a workflow, or inline steps"),
    }
    if let (Some(_), Some((_, definition, _))) = (start_at, &chosen) {
        check_start(&mut fields, definition);
    }
    fields.finish().map_err(Problem::invalid)?;
    let Some((workflow, definition, default_within)) = chosen else {
        return Err(Problem::invalid(vec![FieldFault {
            pointer: String::new(),
            message: "give the name of a workflow, or inline steps".to_owned(),
        }]));
    };
    check_input(app, workflow.as_ref(), &definition, &input, permit).await?;
    Ok(Submission {
        workflow,
        definition,
        key,
        input,
        priority: priority.unwrap_or_default(),
        complete_within: complete_within.or(default_within),
        start_at,
        labels,
        reply_to,
        reason: None,
        key_prefix: None,
    })
}

/// Refuses an input that does not match the schema of the definition, if it has one.
pub(super) async fn check_input(
    app: &App,
    workflow: Option<&WorkflowRef>,
    definition: &Definition,
    input: &Payload,
    permit: Option<&EvaluationPermit<'_>>,
) -> Result<(), Problem> {
    let Some(schema) = &definition.input_schema else {
        return Ok(());
    };
    let owner = SchemaOwner::of(workflow);
    check_payload(app, schema, owner, input, "/input", permit).await
}

/// Returns the workflow of a submission that may name only one.
fn only_workflow(
    fields: &mut Fields<'_>,
    named: Option<String>,
    only: Option<&WorkflowName>,
) -> Option<String> {
    let Some(only) = only else { return named };
    if fields.has("steps") {
        fields.fault(
            "steps",
            format!("are not allowed here: this queue is for the workflow {only:?} alone"),
        );
    }
    if named.is_some_and(|named| named != only.as_str()) {
        fields.fault(
            "workflow",
            format!("is not allowed here: this queue is for the workflow {only:?} alone"),
        );
    }
    Some(only.as_str().to_owned())
}

pub(super) fn priority(fields: &mut Fields<'_>) -> Option<Priority> {
    let priority = fields.integer("priority", Priority::MIN..=Priority::MAX);
    priority.and_then(Priority::new)
}

pub(super) fn complete_within(fields: &mut Fields<'_>) -> Option<Span> {
    fields.span("complete_within", Span::from_millis(1)..=Span::LONGEST)
}

/// Returns the time at which the task begins. The current time is the store's, which is read only if the submission
/// has such a time.
pub(super) async fn start_at(
    app: &App,
    fields: &mut Fields<'_>,
) -> Result<Option<Timestamp>, Problem> {
    let Some(text) = fields.string("start_at", LONGEST_NAME) else {
        return Ok(None);
    };
    let Some(start) = Timestamp::parse(&text) else {
        fields.fault(
            "start_at",
            format!("must be a time such as \"2026-02-03T04:05:06Z\", not {text:?}"),
        );
        return Ok(None);
    };
    let now = app.store.reader.now().await?;
    if start > now + Span::LONGEST {
        fields.fault(
            "start_at",
            format!(
                "is more than {} away: choose an earlier time",
                Span::LONGEST
            ),
        );
    }
    // A time in the past is now.
    Ok(Some(start).filter(|start| *start > now))
}

/// Refuses a task that begins later if it has a rule that is decided at its submission.
pub(super) fn check_start(fields: &mut Fields<'_>, definition: &Definition) {
    let limits = definition.policies.limits.iter();
    let mut limits = limits.filter(|limit| limit.on_conflict != OnConflict::Wait);
    if let Some(limit) = limits.next() {
        fields.fault(
            "start_at",
            format!(
                "cannot be combined with a limit of running tasks whose on_conflict is {:?} (by {:?}): whether there is room is known only when the task begins, and it counts from then; set on_conflict to \"wait\", or omit start_at and submit the task when it is to begin",
                limit.on_conflict.as_str(),
                limit.by
            ),
        );
    }
}

pub(super) fn labels(fields: &mut Fields<'_>) -> BTreeMap<String, String> {
    let labels = fields.string_map("labels", LONGEST_NAME);
    if labels.len() > MOST_LABELS {
        fields.fault(
            "labels",
            format!(
                "{} labels are too many; at most {MOST_LABELS}",
                labels.len()
            ),
        );
    }
    if labels.keys().any(|name| name.contains(':')) {
        fields.fault(
            "labels",
            "a label's name cannot contain a colon: it separates name and value in ?label=",
        );
    }
    labels
}

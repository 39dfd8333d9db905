//! Registered definitions. A version never changes; changed content becomes a new version, and tasks keep the version
//! that they started with, unless an operator moves them. The active version is that of tasks that name none.

mod activation;
mod cache;
mod graph;
mod usage;

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::activation::ActivationView;
pub use self::cache::{CompiledWorkflow, VersionChoice, WorkflowCache, load_active, resolve};
use super::shapes::{OnExhaustedBody, PoliciesBody, StepBody};
use crate::api::openapi::words::{
    DeadlinePolicySchema, DurationSchema, JsonSchema, OnConflictSchema, PolicySchema,
};
use crate::api::{
    App, Problem,
    bulkhead::EvaluationPermit,
    extract::{
        Caller, DefinitionBody, IfTagged, NamePath, NameVersionPath, PageQuery, PlainName, Query,
        RegistrationHeaders, plain_name,
    },
    problem::{ProblemBody, ProblemKind},
    response::{Page, json, tagged},
    view::dry_run,
};
use crate::{
    config::Role,
    domain::{
        definition::{Definition, Policies},
        template::Payload,
        values::{
            ETag, Fields, Span, Timestamp, WorkflowName, WorkflowRef, policies_without_secrets,
            without_secrets,
        },
        view::{DryRunReport, TaskFields},
    },
    store::{RegisteredVersion, StoreError, StoredWorkflow, WorkflowRecord},
};

const LONGEST_DESCRIPTION: usize = 4096;
const SHORTEST_LIMIT: Span = Span::from_millis(1);

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, get_latest))
        .routes(routes!(activation::versions))
        .routes(routes!(get_version))
        .routes(routes!(activation::activate))
        .routes(routes!(graph::graph))
        .routes(routes!(usage::usage))
        .routes(routes!(validate))
}

/// The body of a registration.
#[derive(ToSchema)]
#[schema(as = WorkflowInput)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct WorkflowInput {
    /// A step without `after` follows the previous step in the list.
    #[schema(min_items = 1)]
    steps: Vec<StepBody>,
    #[schema(example = "Reserve, charge, ship", max_length = 4096)]
    description: Option<String>,
    /// The time limit of a whole task of this workflow that sets none of its own.
    #[schema(example = "15m")]
    complete_within: Option<DurationSchema>,
    #[serde(flatten)]
    policies: PoliciesBody,
    /// Limits for tasks with the same key, over all versions of the workflow: of the tasks that run at once, of their
    /// steps in flight, and of the steps that begin in a time. A task runs until it has ended, also while it waits
    /// for an operator.
    #[schema(max_items = 4)]
    limits: Option<Vec<TaskLimitBody>>,
    /// Callers with the role `read` see no payloads of the tasks of this workflow: neither inputs nor outputs, nor the bodies
    /// of requests, responses and messages. This holds for tasks of all versions, as long as the active version says so.
    #[schema(default = false, example = true)]
    hide_bodies: Option<bool>,
}

/// The limits of the tasks of a workflow that have the same key: of tasks that run at once (`max_running`), and of
/// their steps over all agents (`max_in_flight`, `rate`).
#[derive(ToSchema)]
#[schema(as = TaskLimit)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct TaskLimitBody {
    /// A template of the key, made of `task` and `input`, at most 500 bytes long. Tasks for which it cannot be made
    /// share the empty key.
    #[schema(pattern = "[{][{]", example = "{{ task.labels.customer }}")]
    by: String,
    /// Default: 1; with `max_in_flight` or `rate` none.
    #[schema(minimum = 1, maximum = 10_000, example = 1)]
    max_running: Option<u32>,
    /// The policy for a task that would exceed `max_running`. Default: `wait`.
    #[schema(example = "wait")]
    on_conflict: Option<OnConflictSchema>,
    /// The most steps of tasks with the same key that run at once, all agents and instances together. Steps whose reply
    /// is awaited count too.
    #[schema(minimum = 1, maximum = 10_000, example = 5)]
    max_in_flight: Option<u32>,
    /// The most steps of tasks with the same key that may begin in a second (`s`), a minute (`m`) or an hour (`h`),
    /// all agents and instances together.
    #[schema(pattern = "^[0-9]+/[smh]$", example = "10/s")]
    rate: Option<String>,
    /// The most steps that may begin at once after a rest. Default: what the rate gives in a tenth of a second, at
    /// least 1.
    #[schema(minimum = 1, maximum = 100_000, example = 10)]
    burst: Option<u32>,
}

/// One version of a workflow.
#[derive(Serialize, ToSchema)]
#[schema(as = Workflow)]
pub struct WorkflowView<'a> {
    #[serde(flatten)]
    head: WorkflowHead<'a>,
    #[serde(flatten)]
    policies: PoliciesView,
    /// The steps as they were registered. Only `admin` sees all of it: for other roles, `***` replaces the value of
    /// a header whose name suggests a secret, and the query of a `url`.
    #[schema(value_type = Vec<StepBody>)]
    steps: &'a RawValue,
    /// The last 50 activations of a version, newest first. Empty as long as the newest version always was the active
    /// one.
    activations: Vec<ActivationView>,
}

/// A workflow in a list.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkflowSummary)]
pub struct WorkflowHead<'a> {
    #[schema(example = "order")]
    name: &'a str,
    /// Counted from 1.
    #[schema(example = 3)]
    version: u32,
    /// The version of tasks that name none.
    #[schema(example = 3)]
    active_version: u32,
    #[schema(required, value_type = Option<String>, example = "Reserve, charge, ship")]
    description: Option<String>,
    #[schema(required, value_type = Option<DurationSchema>, example = "15m")]
    complete_within: Option<Span>,
    /// The time at which this version was registered.
    #[schema(example = "2026-01-31T09:30:00.000Z")]
    created_at: Timestamp,
}

impl<'a> WorkflowHead<'a> {
    fn new(record: &'a WorkflowRecord, stored: &StoredWorkflow, active: u32) -> Self {
        Self {
            name: record.name.as_str(),
            version: record.version,
            active_version: active,
            description: stored.description.clone(),
            complete_within: stored.complete_within,
            created_at: record.created_at,
        }
    }
}

/// The defaults for all steps, as they were registered.
#[derive(Default, Serialize, Deserialize, ToSchema)]
pub struct PoliciesView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OnExhaustedBody>)]
    on_exhausted: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PolicySchema>)]
    on_permanent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeadlinePolicySchema>)]
    on_deadline: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DurationSchema>)]
    undoable_for: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<TaskLimitBody>>)]
    limits: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JsonSchema>)]
    output: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JsonSchema>)]
    input_schema: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<StepBody>>)]
    finally: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hide_bodies: Option<bool>,
}

impl PoliciesView {
    /// `hidden` replaces the fields that are not all shown.
    fn new(stored: &StoredWorkflow, hidden: Option<&RawValue>) -> Self {
        let policies = hidden.or(stored.policies.as_deref());
        // Definitions were validated before they were stored.
        policies
            .and_then(|policies| serde_json::from_str(policies.get()).ok())
            .unwrap_or_default()
    }
}

/// A parsed and validated body.
struct ValidatedWorkflow {
    definition: Arc<Definition>,
    stored: StoredWorkflow,
}

/// Parses a body and reports all its faults at once.
async fn check(
    app: &App,
    body: &RawValue,
    permit: Option<&EvaluationPermit<'_>>,
) -> Result<ValidatedWorkflow, Problem> {
    let mut fields = Fields::of(body, "").map_err(Problem::invalid)?;
    let description = fields.string("description", LONGEST_DESCRIPTION);
    let complete_within = fields.span("complete_within", SHORTEST_LIMIT..=Span::LONGEST);
    let policies = Policies::read_of_workflow(&mut fields);
    let mut definition = None;
    match fields.value("steps").and_then(|steps| compact(steps.get())) {
        Some(steps) => match app.compile(steps.raw(), &policies, permit).await? {
            Ok(compiled) => definition = Some(compiled),
            Err(faults) => fields.extend(faults),
        },
        None => fields.missing("steps", "give an array of at least one step"),
    }
    if policies.hide_bodies
        && let Err(why) = app.hides_bodies_everywhere()
    {
        fields.fault("hide_bodies", why);
    }
    fields.finish().map_err(Problem::invalid)?;
    // If there is no definition, there was a fault, and `finish` has returned it.
    let definition = definition.ok_or_else(|| Problem::invalid(Vec::new()))?;
    Ok(ValidatedWorkflow {
        stored: StoredWorkflow {
            description,
            complete_within,
            policies: policies
                .as_json()
                .and_then(compact)
                .map(|policies| policies.raw().to_owned()),
            steps: definition.source.raw().to_owned(),
        },
        definition,
    })
}

/// Returns the same JSON without insignificant white space. Numbers and strings are unchanged.
pub fn compact(json: &str) -> Option<Payload> {
    let mut compact = String::with_capacity(json.len());
    let mut in_string = false;
    let mut escaped = false;
    for c in json.chars() {
        if in_string {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = false,
                _ => {}
            }
        } else if c == '"' {
            in_string = true;
        } else if c.is_ascii_whitespace() {
            continue;
        }
        compact.push(c);
    }
    Payload::parse(compact)
}

/// Register a workflow
///
/// Creates a new version if the content differs from the latest version (201), and changes nothing otherwise (200).
/// Every fault of the definition is reported at once. Running tasks keep the version that they started with. With
/// `If-None-Match: *` the workflow is registered only if it does not exist; with `If-Match` and the ETag of the
/// version that you have read, a new version is created only if that version is still the latest.
///
/// A new version becomes the active one, which tasks get that name no version, if the version before it was active.
/// After a roll-back it does not: activate it with `POST /v1/workflows/{name}/activate`. `activate=true` makes the
/// version active in any case, also if it is not new, and `activate=false` in none; the first version of a workflow
/// is always active.
#[utoipa::path(
    put, path = "/v1/workflows/{name}", tag = "workflows", operation_id = "put_workflow",
    params(
        ("name" = PlainName, Path, description = "The workflow's name", example = "order"),
        ("activate" = Option<bool>, Query, description = "Whether the version becomes the active one; the default: if the one before it is", example = false),
        RegistrationHeaders,
    ),
    request_body(content((WorkflowInput = "application/json"), (WorkflowInput = "application/yaml")), description = "The steps, and the settings of all tasks of this workflow"),
    responses(
        (status = 201, description = "A new version was created", body = WorkflowView),
        (status = 200, description = "The latest version already has this content", body = WorkflowView),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed; `etag` is that of the latest version", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    mut query: Query,
    IfTagged(condition): IfTagged,
    DefinitionBody(body): DefinitionBody,
) -> Result<Response, Problem> {
    let activate = query.boolean("activate")?;
    query.finish()?;
    plain_name("a workflow", &name)?;
    let checked = check(&app, &body, None).await?;
    let name = WorkflowName::new(name);
    let stored = serde_json::to_string(&checked.stored)
        .map_err(|error| Problem::new(ProblemKind::Internal, error.to_string()))?;
    let by = caller.operator();
    let store = app.store.ordered_by(caller.origin());
    let put = store.put_workflow(name.clone(), stored, condition, activate, by);
    let RegisteredVersion { version, is_new } = put.await?;
    let workflow = WorkflowRef {
        name: name.clone(),
        version,
    };
    app.store.definitions.put(workflow, checked.definition);
    app.workflows.clear();
    // A version that cannot be read now is read with the next submission. Until then misspelt names are not compared
    // with the name of this workflow.
    let _ = load_active(&app, &name).await;
    if !is_new {
        return respond_with_version(&app, &name, Some(version), StatusCode::OK, &caller).await;
    }
    let mut response =
        respond_with_version(&app, &name, Some(version), StatusCode::CREATED, &caller).await?;
    if let Ok(location) = HeaderValue::try_from(format!("/v1/workflows/{name}/versions/{version}"))
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// List workflows
///
/// The latest version of each workflow, by name, without its steps. `active_version` is the version of tasks that
/// name none.
#[utoipa::path(
    get, path = "/v1/workflows", tag = "workflows", operation_id = "list_workflows",
    params(PageQuery),
    responses((status = 200, description = "A page of workflows", body = Page<WorkflowHead>)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let limit = query.limit()?;
    let (after, cursors) = query.cursor(|name| Some(name.to_owned()))?;
    query.finish()?;
    let records = app.store.reader.workflows().await?;
    let heads = records
        .iter()
        .map(|(record, active)| {
            Ok(WorkflowHead::new(
                record,
                &StoredWorkflow::of(record)?,
                *active,
            ))
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    let page = Page::of_names(heads, after.as_deref(), limit, cursors, |head| head.name);
    Ok(json(StatusCode::OK, &page))
}

/// Get the latest version of a workflow
///
/// With its steps as they were registered, the active version, and the last activations.
#[utoipa::path(
    get, path = "/v1/workflows/{name}", tag = "workflows", operation_id = "get_workflow",
    params(("name" = PlainName, Path, description = "The workflow's name", example = "order")),
    responses((status = 200, description = "The latest version", body = WorkflowView)),
)]
async fn get_latest(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    respond_with_version(
        &app,
        &WorkflowName::new(name),
        None,
        StatusCode::OK,
        &caller,
    )
    .await
}

/// Get one version of a workflow
///
/// All versions are kept: tasks continue with the version that they started with.
#[utoipa::path(
    get, path = "/v1/workflows/{name}/versions/{version}", tag = "workflows",
    operation_id = "get_workflow_version",
    params(
        ("name" = PlainName, Path, description = "The workflow's name", example = "order"),
        ("version" = u32, Path, minimum = 1, description = "Counted from 1", example = 3),
    ),
    responses((status = 200, description = "The requested version", body = WorkflowView)),
)]
async fn get_version(
    State(app): State<Arc<App>>,
    caller: Caller,
    NameVersionPath(name, version): NameVersionPath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let name = WorkflowName::new(name);
    // Versions count from 1. Text that is not a number is treated as a version that does not exist.
    respond_with_version(
        &app,
        &name,
        Some(version.unwrap_or(0)),
        StatusCode::OK,
        &caller,
    )
    .await
}

fn no_such_workflow(name: &WorkflowName, version: Option<u32>) -> Problem {
    let detail = match version {
        Some(_) => format!(
            "workflow {name:?} has no such version: GET /v1/workflows/{name}/versions lists them"
        ),
        None => {
            format!(
                "workflow {name:?} does not exist: GET /v1/workflows lists the workflows, PUT registers one"
            )
        }
    };
    Problem::new(ProblemKind::NoSuchWorkflow, detail)
}

async fn respond_with_version(
    app: &App,
    name: &WorkflowName,
    version: Option<u32>,
    status: StatusCode,
    caller: &Caller,
) -> Result<Response, Problem> {
    let Some(record) = app.store.reader.workflow(name, version).await? else {
        return Err(no_such_workflow(name, version));
    };
    let stored = StoredWorkflow::of(&record)?;
    let reader = &app.store.reader;
    let activations = reader.activations(name).await?;
    let number = activations.first().map_or(0, |last| last.number);
    let active = match activations.first() {
        Some(last) => last.version,
        None => {
            let active = reader.active_workflow(name).await?;
            active.map_or(record.version, |active| active.record.version)
        }
    };
    // A role that may register a workflow needs the steps unmasked, to register them again with changes.
    let (hidden, hidden_policies) = match caller.role {
        Role::Admin => (None, None),
        _ => (
            without_secrets(&stored.steps),
            stored
                .policies
                .as_deref()
                .and_then(policies_without_secrets),
        ),
    };
    let view = WorkflowView {
        head: WorkflowHead::new(&record, &stored, active),
        policies: PoliciesView::new(&stored, hidden_policies.as_deref()),
        steps: hidden.as_deref().unwrap_or(&stored.steps),
        activations: activations.into_iter().map(ActivationView::from).collect(),
    };
    let tag = ETag::of_workflow(record.version, &record.body, record.created_at, number);
    let tag = match hidden.as_ref().or(hidden_policies.as_ref()) {
        Some(_) => tag.with_hidden_parts(),
        None => tag,
    };
    Ok(tagged(json(status, &view), &tag))
}

/// Validate a workflow without storing it
///
/// Takes the body of a registration and returns a dry-run report: the steps that would run, the critical path, the
/// worst-case duration against `complete_within`, and warnings. Nothing is stored, and the name need not be
/// registered.
#[utoipa::path(
    post, path = "/v1/workflows/{name}/validate", tag = "workflows",
    operation_id = "validate_workflow",
    params(("name" = PlainName, Path, description = "The workflow's name", example = "order")),
    request_body(content((WorkflowInput = "application/json"), (WorkflowInput = "application/yaml")), description = "As for a registration"),
    responses((status = 200, description = "The definition is valid; this is what it would do", body = DryRunReport)),
)]
async fn validate(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    query: Query,
    DefinitionBody(body): DefinitionBody,
) -> Result<Response, Problem> {
    query.finish()?;
    plain_name("a workflow", &name)?;
    let permit = app.bulkhead.enter().await?;
    let checked = check(&app, &body, Some(&permit)).await?;
    let fields = TaskFields {
        complete_within: checked.stored.complete_within,
        ..TaskFields::default()
    };
    dry_run::respond(&app, &checked.definition, &fields, &permit).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_white_space_makes_no_new_version() {
        let written = "[ {\"name\" : \"a b\\\" c\",\n\t\"body\": { \"n\": 1.50 } } ]";
        let compacted = compact(written).unwrap();
        assert_eq!(
            compacted.as_json(),
            "[{\"name\":\"a b\\\" c\",\"body\":{\"n\":1.50}}]"
        );
        assert_eq!(compact(compacted.as_json()), Some(compacted));
    }
}

//! The active version of a workflow, and the list of its versions. To promote a version and to roll back to one are
//! the same command.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{WorkflowHead, no_such_workflow, respond_with_version};
use crate::{
    api::{
        App, Problem,
        extract::{
            Caller, IfTagged, JsonBody, NamePath, PageQuery, PlainName, Query, RegistrationHeaders,
        },
        problem::ProblemBody,
        response::{Page, json},
    },
    domain::values::{FieldFault, Fields, Timestamp, WorkflowName},
    store::{
        Activation, ActivationError, ActivationRequest, RegisterError, StoreError, StoredWorkflow,
    },
};

const LONGEST_REASON: usize = 1000;

/// The version that becomes active.
#[derive(ToSchema)]
#[schema(as = WorkflowActivation)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ActivationBody {
    #[schema(minimum = 1, example = 2)]
    version: u32,
    #[schema(example = "version 3 charges twice")]
    reason: Option<String>,
}

/// One activation of a version.
#[derive(Serialize, ToSchema)]
#[schema(as = Activation)]
pub struct ActivationView {
    #[schema(example = 2)]
    version: u32,
    /// The version that was active before.
    #[schema(example = 3)]
    from_version: u32,
    #[schema(example = "2026-01-31T09:30:00.000Z")]
    at: Timestamp,
    #[schema(example = "operator:ada@example.org")]
    by: String,
    #[schema(required, example = "version 3 charges twice")]
    reason: Option<String>,
}

impl From<Activation> for ActivationView {
    fn from(activation: Activation) -> Self {
        let Activation {
            number: _,
            version,
            from_version,
            at,
            by,
            reason,
        } = activation;
        Self {
            version,
            from_version,
            at,
            by,
            reason,
        }
    }
}

/// Activate a version of a workflow
///
/// From now on tasks that name no version get this one: a promotion, or a roll-back. Tasks that exist keep theirs;
/// `POST /v1/tasks/migrate` moves them. Nothing changes if the version is active. Instances that share the database use
/// it at once, or after at most 30 seconds if they cannot be notified.
#[utoipa::path(
    post, path = "/v1/workflows/{name}/activate", tag = "workflows", operation_id = "activate_workflow",
    params(("name" = PlainName, Path, description = "The workflow's name", example = "order"), RegistrationHeaders),
    request_body = ActivationBody,
    responses(
        (status = 200, description = "The version is active: `active_version` says so. The body is that of `GET /v1/workflows/{name}`", body = super::WorkflowView),
        (status = 412, description = "A precondition (If-Match, If-None-Match) failed: a version was registered or activated since; `etag` is that of the latest version", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn activate(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    query: Query,
    IfTagged(condition): IfTagged,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let mut fields = Fields::of(&body, "").map_err(Problem::invalid)?;
    if !fields.has("version") {
        fields.missing(
            "version",
            "give the number of the version that becomes active",
        );
    }
    let version = fields.integer("version", 1..=i64::from(u32::MAX));
    let reason = fields.string("reason", LONGEST_REASON);
    fields.finish().map_err(Problem::invalid)?;
    let name = WorkflowName::new(name);
    // The number is within the range of versions. If it is missing, there was a fault.
    let version = version.unwrap_or_default() as u32;
    let request = ActivationRequest {
        name: name.clone(),
        version,
        by: caller.operator(),
        reason,
        condition,
    };
    let store = app.store.ordered_by(caller.origin());
    let activated = store.activate_workflow(request).await;
    app.workflows.clear();
    match activated {
        Ok(()) => respond_with_version(&app, &name, None, StatusCode::OK, &caller).await,
        Err(ActivationError::NoWorkflow) => Err(no_such_workflow(&name, None)),
        Err(ActivationError::NoVersion { latest }) => {
            let message = format!(
                "workflow {name:?} has no version {version}, its latest is {latest}: GET /v1/workflows/{name}/versions lists them"
            );
            Err(Problem::invalid(vec![FieldFault::new("/version", message)]))
        }
        Err(ActivationError::Unmet(unmet)) => Err(RegisterError::Unmet(unmet).into()),
        Err(ActivationError::Store(error)) => Err(error.into()),
    }
}

/// List the versions of a workflow
///
/// Newest first, without their steps.
#[utoipa::path(
    get, path = "/v1/workflows/{name}/versions", tag = "workflows", operation_id = "list_workflow_versions",
    params(("name" = PlainName, Path, description = "The workflow's name", example = "order"), PageQuery),
    responses((status = 200, description = "A page of versions", body = Page<WorkflowHead>)),
)]
pub(super) async fn versions(
    State(app): State<Arc<App>>,
    NamePath(name): NamePath,
    mut query: Query,
) -> Result<Response, Problem> {
    let limit = query.limit()?;
    let (before, cursors) = query.cursor(|version| version.parse().ok())?;
    query.finish()?;
    let name = WorkflowName::new(name);
    let reader = &app.store.reader;
    let Some(active) = reader.active_workflow(&name).await? else {
        return Err(no_such_workflow(&name, None));
    };
    let active = active.record.version;
    let records = reader.workflow_versions(&name, before, limit + 1).await?;
    let heads = records
        .iter()
        .map(|record| {
            let stored = StoredWorkflow::of(record)?;
            Ok(WorkflowHead::new(record, &stored, active))
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    let page = Page::new(heads, limit, cursors, |head| head.version.to_string());
    Ok(json(StatusCode::OK, &page))
}

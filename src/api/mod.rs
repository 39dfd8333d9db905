//! The HTTP API. A thin layer: a handler parses a request into domain values, runs a command or a read, and renders
//! the result. It contains routes, extractors, problems, access control and the documentation; no rules of the
//! pattern and no SQL.

mod agent_access;
mod agent_check;
mod agent_controls;
mod agent_lanes;
mod agent_status;
mod agents;
mod alerts;
mod ask_html;
mod ask_page;
mod asks;
mod auth;
mod bulk_log;
mod bulkhead;
mod byte_budget;
mod cursor;
pub mod definition;
mod docs;
mod drawing;
pub mod dry_run_report;
mod ended_tasks;
pub mod extract;
mod hold;
mod instances;
mod last_check;
mod messages;
mod middleware;
mod openapi;
mod operations;
mod origin;
mod payload_check;
pub mod problem;
mod problem_pages;
mod queue_gauges;
mod replies;
pub mod request_id;
pub mod response;
mod schedules;
mod starting;
mod state;
mod tasks;
mod workers;
pub mod workflows;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use utoipa_axum::router::OpenApiRouter;

pub use agent_check::RunningChecks;
pub use bulkhead::EvaluationBulkhead;
pub use byte_budget::ByteBudget;
pub use problem::{Problem, refuse};
pub use replies::reply_by_message;
pub use schedules::fire as fire_schedule;
pub use starting::starting;
pub use state::{App, EndedTasks, Gauges, WorkflowCache};
pub use tasks::{refusal_address, submit_message};

use self::problem::ProblemKind;

/// All resources, each from its own module.
fn resources() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(openapi::start())
        .merge(tasks::routes())
        .merge(replies::routes())
        .merge(asks::routes())
        .merge(ask_page::routes())
        .merge(alerts::routes())
        .merge(messages::routes())
        .merge(workflows::routes())
        .merge(schedules::routes())
        .merge(agents::routes())
        .merge(agent_controls::routes())
        .merge(agent_check::routes())
        .merge(workers::routes())
        .merge(instances::routes())
        .merge(hold::routes())
        .merge(operations::routes())
        .merge(docs::routes())
        .merge(problem_pages::routes())
}

/// All routes of the service.
pub fn router(app: Arc<App>) -> Router {
    let state = middleware::MiddlewareState::new(
        app.tokens.clone(),
        origin::Site::of(&app.config),
        app.responses.clone(),
        app.requests.clone(),
    );
    let (routes, _) = resources().split_for_parts();
    routes
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(
            state,
            middleware::handle,
        ))
        .layer(axum::middleware::from_fn(request_id::attach))
        .with_state(app)
}

/// The OpenAPI document of everything that [`router`] serves.
pub fn openapi() -> utoipa::openapi::OpenApi {
    openapi::complete(resources().into_openapi())
}

/// Handles `OPTIONS *`: what the service as a whole supports.
const METHODS: HeaderValue = HeaderValue::from_static("GET,HEAD,POST,PUT,DELETE,OPTIONS");

async fn no_route(method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS && uri.path() == "*" {
        return (StatusCode::NO_CONTENT, [(header::ALLOW, METHODS)]).into_response();
    }
    Problem::new(
        ProblemKind::NotFound,
        format!(
            "no resource at {}: /docs lists all routes",
            shown_path(&uri)
        ),
    )
    .into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS {
        // The middleware lists the supported methods in Allow.
        return StatusCode::NO_CONTENT.into_response();
    }
    Problem::new(
        ProblemKind::MethodNotAllowed,
        format!(
            "{method} is not supported at {}: the Allow header lists the supported methods",
            shown_path(&uri)
        ),
    )
    .into_response()
}

/// The path of a request, without the credential in it: clients log their responses.
fn shown_path(uri: &Uri) -> &str {
    match uri.path() {
        path if path.starts_with("/v1/replies/") => "/v1/replies/{token}",
        path if path.starts_with("/v1/asks/") => "/v1/asks/{token}",
        path => path,
    }
}

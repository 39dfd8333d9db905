//! The HTTP API. A thin layer: a handler parses a request into domain values, runs a command or a read, and renders
//! the result. It contains routes, extractors, problems, access control and the documentation; no rules of the
//! pattern and no SQL.

pub(crate) mod agent;
pub mod definition;
pub(crate) mod message;
pub(crate) mod schedule;
pub(crate) mod task;
mod upkeep;
pub mod view;

mod auth;
mod bulkhead;
mod byte_budget;
mod cursor;
mod docs;
pub mod extract;
mod middleware;
mod openapi;
mod origin;
pub mod problem;
mod problem_pages;
pub mod request_id;
pub mod response;
mod starting;
mod state;
mod text_filter;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use utoipa_axum::router::OpenApiRouter;

pub use agent::check::RunningChecks;
pub use bulkhead::EvaluationBulkhead;
pub use byte_budget::ByteBudget;
pub use extract::Caller;
pub use problem::{Problem, refuse};
pub use schedule::fire as fire_schedule;
pub use starting::starting;
pub use state::{App, EndedTasks, Gauges, WorkflowCache};
pub use task::bulk::{BulkProgress, fail as fail_bulk_job, process as process_bulk_job};
pub use task::replies::reply_by_message;
pub use task::{refusal_address, submit_message};

use self::problem::ProblemKind;

/// Returns the routes of all resources, each from its own module.
fn resources() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(openapi::start())
        .merge(task::routes())
        .merge(task::replies::routes())
        .merge(task::ask::routes())
        .merge(task::ask_page::routes())
        .merge(task::alerts::routes())
        .merge(task::bulk::jobs::routes())
        .merge(message::routes())
        .merge(view::ledger::routes())
        .merge(view::ledger_readers::routes())
        .merge(definition::workflows::routes())
        .merge(schedule::routes())
        .merge(agent::routes())
        .merge(agent::controls::routes())
        .merge(agent::check::routes())
        .merge(agent::workers::routes())
        .merge(upkeep::instances::routes())
        .merge(upkeep::hold::routes())
        .merge(upkeep::settings::routes())
        .merge(upkeep::operations::routes())
        .merge(view::overview::routes())
        .merge(docs::routes())
        .merge(problem_pages::routes())
}

/// Returns all routes of the service: those of the API, and those of the console. `console` gets the routes of the API
/// to send requests to.
pub fn router(app: &Arc<App>, console: impl FnOnce(Router) -> Router) -> Router {
    let state = middleware::MiddlewareState::new(
        app.tokens.clone(),
        origin::Site::of(&app.config),
        app.responses.clone(),
        app.requests.clone(),
    );
    let public_path = request_id::PublicPath::from(app.config.public_path());
    let around = |routes: Router| {
        let handle = axum::middleware::from_fn_with_state(state.clone(), middleware::handle);
        let attach = axum::middleware::from_fn_with_state(public_path.clone(), request_id::attach);
        routes.layer(handle).layer(attach)
    };
    let (routes, _) = resources().split_for_parts();
    let routes = routes
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app.clone());
    let api = around(routes);
    let console = around(console(api.clone()));
    api.merge(console)
}

/// Returns the OpenAPI document of everything that [`router`] serves.
pub fn openapi() -> utoipa::openapi::OpenApi {
    openapi::complete(resources().into_openapi())
}

/// The methods in the response to `OPTIONS *`: those that the service as a whole supports.
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

/// Returns the path of a request without the credential in it: clients log their responses.
fn shown_path(uri: &Uri) -> &str {
    match uri.path() {
        path if path.starts_with("/v1/replies/") => "/v1/replies/{token}",
        path if path.starts_with("/v1/asks/") => "/v1/asks/{token}",
        path => path,
    }
}

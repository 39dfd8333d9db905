//! The responses while the service starts and has no database yet: it is alive, and clients should retry.

use axum::{
    Router,
    extract::State,
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{Problem, problem::ProblemKind, request_id, upkeep::operations};
use crate::store::Health;

/// Serves requests until [`super::router`] replaces it.
pub fn starting(health: Health, public_path: request_id::PublicPath) -> Router {
    Router::new()
        .route("/livez", get(operations::alive))
        .fallback(not_yet)
        .layer(middleware::from_fn_with_state(
            public_path,
            request_id::attach,
        ))
        .with_state(health)
}

/// Refuses any request with 503. No token is needed: there is no data to protect yet.
async fn not_yet(State(health): State<Health>) -> Response {
    if let Some(fault) = health.worst() {
        return Problem::from(fault.error()).into_response();
    }
    Problem::new(
        ProblemKind::StoreUnavailable,
        "the service is starting and not connected to its database yet: its log says what it waits for",
    )
    .into_response()
}

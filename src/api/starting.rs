//! What is answered while the service starts and has no database yet: that it is alive, and to come back.

use axum::{
    Router,
    extract::State,
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{Problem, operations, problem::Kind, request_id};
use crate::store::Health;

/// Answers until [`super::router`] takes over.
pub fn starting(health: Health) -> Router {
    Router::new()
        .route("/livez", get(operations::livez))
        .fallback(not_yet)
        .layer(middleware::from_fn(request_id::attach))
        .with_state(health)
}

/// Without a token too: there is nothing yet that one could protect.
async fn not_yet(State(health): State<Health>) -> Response {
    if let Some(fault) = health.worst() {
        return Problem::from(fault.error()).into_response();
    }
    Problem::new(
        Kind::StoreUnavailable,
        "the service is starting and has no database yet: its log says what it waits for",
    )
    .into_response()
}

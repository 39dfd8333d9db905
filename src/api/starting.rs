//! What is answered while the service starts and has no database yet: that it is alive, and to come back.

use axum::{
    Router,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{Problem, operations, problem::Kind};

/// Answers until [`super::router`] takes over.
pub fn starting() -> Router {
    Router::new()
        .route("/livez", get(operations::livez))
        .fallback(not_yet)
}

/// Without a token too: there is nothing yet that one could protect.
async fn not_yet() -> Response {
    Problem::new(
        Kind::StoreUnavailable,
        "the service is starting and has no database yet: its log says what it waits for",
    )
    .into_response()
}

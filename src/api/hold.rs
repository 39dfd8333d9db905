//! Whether this instance is held, and its release.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use tracing::info;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    App, Problem,
    answer::json,
    extract::{Caller, Query},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(release))
}

/// Whether this instance is held.
#[derive(Serialize, ToSchema)]
#[schema(as = Hold)]
struct HoldView {
    /// This instance. Every other has a hold of its own.
    #[schema(example = "worker-1")]
    instance: String,
    /// While it is, this instance claims no step, delivers no message, recovers and purges nothing.
    #[schema(example = false)]
    held: bool,
}

/// What a release did.
#[derive(Serialize, ToSchema)]
#[schema(as = Release)]
struct ReleaseView {
    #[serde(flatten)]
    hold: HoldView,
    /// Whether it was held until this request.
    #[schema(example = true)]
    released: bool,
}

impl HoldView {
    fn of(app: &App) -> Self {
        Self {
            instance: app.instance.to_string(),
            held: app.hold.is_held(),
        }
    }
}

/// Is this instance held?
///
/// An instance that was started with `--hold` accepts submissions and commands and can be read, but makes no
/// call and delivers no message until it is released.
#[utoipa::path(
    get, path = "/v1/hold", tag = "service", operation_id = "get_hold",
    responses((status = 200, description = "Whether it is held", body = HoldView)),
)]
async fn show(State(app): State<Arc<App>>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    Ok(json(StatusCode::OK, &HoldView::of(&app)))
}

/// Release a held instance
///
/// From now on it makes calls and delivers messages: all that has been due meanwhile at once. For the instance that
/// is asked, not for others; it lasts until the process ends. Safe to repeat.
#[utoipa::path(
    post, path = "/v1/hold/release", tag = "service", operation_id = "release_hold",
    responses((status = 200, description = "It is not held any more", body = ReleaseView)),
)]
async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let released = app.hold.release();
    if released {
        info!(by = %caller.name, instance = %app.instance, "released: this instance makes calls and delivers messages from now on");
    }
    let hold = HoldView::of(&app);
    Ok(json(StatusCode::OK, &ReleaseView { hold, released }))
}

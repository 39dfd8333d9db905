//! The hold of this instance: its state and its release.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use tracing::{info, warn};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    api::{
        App, Problem,
        extract::{Caller, Query},
        response::json,
    },
    domain::view::{LedgerRecord, LedgerSubject},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(release))
}

/// The hold of this instance.
#[derive(Serialize, ToSchema)]
#[schema(as = Hold)]
struct HoldView {
    /// The id of this instance. Every instance has its own hold.
    #[schema(example = "worker-1")]
    instance: String,
    /// While held, this instance claims no step, delivers no message, and neither recovers nor purges anything.
    #[schema(example = false)]
    held: bool,
}

/// The result of a release.
#[derive(Serialize, ToSchema)]
#[schema(as = Release)]
struct ReleaseView {
    #[serde(flatten)]
    hold: HoldView,
    /// True if the instance was held before this request.
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

/// Get the hold of this instance
///
/// An instance that was started with `--hold` accepts submissions, commands and reads, but makes no call and
/// delivers no message until it is released.
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
/// The instance then makes calls and delivers messages, and starts at once with all steps and messages that became
/// due in the meantime. The request affects only the instance that receives it, until its process ends. Safe to
/// repeat.
#[utoipa::path(
    post, path = "/v1/hold/release", tag = "service", operation_id = "release_hold",
    responses((status = 200, description = "The instance is no longer held", body = ReleaseView)),
)]
async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let released = app.hold.release();
    if released {
        let (instance, origin) = (&app.instance, caller.origin());
        let record = LedgerRecord::new(
            "instance.released",
            LedgerSubject::Instance,
            instance,
            &origin,
        );
        // The instance is released also if that cannot be recorded.
        if let Err(error) = app.store.record(record).await {
            warn!(%error, "the release of this instance is not in the ledger");
        }
        info!(by = %caller.name, instance = %app.instance, "released: this instance now makes calls and delivers messages");
    }
    let hold = HoldView::of(&app);
    Ok(json(StatusCode::OK, &ReleaseView { hold, released }))
}

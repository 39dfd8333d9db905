//! Who runs, and who supervises.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    App, Problem,
    answer::{Page, json},
    extract::Query,
};
use crate::domain::Timestamp;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// One running `provost serve`.
#[derive(Serialize, ToSchema)]
#[schema(as = Instance)]
pub struct InstanceView {
    /// What `locked_by` holds while it runs a step.
    #[schema(example = "worker-1-4711-9f3c2a10")]
    id: String,
    #[schema(value_type = String, format = DateTime, example = "2026-01-31T09:30:00.000Z")]
    started_at: Timestamp,
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// Whether it looks for steps that timed out.
    #[schema(example = true)]
    supervising: bool,
    /// Steps that it has claimed and whose calls are under way.
    #[schema(example = 12)]
    in_flight: u64,
    /// What keeps the record of tasks.
    #[schema(example = "sqlite")]
    store: &'static str,
}

/// List instances
///
/// The running processes that share this store.
#[utoipa::path(
    get, path = "/v1/instances", tag = "service", operation_id = "list_instances",
    responses((status = 200, description = "All instances", body = Page<InstanceView>)),
)]
async fn list(State(app): State<Arc<App>>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    // One process has a SQLite file to itself: every step that is processing is its own.
    let counts = app.store.reader.counts().await?;
    let this = InstanceView {
        id: app.instance.to_string(),
        started_at: app.started_at,
        version: env!("CARGO_PKG_VERSION"),
        supervising: true,
        in_flight: counts.processing,
        store: "sqlite",
    };
    let page = Page {
        items: vec![this],
        next_cursor: None,
    };
    Ok(json(StatusCode::OK, &page))
}

//! The instances of this store, and the supervisor among them.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::api::{
    App, Problem,
    extract::Query,
    response::{Page, json},
};
use crate::{domain::values::Timestamp, store::Instances};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// One `provost serve` process, alive or not: an instance that stopped is listed for an hour.
#[derive(Serialize, ToSchema)]
#[schema(as = Instance)]
pub struct InstanceView {
    /// The value of `locked_by` while this instance runs a step.
    #[schema(example = "worker-1-4711-9f3c2a10")]
    id: String,
    #[schema(example = "2026-01-31T09:30:00.000Z")]
    started_at: Timestamp,
    #[schema(example = "0.1.0")]
    version: String,
    /// True if the instance renews its lease. If it does not, its steps are recovered.
    #[schema(example = true)]
    alive: bool,
    /// The time at which its lease ends unless it is renewed.
    #[schema(example = "2026-01-31T10:12:41.250Z")]
    lease_until: Timestamp,
    /// True if this instance is the supervisor, which recovers steps that timed out or whose instance is lost.
    #[schema(example = true)]
    supervising: bool,
    /// The term under which the instance supervises. The history contains it, as in `supervisor:worker-1#4`.
    #[schema(required, example = 4)]
    term: Option<u64>,
    /// The number of steps that it has claimed: their calls are in flight, or about to begin.
    #[schema(example = 12)]
    in_flight: u64,
}

impl InstanceView {
    pub fn all(instances: &Instances) -> Vec<Self> {
        let now = instances.now;
        let records = instances.records.iter();
        let views = records.map(|(record, in_flight)| {
            let holder = &record.lease.holder;
            let supervisor = instances.supervisor.as_ref();
            let term = supervisor.and_then(|lease| lease.term_of(holder, now));
            Self {
                id: holder.instance.to_string(),
                started_at: record.started_at,
                version: record.version.clone(),
                alive: !record.lease.is_over(now),
                lease_until: record.lease.until,
                supervising: term.is_some(),
                term: term.map(|term| term.0),
                in_flight: *in_flight,
            }
        });
        views.collect()
    }
}

/// List instances
///
/// The processes that share this store, with the supervisor marked.
#[utoipa::path(
    get, path = "/v1/instances", tag = "service", operation_id = "list_instances",
    responses((status = 200, description = "All instances", body = Page<InstanceView>)),
)]
async fn list(State(app): State<Arc<App>>, query: Query) -> Result<Response, Problem> {
    query.finish()?;
    let items = InstanceView::all(&app.store.reader.instances().await?);
    let page = Page {
        items,
        next_cursor: None,
    };
    Ok(json(StatusCode::OK, &page))
}

//! Alerts: conditions that need a person's attention.

use std::sync::Arc;

use axum::{
    extract::{RawPathParams, State},
    http::StatusCode,
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{
    App, Problem,
    extract::{Caller, PageQuery, Query},
    problem::ProblemKind,
    response::{Page, json},
};
use crate::api::openapi::words::AlertKindSchema;
use crate::{
    domain::{TaskId, Timestamp},
    store::{Alert, AlertId, AlertQuery, AlertState},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(acknowledge))
}

crate::api::openapi::words::words! {
    AlertState = "AlertState", "Whether a person has acknowledged the alert, and whether it has closed",
        AlertState::ALL.map(AlertState::as_str);
}

/// A condition that needs a person's attention. It closes automatically when its cause is resolved.
#[derive(Serialize, ToSchema)]
#[schema(as = Alert)]
pub struct AlertView {
    #[schema(value_type = String, format = "uuid", example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")]
    id: Uuid,
    /// The task that needs attention; null if the alert is about a receiver of messages.
    #[schema(required, value_type = Option<String>, format = "uuid", example = "0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c")]
    task: Option<TaskId>,
    #[schema(required, example = "charge")]
    step: Option<String>,
    /// The receiver that messages cannot be delivered to: the name of a configured one, or an origin.
    #[schema(required, example = "shop")]
    receiver: Option<String>,
    #[schema(value_type = AlertKindSchema, example = "task.error")]
    kind: String,
    #[schema(example = "the service refused: 402 Payment Required")]
    message: String,
    #[schema(value_type = AlertState, example = "open")]
    state: &'static str,
    #[schema(value_type = String, format = DateTime, example = "2026-01-31T09:30:00.000Z")]
    raised_at: Timestamp,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    acknowledged_at: Option<Timestamp>,
    /// The name of the token that acknowledged the alert, or the value of `Provost-Actor`.
    #[schema(required, example = "ada")]
    acknowledged_by: Option<String>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    closed_at: Option<Timestamp>,
}

impl From<Alert> for AlertView {
    fn from(alert: Alert) -> Self {
        Self {
            id: alert.id.0,
            task: alert.task,
            step: alert.step.map(|step| step.to_string()),
            receiver: alert.receiver.map(|receiver| receiver.to_string()),
            kind: alert.kind,
            message: alert.message,
            state: alert.state.as_str(),
            raised_at: alert.raised_at,
            acknowledged_at: alert.acknowledged_at,
            acknowledged_by: alert.acknowledged_by,
            closed_at: alert.closed_at,
        }
    }
}

/// List alerts
///
/// Newest first. An alert is listed if it matches every given filter.
#[utoipa::path(
    get, path = "/v1/alerts", tag = "alerts", operation_id = "list_alerts",
    params(
        ("state" = Option<AlertState>, Query, description = "The state of the alerts to list", example = "open"),
        ("task" = Option<Uuid>, Query, description = "The id of a task", example = "0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c"),
        PageQuery,
    ),
    responses((status = 200, description = "A page of alerts", body = Page<AlertView>)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let state = query.one_of("state", AlertState::ALL, AlertState::as_str)?;
    let task = query.value("task", "the id of a task, a UUID", |text| {
        Uuid::try_parse(text).ok().map(TaskId)
    })?;
    let limit = query.limit()?;
    let (before, cursors) = query.cursor(|text| Uuid::try_parse(text).ok().map(AlertId))?;
    query.finish()?;
    let asked = AlertQuery {
        state,
        task,
        before,
        limit: limit + 1,
    };
    let alerts = app.store.reader.alerts(&asked).await?;
    let views = alerts.into_iter().map(AlertView::from).collect();
    let page = Page::new(views, limit, cursors, |view| view.id.to_string());
    Ok(json(StatusCode::OK, &page))
}

/// Acknowledge an alert
///
/// Records that a person is looking at it. The alert stays open until its cause is resolved; repeating the request
/// changes nothing.
#[utoipa::path(
    post, path = "/v1/alerts/{id}/acknowledge", tag = "alerts", operation_id = "acknowledge_alert",
    params(("id" = Uuid, Path, description = "The alert's id", example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")),
    responses((status = 200, description = "The alert as it is now", body = AlertView)),
)]
async fn acknowledge(
    State(app): State<Arc<App>>,
    params: RawPathParams,
    caller: Caller,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let text = params.iter().next().map_or("", |(_, value)| value);
    let no_such_alert = || {
        Problem::new(
            ProblemKind::NoSuchAlert,
            format!("alert {text:?} does not exist: GET /v1/alerts lists the alerts"),
        )
    };
    let id = Uuid::try_parse(text).map_err(|_| no_such_alert())?;
    let by = caller.name.to_string();
    let alert = app.store.acknowledge(AlertId(id), by).await?;
    let alert = alert.ok_or_else(no_such_alert)?;
    Ok(json(StatusCode::OK, &AlertView::from(alert)))
}

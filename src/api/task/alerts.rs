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

use crate::api::{
    App, Problem,
    extract::{Caller, PageQuery, Query},
    problem::ProblemKind,
    response::{Page, json},
    task::failures::cause,
    text_filter::{self, PageSearch},
};
use crate::{
    domain::{
        task::AlertKind,
        values::{TaskId, Timestamp},
    },
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
    #[schema(example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")]
    id: Uuid,
    /// The task that needs attention, the first of `count`; null if the alert is about a receiver of messages.
    #[schema(required, value_type = Option<String>, format = "uuid", example = "0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c")]
    task: Option<TaskId>,
    #[schema(required, example = "charge")]
    step: Option<String>,
    /// The receiver that messages cannot be delivered to: the name of a configured one, or an origin. An alert about
    /// another subject than a task has a name for it here, such as `broker:main`, `agent:payments` or `secret:token`.
    #[schema(required, example = "shop")]
    receiver: Option<String>,
    #[schema(value_type = AlertKind, example = "task.error")]
    kind: String,
    #[schema(example = "the service refused: 402 Payment Required")]
    message: String,
    #[schema(value_type = AlertState, example = "open")]
    state: &'static str,
    #[schema(example = "2026-01-31T09:30:00.000Z")]
    raised_at: Timestamp,
    #[schema(required)]
    acknowledged_at: Option<Timestamp>,
    /// The name of the token that acknowledged the alert, or the value of `Provost-Actor`.
    #[schema(required, example = "ada")]
    acknowledged_by: Option<String>,
    #[schema(required)]
    closed_at: Option<Timestamp>,
    /// The agent at which steps failed; null if they call no service.
    #[schema(required, example = "payments")]
    agent: Option<String>,
    /// The common cause of failed steps: those with one cause have one alert. It ends with the response of the
    /// service, shortened to about 100 bytes, and with `#` for numbers, ids and quotations.
    #[schema(
        required,
        example = "agent payments: 402 Payment Required: card_declined"
    )]
    cause: Option<String>,
    /// The number of steps that need attention for this cause; of a closed alert, the number that did. Above 1000 it
    /// is some seconds old, and of a closed alert the most at one time. It is at most 1,000,000. Of an open alert of
    /// the kind `message.undeliverable`: the number of dead letters of the receiver, at most 10,000.
    #[schema(example = 25000)]
    count: u64,
    /// The time at which the latest step failed.
    #[schema(example = "2026-01-31T09:46:10.000Z")]
    last_at: Timestamp,
    /// Up to three of the tasks, each once. `part_of` lists the steps of all.
    #[schema(value_type = Vec<Uuid>)]
    tasks: Vec<TaskId>,
    /// The alert with `count` that this one of a single step is part of. Only with the filters `task` and `part_of`.
    #[schema(required)]
    part_of: Option<Uuid>,
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
            agent: alert.agent.map(|agent| agent.to_string()),
            cause: alert.cause,
            count: alert.count,
            last_at: alert.last_at,
            tasks: alert.tasks,
            part_of: alert.part_of.map(|whole| whole.0),
        }
    }
}

impl AlertView {
    fn texts(&self) -> Vec<&str> {
        let named = [&self.cause, &self.step, &self.agent, &self.receiver];
        let named = named.into_iter().flatten().map(String::as_str);
        named.chain([self.message.as_str()]).collect()
    }
}

/// List alerts
///
/// Newest first. An alert is listed if it matches every given filter. Steps that failed at one agent for one cause have
/// one alert; with `task` or `part_of`, the alerts of single steps are listed.
#[utoipa::path(
    get, path = "/v1/alerts", tag = "alerts", operation_id = "list_alerts",
    params(
        ("state" = Option<AlertState>, Query, description = "The state of the alerts to list", example = "open"),
        ("task" = Option<Uuid>, Query, description = "The id of a task", example = "0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c"),
        ("part_of" = Option<Uuid>, Query, description = "The id of an alert: lists those of its single steps", example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f"),
        ("cause" = Option<String>, Query, pattern = "^[0-9a-f]{16}$", description = "The fingerprint of a cause: lists the alert of its steps", example = "5f1d0a7c93b2e846"),
        ("text" = Option<String>, Query, min_length = 1, max_length = 200, description = "A part of the message, the cause, the step, the agent or the receiver; case does not matter. A page may have fewer items than `limit` although others follow", example = "declined"),
        PageQuery,
    ),
    responses((status = 200, description = "A page of alerts", body = Page<AlertView>)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let state = query.one_of("state", AlertState::ALL, AlertState::as_str)?;
    let task = query.value("task", "the id of a task, a UUID", |text| {
        Uuid::try_parse(text).ok().map(TaskId)
    })?;
    let part_of = query.value("part_of", "the id of an alert, a UUID", |text| {
        Uuid::try_parse(text).ok().map(AlertId)
    })?;
    let cause = cause(&mut query)?;
    let text = text_filter::text(&mut query)?;
    let limit = query.limit()?;
    let place = query.cursor(|text| Uuid::try_parse(text).ok())?;
    query.finish()?;
    let mut search = PageSearch::new(text, place, limit);
    while let Some((before, wanted)) = search.wants() {
        let asked = AlertQuery {
            state,
            task,
            part_of,
            cause,
            id: None,
            before: before.map(AlertId),
            limit: wanted,
        };
        let alerts = app.store.reader.alerts(&asked).await?;
        let views = alerts.into_iter().map(AlertView::from).collect();
        search.add(views, |view| view.id, AlertView::texts);
    }
    Ok(json(StatusCode::OK, &search.page()))
}

/// Acknowledge an alert
///
/// Records that a person is looking at it, and at all steps with its cause. The alert stays open until the last of
/// them is resolved; repeating the request changes nothing. For the alert of a single step, the alert that it is part
/// of is acknowledged.
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
    let store = app.store.ordered_by(caller.origin());
    let alert = store.acknowledge(AlertId(id), by).await?;
    let alert = alert.ok_or_else(no_such_alert)?;
    Ok(json(StatusCode::OK, &AlertView::from(alert)))
}

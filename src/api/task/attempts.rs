//! The attempts of a step: what was sent, what came back, and what followed.

use std::{collections::BTreeMap, sync::Arc};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    commands::find,
    hidden_bodies::{hidden, hide_in_attempts, hides_bodies},
    json,
};
use crate::{
    api::{
        App, Problem,
        extract::{AttemptParams, AttemptPath, Caller, PageQuery, Query, StepParams, TaskStepPath},
        problem::{ProblemBody, ProblemKind},
    },
    domain::{
        task::{
            AttemptExchange, AttemptPurpose, AttemptRecord, AttemptResult, BodyRecord,
            ExchangeTimes, Task,
        },
        values::{Attempt, Fault, StepIndex, StepRef, Timestamp},
        view::current_attempt,
    },
    store::AttemptQuery,
};

/// The most records of one attempt that are shown: an attempt that is polled has one for each poll that failed.
const MOST_OF_ATTEMPT: usize = 50;
/// The most attempts on a page: each is read whole, with up to 16 KiB of each of its bodies.
const MOST_ON_PAGE: usize = 100;

/// An attempt of a step, or a poll of one.
#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(super) struct AttemptView {
    /// The number of the attempt. Polls have the number of their attempt.
    #[schema(example = 2)]
    attempt: u32,
    /// `work`: the step's own call. `undo`: the call that undoes another step. `probe`: the question whether an earlier
    /// attempt took effect. `poll`: the request for a promised reply. `cancel`: the request to cancel.
    #[schema(example = "work")]
    purpose: AttemptPurpose,
    /// `succeeded`, or the way in which it failed. `transient`: another attempt may succeed. `permanent`: it would not.
    /// `expired`: the complete-by passed, or heartbeats stopped. `lost`: its instance was lost. `released`: it was handed
    /// back without a failure. `abandoned`: a command ended it. Null while it is under way.
    #[schema(required, example = "transient")]
    result: Option<AttemptResult>,
    /// When an instance took the step. Null if that is not recorded.
    #[schema(required)]
    claimed_at: Option<Timestamp>,
    /// Null while it is under way.
    #[schema(required)]
    ended_at: Option<Timestamp>,
    /// The earliest time of the next attempt, if one follows this one.
    #[schema(required)]
    next_at: Option<Timestamp>,
    /// The instance that made the call. Null if that is not recorded.
    #[schema(required, example = "eu-1")]
    instance: Option<String>,
    /// The URL of the endpoint that was called. Null if that is not recorded.
    #[schema(required, example = "https://payments.example")]
    endpoint: Option<String>,
    /// Null if no request could be made, or if it is no longer known.
    #[schema(required)]
    request: Option<AttemptRequest>,
    /// Null if no response came, or if it is not recorded. The step has the output of an attempt that succeeded.
    #[schema(required)]
    response: Option<AttemptResponse>,
    times: AttemptTimes,
    /// The words of the history about its end.
    #[schema(required, example = "retried in 2s")]
    reason: Option<String>,
    #[schema(required)]
    error: Option<Fault>,
}

/// What was sent.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptRequest {
    /// True: the request as it was sent. False: the request was rendered again from the record of the task, and what its
    /// agent added to it is missing.
    as_sent: bool,
    #[schema(example = "POST")]
    method: String,
    /// The whole URL; only the path if the request was rendered again. `***` stands for a query that may hold a secret.
    #[schema(example = "https://payments.example/charges")]
    url: String,
    /// `***` stands for a value that may be secret. Headers that the credentials of the agent add are left out.
    headers: BTreeMap<String, String>,
    #[schema(required)]
    body: Option<AttemptBody>,
}

/// The body of a request.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptBody {
    /// The first 16 KiB. Null in lists, and if bodies are not recorded (`record.bodies`).
    #[schema(required, example = "{\"amount\":5}")]
    start: Option<String>,
    /// The length of the whole body in bytes.
    #[schema(example = 12)]
    bytes: u64,
    /// The SHA-256 of the whole body, as hexadecimal digits.
    sha256: String,
}

/// What came back.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptResponse {
    #[schema(example = 503)]
    status: u16,
    /// The headers that help to find a fault, such as `retry-after` and `x-request-id`.
    headers: BTreeMap<String, String>,
    /// The first 16 KiB of the body. Null in lists, and if there is none or it is not recorded.
    #[schema(required)]
    body: Option<String>,
}

/// When the parts of an attempt were done, as far as that is recorded.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptTimes {
    /// The instance began to send.
    #[schema(required)]
    began_at: Option<Timestamp>,
    /// The name of the host was resolved. Null where an open connection was used.
    #[schema(required)]
    resolved_at: Option<Timestamp>,
    /// The connection was open, before TLS. Null where an open connection was used.
    #[schema(required)]
    connected_at: Option<Timestamp>,
    /// The connection was ready, TLS included. Null where an open connection was used.
    #[schema(required)]
    ready_at: Option<Timestamp>,
    /// The last byte of the request was handed to the network.
    #[schema(required)]
    sent_at: Option<Timestamp>,
    /// The head of the response had come.
    #[schema(required)]
    responded_at: Option<Timestamp>,
}

impl AttemptView {
    fn new(record: AttemptRecord, result: Option<AttemptResult>) -> Self {
        let AttemptRecord {
            attempt,
            purpose,
            ended_at,
            reason,
            error,
            next_at,
            exchange,
            ..
        } = record;
        let times = exchange.as_ref().map(|exchange| exchange.times);
        let exchange = exchange.map(|exchange| *exchange);
        let claimed_at = times.and_then(|times| times.claimed_at);
        let (instance, endpoint, request, response) = match exchange {
            None => (None, None, None, None),
            Some(exchange) => parts(exchange),
        };
        Self {
            attempt: attempt.0,
            purpose,
            result,
            claimed_at,
            ended_at: result.map(|_| ended_at),
            next_at,
            instance,
            endpoint,
            request,
            response,
            times: AttemptTimes::from(times.unwrap_or_default()),
            reason,
            error,
        }
    }
}

type Parts = (
    Option<String>,
    Option<String>,
    Option<AttemptRequest>,
    Option<AttemptResponse>,
);

fn parts(exchange: AttemptExchange) -> Parts {
    let request = AttemptRequest {
        as_sent: exchange.is_as_sent,
        method: exchange.request.method,
        url: exchange.request.url,
        headers: exchange.request.headers.into_iter().collect(),
        body: exchange.request.body.map(AttemptBody::from),
    };
    let response = exchange.response.map(|response| AttemptResponse {
        status: response.status,
        headers: response.headers.into_iter().collect(),
        body: response.body,
    });
    let instance = exchange.instance.map(|instance| instance.to_string());
    (instance, exchange.endpoint, Some(request), response)
}

impl From<BodyRecord> for AttemptBody {
    fn from(body: BodyRecord) -> Self {
        Self {
            start: body.start,
            bytes: body.bytes,
            sha256: body.sha256,
        }
    }
}

impl From<ExchangeTimes> for AttemptTimes {
    fn from(times: ExchangeTimes) -> Self {
        Self {
            began_at: times.began_at,
            resolved_at: times.resolved_at,
            connected_at: times.connected_at,
            ready_at: times.ready_at,
            sent_at: times.sent_at,
            responded_at: times.responded_at,
        }
    }
}

/// A page of attempts.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptPage {
    /// The latest first, without the beginnings of bodies.
    items: Vec<AttemptView>,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
}

/// List the attempts of a step
///
/// The latest first: the attempt under way or the last one, and those that are recorded. All attempts that failed are
/// recorded, and of those that succeeded as many as `record.successes` says. They are kept for `record.keep`, at most
/// `record.max_task_bytes` for a task. Secrets of agents are never recorded. A page has at most 100 attempts.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/steps/{name}/attempts", tag = "tasks", operation_id = "list_attempts",
    params(StepParams, PageQuery),
    responses(
        (status = 200, description = "A page of attempts", body = AttemptPage),
        (status = 400, description = "A query parameter is invalid", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "The task does not exist, or has no such step", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskStepPath(id, name): TaskStepPath,
    mut query: Query,
) -> Result<Response, Problem> {
    let limit = query.limit()?.min(MOST_ON_PAGE);
    let (before, cursors) = query.cursor(position)?;
    query.finish()?;
    let (task, step) = find(&app, id, &name).await?;
    let query = AttemptQuery {
        step: StepRef { task: id, step },
        attempt: None,
        before,
        limit: limit + 1,
    };
    let records = app.store.reader.attempts(&query).await?;
    // Each item with its position.
    let mut items = Vec::with_capacity(records.len() + 1);
    if before.is_none() {
        let is_recorded = |attempt| records.first().is_some_and(|last| last.attempt == attempt);
        let current = current(&app, &task, step, is_recorded).await?;
        items.extend(current.map(|view| ((view.attempt, i64::MAX), view)));
    }
    items.extend(records.into_iter().map(|mut record| {
        record.without_bodies();
        let (result, at) = (
            record.result,
            (record.attempt.0, record.ended_at.as_millis()),
        );
        (at, AttemptView::new(record, Some(result)))
    }));
    let has_more = items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| has_more);
    let next_cursor =
        last.map(|((attempt, ended_at), _)| cursors.after(format_args!("{attempt}-{ended_at}")));
    let items = items.into_iter().map(|(_, view)| view).collect();
    let page = AttemptPage { items, next_cursor };
    Ok(match hides_bodies(&app, &caller, &task).await? {
        true => json(StatusCode::OK, &hidden(&page, hide_in_attempts)),
        false => json(StatusCode::OK, &page),
    })
}

/// Returns the attempt that is under way, or the last one if it is not recorded, without the beginnings of bodies.
async fn current(
    app: &App,
    task: &Task,
    step: StepIndex,
    is_recorded: impl Fn(Attempt) -> bool,
) -> Result<Option<AttemptView>, Problem> {
    let now = app.store.reader.now().await?;
    let current = current_attempt(task, step, now)
        .filter(|(record, result)| result.is_none() || !is_recorded(record.attempt));
    Ok(current.map(|(mut record, result)| {
        record.without_bodies();
        AttemptView::new(record, result)
    }))
}

fn position(text: &str) -> Option<(Attempt, Timestamp)> {
    let (attempt, ended_at) = text.split_once('-')?;
    let ended_at = Timestamp::from_millis(ended_at.parse().ok()?);
    Some((Attempt(attempt.parse().ok()?), ended_at))
}

/// One attempt in full.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptRecords {
    /// The latest first: the call or its end, and the last 50 polls that failed.
    items: Vec<AttemptView>,
}

/// Get one attempt of a step in full
///
/// With the beginnings of the bodies of its requests and responses. An attempt that was polled has an item for each of the
/// last polls that failed.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/steps/{name}/attempts/{attempt}", tag = "tasks", operation_id = "get_attempt",
    params(AttemptParams),
    responses(
        (status = 200, description = "The attempt", body = AttemptRecords),
        (status = 404, description = "The task does not exist or has no such step, or the attempt is not recorded", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    AttemptPath(id, name, attempt): AttemptPath,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let (task, step) = find(&app, id, &name).await?;
    let query = AttemptQuery {
        step: StepRef { task: id, step },
        attempt: Some(attempt),
        before: None,
        limit: MOST_OF_ATTEMPT,
    };
    let records = app.store.reader.attempts(&query).await?;
    let now = app.store.reader.now().await?;
    let is_recorded = !records.is_empty();
    let current = current_attempt(&task, step, now)
        .filter(|(record, result)| record.attempt == attempt && (result.is_none() || !is_recorded));
    let mut items = Vec::with_capacity(records.len() + 1);
    items.extend(current.map(|(record, result)| AttemptView::new(record, result)));
    items.extend(records.into_iter().map(|record| {
        let result = record.result;
        AttemptView::new(record, Some(result))
    }));
    if items.is_empty() {
        let last = task.step(step).attempt;
        let why = match attempt.0 {
            0 => "attempts are counted from 1".to_owned(),
            number if number > last.0 => format!("the step has had {last} attempts"),
            _ => "it is not recorded: it succeeded and another followed it, or its time is over (record.successes, record.keep)".to_owned(),
        };
        return Err(Problem::new(
            ProblemKind::NotFound,
            format!("step {name} has no record of attempt {attempt}: {why}"),
        ));
    }
    let records = AttemptRecords { items };
    Ok(match hides_bodies(&app, &caller, &task).await? {
        true => json(StatusCode::OK, &hidden(&records, hide_in_attempts)),
        false => json(StatusCode::OK, &records),
    })
}

//! Undelivered messages: pending ones, and dead letters.

use std::sync::Arc;

use axum::{
    extract::{RawPathParams, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{
    App, Problem,
    extract::{Caller, JsonBody, PageQuery, Query, ids},
    problem::{ProblemBody, ProblemKind},
    response::{Page, json},
    task::{
        bulk_log::{BulkCounts, BulkLog},
        hidden_bodies::hides_bodies,
    },
    text_filter::{self, PageSearch},
};
use crate::{
    config::Role,
    domain::{
        message::{ALERT_EVENTS, ASK_EVENT, MessageAction},
        task::REPLIES,
        template::Payload,
        values::{
            Fields, LONGEST_URL, ReceiverName, TaskId, Timestamp, without_links, without_query,
        },
    },
    store::{MessageId, MessageQuery, MessageRecord, MessageState, MessageTry},
};

/// The most messages of one command to the store.
const BATCH: usize = 200;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, discard))
        .routes(routes!(redeliver))
        .routes(routes!(redeliver_many))
        .routes(routes!(discard_many))
}

/// The event of a message.
pub struct MessageType;

crate::api::openapi::words::words! {
    MessageState = "MessageState", "`pending`, or `dead`: given up, until an operator redelivers it",
        MessageState::ALL.map(MessageState::as_str);
    MessageType = "MessageType", "The event of a message: about a task, or for an alert webhook about an alert",
        REPLIES.into_iter().chain(ALERT_EVENTS).chain([ASK_EVENT]);
}

/// An undelivered message. A message is deleted once it is delivered.
#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
pub struct MessageView {
    /// The `webhook-id` that the receiver sees, and the `id` of the event, at each attempt.
    #[schema(example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")]
    id: Uuid,
    /// The event: `task.processed` and so on; `alert.raised` and `alert.closed` for alert webhooks.
    #[serde(rename = "type")]
    #[schema(value_type = MessageType, example = "task.processed")]
    kind: String,
    /// A configured receiver, `alerts:` and the name of an alert webhook, or the origin of `url`.
    #[schema(example = "https://shop.example:443")]
    receiver: String,
    /// The URL that the submitter gave, without its query; null if the receiver's configuration has it.
    #[schema(required, example = "https://shop.example/replies")]
    url: Option<String>,
    #[schema(required, value_type = Option<String>, format = "uuid", example = "0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c")]
    task: Option<TaskId>,
    /// `pending`, or `dead`: given up, until an operator redelivers it.
    #[schema(value_type = MessageState, example = "dead")]
    state: &'static str,
    created_at: Timestamp,
    /// The number of delivery attempts; 0 if the message was given up while its address failed.
    #[schema(example = 41)]
    tries: u32,
    /// The earliest time of the next attempt. If its address fails, one message at a time probes it, and that may
    /// be another one. Null if another message of the same task to the same receiver comes first.
    #[schema(required)]
    next_try_at: Option<Timestamp>,
    /// The result of the last failed attempt.
    #[schema(required, example = "the receiver responded 410 Gone")]
    error: Option<String>,
    #[schema(required)]
    died_at: Option<Timestamp>,
    /// The body. Only included when a single message is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Payload, required = false)]
    body: Option<Box<RawValue>>,
    /// The last 20 failed attempts, the latest first. Only included when a single message is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, max_items = 20)]
    attempts: Option<Vec<MessageAttemptView>>,
}

/// A failed attempt to deliver a message.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageAttempt)]
pub struct MessageAttemptView {
    /// The number of the attempt, which the receiver saw as `provost-try`. After a redelivery it is 1 again.
    #[schema(minimum = 1, example = 3)]
    attempt: u32,
    began_at: Timestamp,
    ended_at: Timestamp,
    /// The instance that made the attempt.
    #[schema(example = "provost-1")]
    instance: String,
    /// The status of the response. Null if none came, and for queues of a broker.
    #[schema(required, example = 503)]
    status: Option<u32>,
    /// The reason of the failure, with the beginning of the response.
    #[schema(example = "the receiver responded 503 Service Unavailable: try later")]
    reason: String,
    /// The time of the next attempt as it was planned. Null for the last one.
    #[schema(required)]
    next_at: Option<Timestamp>,
}

impl From<MessageTry> for MessageAttemptView {
    fn from(tried: MessageTry) -> Self {
        Self {
            attempt: tried.number,
            began_at: tried.began,
            ended_at: tried.ended,
            instance: tried.instance.to_string(),
            status: tried.status,
            reason: without_links(&tried.reason).into_owned(),
            next_at: tried.next_at,
        }
    }
}

impl From<MessageRecord> for MessageView {
    fn from(message: MessageRecord) -> Self {
        Self {
            id: message.id.0,
            kind: message.kind,
            receiver: message.receiver.to_string(),
            url: message.url.map(|url| without_query(&url).into_owned()),
            task: message.task,
            state: message.state.as_str(),
            created_at: message.created_at,
            tries: message.tries,
            next_try_at: message.next_try_at,
            // The error may quote a text of the receiver, and that text the links that it got.
            error: message
                .error
                .map(|error| without_links(&error).into_owned()),
            died_at: message.died_at,
            body: message
                .body
                .and_then(|body| RawValue::from_string(without_links(&body).into_owned()).ok()),
            attempts: None,
        }
    }
}

impl MessageView {
    fn texts(&self) -> Vec<&str> {
        let named = [&self.url, &self.error].into_iter().flatten();
        let named = named.map(String::as_str);
        named
            .chain([self.receiver.as_str(), self.kind.as_str()])
            .collect()
    }
}

/// List undelivered messages
///
/// Newest first. A message is listed if it matches every given filter. `state=dead` lists the dead letters.
#[utoipa::path(
    get, path = "/v1/messages", tag = "messages", operation_id = "list_messages",
    params(
        ("state" = Option<MessageState>, Query, description = "The state of the messages", example = "dead"),
        ("receiver" = Option<String>, Query, description = "A configured receiver, or an origin", example = "https://shop.example:443"),
        ("task" = Option<Uuid>, Query, description = "The id of a task", example = "0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c"),
        ("text" = Option<String>, Query, min_length = 1, max_length = 200, description = "A part of the receiver, the URL, the type or the error; case does not matter. A page may have fewer items than `limit` although others follow", example = "timed out"),
        PageQuery,
    ),
    responses((status = 200, description = "A page of messages", body = Page<MessageView>)),
)]
async fn list(State(app): State<Arc<App>>, mut query: Query) -> Result<Response, Problem> {
    let state = query.one_of("state", MessageState::ALL, MessageState::as_str)?;
    let receiver = query.string("receiver").map(ReceiverName::new);
    let task = query.value("task", "the id of a task, a UUID", |text| {
        Uuid::try_parse(text).ok().map(TaskId)
    })?;
    let text = text_filter::text(&mut query)?;
    let limit = query.limit()?;
    let place = query.cursor(|text| Uuid::try_parse(text).ok())?;
    query.finish()?;
    let mut search = PageSearch::new(text, place, limit);
    while let Some((before, wanted)) = search.wants() {
        let asked = MessageQuery {
            id: None,
            with_body: false,
            state,
            receiver: receiver.clone(),
            task,
            before: before.map(MessageId),
            limit: wanted,
        };
        let messages = app.store.reader.messages(&asked).await?;
        let views = messages.into_iter().map(MessageView::from).collect();
        search.add(views, |view| view.id, MessageView::texts);
    }
    Ok(json(StatusCode::OK, &search.page()))
}

/// Get a message with its body and its failed attempts
#[utoipa::path(
    get, path = "/v1/messages/{id}", tag = "messages", operation_id = "get_message",
    params(("id" = Uuid, Path, description = "The message's id", example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")),
    responses(
        (status = 200, description = "The message", body = MessageView),
        (status = 404, description = "The message does not exist, or was delivered", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    params: RawPathParams,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let mut message = find(&app, &params, true).await?;
    // The body has data of the task. If the task has been deleted, nobody knows whether its workflow hides them.
    if caller.role == Role::Read
        && let Some(id) = message.task
    {
        let task = app.store.reader.task(id).await?;
        let hides_bodies = match task {
            Some(task) => hides_bodies(&app, &caller, &task).await?,
            None => true,
        };
        message.body = message.body.filter(|_| !hides_bodies);
    }
    let attempts = app.store.reader.message_tries(message.id).await?;
    let mut view = MessageView::from(message);
    view.attempts = Some(attempts.into_iter().map(MessageAttemptView::from).collect());
    Ok(json(StatusCode::OK, &view))
}

/// Redeliver a message
///
/// A dead letter is delivered with all its attempts available again; a pending message that waits for a later time
/// is delivered at once. The message keeps its id. Later messages may have been delivered before a dead letter: the
/// receiver can see this from the `time` of the message, and from the version of the task.
#[utoipa::path(
    post, path = "/v1/messages/{id}/redeliver", tag = "messages", operation_id = "redeliver_message",
    params(("id" = Uuid, Path, description = "The message's id", example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")),
    responses(
        (status = 202, description = "The message will be delivered now", body = MessageView),
        (status = 404, description = "The message does not exist, or was delivered", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn redeliver(
    State(app): State<Arc<App>>,
    caller: Caller,
    params: RawPathParams,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let message = find(&app, &params, false).await?;
    let id = message.id;
    app.store
        .ordered_by(caller.origin())
        .apply_message_action(MessageAction::Redeliver, vec![id])
        .await?;
    let now = app.store.reader.now().await?;
    // The message may be delivered and deleted already. The response is its state after the command.
    let requeued = match message.state {
        MessageState::Pending => message,
        MessageState::Dead => MessageRecord {
            state: MessageState::Pending,
            tries: 0,
            error: None,
            next_try_at: Some(now),
            ..message
        },
    };
    let view = MessageView::from(MessageRecord {
        body: None,
        ..requeued
    });
    Ok(json(StatusCode::ACCEPTED, &view))
}

/// Discard a dead letter
///
/// Deletes a message that is no longer needed.
#[utoipa::path(
    delete, path = "/v1/messages/{id}", tag = "messages", operation_id = "discard_message",
    params(("id" = Uuid, Path, description = "The message's id", example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")),
    responses(
        (status = 204, description = "The message is deleted"),
        (status = 404, description = "The message does not exist, or was delivered", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "The message is still being delivered", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn discard(
    State(app): State<Arc<App>>,
    caller: Caller,
    params: RawPathParams,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let message = find(&app, &params, false).await?;
    let store = app.store.ordered_by(caller.origin());
    let discarded = store.apply_message_action(MessageAction::Discard, vec![message.id]);
    if discarded.await?.is_empty() {
        return Err(Problem::new(
            ProblemKind::MessagePending,
            format!(
                "message {} is still being delivered: only a dead letter can be discarded",
                message.id.0
            ),
        ));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The selection of dead letters.
#[derive(ToSchema)]
#[schema(as = BulkLetters)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
struct BulkBody {
    /// These messages; alternatively use filters.
    #[schema(max_items = 1000)]
    ids: Option<Vec<Uuid>>,
    #[schema(example = "https://shop.example:443")]
    receiver: Option<String>,
    task: Option<Uuid>,
    /// Instead of ids and filters: every dead letter.
    #[schema(default = false)]
    all: Option<bool>,
    /// Change nothing: only count them.
    #[schema(default = false, example = true)]
    dry_run: Option<bool>,
}

/// The result of a bulk command on dead letters.
#[derive(Serialize, ToSchema)]
struct BulkLettersResult {
    /// Dead letters that the request selects.
    #[schema(example = 12)]
    matched: usize,
    /// The dead letters that were redelivered or discarded; 0 in a dry run.
    #[schema(example = 12)]
    done: usize,
    #[schema(example = false)]
    dry_run: bool,
}

impl BulkLettersResult {
    fn counts(&self) -> BulkCounts {
        BulkCounts {
            matched: self.matched as u64,
            accepted: self.done as u64,
            refused: (self.matched - self.done) as u64,
        }
    }
}

/// Redeliver many dead letters
///
/// Select the dead letters of a receiver, of a task, by ids, or with `all` every dead letter.
#[utoipa::path(
    post, path = "/v1/messages/redeliver", tag = "messages", operation_id = "redeliver_messages",
    request_body(content = BulkBody, example = json!({"receiver": "https://shop.example:443", "dry_run": true})),
    responses(
        (status = 200, description = "How many were selected and redelivered", body = BulkLettersResult),
        (status = 422, description = "The body is invalid", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn redeliver_many(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    handle_many(&app, &caller, MessageAction::Redeliver, &body).await
}

/// Discard many dead letters
///
/// Select the dead letters of a receiver, of a task, by ids, or with `all` every dead letter. They are deleted.
#[utoipa::path(
    post, path = "/v1/messages/discard", tag = "messages", operation_id = "discard_messages",
    request_body(content = BulkBody, example = json!({"receiver": "https://shop.example:443", "dry_run": true})),
    responses(
        (status = 200, description = "How many were selected and discarded", body = BulkLettersResult),
        (status = 422, description = "The body is invalid", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn discard_many(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    handle_many(&app, &caller, MessageAction::Discard, &body).await
}

async fn handle_many(
    app: &App,
    caller: &Caller,
    action: MessageAction,
    body: &RawValue,
) -> Result<Response, Problem> {
    let mut fields = Fields::of(body, "").map_err(Problem::invalid)?;
    let ids = ids(&mut fields, "message");
    let receiver = fields.string("receiver", LONGEST_URL);
    let task = fields.string("task", 36);
    let all = fields.boolean("all").unwrap_or(false);
    match (&ids, all || receiver.is_some() || task.is_some()) {
        (Some(_), true) => fields.fault("ids", "give either ids or filters, not both"),
        (None, false) => fields.missing(
            "all",
            "give ids or a filter, or \"all\": true for every dead letter",
        ),
        _ => {}
    }
    let task = task.and_then(|text| {
        let task = Uuid::try_parse(&text).ok().map(TaskId);
        if task.is_none() {
            fields.fault("task", format!("{text:?} is not a task's id"));
        }
        task
    });
    let dry_run = fields.boolean("dry_run").unwrap_or(false);
    fields.finish().map_err(Problem::invalid)?;

    let mut log = BulkLog::begin(caller, action.as_str(), body, dry_run);
    let mut result = BulkLettersResult {
        matched: 0,
        done: 0,
        dry_run,
    };
    let mut query = MessageQuery {
        state: Some(MessageState::Dead),
        receiver: receiver.map(ReceiverName::new),
        task,
        limit: BATCH,
        ..MessageQuery::default()
    };
    let mut named = ids.map(|ids| ids.into_iter().map(MessageId));
    let store = app.store.ordered_by(caller.origin());
    loop {
        let found = match &mut named {
            Some(named) => {
                let Some(id) = named.next() else { break };
                query.id = Some(id);
                app.store.reader.messages(&query).await?
            }
            None => app.store.reader.messages(&query).await?,
        };
        let found: Vec<_> = found.iter().map(|message| message.id).collect();
        result.matched += found.len();
        query.before = found.last().copied().filter(|_| named.is_none());
        let is_last = found.len() < BATCH && named.is_none();
        if !dry_run && !found.is_empty() {
            result.done += store.apply_message_action(action, found).await?.len();
        }
        if let Some(log) = &mut log {
            log.counts = result.counts();
        }
        if is_last {
            break;
        }
    }
    Ok(json(StatusCode::OK, &result))
}

/// Finds a message. One with a damaged body can still be discarded and redelivered.
async fn find(
    app: &App,
    params: &RawPathParams,
    with_body: bool,
) -> Result<MessageRecord, Problem> {
    let text = params.iter().next().map_or("", |(_, value)| value);
    let no_such_message = || {
        Problem::new(
            ProblemKind::NoSuchMessage,
            format!(
                "message {text:?} does not exist: it was delivered or discarded, or never existed; GET /v1/messages lists undelivered messages"
            ),
        )
    };
    let id = Uuid::try_parse(text).map_err(|_| no_such_message())?;
    let asked = MessageQuery {
        id: Some(MessageId(id)),
        with_body,
        limit: 1,
        ..MessageQuery::default()
    };
    let found = app.store.reader.messages(&asked).await?;
    found.into_iter().next().ok_or_else(no_such_message)
}

//! Later replies: a service that has promised a reply sends it with the token of its attempt, and needs nothing else.
//! A token is a credential, so it appears in no log and no response.

use std::{fmt::Write, sync::Arc};

use axum::{
    extract::{FromRequestParts, RawPathParams, State},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::Response,
};
use futures::future::join_all;
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::api::{
    App, Problem,
    extract::{JsonBody, OptionalJsonBody, Query, check_encoding, parse as parse_json, too_large},
    problem::{ProblemBody, ProblemKind},
    response::json,
};
use crate::{
    api::openapi::words::JsonSchema,
    broker::ReceivedMessage,
    domain::{
        task::{Actor, CallOutcome, Command, Progress, ReplyDigest},
        template::Payload,
        values::{Attempt, FieldFault, Fields, StepRef},
    },
    store::{Apply, CommandError},
};

/// The most replies of one request.
const MOST_REPLIES: usize = 500;
/// Longer than any token.
const LONGEST_TOKEN: usize = 200;
/// The longest message of an error, in characters.
const LONGEST_ERROR: usize = 4096;

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(reply))
        .routes(routes!(heartbeat))
        .routes(routes!(reply_to_many))
}

/// `{token}` in the path: the attempt that it was made for. It is verified before any of the body is read.
struct TokenPath(StepRef, Attempt);

impl FromRequestParts<Arc<App>> for TokenPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, app).await;
        let params = params.map_err(|_| no_such_reply())?;
        let token = params.iter().find(|(key, _)| *key == "token");
        let known = token.and_then(|(_, token)| app.reply_key.verify(token));
        known
            .map(|(step, attempt)| Self(step, attempt))
            .ok_or_else(no_such_reply)
    }
}

fn no_such_reply() -> Problem {
    Problem::new(
        ProblemKind::NoSuchReply,
        "no task of this service has an attempt with this token: use the address in the header Provost-Reply-To of the call, unchanged",
    )
}

/// The parameter of both operations, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
struct ReplyParams {
    /// The last part of the address in the header `Provost-Reply-To` of the call: a credential.
    #[param(example = "AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQx1mC5q0aS6w0bZ9V4Yd2c")]
    token: String,
}

/// The reply: either `output` or `error`. It may be the `data` of a CloudEvent.
#[derive(ToSchema)]
#[schema(as = LaterReply, example = json!({ "output": { "id": "ch_1" } }))]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct LaterReplyBody {
    /// The step's output.
    #[schema(value_type = JsonSchema, required = false, example = json!({ "id": "ch_1" }))]
    output: Option<String>,
    error: Option<LaterErrorBody>,
}

/// The error of the service.
#[derive(ToSchema)]
#[schema(as = LaterError)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct LaterErrorBody {
    #[schema(max_length = 4096, example = "the card was declined")]
    message: String,
    /// `true`: a retry would fail as well, and `on_permanent` applies. `false`: the step is retried.
    #[schema(default = false, example = true)]
    permanent: Option<bool>,
}

/// The progress of the service.
#[derive(ToSchema)]
#[schema(as = Heartbeat, example = json!({ "progress": 0.4, "message": "4 of 10 pages" }))]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct HeartbeatBody {
    #[schema(minimum = 0, maximum = 1, example = 0.4)]
    progress: Option<f64>,
    #[schema(max_length = 1000, example = "4 of 10 pages")]
    message: Option<String>,
    /// Any JSON of up to 4096 bytes.
    #[schema(value_type = JsonSchema, required = false, example = json!({ "page": 4 }))]
    details: Option<String>,
}

/// Reply to a call later
///
/// For services that responded 202 to the call. The token is the only credential; at every instance, one from the header
/// `Provost-Reply-To` is valid for one attempt of the step, and one from `reply.url` for all attempts until a reply is
/// accepted. The reply may arrive before the 202. The same reply again returns 204 again.
#[utoipa::path(
    post, path = "/v1/replies/{token}", tag = "replies", operation_id = "reply_later",
    params(
        ReplyParams,
        ("raw" = Option<bool>, Query, description = "`true`: the whole body is the output, for services that send a body of their own. Other parameters are then ignored", example = true),
    ),
    request_body(content = LaterReplyBody),
    responses(
        (status = 204, description = "The reply is saved, or was saved before"),
        (status = 404, description = "The token is not known", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "The attempt is over, or had another reply: nothing changed", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "The output is too large", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "The body has neither or both of `output` and `error`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
async fn reply(
    State(app): State<Arc<App>>,
    TokenPath(step, attempt): TokenPath,
    mut query: Query,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<StatusCode, Problem> {
    let is_raw = query.boolean("raw")?.unwrap_or(false);
    let content_type = content_type(&headers);
    let command = match is_raw {
        true => {
            let (outcome, digest) = output_of(&app, data(content_type, body)?)?;
            Command::LaterReply {
                step: step.step,
                attempt,
                outcome,
                digest,
            }
        }
        false => {
            query.finish()?;
            later_reply(&app, step, attempt, content_type, body)?
        }
    };
    send(&app, step, command).await
}

fn later_reply(
    app: &App,
    step: StepRef,
    attempt: Attempt,
    content_type: &str,
    body: Box<RawValue>,
) -> Result<Command, Problem> {
    let reply = data(content_type, body)?;
    let fields = Fields::of(&reply, "").map_err(Problem::invalid)?;
    let (outcome, digest) = parse(app, fields)?;
    Ok(Command::LaterReply {
        step: step.step,
        attempt,
        outcome,
        digest,
    })
}

/// Saves a reply, or a heartbeat, that a service published to the queue for replies. Its correlation id is the token.
/// The problem goes to dead letters and the log, so it quotes no secret.
pub async fn reply_by_message(app: &App, message: &ReceivedMessage) -> Result<(), Problem> {
    save_message(app, message)
        .await
        .map_err(|problem| match app.agents.all_secrets() {
            Some(all) => problem.without_secrets(&all),
            None => problem,
        })
}

async fn save_message(app: &App, message: &ReceivedMessage) -> Result<(), Problem> {
    if let Some(fault) = &message.unreadable {
        return Err(Problem::new(ProblemKind::InvalidQuery, fault));
    }
    let token = message.correlation_id.as_deref();
    let known = token.and_then(|token| app.reply_key.verify(token));
    let (step, attempt) = known.ok_or_else(|| {
        Problem::new(
            ProblemKind::NoSuchReply,
            "no task of this service has an attempt with this correlation id: use the one of the request, unchanged",
        )
    })?;
    check_encoding(message.content_encoding.as_deref())?;
    let content_type = message.content_type.as_deref().unwrap_or_default();
    let is_heartbeat = message.kind.as_deref() == Some("heartbeat");
    let command = if is_heartbeat {
        let progress = match message.body.is_empty() {
            true => Progress::default(),
            false => progress(&data(content_type, parse_json(message.body.clone())?)?)?,
        };
        Command::Heartbeat {
            step: step.step,
            attempt,
            progress,
        }
    } else {
        // The limit is that of the body of a request.
        let limit = app.config.limits.max_request.as_usize();
        if message.body.len() > limit {
            return Err(too_large(limit));
        }
        let body = parse_json(message.body.clone())?;
        later_reply(app, step, attempt, content_type, body)?
    };
    send(app, step, command).await.map(drop)
}

/// Replies of a worker to several steps.
#[derive(ToSchema)]
#[schema(as = ReplyBatch, example = json!({ "replies": [{ "token": "AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQx1mC5q0aS6w0bZ9V4Yd2c", "output": { "id": "ch_1" } }] }))]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ReplyBatchBody {
    #[schema(min_items = 1, max_items = 500)]
    replies: Vec<TokenReplyBody>,
}

/// The reply to one step: its token, and either `output` or `error`.
#[derive(ToSchema)]
#[schema(as = TokenReply)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct TokenReplyBody {
    /// The token that came with the step.
    #[schema(example = "AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQx1mC5q0aS6w0bZ9V4Yd2c")]
    token: String,
    /// The step's output.
    #[schema(value_type = JsonSchema, required = false, example = json!({ "id": "ch_1" }))]
    output: Option<String>,
    error: Option<LaterErrorBody>,
}

/// The results of several replies.
#[derive(Serialize, ToSchema)]
#[schema(as = ReplyResults)]
pub struct ReplyResultsView {
    /// One for each reply, in their order.
    #[schema(min_items = 1, max_items = 500)]
    results: Vec<ReplyResultView>,
}

/// The result of one reply.
#[derive(Serialize, ToSchema)]
#[schema(as = ReplyResult)]
pub struct ReplyResultView {
    /// The status that the reply alone would have had: 204 if it is saved, or was saved before.
    #[schema(example = 204)]
    status: u16,
    /// The reason why the reply is not saved; null if it is.
    #[schema(value_type = Option<ProblemBody>, required)]
    problem: Option<Box<RawValue>>,
}

/// Reply to several steps
///
/// For workers: each reply has the token that came with its step. The replies are independent of each other;
/// `results` has the result of each. If none could be saved because of the store, the response is that problem.
#[utoipa::path(
    post, path = "/v1/replies", tag = "replies", operation_id = "reply_to_many",
    request_body(content = ReplyBatchBody),
    responses((status = 200, description = "Every reply was looked at; the statuses are in the body", body = ReplyResultsView)),
)]
async fn reply_to_many(
    State(app): State<Arc<App>>,
    query: Query,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    query.finish()?;
    let mut fields = Fields::of(&body, "").map_err(Problem::invalid)?;
    if fields.peek("replies").is_none() {
        fields.missing("replies", "give an array of up to 500 replies");
    }
    let replies = fields.array("replies");
    if let Some(replies) = &replies
        && !(1..=MOST_REPLIES).contains(&replies.len())
    {
        let count = replies.len();
        let message = format!("must hold 1 to {MOST_REPLIES} replies, holds {count}");
        fields.fault("replies", message);
    }
    fields.finish().map_err(Problem::invalid)?;
    let replies = replies.into_iter().flatten().enumerate();
    let replies = replies.map(|(at, reply)| one_of_many(&app, reply, format!("/replies/{at}")));
    let mut saved = join_all(replies).await;
    let is_away = |saved: &Result<_, Problem>| {
        saved
            .as_ref()
            .is_err_and(|problem| problem.kind().status().is_server_error())
    };
    // Every reply failed because of the store: none was saved, and the same request may save them all later.
    if saved.iter().all(is_away)
        && let Some(Err(problem)) = saved.pop()
    {
        return Err(problem);
    }
    let results = saved.into_iter().map(|saved| {
        let problem = saved.err();
        ReplyResultView {
            status: problem
                .as_ref()
                .map_or(204, |problem| problem.kind().status().as_u16()),
            problem: problem.and_then(|problem| RawValue::from_string(problem.document()).ok()),
        }
    });
    let results = results.collect();
    Ok(json(StatusCode::OK, &ReplyResultsView { results }))
}

async fn one_of_many(app: &App, body: &RawValue, at: String) -> Result<StatusCode, Problem> {
    let mut fields = Fields::of(body, &at).map_err(Problem::invalid)?;
    if fields.peek("token").is_none() {
        fields.missing("token", "give the token that came with the step");
    }
    let token = fields.string("token", LONGEST_TOKEN);
    let known = token.as_ref().map(|token| app.reply_key.verify(token));
    if known == Some(None) {
        return Err(no_such_reply());
    }
    let (outcome, digest) = parse(app, fields)?;
    let Some((step, attempt)) = known.flatten() else {
        return Err(no_such_reply());
    };
    let command = Command::LaterReply {
        step: step.step,
        attempt,
        outcome,
        digest,
    };
    send(app, step, command).await
}

/// Send a heartbeat
///
/// Reports that the service still works on its reply, and optionally its progress. If the step has
/// `heartbeat_within`, silence for that long counts as a failure. The progress is part of the task; it is recorded at
/// most once a second.
#[utoipa::path(
    post, path = "/v1/replies/{token}/heartbeat", tag = "replies", operation_id = "send_heartbeat",
    params(ReplyParams),
    request_body(content = Option<HeartbeatBody>, description = "Optional"),
    responses(
        (status = 204, description = "The attempt is still awaited: continue"),
        (status = 404, description = "The token is not known", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "The attempt is over: stop working on it", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
async fn heartbeat(
    State(app): State<Arc<App>>,
    TokenPath(step, attempt): TokenPath,
    query: Query,
    headers: HeaderMap,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<StatusCode, Problem> {
    query.finish()?;
    let progress = match body {
        Some(body) => progress(&data(content_type(&headers), body)?)?,
        None => Progress::default(),
    };
    let command = Command::Heartbeat {
        step: step.step,
        attempt,
        progress,
    };
    send(&app, step, command).await
}

async fn send(app: &App, step: StepRef, command: Command) -> Result<StatusCode, Problem> {
    let command = without_secrets(app, step, command).await?;
    let applied = app
        .store
        .apply(Apply::new(step.task, command, Actor::service()));
    match applied.await {
        Ok(_) => Ok(StatusCode::NO_CONTENT),
        // The task was deleted, and its attempts with it.
        Err(CommandError::NoTask) => Err(no_such_reply()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the command without the secrets of the agent whose service sends it. The agent is known from the task,
/// which is only read if the command has some secret: few have one.
async fn without_secrets(app: &App, step: StepRef, command: Command) -> Result<Command, Problem> {
    let Some(all) = app.agents.all_secrets() else {
        return Ok(command);
    };
    if all.hide_in_command(&command).is_none() {
        return Ok(command);
    }
    let task = app.store.reader.task(step.task).await?;
    let task = task.filter(|task| task.has_step(step.step));
    let agent = task.and_then(|task| task.definition(step.step).agent().cloned());
    let hidden = match agent {
        Some(agent) => app.agents.secrets_of(&agent).hide_in_command(&command),
        None => all.hide_in_command(&command),
    };
    Ok(hidden.unwrap_or(command))
}

/// Returns the body itself, or the data of a CloudEvent in structured mode. In binary mode the body is the data.
fn data(content_type: &str, body: Box<RawValue>) -> Result<Box<RawValue>, Problem> {
    let content_type = content_type.to_ascii_lowercase();
    if !content_type.starts_with("application/cloudevents+json") {
        return Ok(body);
    }
    #[derive(serde::Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        data: Option<&'a RawValue>,
    }
    let envelope = serde_json::from_str::<Envelope<'_>>(body.get());
    let data = envelope.ok().and_then(|envelope| envelope.data);
    data.map(ToOwned::to_owned).ok_or_else(|| {
        Problem::invalid(vec![FieldFault::new(
            "/data",
            "is missing: the `data` of the CloudEvent is the reply, as JSON",
        )])
    })
}

fn content_type(headers: &HeaderMap) -> &str {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    content_type.unwrap_or_default()
}

/// Parses the reply: its result, and the digest by which a repeated reply is recognised.
fn parse(app: &App, mut fields: Fields<'_>) -> Result<(CallOutcome, ReplyDigest), Problem> {
    let given = fields.peek("error").is_some();
    // Some libraries write null for an absent member. Without an error, a null is an output.
    let output = fields.raw("output");
    let output = output.filter(|output| !given || output.get() != "null");
    let error = fields.object("error").map(|mut error| {
        if error.peek("message").is_none() {
            error.missing("message", "say why the service failed");
        }
        let message = error.string("message", LONGEST_ERROR);
        let permanent = error.boolean("permanent").unwrap_or_default();
        (error.finish(), message.unwrap_or_default(), permanent)
    });
    let error = error.map(|(faults, message, permanent)| {
        if let Err(faults) = faults {
            fields.extend(faults);
        }
        (message, permanent)
    });
    match (&output, given) {
        (Some(_), true) => fields.fault("error", "give either `output` or `error`, not both"),
        (None, false) => fields.missing("output", "give the step's output, or an `error`"),
        _ => {}
    }
    fields.finish().map_err(Problem::invalid)?;
    if let Some(output) = output {
        return output_of(app, output);
    }
    let (message, permanent) = error.unwrap_or_default();
    let kind = match permanent {
        true => "permanent",
        false => "transient",
    };
    let digest = digest(kind, &Value::from(message.as_str()).to_string());
    Ok((CallOutcome::reported_error(&message, permanent), digest))
}

fn output_of(app: &App, output: Box<RawValue>) -> Result<(CallOutcome, ReplyDigest), Problem> {
    let limit = app.config.limits.max_output.as_usize();
    if output.get().len() > limit {
        return Err(Problem::new(
            ProblemKind::BodyTooLarge,
            format!(
                "the output is longer than {limit} bytes: send less, or raise limits.max_output"
            ),
        )
        .with("limit", limit));
    }
    let digest = digest("output", output.get());
    Ok((CallOutcome::Success(Payload::new(output)), digest))
}

/// Returns the digest of the content of a reply: blanks and the order of names make no difference.
pub(in crate::api) fn digest(kind: &str, json: &str) -> ReplyDigest {
    let content = match serde_json::from_str::<Value>(json) {
        Ok(mut content) => {
            content.sort_all_objects();
            content.to_string()
        }
        // The JSON has a number or a text that serde_json cannot represent: the digest is of its characters.
        Err(_) => format!("as written: {json}"),
    };
    let hash = Sha256::digest(format!("{kind} {content}"));
    let mut text = String::new();
    for byte in &hash[..16] {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    ReplyDigest(text)
}

fn progress(body: &RawValue) -> Result<Progress, Problem> {
    let mut fields = Fields::of(body, "").map_err(Problem::invalid)?;
    let fraction = fields.value("progress").map(|value| {
        let number = serde_json::from_str::<f64>(value.get()).ok();
        number.filter(|number| (0.0..=1.0).contains(number))
    });
    if fraction == Some(None) {
        fields.fault("progress", "must be a number from 0 to 1");
    }
    let message = fields.string("message", Progress::LONGEST_MESSAGE);
    let details = fields.raw("details");
    if let Some(details) = &details
        && details.get().len() > Progress::LONGEST_DETAILS
    {
        let most = Progress::LONGEST_DETAILS;
        fields.fault("details", format!("is longer than {most} bytes: send less"));
    }
    fields.finish().map_err(Problem::invalid)?;
    Ok(Progress {
        fraction: fraction.flatten(),
        message,
        details: details.map(Payload::new),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_has_the_same_digest_however_it_is_written() {
        let one = digest("output", r#"{"a": 1, "b": {"d": [1, 2], "c": null}}"#);
        let same = digest("output", r#"{"b":{"c":null,"d":[1,2]},"a":1}"#);
        assert_eq!(one, same);
        for (kind, other) in [
            ("output", r#"{"b":{"c":null,"d":[2,1]},"a":1}"#),
            ("permanent", r#"{"b":{"c":null,"d":[1,2]},"a":1}"#),
        ] {
            assert_ne!(one, digest(kind, other));
        }
    }

    #[test]
    fn content_that_has_no_value_is_told_apart_all_the_same() {
        let far = digest("output", "1e400");
        assert_eq!(far, digest("output", "1e400"));
        for other in ["null", "[1e999]", r#""\ud800""#] {
            assert_ne!(far, digest("output", other), "{other}");
        }
    }
}

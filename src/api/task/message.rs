//! A submission that arrives as a message of a queue: the same parser, limits and problems as over HTTP.

use axum::http::Method;

use super::submit::{self, MessageSource, key_prefix, new_details};
use crate::{
    api::{
        App, Problem,
        extract::{self, Caller, Conditions, idempotency},
        problem::ProblemKind,
    },
    broker::ReceivedMessage,
    config::{IntakeConfig, Role},
    domain::{
        task::{KnownReceivers, QueueNamedBy, ReplyQueue},
        values::{MAIN_BROKER, QueueAddress, Trace, is_json, queue_fault},
    },
    store::Submitted,
};

/// Stores the task that a message submits. `key` is its idempotency key: a message that is delivered again creates
/// nothing again.
pub async fn submit_message(
    app: &App,
    intake: &IntakeConfig,
    message: &ReceivedMessage,
    key: String,
) -> Result<Submitted, Problem> {
    if let Some(fault) = &message.unreadable {
        return Err(Problem::new(ProblemKind::InvalidQuery, fault));
    }
    check_form(message)?;
    let limit = app.config.limits.max_request.as_usize();
    if message.body.len() > limit {
        return Err(extract::too_large(limit));
    }
    if app.stop.is_cancelled() {
        let detail = "the service is stopping and accepts no more tasks";
        return Err(Problem::new(ProblemKind::Stopping, detail));
    }
    let body = extract::parse(message.body.clone())?;
    let header = |name: &str| message.header(name).into_iter().collect::<Vec<_>>();
    let conditions = Conditions {
        idempotency_key: Some(key),
        trace: Trace::join(&header("traceparent"), &header("tracestate")),
        ..Conditions::default()
    };
    let source = MessageSource {
        workflow: intake.workflow.clone(),
        reply_to: reply_queue(intake, message)?,
        queue_named_by: QueueNamedBy::MessageBody,
        ..MessageSource::default()
    };
    let mut submission = submit::read(app, &body, None, Some(source)).await?;
    // The broker knows who may write to the queue. No token has a name with a tab, so the caller cannot be confused
    // with one.
    let caller = Caller {
        name: format!("intake\t{}", intake.name).into(),
        agents: [].into(),
        role: Role::Submit,
        is_known: true,
        address: None,
    };
    let bytes = body.get().as_bytes();
    let idempotency = idempotency(&conditions, &caller, &Method::POST, "/v1/tasks", bytes);
    submission.key_prefix = key_prefix(app, idempotency.as_ref());
    let id = app.store.new_task_id();
    let reason = format!("submitted through the intake {}", intake.name);
    let details = new_details(submission, id, &conditions);
    Ok(app.store.submit(details, Some(reason), idempotency).await?)
}

/// Returns the queue to which the sender of a refused message gets the problem. It must be a queue that replies may
/// go to: a message must not name any queue to write to.
pub fn refusal_address(
    app: &App,
    intake: &IntakeConfig,
    message: &ReceivedMessage,
) -> Option<QueueAddress> {
    let address = reply_queue(intake, message).ok()??.address;
    let receivers = app.receivers.load();
    receivers
        .allows_queue(&address, QueueNamedBy::Properties)
        .ok()?;
    Some(address)
}

/// Refuses a message that names another type or encoding than JSON. Publishers often omit the type of the body.
fn check_form(message: &ReceivedMessage) -> Result<(), Problem> {
    extract::check_encoding(message.content_encoding.as_deref())?;
    match message.content_type.as_deref() {
        None | Some("" | "application/octet-stream") => Ok(()),
        Some(kind) if is_json(kind) => Ok(()),
        Some(kind) => Err(Problem::new(
            ProblemKind::NotJson,
            format!(
                "the content type of the message is {kind:?}: send JSON as application/json, or omit this property"
            ),
        )),
    }
}

/// Returns the queue that the message itself names for replies, on the broker that it came from.
fn reply_queue(
    intake: &IntakeConfig,
    message: &ReceivedMessage,
) -> Result<Option<ReplyQueue>, Problem> {
    let Some(queue) = message
        .reply_to
        .as_deref()
        .filter(|queue| !queue.is_empty())
    else {
        return Ok(None);
    };
    if let Some(fault) = queue_fault(queue) {
        let detail = format!("the property reply_to of the message names a queue that {fault}");
        return Err(Problem::new(ProblemKind::InvalidQuery, detail));
    }
    let broker = match intake.url {
        Some(_) => intake.name.as_str(),
        None => MAIN_BROKER,
    };
    Ok(Some(ReplyQueue {
        address: QueueAddress {
            broker: broker.into(),
            queue: queue.into(),
        },
        correlation_id: message.correlation_id.as_deref().map(Into::into),
    }))
}

//! A call through a queue: the request is published with confirms, and the service sends its reply later to a queue of
//! Provost. From the confirm on, the step waits in the same way as after a 202.

use std::time::Duration;

use bytes::Bytes;

use super::transport::{CallAttempt, Transient, Transport};
use crate::{
    broker::{BrokerError, OutgoingMessage},
    clock,
    domain::{
        definition::ReplyMode,
        task::{Call, CallBody, CallOutcome, Purpose},
        values::{Effect, QueueAddress},
    },
};

/// The longest wait for the confirm of the broker.
const CONFIRM_WITHIN: Duration = Duration::from_secs(15);

impl Transport {
    pub(super) async fn publish(
        &self,
        queue: &QueueAddress,
        request: CallAttempt<'_>,
        body: Option<CallBody>,
    ) -> Result<CallOutcome, Transient> {
        let call = request.call;
        let Some(queues) = self.queues.get() else {
            let why = "the agent has a queue, but no message broker is configured: set broker.url";
            return Ok(request.permanent(why.to_owned()));
        };
        if !matches!(call.purpose, Purpose::Work | Purpose::Undo(_)) {
            let why = "the agent has a queue, where only steps and undos are sent: a probe or a cancel request needs an agent with a URL";
            return Ok(request.permanent(why.to_owned()));
        }
        if call.reply_mode == ReplyMode::Poll {
            let why =
                "the agent has a queue, and what is sent to a queue cannot be polled: omit `reply`";
            return Ok(request.permanent(why.to_owned()));
        }
        let left = request.deadline.saturating_duration_since(clock::instant());
        let message = OutgoingMessage {
            content_type: "application/json",
            message_id: call.idempotency_key.clone(),
            correlation_id: Some(queues.key.token(call.step, call.attempt)),
            reply_to: Some(queues.key.reply_queue()),
            declare_reply_to: true,
            kind: call.step_name.to_string(),
            expires_in: Some(left),
            headers: headers(call),
            body: body.map_or_else(Bytes::new, |body| Bytes::copy_from_slice(body.as_bytes())),
            ..OutgoingMessage::default()
        };
        let within = CONFIRM_WITHIN.min(left);
        match queues.brokers.publish_to(queue, message, within).await {
            Ok(()) => Ok(CallOutcome::Deferred),
            Err(BrokerError::Refused(why)) => {
                Ok(request.permanent(format!("the broker refused the request: {why}")))
            }
            Err(error) => {
                let mut failed = request.transient(error.to_string());
                failed.fault.effect = Effect::unknown_if(error.leaves_effect_unknown());
                Err(failed)
            }
        }
    }
}

/// Returns the message headers, which contain the same data as the headers of an HTTP request.
fn headers(call: &Call) -> Vec<(std::borrow::Cow<'static, str>, String)> {
    let mut headers = vec![
        ("provost-task".into(), call.step.task.to_string()),
        ("provost-step".into(), call.step_name.to_string()),
        ("provost-attempt".into(), call.attempt.0.to_string()),
        (
            "provost-complete-by".into(),
            call.wall_complete_by.to_string(),
        ),
        ("traceparent".into(), call.trace.parent()),
    ];
    if let Some(key) = &call.task_key {
        headers.push(("provost-task-key".into(), key.to_string()));
    }
    if let Some(state) = &call.trace.state {
        headers.push(("tracestate".into(), state.to_string()));
    }
    if let Purpose::Undo(key) = &call.purpose {
        headers.push(("provost-undoes".into(), key.clone()));
    }
    if !call.path.is_empty() {
        headers.push(("provost-path".into(), call.path.clone()));
    }
    // A definition cannot set headers that begin with `provost-`.
    let own = call
        .headers
        .iter()
        .filter(|(name, _)| !name.starts_with("provost-"));
    headers.extend(own.map(|(name, value)| (name.clone().into(), value.clone())));
    headers
}

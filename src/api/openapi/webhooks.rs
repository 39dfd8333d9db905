//! The requests that Provost sends to receivers: the `webhooks` of the document. `docs/replies.md` says what
//! receivers can rely on.
#![allow(
    dead_code,
    reason = "only the shapes of the envelope, for the OpenAPI document"
)]

use utoipa::{IntoParams, OpenApi, ToSchema};
use uuid::Uuid;

use crate::domain::{
    message::{ALERT_EVENTS, ASK_EVENT, AlertData, AskData, SlackText},
    values::Timestamp,
    view::{ReplyData, ReplyEvent},
};

/// The events that an alert webhook receives.
struct AlertEventType;

/// The event of a question.
struct AskEventType;

/// The version of CloudEvents.
struct CloudEvents;

/// The media type of an event's data.
struct EventData;

crate::api::openapi::words::words! {
    AlertEventType = "AlertEventType", "Whether an alert was raised, has grown to 100 steps or ten times as many as before, or has closed", ALERT_EVENTS;
    AskEventType = "AskEventType", "People are asked", [ASK_EVENT];
    CloudEvents = "CloudEventsVersion", "The version of CloudEvents", ["1.0"];
    EventData = "EventDataType", "The media type of an event's data", ["application/json"];
}

/// Reports a change of a task to its submitter, as a CloudEvent.
#[derive(ToSchema)]
struct TaskEvent {
    specversion: CloudEvents,
    /// The same value as `webhook-id`: it is identical on every delivery of the event.
    id: Uuid,
    /// `/v1/tasks` under the public URL.
    #[schema(format = "uri-reference", example = "https://provost.example/v1/tasks")]
    source: String,
    #[schema(rename = "type")]
    kind: ReplyEvent,
    /// The task's id.
    subject: Uuid,
    time: Timestamp,
    datacontenttype: EventData,
    data: ReplyData<'static>,
}

/// Reports an alert, as a CloudEvent.
#[derive(ToSchema)]
struct AlertEvent {
    specversion: CloudEvents,
    /// The same value as `webhook-id`: it is identical on every delivery of the event.
    id: Uuid,
    /// `/v1/alerts` under the public URL.
    #[schema(
        format = "uri-reference",
        example = "https://provost.example/v1/alerts"
    )]
    source: String,
    #[schema(rename = "type")]
    kind: AlertEventType,
    /// The task's id; for an alert without a task, the alert's id.
    subject: Uuid,
    time: Timestamp,
    datacontenttype: EventData,
    data: AlertData<'static>,
}

/// Reports that people are asked, as a CloudEvent.
#[derive(ToSchema)]
struct AskEvent {
    specversion: CloudEvents,
    /// The same value as `webhook-id`: it is identical on every delivery of the event.
    id: Uuid,
    /// `/v1/asks` under the public URL.
    #[schema(format = "uri-reference", example = "https://provost.example/v1/asks")]
    source: String,
    #[schema(rename = "type")]
    kind: AskEventType,
    /// The task's id.
    subject: Uuid,
    time: Timestamp,
    datacontenttype: EventData,
    data: AskData<'static>,
}

/// An alert, or what people are asked.
#[derive(ToSchema)]
#[serde(untagged)]
enum AlertOrAskEvent {
    Alert(AlertEvent),
    Ask(AskEvent),
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
struct DeliveryHeaders {
    /// Identical on every delivery of the same message: use it to recognise duplicates.
    #[param(rename = "webhook-id")]
    id: Uuid,
    /// When this delivery attempt was signed, in seconds since 1970.
    #[param(rename = "webhook-timestamp")]
    timestamp: u64,
    /// `v1,` and a base64 HMAC-SHA256 for each of the receiver's secrets, separated by spaces, as in Standard
    /// Webhooks. Absent if the receiver has no secret.
    #[param(rename = "webhook-signature")]
    signature: Option<String>,
    /// The number of this delivery attempt, from 1.
    #[param(rename = "provost-try")]
    number: u32,
}

/// Notify a submitter about a task
///
/// Sent to the `reply_to` of the task for each of its `events`, at least once, and in order for one task. Provost
/// retries for a day until the receiver responds with 2xx; 410 means that the receiver wants no further messages.
#[utoipa::path(
    post, path = "task_event", tag = "messages", operation_id = "task_event",
    params(DeliveryHeaders),
    request_body(content = TaskEvent, content_type = "application/cloudevents+json"),
    responses(
        (status = 200, description = "Any 2xx within 15 s: delivered"),
        (status = 410, description = "The receiver wants no further messages: this message becomes a dead letter"),
    )
)]
async fn task_event() {}

/// Notify people about an alert, or about what people are asked
///
/// Sent to each configured alert webhook, at least once. With `format = "slack"` a text message is sent when an
/// alert is raised or updated, and when people are asked; it has no link of any of them.
#[utoipa::path(
    post, path = "alert_event", tag = "alerts", operation_id = "alert_event",
    params(DeliveryHeaders),
    request_body(content((AlertOrAskEvent = "application/cloudevents+json"), (SlackText = "application/json"))),
    responses(
        (status = 200, description = "Any 2xx within 15 s: delivered"),
        (status = 410, description = "The receiver wants no further messages: this message becomes a dead letter"),
    )
)]
async fn alert_event() {}

#[derive(OpenApi)]
#[openapi(paths(task_event, alert_event))]
struct WebhookRequest;

/// Adds the webhooks with their schemas.
pub fn describe(document: &mut utoipa::openapi::OpenApi) {
    let posted = WebhookRequest::openapi();
    document.webhooks = Some(posted.paths);
    let schemas = posted.components.unwrap_or_default().schemas;
    let components = document.components.get_or_insert_default();
    components.schemas.extend(schemas);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use utoipa::PartialSchema;

    use super::*;
    use crate::domain::message::{AlertFormat, AlertNotice, AlertWebhook, Sender};

    fn names(members: &Value) -> BTreeSet<&str> {
        members
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect()
    }

    #[test]
    fn the_documented_envelope_is_the_one_that_is_sent() {
        let sender = Sender {
            public_url: None,
            webhooks: vec![AlertWebhook {
                receiver: AlertWebhook::queue_of("ops"),
                format: AlertFormat::Generic,
            }],
            console_url: None,
            ask_key: None,
            full: Default::default(),
        };
        let at = Timestamp::from_millis(1_700_000_000_000);
        let alert = AlertNotice::raised(Uuid::from_u128(1), "task.error", "402", at);
        let sent = sender.alert(&alert, 1, at, || Uuid::from_u128(2));
        let sent: Value = serde_json::from_str(&sent[0].body).unwrap();
        let schemas = [TaskEvent::schema(), AlertEvent::schema()];
        for schema in schemas.map(|schema| serde_json::to_value(schema).unwrap()) {
            assert_eq!(names(&schema["properties"]), names(&sent));
        }
        let data = serde_json::to_value(AlertData::schema()).unwrap();
        assert_eq!(names(&data["properties"]), names(&sent["data"]));
    }
}

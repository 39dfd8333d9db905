//! The request of one attempt: its route, signature and headers, and the class of the response.

use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use uuid::Uuid;

use super::Receivers;
use crate::{
    agent::{Post, PostError, PostResponse},
    broker::{BrokerError, OutgoingMessage},
    domain::{
        message::{DeliveryResult, signatures},
        values::{QUEUE_SCHEME, QueueAddress, Timestamp, without_links},
    },
    store::{NextMessage, QueueClaim},
};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const TRY: HeaderName = HeaderName::from_static("provost-try");

const CLOUD_EVENT: HeaderValue = HeaderValue::from_static("application/cloudevents+json");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The attribute of a message's envelope that becomes a property of the published message.
#[derive(serde::Deserialize)]
struct QueueEnvelope {
    correlationid: Option<String>,
}

/// Publishes a message to a queue. The broker authenticates publishers, so the message needs no signature.
async fn publish(
    receivers: &Receivers,
    url: &str,
    claim: &QueueClaim,
    message: NextMessage,
    within: Duration,
) -> DeliveryResult {
    let address = match QueueAddress::parse(url) {
        Ok(address) => address,
        Err(fault) => {
            return DeliveryResult::Refused {
                reason: format!("the address {fault}"),
            };
        }
    };
    let envelope: Option<QueueEnvelope> = serde_json::from_str(&message.body).ok();
    let outgoing = OutgoingMessage {
        content_type: "application/cloudevents+json",
        message_id: message.id.to_string(),
        correlation_id: envelope.and_then(|envelope| envelope.correlationid),
        kind: message.kind,
        headers: vec![("provost-try".into(), claim.tries.to_string())],
        body: message.body.into(),
        ..OutgoingMessage::default()
    };
    match receivers
        .brokers
        .publish_to(&address, outgoing, within)
        .await
    {
        Ok(()) => DeliveryResult::Delivered,
        Err(error) => DeliveryResult::Failed {
            reason: error.to_string(),
            retry_after: None,
            // The broker may have refused only this message.
            receiver_failing: !matches!(error, BrokerError::Refused(_)),
        },
    }
}

/// Sends a message. Returns the status of the response beside the result, if it is one of HTTP.
pub(super) async fn send(
    receivers: &Receivers,
    post: &Post,
    claim: &QueueClaim,
    message: NextMessage,
    now: Timestamp,
) -> (DeliveryResult, Option<u16>) {
    if let Some(url) = message.url.clone()
        && url.starts_with(QUEUE_SCHEME)
    {
        let published = publish(receivers, &url, claim, message, post.timeout());
        return (published.await, None);
    }
    let route = match receivers.route(&claim.receiver, message.url.as_deref()) {
        Ok(route) => route,
        // An operator may correct the configuration.
        Err(reason) => {
            let result = DeliveryResult::Failed {
                reason,
                retry_after: None,
                receiver_failing: true,
            };
            return (result, None);
        }
    };
    let id = message.id.to_string();
    let at = now.as_millis() / 1000;
    let signature = signatures(route.secrets, &id, at, &message.body);
    let headers = headers(&message.id, at, claim.tries, signature, &message.body);
    let posted = post.post(route.url, headers, message.body, now).await;
    let status = posted.as_ref().ok().map(|posted| posted.status.as_u16());
    (classify(posted), status)
}

fn headers(id: &Uuid, at: i64, tries: u32, signature: Option<String>, body: &str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    let kind = match body.starts_with("{\"specversion\"") {
        true => CLOUD_EVENT,
        false => JSON,
    };
    headers.insert(header::CONTENT_TYPE, kind);
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        headers.insert(WEBHOOK_ID, id);
    }
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(at));
    if let Some(Ok(signature)) = signature.as_deref().map(HeaderValue::from_str) {
        headers.insert(WEBHOOK_SIGNATURE, signature);
    }
    headers.insert(TRY, HeaderValue::from(tries));
    headers
}

/// Classifies a response. Any 2xx is an acknowledgement; 410 says that the receiver wants no more messages. Any other
/// result may change, because a wrong configuration can be corrected too.
fn classify(posted: Result<PostResponse, PostError>) -> DeliveryResult {
    let posted = match posted {
        Ok(posted) => posted,
        Err(PostError::Refused(reason)) => return DeliveryResult::Refused { reason },
        Err(PostError::Broken(reason)) => {
            return DeliveryResult::Failed {
                reason,
                retry_after: None,
                receiver_failing: true,
            };
        }
    };
    let status = posted.status;
    if status.is_success() {
        return DeliveryResult::Delivered;
    }
    let mut reason = match status.canonical_reason() {
        Some(words) => format!("the receiver responded {} {words}", status.as_u16()),
        None => format!("the receiver responded {}", status.as_u16()),
    };
    if status.is_redirection() {
        reason.push_str("; Provost never follows redirects");
    }
    if let Some(excerpt) = &posted.excerpt {
        // A receiver may quote the message, and the message may contain links.
        let excerpt = without_links(excerpt);
        let excerpt: String = excerpt.chars().take(LONGEST_EXCERPT).collect();
        reason.push_str(&format!(": {excerpt}"));
    }
    if status == StatusCode::GONE {
        return DeliveryResult::Refused { reason };
    }
    DeliveryResult::Failed {
        reason,
        retry_after: posted.retry_after,
        // Other refusals may concern only this message.
        receiver_failing: status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429),
    }
}

/// The most characters of a response that are kept.
const LONGEST_EXCERPT: usize = 200;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answered(status: u16) -> DeliveryResult {
        classify(Ok(PostResponse {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: Some(Duration::from_secs(7)),
            excerpt: Some("why".to_owned()),
        }))
    }

    #[test]
    fn an_answer_counts_by_its_status() {
        for status in [200, 202, 204] {
            assert_eq!(answered(status), DeliveryResult::Delivered);
        }
        let reason = "the receiver responded 410 Gone: why".to_owned();
        assert_eq!(answered(410), DeliveryResult::Refused { reason });
        for (status, failing) in [
            (500, true),
            (429, true),
            (404, false),
            (400, false),
            (301, false),
        ] {
            let failed = answered(status);
            let DeliveryResult::Failed {
                reason,
                retry_after,
                receiver_failing,
            } = failed
            else {
                panic!("{status}: {failed:?}")
            };
            assert!(reason.contains(&status.to_string()), "{reason}");
            assert_eq!(retry_after, Some(Duration::from_secs(7)));
            assert_eq!(receiver_failing, failing, "{status}");
        }
    }

    #[test]
    fn an_address_that_policy_refuses_is_not_tried_again() {
        let reason = "a private address".to_owned();
        let refused = classify(Err(PostError::Refused(reason.clone())));
        assert_eq!(refused, DeliveryResult::Refused { reason });
        let broken = classify(Err(PostError::Broken("reset".to_owned())));
        assert!(matches!(
            broken,
            DeliveryResult::Failed {
                receiver_failing: true,
                ..
            }
        ));
    }
}

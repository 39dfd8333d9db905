//! The messages to alert webhooks: an alert was raised, or it has closed.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    message::{
        alert_webhook::{AlertFormat, AlertWebhook, escaped},
        envelope::{CloudEvent, Message, Sender, SlackText, position},
    },
    task::alert_kind::AlertKind,
    values::{
        ids::{AgentName, ReceiverName, StepName, TaskId},
        time::Timestamp,
    },
};

const RAISED: &str = "alert.raised";
const UPDATED: &str = "alert.updated";
const CLOSED: &str = "alert.closed";

/// The events that an alert webhook receives.
pub const ALERT_EVENTS: [&str; 3] = [RAISED, UPDATED, CLOSED];

/// An alert as messages contain it.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct AlertNotice {
    pub id: Uuid,
    /// The same kinds as in the list of alerts, and those about the store itself: `store.` and the fault.
    #[schema(example = "task.error")]
    pub kind: String,
    #[schema(example = "the service refused: 402 Payment Required")]
    pub message: String,
    /// `open` or `closed`.
    #[schema(example = "open")]
    pub state: &'static str,
    pub raised_at: Timestamp,
    #[schema(required)]
    pub closed_at: Option<Timestamp>,
    /// Only for an alert about a task.
    #[schema(value_type = Option<Uuid>, required)]
    pub task: Option<TaskId>,
    /// The task's key.
    #[schema(value_type = Option<String>, required, example = "order-1001")]
    pub key: Option<Arc<str>>,
    /// The task's workflow, if it has one.
    #[schema(required, example = "order")]
    pub workflow: Option<String>,
    #[schema(value_type = Option<String>, required, example = "charge")]
    pub step: Option<StepName>,
    /// Only for an alert about messages that are not delivered.
    #[schema(value_type = Option<String>, required, example = "shop")]
    pub receiver: Option<ReceiverName>,
    /// The agent at which steps failed.
    #[schema(value_type = Option<String>, required, example = "payments")]
    pub agent: Option<AgentName>,
    /// The cause of the failures; `task` and `step` are the first of the failed steps.
    #[schema(required, example = "agent payments: 402 Payment Required")]
    pub cause: Option<String>,
    /// The number of steps that failed for this cause and need an operator; for a closed alert, the number of steps
    /// that did.
    #[schema(example = 1)]
    pub count: u64,
}

/// The order of the messages about the alert of a cause.
pub enum CauseVersion {
    Raised,
    /// The number of steps has grown to this number.
    Updated(u64),
    /// The alert has closed. It closes only once.
    Closed,
}

impl CauseVersion {
    pub fn number(self) -> u64 {
        match self {
            CauseVersion::Raised => 0,
            CauseVersion::Updated(count) => count,
            CauseVersion::Closed => 1 << 40,
        }
    }
}

/// The data of an alert message.
#[derive(Serialize, ToSchema)]
pub struct AlertData<'a> {
    alert: &'a AlertNotice,
    /// A link to the subject of the alert, if a public URL is configured.
    #[schema(
        format = "uri-reference",
        example = "https://provost.example/v1/tasks/0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c"
    )]
    link: String,
}

impl AlertNotice {
    /// Makes the notice of an alert that has just been raised. The caller adds its task or receiver.
    pub fn raised(id: Uuid, kind: &str, message: &str, at: Timestamp) -> Self {
        Self {
            id,
            kind: kind.to_owned(),
            message: message.to_owned(),
            state: "open",
            raised_at: at,
            closed_at: None,
            task: None,
            key: None,
            workflow: None,
            step: None,
            receiver: None,
            agent: None,
            cause: None,
            count: 1,
        }
    }

    #[must_use]
    pub fn closed(self, at: Timestamp) -> Self {
        Self {
            state: "closed",
            closed_at: Some(at),
            ..self
        }
    }

    /// Returns the subject of the alert's messages. Steps of different tasks raise and close the alert of a cause.
    fn subject(&self) -> Uuid {
        self.task.map_or(self.id, |task| task.0)
    }

    /// Returns the subject of the queue: messages with the same subject are delivered in order.
    fn queue_subject(&self) -> Uuid {
        match self.cause {
            Some(_) => self.id,
            None => self.subject(),
        }
    }

    /// Returns the path of a link to the subject.
    fn path(&self) -> String {
        if let Some(agent) = &self.agent
            && self.count > 1
        {
            return format!("/v1/tasks?state=error&agent={}", encoded(agent.as_str()));
        }
        match (&self.task, &self.receiver) {
            (Some(task), _) => format!("/v1/tasks/{task}"),
            (None, Some(receiver)) if self.kind == AlertKind::MessageUndeliverable.as_str() => {
                format!(
                    "/v1/messages?state=dead&receiver={}",
                    encoded(receiver.as_str())
                )
            }
            // The alert is about an agent, a broker or a secret.
            (None, Some(_)) => "/v1/alerts?state=open".to_owned(),
            // The alert is about the store itself.
            (None, None) => "/readyz".to_owned(),
        }
    }
}

impl Sender {
    /// Makes the messages to each webhook about an alert that was raised or closed at `at`. `version` is the version of
    /// its task, or that of the alert of a cause: see [`CauseVersion`]. A later call for the same subject has a higher
    /// version.
    pub fn alert(
        &self,
        alert: &AlertNotice,
        version: u64,
        at: Timestamp,
        mut new_id: impl FnMut() -> Uuid,
    ) -> Vec<Message> {
        let kind = match alert.closed_at {
            Some(_) => CLOSED,
            // For an alert about a step, the version is that of its task, and does not mean that the alert has grown.
            None if version > 0 && (alert.cause.is_some() || alert.task.is_none()) => UPDATED,
            None => RAISED,
        };
        // A webhook that cannot be reached gets no message about its own alert.
        let others = |webhook: &&AlertWebhook| alert.receiver.as_ref() != Some(&webhook.receiver);
        let messages = self.webhooks.iter().filter(others).filter_map(|webhook| {
            let id = new_id();
            let body = match webhook.format {
                AlertFormat::Generic => {
                    let data = AlertData {
                        alert,
                        link: self.link(&alert.path()),
                    };
                    let source = self.link("/v1/alerts");
                    let subject = alert.subject().to_string();
                    CloudEvent::new(id, source, kind, subject, at, data).into_json()
                }
                AlertFormat::Slack if alert.closed_at.is_some() => return None,
                AlertFormat::Slack => SlackText::body(self.slack_text(alert)),
            };
            Some(Message {
                id,
                receiver: webhook.receiver.clone(),
                subject: alert.queue_subject(),
                // Messages are in order within a change; the id decides the order between its steps.
                position: position(version, usize::from(alert.closed_at.is_none())),
                task: alert.task,
                kind: kind.to_owned(),
                url: None,
                body,
                at,
            })
        });
        messages.collect()
    }

    fn slack_text(&self, alert: &AlertNotice) -> String {
        let mut text = format!(":rotating_light: *{}*", escaped(&alert.kind));
        if let Some(task) = &alert.task {
            let name = alert.key.as_deref().map_or(task.to_string(), str::to_owned);
            text.push_str(&format!(" task {}", escaped(&name)));
        }
        if let Some(workflow) = &alert.workflow {
            text.push_str(&format!(" ({})", escaped(workflow)));
        }
        match &alert.cause {
            Some(cause) if alert.count > 1 => {
                text.push_str(&format!(
                    " and others: {}: {} steps",
                    escaped(cause),
                    alert.count
                ));
            }
            _ => text.push_str(&format!(": {}", escaped(&alert.message))),
        }
        if alert.receiver.is_some() && alert.count > 1 {
            text.push_str(&format!(" ({} messages)", alert.count));
        }
        text.push_str(&self.where_to_read(&alert.path(), "View it"));
        text
    }
}

/// Returns a text as a value of a query.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => encoded.push(char::from(b)),
            b => encoded.push_str(&format!("%{b:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn sender(public_url: Option<&str>) -> Sender {
        let webhook = |name, format| AlertWebhook {
            receiver: AlertWebhook::queue_of(name),
            format,
        };
        Sender {
            full: Default::default(),
            public_url: public_url.map(str::to_owned),
            console_url: None,
            webhooks: vec![
                webhook("ops", AlertFormat::Generic),
                webhook("chat", AlertFormat::Slack),
            ],
            ask_key: None,
        }
    }

    fn alert() -> AlertNotice {
        let message = "step charge: 402 <declined> & gone";
        AlertNotice {
            task: Some(TaskId(Uuid::from_u128(7))),
            key: Some("order-1".into()),
            workflow: Some("order".to_owned()),
            step: Some(StepName::new("charge")),
            ..AlertNotice::raised(Uuid::from_u128(5), "task.error", message, NOW)
        }
    }

    fn messages(sender: &Sender, alert: &AlertNotice) -> Vec<Message> {
        sender.alert(alert, 3, NOW, || Uuid::from_u128(1))
    }

    #[test]
    fn each_webhook_gets_an_alert_in_its_own_format_with_a_link_to_the_task() {
        let sender = Sender {
            console_url: Some("https://ops.example".to_owned()),
            ..sender(Some("https://p.example"))
        };
        let messages = messages(&sender, &alert());
        let [generic, slack] = &messages[..] else {
            panic!("{messages:?}")
        };
        let body: Value = serde_json::from_str(&generic.body).unwrap();
        assert_eq!(body["type"], "alert.raised");
        assert_eq!(body["source"], "https://p.example/v1/alerts");
        assert_eq!(body["data"]["alert"]["step"], "charge");
        let task = TaskId(Uuid::from_u128(7));
        assert_eq!(
            body["data"]["link"],
            format!("https://p.example/v1/tasks/{task}")
        );
        let body: Value = serde_json::from_str(&slack.body).unwrap();
        let text = format!(
            ":rotating_light: *task.error* task order-1 (order): \
             step charge: 402 &lt;declined&gt; &amp; gone\n<https://ops.example/v1/tasks/{task}|View it>"
        );
        assert_eq!(body["text"], text);
    }

    /// A browser sends no token.
    #[test]
    fn without_a_url_for_browsers_people_get_the_path_and_no_link() {
        let messages = messages(&sender(Some("https://p.example")), &alert());
        let body: Value = serde_json::from_str(&messages[1].body).unwrap();
        let task = TaskId(Uuid::from_u128(7));
        let text = body["text"].as_str().unwrap();
        assert!(text.ends_with(&format!("\n/v1/tasks/{task}")), "{text}");
        assert!(!text.contains("p.example"), "{text}");
    }

    #[test]
    fn only_the_generic_format_has_a_message_when_an_alert_closes() {
        let messages = messages(&sender(None), &alert().closed(NOW));
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].kind, "alert.closed");
    }

    #[test]
    fn a_webhook_that_cannot_be_reached_gets_no_message_about_that() {
        let about_itself = AlertNotice {
            task: None,
            receiver: Some(AlertWebhook::queue_of("ops")),
            kind: AlertKind::MessageUndeliverable.as_str().to_owned(),
            ..alert()
        };
        let messages = messages(&sender(Some("https://p.example")), &about_itself);
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].receiver.as_str(), "alerts:chat");
        let link = "/v1/messages?state=dead&amp;receiver=alerts%3Aops";
        assert!(messages[0].body.contains(link), "{}", messages[0].body);
    }
}

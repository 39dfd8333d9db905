//! A message, its envelope, and the settings of its sender.

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    message::alert_webhook::{AlertWebhook, escaped},
    task::reply_token::ReplyKey,
    values::{
        ids::{Destination, ReceiverName, TaskId},
        time::Timestamp,
        web_address::LONGEST_URL,
    },
};

/// One message to one receiver, to be added to the outbox.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// Identical on every redelivery: receivers recognise duplicates by it.
    pub id: Uuid,
    /// Its queue: the messages of one receiver about one subject are delivered in order.
    pub receiver: ReceiverName,
    /// The task; for an alert without a task, the alert.
    pub subject: Uuid,
    /// Its position in the queue.
    pub position: i64,
    pub task: Option<TaskId>,
    /// `task.processed` and so on.
    pub kind: String,
    /// `None` for a receiver whose URL is configured.
    pub url: Option<String>,
    /// The body, byte for byte the same at each attempt.
    pub body: String,
    pub at: Timestamp,
}

impl Message {
    pub fn destination(&self) -> Destination {
        destination_of(&self.receiver, self.url.as_deref())
    }
}

/// Returns the destination of messages to a receiver with this URL, or to one whose URL is configured.
pub fn destination_of(receiver: &ReceiverName, url: Option<&str>) -> Destination {
    match url {
        None => Destination::new(receiver.shared().clone()),
        Some(url) if url.len() <= LONGEST_URL => Destination::new(url),
        // A URL with characters of several bytes may be too long for an index.
        Some(url) => {
            let hash = Sha256::digest(url.as_bytes());
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            Destination::new(format!("{receiver}/#{hash}"))
        }
    }
}

/// The sender: settings that apply to all messages of an instance.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    /// The URL at which programs reach the service, and people the pages on which they decide; without a slash at its
    /// end.
    pub public_url: Option<String>,
    /// The URL at which people open the paths of the API in a browser, without a slash at its end.
    pub console_url: Option<String>,
    /// The receivers of alerts.
    pub webhooks: Vec<AlertWebhook>,
    /// Makes the links of people who are asked.
    pub ask_key: Option<ReplyKey>,
    /// The receivers for which too many bytes wait: messages to them have no payloads.
    pub full: Arc<BTreeSet<ReceiverName>>,
}

/// The envelope: CloudEvents 1.0 in JSON, <https://cloudevents.io>.
#[derive(Serialize)]
pub(crate) struct CloudEvent<'a, D> {
    specversion: &'static str,
    id: Uuid,
    source: String,
    #[serde(rename = "type")]
    kind: &'a str,
    subject: String,
    time: Timestamp,
    datacontenttype: &'static str,
    /// An extension: the id by which the receiver recognises the subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlationid: Option<&'a str>,
    data: D,
}

impl<'a, D: Serialize> CloudEvent<'a, D> {
    pub fn new(
        id: Uuid,
        source: String,
        kind: &'a str,
        subject: String,
        time: Timestamp,
        data: D,
    ) -> Self {
        Self {
            specversion: "1.0",
            id,
            source,
            kind,
            subject,
            time,
            datacontenttype: "application/json",
            correlationid: None,
            data,
        }
    }

    pub fn into_json(self) -> String {
        // Strings, numbers and JSON that was checked always serialise.
        serde_json::to_string(&self).unwrap_or_default()
    }
}

/// A plain text message, with `format = "slack"`.
#[derive(Serialize, ToSchema)]
pub struct SlackText {
    #[schema(
        example = ":rotating_light: *task.error* task order-1001 (order): the service refused: 402 Payment Required"
    )]
    text: String,
}

impl SlackText {
    /// Returns the body of a message with this text.
    pub(crate) fn body(text: String) -> String {
        // A text always serialises.
        serde_json::to_string(&Self { text }).unwrap_or_default()
    }
}

/// The most messages of one change that keep their order.
const POSITIONS: i64 = 1 << 16;

/// Returns the position of a message in its queue. It follows from the version of the task, and so does not depend on
/// the clocks of instances.
pub(crate) fn position(version: u64, index: usize) -> i64 {
    let version = i64::try_from(version).unwrap_or(i64::MAX / POSITIONS);
    version
        .saturating_mul(POSITIONS)
        .saturating_add((index as i64).min(POSITIONS - 1))
}

impl Sender {
    /// Returns `path` under the public URL, or the path alone if no URL is configured.
    pub(crate) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.public_url.as_deref().unwrap_or_default())
    }

    /// Returns the end of a text for people: a link to more details. Without a URL that a browser can open, it is the
    /// path, for a command.
    pub(crate) fn where_to_read(&self, path: &str, what: &str) -> String {
        match &self.console_url {
            Some(url) => format!("\n<{url}{path}|{what}>"),
            None => format!("\n{}", escaped(path)),
        }
    }
}

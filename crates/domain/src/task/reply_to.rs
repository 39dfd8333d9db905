//! `reply_to`: the address and the events that a submitter has chosen for the replies of its task.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::values::{
    fields::{FieldFault, Fields},
    ids::ReceiverName,
    queue_address::{LONGEST_QUEUE, MAIN_BROKER, QueueAddress, queue_fault},
    web_address::{LONGEST_URL, WebAddress},
};

/// The events that a reply can be about.
pub const REPLIES: [&str; 9] = [
    "task.accepted",
    "task.processed",
    "task.error",
    "task.undoing",
    "task.undone",
    "task.cancelled",
    "step.processed",
    "step.error",
    "step.asked",
];

/// The events of a submission that chooses none: the end of the task, and the questions to people.
const DEFAULT_REPLIES: [&str; 5] = [
    "task.processed",
    "task.error",
    "task.undone",
    "task.cancelled",
    // The receiver asks the people, so it gets the links.
    "step.asked",
];

const MOST_EVENTS: usize = 32;

/// `reply_to` of a task, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplyTo {
    /// An address; `None` if a receiver is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Arc<str>>,
    /// Also set for an address that a configured receiver covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver: Option<ReceiverName>,
    /// A queue of a broker, instead of an address.
    #[serde(rename = "queue", default, skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<Arc<str>>,
    /// The broker, if it is not the one of the configuration's `[broker]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<Arc<str>>,
    /// For messages to a queue: the id by which the submitter recognises them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Arc<str>>,
    /// Each is one of [`REPLIES`].
    pub events: Vec<Arc<str>>,
}

/// A queue for replies, as the message of a submission names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplyQueue {
    pub address: QueueAddress,
    pub correlation_id: Option<Arc<str>>,
}

/// The receivers that the configuration and its policy allow now.
pub trait KnownReceivers {
    /// Returns whether a receiver with this name is configured.
    fn knows(&self, receiver: &str) -> bool;
    /// Returns the configured receiver that covers this address, if any. The error is the reason why messages to it are
    /// not allowed.
    fn allows(&self, address: &WebAddress) -> Result<Option<ReceiverName>, String>;
    /// Checks that messages to this queue are allowed. The error is the reason why they are not.
    fn allows_queue(&self, address: &QueueAddress, named_by: QueueNamedBy) -> Result<(), String>;
}

/// The origin of the name of a queue for replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueueNamedBy {
    /// The properties of a message, which its broker may check.
    Properties,
    /// The body of a message, which no broker checks.
    MessageBody,
    /// The body of a request.
    #[default]
    Request,
}

impl ReplyTo {
    /// Reads the field `reply_to`. Its faults are added to those of `fields`. `own` is the queue of the message that is
    /// read, for a body that names no other target. `named_by` is the origin of a queue in the body.
    pub fn read(
        fields: &mut Fields<'_>,
        known: &dyn KnownReceivers,
        own: Option<ReplyQueue>,
        named_by: QueueNamedBy,
    ) -> Option<Self> {
        if let Some(own) = &own
            && let Err(message) = known.allows_queue(&own.address, QueueNamedBy::Properties)
        {
            let queue = &own.address.queue;
            fields.fault(
                "reply_to",
                format!("{queue:?}, from the properties of the message, {message}"),
            );
        }
        let Some(mut reply) = fields.object("reply_to") else {
            // A `reply_to` that is not an object is a fault already.
            return own.map(|own| Self::to_queue(own, DEFAULT_REPLIES.map(Arc::from).into()));
        };
        let own = own.filter(|_| !TARGETS.iter().any(|target| reply.has(target)));
        if own.is_none() {
            one_target(&mut reply);
        }
        let named = receiver(&mut reply, known);
        let (url, covering) = url(&mut reply, known).unzip();
        let receiver = named.or(covering.flatten());
        let queue = queue(&mut reply, known, named_by).or(own);
        let events = events(&mut reply);
        match reply.finish() {
            Ok(()) => Some(match queue {
                Some(queue) => Self::to_queue(queue, events),
                None => Self {
                    url,
                    receiver,
                    events,
                    ..Self::default()
                },
            }),
            Err(faults) => {
                fields.extend(faults);
                None
            }
        }
    }

    fn to_queue(queue: ReplyQueue, events: Vec<Arc<str>>) -> Self {
        let QueueAddress {
            broker,
            queue: name,
        } = queue.address;
        Self {
            queue_name: Some(name),
            broker: Some(broker).filter(|broker| **broker != *MAIN_BROKER),
            correlation_id: queue.correlation_id,
            events,
            ..Self::default()
        }
    }

    fn queue_address(&self) -> Option<QueueAddress> {
        let queue = self.queue_name.clone()?;
        let broker = self.broker.clone();
        let broker = broker.unwrap_or_else(|| MAIN_BROKER.into());
        Some(QueueAddress { broker, queue })
    }

    /// Returns the address of the messages, `None` if the configuration has it; for a queue its whole address.
    pub fn address(&self) -> Option<String> {
        let queue = || self.queue_address().map(|queue| queue.to_string());
        self.url.as_deref().map(str::to_owned).or_else(queue)
    }

    pub fn wants(&self, kind: &str) -> bool {
        self.events.iter().any(|event| &**event == kind)
    }

    /// Returns the receiver of the messages, and therefore their queue: the receiver that was named, or the origin of
    /// the address; for a queue of a broker, the broker. No name contains a `:`, every origin does.
    pub fn queue(&self) -> ReceiverName {
        if let Some(queue) = self.queue_address() {
            return ReceiverName::new(queue.origin());
        }
        let origin = || {
            let address = WebAddress::parse(self.url.as_deref().unwrap_or_default());
            // The address was parsed when it was accepted.
            address.map_or_else(|_| "?".to_owned(), |address| address.origin)
        };
        let named = self.receiver.clone();
        named.unwrap_or_else(|| ReceiverName::new(origin()))
    }
}

fn url(
    reply: &mut Fields<'_>,
    known: &dyn KnownReceivers,
) -> Option<(Arc<str>, Option<ReceiverName>)> {
    let url = reply.string("url", LONGEST_URL)?;
    let address = WebAddress::parse(&url).and_then(|address| {
        let covering = known.allows(&address)?;
        Ok((address.url, covering))
    });
    match address {
        Ok(address) => Some(address),
        Err(message) => {
            reply.fault("url", message);
            None
        }
    }
}

fn receiver(reply: &mut Fields<'_>, known: &dyn KnownReceivers) -> Option<ReceiverName> {
    let name = reply.string("receiver", 64)?;
    if known.knows(&name) {
        return Some(ReceiverName::new(name));
    }
    reply.fault(
        "receiver",
        format!("no receiver {name:?} is configured: add it to [[receivers]], or give a `url`"),
    );
    None
}

/// The fields, exactly one of which `reply_to` must have.
const TARGETS: [&str; 3] = ["url", "receiver", "queue"];

fn one_target(reply: &mut Fields<'_>) {
    let given = TARGETS.iter().filter(|target| reply.has(target));
    match given.count() {
        1 => {}
        0 => reply.missing(
            "url",
            "give a URL, the name of a configured `receiver`, or a `queue` of the broker",
        ),
        _ => {
            let given = TARGETS.into_iter().find(|target| reply.has(target));
            let field = given.unwrap_or("url");
            reply.fault(
                field,
                "give one of `url`, `receiver` and `queue`, not several",
            );
        }
    }
}

fn queue(
    reply: &mut Fields<'_>,
    known: &dyn KnownReceivers,
    named_by: QueueNamedBy,
) -> Option<ReplyQueue> {
    if !reply.has("queue") && reply.has("correlation_id") {
        reply.missing("queue", "only messages to a queue have a correlation id: give a queue, or omit `correlation_id`");
    }
    let queue = reply.string("queue", LONGEST_QUEUE);
    let correlation_id = reply.string("correlation_id", LONGEST_QUEUE);
    let queue = queue?;
    if correlation_id
        .as_ref()
        .is_some_and(|id| id.len() > LONGEST_QUEUE)
    {
        reply.fault(
            "correlation_id",
            "is longer than 255 bytes, the most that AMQP allows",
        );
    }
    let address = QueueAddress {
        broker: MAIN_BROKER.into(),
        queue: queue.as_str().into(),
    };
    let allowed = match queue_fault(&queue) {
        Some(fault) => Err(fault.to_owned()),
        None => known.allows_queue(&address, named_by),
    };
    if let Err(message) = allowed {
        reply.fault("queue", message);
        return None;
    }
    Some(ReplyQueue {
        address,
        correlation_id: correlation_id.map(Into::into),
    })
}

fn events(reply: &mut Fields<'_>) -> Vec<Arc<str>> {
    let pointer = reply.pointer("events");
    let Some(chosen) = reply.string_list("events", MOST_EVENTS) else {
        return DEFAULT_REPLIES.map(Arc::from).into();
    };
    if chosen.is_empty() {
        reply.fault("events", "is empty: choose events, or omit it");
    }
    let mut events: Vec<Arc<str>> = Vec::with_capacity(chosen.len());
    for (at, event) in chosen.iter().enumerate() {
        if !REPLIES.contains(&event.as_str()) {
            let message = format!(
                "{event:?} is not an event; the events are {}",
                REPLIES.join(", ")
            );
            reply.extend([FieldFault::new(format!("{pointer}/{at}"), message)]);
        } else if !events.iter().any(|known| **known == **event) {
            events.push(event.as_str().into());
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    struct Policy;

    impl KnownReceivers for Policy {
        fn knows(&self, receiver: &str) -> bool {
            receiver == "shop"
        }

        fn allows(&self, address: &WebAddress) -> Result<Option<ReceiverName>, String> {
            match &*address.origin {
                "https://shop.example:443" => Ok(Some(ReceiverName::new("shop"))),
                origin if origin.starts_with("https:") => Ok(None),
                _ => Err("is not allowed here".to_owned()),
            }
        }

        fn allows_queue(
            &self,
            address: &QueueAddress,
            named_by: QueueNamedBy,
        ) -> Result<(), String> {
            match &*address.queue {
                "shop.replies" => Ok(()),
                _ if named_by == QueueNamedBy::Properties => Ok(()),
                _ => Err("is not allowed here".to_owned()),
            }
        }
    }

    fn read(reply_to: Value) -> Result<ReplyTo, Vec<String>> {
        read_with(json!({ "reply_to": reply_to }), None)
    }

    fn read_with(body: Value, own: Option<ReplyQueue>) -> Result<ReplyTo, Vec<String>> {
        let body = to_raw_value(&body).unwrap();
        let mut fields = Fields::of(&body, "").unwrap();
        let read = ReplyTo::read(&mut fields, &Policy, own, QueueNamedBy::Request);
        match fields.finish() {
            Ok(()) => Ok(read.unwrap()),
            Err(faults) => Err(faults.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn a_reply_goes_to_an_address_or_to_a_receiver_about_the_chosen_events() {
        let chosen = read(json!({
            "url": "https://Other.example/r", "events": ["step.error", "task.processed", "step.error"],
        }))
        .unwrap();
        assert_eq!(&*chosen.queue().to_string(), "https://other.example:443");
        assert!(chosen.wants("step.error") && !chosen.wants("task.error"));
        assert_eq!(chosen.events.len(), 2);
        let covered = read(json!({ "url": "https://shop.example/r" })).unwrap();
        assert_eq!(covered.queue().as_str(), "shop");
        assert_eq!(covered.url.as_deref(), Some("https://shop.example/r"));
        let named = read(json!({ "receiver": "shop" })).unwrap();
        assert_eq!(named.queue().as_str(), "shop");
        assert!(named.wants("task.error") && !named.wants("task.accepted"));
    }

    #[test]
    fn a_reply_goes_to_a_queue_that_the_body_or_the_message_names() {
        let named = json!({ "queue": "shop.replies", "correlation_id": "7" });
        let named = read(named).unwrap();
        assert_eq!(named.queue().as_str(), "amqp://broker");
        assert_eq!(named.address().unwrap(), "amqp://broker/shop.replies");
        let own = ReplyQueue {
            address: QueueAddress::parse("amqp://eu/amq.gen-7").unwrap(),
            correlation_id: Some("9".into()),
        };
        let default = read_with(json!({}), Some(own.clone())).unwrap();
        assert_eq!(default.address().unwrap(), "amqp://eu/amq.gen-7");
        assert_eq!(default.queue().as_str(), "amqp://eu");
        assert_eq!(default.correlation_id.as_deref(), Some("9"));
        assert!(default.wants("task.processed"));
        let chosen = json!({ "reply_to": { "events": ["step.error"] } });
        let chosen = read_with(chosen, Some(own.clone())).unwrap();
        assert_eq!(chosen.address(), default.address());
        assert!(chosen.wants("step.error") && !chosen.wants("task.processed"));
        let other = json!({ "reply_to": { "receiver": "shop" } });
        let other = read_with(other, Some(own)).unwrap();
        assert_eq!((other.queue().as_str(), other.address()), ("shop", None));
    }

    #[test]
    fn it_is_stored_as_it_is_shown() {
        let reply_to = read(json!({ "receiver": "shop", "events": ["task.error"] })).unwrap();
        let written = serde_json::to_value(&reply_to).unwrap();
        assert_eq!(
            written,
            json!({ "receiver": "shop", "events": ["task.error"] })
        );
        assert_eq!(
            serde_json::from_value::<ReplyTo>(written).unwrap(),
            reply_to
        );
    }

    #[test]
    fn each_fault_names_its_field() {
        for (wrong, says) in [
            (
                json!("https://shop.example"),
                "/reply_to: must be an object",
            ),
            (json!({}), "/reply_to/url: is missing"),
            (
                json!({ "url": "ftp://a" }),
                "/reply_to/url: is not a URL to call",
            ),
            (
                json!({ "url": "http://a" }),
                "/reply_to/url: is not allowed here",
            ),
            (
                json!({ "receiver": "other" }),
                "/reply_to/receiver: no receiver \"other\"",
            ),
            (
                json!({ "receiver": "shop", "url": "https://a" }),
                "/reply_to/url: give one of",
            ),
            (
                json!({ "receiver": "shop", "queue": "shop.replies" }),
                "/reply_to/receiver: give one of",
            ),
            (
                json!({ "queue": "secret" }),
                "/reply_to/queue: is not allowed here",
            ),
            (json!({ "queue": "" }), "/reply_to/queue: "),
            (json!({ "queue": "q".repeat(300) }), "/reply_to/queue: "),
            (
                json!({ "receiver": "shop", "correlation_id": "7" }),
                "/reply_to/queue: is missing: only messages to a queue",
            ),
            (
                json!({ "receiver": "shop", "events": ["task.done"] }),
                "/reply_to/events/0: \"task.done\" is not an event; the events are task.accepted",
            ),
            (
                json!({ "receiver": "shop", "events": [] }),
                "/reply_to/events: is empty",
            ),
            (
                json!({ "receiver": "shop", "event": ["task.error"] }),
                "/reply_to/event: unknown field `event`; did you mean `events`?",
            ),
        ] {
            let faults = read(wrong.clone()).unwrap_err();
            assert!(
                faults.iter().any(|fault| fault.starts_with(says)),
                "{wrong}: {faults:?}"
            );
        }
    }
}

//! `reply_to`: the address and the events that a submitter has chosen for the replies of its task.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    fields::{FieldFault, Fields},
    ids::ReceiverName,
    web_address::{LONGEST_URL, WebAddress},
};

/// The events that a reply can be about.
pub const REPLIES: [&str; 8] = [
    "task.accepted",
    "task.processed",
    "task.error",
    "task.undoing",
    "task.undone",
    "task.cancelled",
    "step.processed",
    "step.error",
];

/// The events of a submission that chooses none: how the task ended.
const DEFAULT_REPLIES: [&str; 4] = [
    "task.processed",
    "task.error",
    "task.undone",
    "task.cancelled",
];

const MOST_EVENTS: usize = 32;

/// `reply_to` of a task, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplyTo {
    /// An address; empty if a receiver is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Arc<str>>,
    /// Also set for an address that a configured receiver covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver: Option<ReceiverName>,
    /// Of [`REPLIES`].
    pub events: Vec<Arc<str>>,
}

/// The receivers that the configuration and its policy allow now.
pub trait KnownReceivers {
    /// Whether a receiver with this name is configured.
    fn knows(&self, receiver: &str) -> bool;
    /// The configured receiver that covers this address, if any; or why messages to it are not allowed.
    fn allows(&self, address: &WebAddress) -> Result<Option<ReceiverName>, String>;
}

impl ReplyTo {
    /// Reads the field `reply_to`. Its faults are added to those of `fields`.
    pub fn read(fields: &mut Fields<'_>, known: &dyn KnownReceivers) -> Option<Self> {
        let mut reply = fields.object("reply_to")?;
        let named = receiver(&mut reply, known);
        let (url, covering) = url(&mut reply, known).unzip();
        let receiver = named.or(covering.flatten());
        let events = events(&mut reply);
        match reply.finish() {
            Ok(()) => Some(Self {
                url,
                receiver,
                events,
            }),
            Err(faults) => {
                fields.extend(faults);
                None
            }
        }
    }

    pub fn wants(&self, kind: &str) -> bool {
        self.events.iter().any(|event| &**event == kind)
    }

    /// The receiver of the messages, and so their queue: the one that was named, or the origin of the address. No
    /// name contains a `:`, every origin does.
    pub fn queue(&self) -> ReceiverName {
        let origin = || {
            let address = WebAddress::parse(self.url.as_deref().unwrap_or_default());
            // It was parsed when it was accepted.
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
    match (reply.has("url"), reply.has("receiver")) {
        (true, true) => reply.fault("url", "give either `url` or `receiver`, not both"),
        (false, false) => {
            reply.missing("url", "give a URL, or the name of a configured `receiver`")
        }
        _ => {}
    }
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
    }

    fn read(reply_to: Value) -> Result<ReplyTo, Vec<String>> {
        let body = to_raw_value(&json!({ "reply_to": reply_to })).unwrap();
        let mut fields = Fields::of(&body, "").unwrap();
        let read = ReplyTo::read(&mut fields, &Policy);
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
                "/reply_to/url: give either",
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

//! A queue of a message broker, and its address: `amqp://`, the name of a configured broker, and the queue. No address
//! has a host: only the configuration knows the broker's host and its password.

use std::{fmt, sync::Arc};

/// The broker that `[broker]` configures. An intake with a `url` of its own is a broker under the intake's name.
pub const MAIN_BROKER: &str = "broker";

pub const QUEUE_SCHEME: &str = "amqp://";

/// The prefix by which RabbitMQ names the pseudo-queues of clients that wait for a direct reply.
pub const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to.";

/// The longest name of a queue, in bytes: AMQP stores its length in one byte.
pub const LONGEST_QUEUE: usize = 255;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct QueueAddress {
    pub broker: Arc<str>,
    pub queue: Arc<str>,
}

impl QueueAddress {
    /// Parses an address that [`fmt::Display`] wrote, or a person.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "give `amqp://`, the name of a configured broker (`broker` is the one in [broker]), a slash and the queue, such as `amqp://broker/charges`";
        let rest = text
            .strip_prefix(QUEUE_SCHEME)
            .ok_or_else(|| format!("is not the address of a queue: {FORM}"))?;
        let (broker, queue) = rest
            .split_once('/')
            .ok_or_else(|| format!("names no queue: {FORM}"))?;
        if broker.contains(['@', ':']) {
            return Err(format!(
                "contains a host or a password, which only the configuration knows: {FORM}"
            ));
        }
        if broker.is_empty() {
            return Err(format!("names no broker: {FORM}"));
        }
        if let Some(fault) = queue_fault(queue) {
            return Err(format!("names a queue that {fault}"));
        }
        Ok(Self {
            broker: broker.into(),
            queue: queue.into(),
        })
    }

    /// Returns the address of the broker alone, as the origin of a URL is its host alone.
    pub fn origin(&self) -> String {
        format!("{QUEUE_SCHEME}{}", self.broker)
    }
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{QUEUE_SCHEME}{}/{}", self.broker, self.queue)
    }
}

/// Returns the fault of a queue's name, `None` if it is valid.
pub fn queue_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("has no name");
    }
    if name.len() > LONGEST_QUEUE {
        return Some("has a name of more than 255 bytes, the longest that AMQP allows");
    }
    name.contains(char::is_control)
        .then_some("has a control character in its name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_configured_broker_and_a_queue() {
        for (text, broker, queue) in [
            ("amqp://broker/charges", "broker", "charges"),
            ("amqp://shop/replies/eu %2f?x", "shop", "replies/eu %2f?x"),
        ] {
            let address = QueueAddress::parse(text).unwrap();
            assert_eq!((&*address.broker, &*address.queue), (broker, queue));
            assert_eq!(address.to_string(), text);
        }
        let long = format!("amqp://broker/{}", "q".repeat(256));
        for (text, says) in [
            ("https://broker/charges", "is not the address of a queue"),
            ("amqp://broker", "names no queue"),
            ("amqp://broker/", "has no name"),
            ("amqp:///charges", "names no broker"),
            (
                "amqp://guest:guest@rabbit/charges",
                "contains a host or a password",
            ),
            ("amqp://rabbit:5672/charges", "contains a host"),
            ("amqp://broker/a\nb", "control character"),
            (long.as_str(), "255 bytes"),
        ] {
            let fault = QueueAddress::parse(text).unwrap_err();
            assert!(fault.contains(says), "{text}: {fault}");
            assert!(!fault.contains("guest"), "{fault}");
        }
    }
}

//! The message broker. Its URL may contain a password, which is shown nowhere.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

use crate::domain::values::queue_fault;

/// The broker of replies, of agents with queues, and of every intake without a `url` of its own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    pub url: Option<BrokerUrl>,
    /// The queues that `reply_to` may name. A `*` at the end of a name matches any rest.
    pub reply_queues: QueuePatterns,
}

/// `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUrl {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub user: String,
    pub password: String,
    pub vhost: String,
}

impl FromStr for BrokerUrl {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let url = Url::parse(text).map_err(|_| ())?;
        let (tls, default_port) = match url.scheme() {
            "amqp" => (false, 5672),
            "amqps" => (true, 5671),
            _ => return Err(()),
        };
        if url.query().is_some() || url.fragment().is_some() {
            return Err(());
        }
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(())?;
        let vhost = match url.path().trim_start_matches('/') {
            // Many clients take a slash at the end for the default vhost, and a vhost without a name is never
            // intended.
            "" => "/".to_owned(),
            vhost if vhost.contains('/') => return Err(()),
            vhost => decoded(vhost)?,
        };
        let (user, password) = (decoded(url.username())?, url.password());
        let password = password.map(decoded).transpose()?;
        // RabbitMQ allows this user on loopback without any configuration.
        let (user, password) = match (user.is_empty(), password) {
            (true, None) => ("guest".to_owned(), "guest".to_owned()),
            (_, password) => (user, password.unwrap_or_default()),
        };
        if vhost.len() > 255 || vhost.contains(char::is_control) {
            return Err(());
        }
        Ok(Self {
            tls,
            host: host.to_owned(),
            port: url.port().unwrap_or(default_port),
            user,
            password,
            vhost,
        })
    }
}

fn decoded(part: &str) -> Result<String, ()> {
    let bytes = percent_encoding::percent_decode_str(part).decode_utf8();
    bytes.map(Into::into).map_err(|_| ())
}

fn encoded(part: &str) -> percent_encoding::PercentEncode<'_> {
    percent_encoding::utf8_percent_encode(part, percent_encoding::NON_ALPHANUMERIC)
}

/// Shows the URL without its password.
impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "amqps" } else { "amqp" };
        let (user, vhost) = (encoded(&self.user), encoded(&self.vhost));
        write!(f, "{scheme}://{user}@{}:{}/{vhost}", self.host, self.port)
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for BrokerUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BrokerUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The text is not repeated: it may contain a password.
        String::deserialize(deserializer)?
            .parse()
            .map_err(|()| de::Error::custom(BROKER_URL))
    }
}

/// The text of the rule for [`BrokerUrl`].
pub const BROKER_URL: &str = "the URL of a broker that speaks AMQP 0-9-1, such as \"amqp://user:password@host:5672/vhost\", or \"amqps://\" for TLS; special characters in its parts are percent-encoded, the vhost / as %2f or omitted";

/// Names of queues. The last character of each may be a `*`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueuePatterns(pub Vec<String>);

impl QueuePatterns {
    pub fn allow(&self, queue: &str) -> bool {
        self.0
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => queue.starts_with(start),
                None => queue == pattern,
            })
    }

    /// Returns whether the value of a setting is a list of patterns.
    pub fn accepts(value: &serde_json::Value) -> bool {
        let is_pattern = |value: &serde_json::Value| {
            let name = value.as_str()?;
            let name = name.strip_suffix('*').unwrap_or(name);
            Some(name.is_empty() || queue_fault(name).is_none())
        };
        let items = value.as_array();
        items.is_some_and(|items| items.iter().all(|item| is_pattern(item) == Some(true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_host_user_and_vhost_and_its_parts_are_decoded() {
        let url: BrokerUrl = "amqps://sh%40p:p%2Fw@rabbit.example/or%2Fders"
            .parse()
            .unwrap();
        assert_eq!((url.user.as_str(), url.password.as_str()), ("sh@p", "p/w"));
        assert_eq!(
            (url.vhost.as_str(), url.port, url.tls),
            ("or/ders", 5671, true)
        );
        for same in [
            "amqp://h",
            "amqp://h/",
            "amqp://h/%2f",
            "amqp://guest:guest@h:5672",
        ] {
            let url: BrokerUrl = same.parse().unwrap();
            assert_eq!(url, "amqp://guest:guest@h:5672/%2F".parse().unwrap());
        }
        for text in [
            "rabbit:5672",
            "http://h",
            "amqp://",
            "amqp://h/a/b",
            "amqp://h/v?heartbeat=1",
            "amqp://h:many/v",
        ] {
            assert!(text.parse::<BrokerUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_password_of_a_broker_is_shown_nowhere() {
        let url: BrokerUrl = "amqp://ann:s3cret@rabbit.example/tasks".parse().unwrap();
        let shown = "amqp://ann@rabbit.example:5672/tasks";
        assert_eq!(url.to_string(), shown);
        assert_eq!(format!("{url:?}"), shown);
        assert_eq!(serde_json::to_value(&url).unwrap(), shown);
    }

    #[test]
    fn a_pattern_is_a_name_or_the_start_of_one() {
        let patterns = QueuePatterns(vec!["shop.replies".to_owned(), "amq.gen-*".to_owned()]);
        assert!(patterns.allow("shop.replies") && patterns.allow("amq.gen-Xy"));
        assert!(!patterns.allow("shop.replies2") && !patterns.allow("shop"));
        assert!(!QueuePatterns::default().allow("shop"));
    }
}

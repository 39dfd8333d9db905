//! The receivers of messages, their addresses, and the secrets that sign their messages, from the present
//! configuration. A message stores none of these, so that a new secret also signs the messages that are waiting.

use std::sync::Arc;

use crate::{
    agent::Post,
    broker::Brokers,
    config::{AlertWebhookConfig, Config, QueuePatterns, ReceiverConfig},
    domain::{
        definition::REPLY_TO,
        message::{AlertWebhook, Secret, ask_queue_of},
        task::{KnownReceivers, QueueNamedBy},
        values::{DIRECT_REPLY, QueueAddress, ReceiverName, WebAddress, nearest},
    },
};

pub struct Receivers {
    known: Vec<KnownReceiver>,
    webhooks: Vec<AlertWebhookConfig>,
    allow_urls: bool,
    allow_unsigned: bool,
    post: Post,
    pub brokers: Arc<Brokers>,
    reply_queues: QueuePatterns,
}

struct KnownReceiver {
    name: String,
    base: Option<WebAddress>,
    secrets: Vec<Secret>,
}

/// The URL that a message goes to, and the secrets that sign it.
#[derive(PartialEq, Debug)]
pub struct Route<'r> {
    pub url: &'r str,
    pub secrets: &'r [Secret],
}

impl Receivers {
    pub fn new(config: &Config, post: Post, brokers: Arc<Brokers>) -> Self {
        Self {
            known: config.receivers.iter().map(KnownReceiver::new).collect(),
            webhooks: config.alert_webhooks.clone(),
            allow_urls: config.allows_reply_urls(),
            allow_unsigned: config.allows_unsigned(),
            post,
            brokers,
            reply_queues: config.broker.reply_queues.clone(),
        }
    }

    /// Returns the receivers of alerts.
    pub fn alert_webhooks(config: &Config) -> Vec<AlertWebhook> {
        let webhooks = config.alert_webhooks.iter();
        let webhook = |webhook: &AlertWebhookConfig| AlertWebhook {
            receiver: AlertWebhook::queue_of(&webhook.name),
            format: webhook.format,
        };
        webhooks.map(webhook).collect()
    }

    /// Returns the route of a message for `receiver`: to `url` if its submitter named one.
    pub fn route<'r>(
        &'r self,
        receiver: &ReceiverName,
        url: Option<&'r str>,
    ) -> Result<Route<'r>, String> {
        if let Some(url) = url {
            let secrets = match WebAddress::parse(url) {
                Ok(address) => self.secrets_for(&address),
                Err(fault) => return Err(format!("the address {fault}")),
            };
            return Ok(Route { url, secrets });
        }
        let webhook =
            |webhook: &&AlertWebhookConfig| AlertWebhook::queue_of(&webhook.name) == *receiver;
        if let Some(webhook) = self.webhooks.iter().find(webhook) {
            return Ok(Route {
                url: &webhook.url.0.url,
                secrets: &webhook.secrets,
            });
        }
        let known = self.known.iter().find(|known| {
            known.name == receiver.as_str() || ask_queue_of(&known.name) == *receiver
        });
        let url = known.and_then(|known| Some((known, known.base.as_ref()?)));
        match url {
            Some((known, base)) => Ok(Route {
                url: &base.url,
                secrets: &known.secrets,
            }),
            None => Err(format!(
                "no receiver {receiver} with a url is configured: add it to [[receivers]] again"
            )),
        }
    }

    /// Checks that messages with links can be sent to a receiver or an alert webhook with this name.
    pub fn passes_links_on(&self, name: &str) -> Result<(), String> {
        let receivers = self.known.iter().filter(|known| known.base.is_some());
        let receivers = receivers.map(|known| known.name.as_str());
        let webhooks = self.webhooks.iter().map(|webhook| webhook.name.as_str());
        let names = receivers.chain(webhooks).chain([REPLY_TO]);
        if names.clone().any(|known| known == name) {
            return Ok(());
        }
        let meant = match nearest(name, names) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => "add it to [[alert_webhooks]], or to [[receivers]] with a url".to_owned(),
        };
        Err(format!(
            "{name:?} is neither one of [[alert_webhooks]], nor of [[receivers]] with a url, nor \"{REPLY_TO}\": {meant}"
        ))
    }

    /// Returns the receiver that covers an address: the one with the longest URL.
    fn covering(&self, address: &WebAddress) -> Option<&KnownReceiver> {
        let covers = |known: &&KnownReceiver| {
            let base = known.base.as_ref();
            base.is_some_and(|base| address.is_below(base))
        };
        let length = |known: &&KnownReceiver| known.base.as_ref().map(|base| base.url.len());
        self.known.iter().filter(covers).max_by_key(length)
    }

    fn secrets_for(&self, address: &WebAddress) -> &[Secret] {
        let everybody = || self.known.iter().find(|known| known.base.is_none());
        let known = self.covering(address).or_else(everybody);
        known.map_or(&[], |known| &known.secrets)
    }
}

impl KnownReceiver {
    fn new(config: &ReceiverConfig) -> Self {
        // The configuration was validated at the start, so the URL is an address.
        let base = config.url.as_deref().map(WebAddress::parse);
        Self {
            name: config.name.clone(),
            base: base.and_then(Result::ok),
            secrets: config.secrets.clone(),
        }
    }
}

impl KnownReceivers for Receivers {
    fn knows(&self, receiver: &str) -> bool {
        let named = self.known.iter().find(|known| known.name == receiver);
        named.is_some_and(|known| known.base.is_some())
    }

    fn allows(&self, address: &WebAddress) -> Result<Option<ReceiverName>, String> {
        let covering = self.covering(address);
        if !self.allow_urls && covering.is_none() {
            return Err(
                "is not allowed: it is not below the url of any of [[receivers]]; add it there, or set courier.allow_urls"
                    .to_owned(),
            );
        }
        if !self.allow_unsigned && self.secrets_for(address).is_empty() {
            return Err(
                "has no secret to sign messages with: give it one in [[receivers]], or set courier.allow_unsigned"
                    .to_owned(),
            );
        }
        self.post.check(&address.url)?;
        Ok(covering.map(|known| ReceiverName::new(known.name.as_str())))
    }

    fn allows_queue(&self, address: &QueueAddress, named_by: QueueNamedBy) -> Result<(), String> {
        if !self.brokers.has(&address.broker) {
            return Err(
                "needs a message broker: give its address in broker.url, or use a `url`".to_owned(),
            );
        }
        // RabbitMQ closes the connection of a publisher that uses a name of this kind which RabbitMQ has not issued,
        // at every attempt. So a submitter may cause that only if an operator trusts all submitters.
        if address.queue.starts_with(DIRECT_REPLY) && !self.reply_queues.allow(&address.queue) {
            return Err(format!(
                "is a direct reply of RabbitMQ, which is not allowed: use a queue, or add \"{DIRECT_REPLY}*\" to broker.reply_queues if you trust all submitters"
            ));
        }
        let is_open = match named_by {
            QueueNamedBy::Properties => self.reply_queues.0.is_empty(),
            QueueNamedBy::MessageBody => false,
            QueueNamedBy::Request => self.allow_urls,
        };
        match is_open || self.reply_queues.allow(&address.queue) {
            true => Ok(()),
            false => Err("is not allowed: add the queue to broker.reply_queues".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        agent::AgentSettings,
        config::{Auto, HiddenUrl},
        domain::message::AlertFormat,
    };

    fn secret(byte: u8) -> Secret {
        let base64 = ["Aaaa", "Bbbb", "Cccc"][usize::from(byte)].repeat(8);
        Secret::parse(&format!("whsec_{base64}")).unwrap()
    }

    fn receivers(change: impl FnOnce(&mut Config)) -> Receivers {
        let receiver = |name: &str, url: Option<&str>, byte| ReceiverConfig {
            name: name.to_owned(),
            url: url.map(str::to_owned),
            secrets: vec![secret(byte)],
        };
        let url = "https://hooks.example/T1/secret".to_owned();
        let mut config = Config {
            receivers: vec![
                receiver("shop", Some("https://shop.example"), 0),
                receiver("replies", Some("https://shop.example/replies"), 1),
            ],
            alert_webhooks: vec![AlertWebhookConfig {
                name: "chat".to_owned(),
                url: HiddenUrl::try_from(url).unwrap(),
                format: AlertFormat::Slack,
                secrets: Vec::new(),
            }],
            ..Config::default()
        };
        change(&mut config);
        let settings = AgentSettings::default();
        let brokers = Arc::new(Brokers::new(&config, "test"));
        Receivers::new(
            &config,
            Post::new(&settings, Duration::from_secs(1)),
            brokers,
        )
    }

    fn allows(receivers: &Receivers, url: &str) -> Result<Option<ReceiverName>, String> {
        receivers.allows(&WebAddress::parse(url).unwrap())
    }

    #[test]
    fn the_receiver_that_says_most_of_an_address_signs_for_it() {
        let known = receivers(|_| {});
        let origin = ReceiverName::new("https://shop.example:443");
        for (url, byte) in [
            ("https://shop.example/replies/7", 1),
            ("https://shop.example/other", 0),
        ] {
            let route = known.route(&origin, Some(url)).unwrap();
            assert_eq!((route.url, route.secrets), (url, &[secret(byte)][..]));
        }
        let stranger = known.route(&origin, Some("https://other.example")).unwrap();
        assert!(stranger.secrets.is_empty());
        let known = receivers(|config| {
            config.receivers[0].url = None;
        });
        let stranger = known.route(&origin, Some("https://other.example")).unwrap();
        assert_eq!(stranger.secrets, [secret(0)]);
    }

    #[test]
    fn names_lead_to_configured_addresses() {
        let known = receivers(|_| {});
        let named = known.route(&ReceiverName::new("replies"), None).unwrap();
        assert_eq!(named.url, "https://shop.example/replies");
        let webhook = AlertWebhook::queue_of("chat");
        let webhook = known.route(&webhook, None).unwrap();
        assert_eq!(webhook.url, "https://hooks.example/T1/secret");
        let gone = known.route(&ReceiverName::new("gone"), None).unwrap_err();
        assert!(gone.contains("[[receivers]]"), "{gone}");
        assert!(known.knows("shop") && !known.knows("chat") && !known.knows("gone"));
    }

    #[test]
    fn where_others_can_reach_it_only_known_addresses_are_written_to_and_every_message_is_signed() {
        let open = receivers(|config| config.listen = "0.0.0.0:80".parse().unwrap());
        let covered = allows(&open, "https://shop.example/r").unwrap();
        assert_eq!(covered, Some(ReceiverName::new("shop")));
        let refused = allows(&open, "https://other.example").unwrap_err();
        assert!(refused.contains("courier.allow_urls"), "{refused}");
        let any = receivers(|config| {
            config.listen = "0.0.0.0:80".parse().unwrap();
            config.courier.allow_urls = Auto::Fixed(true);
        });
        let refused = allows(&any, "https://other.example").unwrap_err();
        assert!(refused.contains("courier.allow_unsigned"), "{refused}");
        let local = receivers(|_| {});
        assert_eq!(allows(&local, "https://other.example"), Ok(None));
        let refused = allows(&local, "http://169.254.169.254/latest").unwrap_err();
        assert!(refused.contains("never called"), "{refused}");
        let refused = allows(&local, "http://10.0.0.5").unwrap_err();
        assert!(refused.contains("calls.allow"), "{refused}");
    }

    #[test]
    fn a_queue_needs_a_broker_and_where_others_submit_an_entry() {
        let queue = |name| QueueAddress::parse(&format!("amqp://broker/{name}")).unwrap();
        let refused = receivers(|_| {}).allows_queue(&queue("shop.replies"), QueueNamedBy::Request);
        assert!(refused.unwrap_err().contains("broker.url"));
        let with_broker = |listen: &str, allowed: &[&str]| {
            receivers(|config| {
                config.listen = listen.parse().unwrap();
                config.broker.url = Some("amqp://rabbit.example".parse().unwrap());
                config.broker.reply_queues.0 = allowed.iter().map(|name| (*name).into()).collect();
            })
        };
        let local = with_broker("127.0.0.1:80", &[]);
        assert_eq!(
            local.allows_queue(&queue("any"), QueueNamedBy::Request),
            Ok(())
        );
        let open = with_broker("0.0.0.0:80", &[]);
        let refused = open
            .allows_queue(&queue("any"), QueueNamedBy::Request)
            .unwrap_err();
        assert!(refused.contains("broker.reply_queues"), "{refused}");
        assert_eq!(
            open.allows_queue(&queue("any"), QueueNamedBy::Properties),
            Ok(())
        );
        let some = with_broker("0.0.0.0:80", &["shop.*"]);
        // A publisher to the queue of an intake must not make Provost write to all other queues of the broker.
        for refused in [&local, &open] {
            assert!(
                refused
                    .allows_queue(&queue("any"), QueueNamedBy::MessageBody)
                    .is_err()
            );
        }
        for named_by in [
            QueueNamedBy::Properties,
            QueueNamedBy::MessageBody,
            QueueNamedBy::Request,
        ] {
            assert_eq!(some.allows_queue(&queue("shop.replies"), named_by), Ok(()));
            assert!(some.allows_queue(&queue("any"), named_by).is_err());
        }
    }
}

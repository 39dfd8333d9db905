//! The settings that all agents share.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{address::AddressPolicy, secrets::SecretStore};
use crate::{
    broker::Brokers,
    domain::{AgentName, Attempt, Endpoint, InstanceId, ReplyKey, StepRef},
};

/// What holds for all agents of an instance.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Which of the instances that share the breakers this is.
    pub instance: InstanceId,
    /// Whether other instances may call the same services.
    pub is_shared: bool,
    /// The largest output of a step, in bytes.
    pub max_output: usize,
    pub connect_timeout: Duration,
    /// A connection of this age gets no further calls.
    pub max_connection_age: Duration,
    /// Where this instance is: endpoints of this zone are called rather than others.
    pub zone: Option<String>,
    /// Which addresses may be called.
    pub addresses: AddressPolicy,
    /// For the origins of steps that name a URL; a registered agent says it per endpoint.
    pub default_max_in_flight: u32,
    /// Where services send replies that come later. Set once the store is open, which has the key; never without a
    /// URL under which the service is reached.
    pub replies: Arc<OnceLock<ReplyAddress>>,
    /// For agents with a queue. Set with `replies`, if a message broker is configured.
    pub queues: Arc<OnceLock<QueueCalls>>,
    /// What agents may name.
    pub secrets: Arc<SecretStore>,
    /// The agents of the configuration file, which may name secrets that no other may.
    pub configured: Arc<BTreeSet<AgentName>>,
}

/// How requests go to queues, and where the services reply.
pub struct QueueCalls {
    pub brokers: Arc<Brokers>,
    pub key: ReplyKey,
}

impl std::fmt::Debug for QueueCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueueCalls")
    }
}

/// Makes the address that a service sends its later reply to.
#[derive(Debug)]
pub struct ReplyAddress {
    base: String,
    key: ReplyKey,
}

impl ReplyAddress {
    /// `public_url` has no slash at its end.
    pub fn new(public_url: &str, key: ReplyKey) -> Self {
        Self {
            base: format!("{public_url}/v1/replies/"),
            key,
        }
    }

    /// A credential: it is enough to end the attempt.
    pub(super) fn of(&self, step: StepRef, attempt: Attempt) -> String {
        let token = self.key.token(step, attempt);
        format!("{}{token}", self.base)
    }
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            instance: InstanceId::new(String::new()),
            is_shared: false,
            max_output: 256 * 1024,
            connect_timeout: Duration::from_secs(5),
            max_connection_age: Duration::from_secs(300),
            zone: None,
            addresses: AddressPolicy::default(),
            default_max_in_flight: Endpoint::default_max_in_flight(),
            replies: Arc::default(),
            queues: Arc::default(),
            secrets: Arc::default(),
            configured: Arc::default(),
        }
    }
}

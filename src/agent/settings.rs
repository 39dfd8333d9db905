//! The settings that all agents share.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{client::address::AddressPolicy, secret::reader::SecretStore};
use crate::{
    broker::Brokers,
    domain::{
        agent::Endpoint,
        task::{RecordSuccesses, ReplyAddresses, ReplyKey},
        values::{AgentName, InstanceId},
    },
};

/// The settings of all agents of an instance.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The id of this instance among those that share the breakers.
    pub instance: InstanceId,
    /// True if other instances may call the same services.
    pub is_shared: bool,
    /// The largest output of a step, in bytes.
    pub max_output: usize,
    pub connect_timeout: Duration,
    /// A connection of this age gets no new calls.
    pub max_connection_age: Duration,
    /// The zone of this instance. Its endpoints are preferred to those of other zones.
    pub zone: Option<String>,
    /// The rules for the addresses that may be called.
    pub addresses: AddressPolicy,
    /// The limit for each origin of steps that name a URL. A registered agent sets it per endpoint.
    pub default_max_in_flight: u32,
    /// The address for later replies. It is set once the store is open, which contains the key, and only if a URL is
    /// configured at which services reach Provost.
    pub replies: Arc<OnceLock<Arc<ReplyAddresses>>>,
    /// The access to queues, for agents with a queue. Set with `replies`, if a message broker is configured.
    pub queues: Arc<OnceLock<QueueCalls>>,
    /// The secrets that agents may name.
    pub secrets: Arc<SecretStore>,
    /// The attempts that are recorded although they succeed.
    pub record_successes: RecordSuccesses,
    /// The agents of the configuration file. They may name secrets that no other agent may.
    pub configured: Arc<BTreeSet<AgentName>>,
}

/// The brokers for requests through queues, and the key for the reply addresses.
pub struct QueueCalls {
    pub brokers: Arc<Brokers>,
    pub key: ReplyKey,
}

impl std::fmt::Debug for QueueCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueueCalls")
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
            record_successes: RecordSuccesses::default(),
            configured: Arc::default(),
        }
    }
}

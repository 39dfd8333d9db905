//! The settings of a running Provost: their types, their defaults and their sources. They are validated as a whole
//! before anything starts; nothing deeper validates them again. `provost.toml.example` documents each one for the
//! person who sets it.

mod agents;
mod allow_list;
mod broker;
mod error;
mod intake;
mod layers;
mod listen;
mod load;
mod receivers;
mod secrets;
mod settings;
mod show;
mod tokens;
mod values;
mod variables;

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    domain::{
        agent::AgentSpec,
        task::RecordSuccesses,
        upkeep::{KeepRule, KeepTime, Retention},
        values::{AgentName, InstanceId, Span, WorkflowName},
    },
    store::postgres,
};

pub use allow_list::AllowList;
pub use broker::{BrokerConfig, BrokerUrl, QueuePatterns};
pub use error::{ConfigError, SettingFault};
pub use intake::IntakeConfig;
pub use listen::{Listen, UnixMode};
pub use load::{FlagValue, Sources, describe, ignored_variables, in_force, load};
#[cfg(test)]
pub use receivers::HiddenUrl;
pub use receivers::{AlertWebhookConfig, ReceiverConfig};
pub use secrets::SecretConfig;
pub use settings::setting_paths;
pub use tokens::{AccessToken, Role};
pub use values::{Auto, ByteSize, DatabaseUrl, LogFilter};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub listen: Listen,
    /// Allows a `listen` address that other machines can reach without a token. Never enabled implicitly.
    pub insecure: bool,
    pub database_url: DatabaseUrl,
    /// The value of `locked_by`. Default: a new one at each start.
    pub instance_id: Option<InstanceId>,
    /// True: the instance starts without calling or delivering anything, until its hold is released.
    pub hold: bool,
    /// `info`, or a level for each module as in `warn,provost::scheduler=debug`.
    pub log: LogFilter,
    pub log_json: bool,
    /// The longest time that running calls may continue after SIGTERM.
    pub shutdown_grace: Span,
    pub shutdown: ShutdownConfig,
    /// The URL of the service for its clients. Links in messages begin with it.
    pub public_url: Option<String>,
    /// The URL under which people open the paths of the API in a browser. Links in texts for chats begin with it.
    pub console_url: Option<String>,
    pub listener: ListenerConfig,
    pub tls: TlsConfig,
    pub instance: InstanceConfig,
    pub scheduler: SchedulerConfig,
    pub supervisor: SupervisorConfig,
    pub retention: RetentionConfig,
    pub record: RecordConfig,
    pub ledger: LedgerConfig,
    pub limits: LimitsConfig,
    pub calls: CallsConfig,
    pub courier: DeliveryConfig,
    pub store: StoreConfig,
    pub postgres: PostgresConfig,
    /// If there is a token, every request needs one.
    pub tokens: Vec<AccessToken>,
    /// The secrets that agents may name, each with the hosts that it may be sent to.
    pub secrets: Vec<SecretConfig>,
    pub agents: BTreeMap<AgentName, AgentSpec>,
    /// The receivers of messages, with the secrets that sign them.
    pub receivers: Vec<ReceiverConfig>,
    pub alert_webhooks: Vec<AlertWebhookConfig>,
    pub broker: BrokerConfig,
    /// The queues whose messages are submissions.
    pub intake: Vec<IntakeConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            insecure: false,
            database_url: DatabaseUrl::default(),
            instance_id: None,
            hold: false,
            log: LogFilter::default(),
            log_json: false,
            shutdown_grace: Span::from_secs(20),
            shutdown: ShutdownConfig::default(),
            public_url: None,
            console_url: None,
            listener: ListenerConfig::default(),
            tls: TlsConfig::default(),
            instance: InstanceConfig::default(),
            scheduler: SchedulerConfig::default(),
            supervisor: SupervisorConfig::default(),
            retention: RetentionConfig::default(),
            record: RecordConfig::default(),
            ledger: LedgerConfig::default(),
            limits: LimitsConfig::default(),
            calls: CallsConfig::default(),
            courier: DeliveryConfig::default(),
            store: StoreConfig::default(),
            postgres: PostgresConfig::default(),
            tokens: Vec::new(),
            secrets: Vec::new(),
            agents: BTreeMap::new(),
            receivers: Vec::new(),
            alert_webhooks: Vec::new(),
            broker: BrokerConfig::default(),
            intake: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the number of worker threads for a machine with this many cores. A PostgreSQL on the same machine
    /// needs about as much CPU time as the instance, so that the instance takes half of the cores. Through a pooler
    /// (`listen = false`) a local address says nothing about where the database is.
    pub fn threads(&self, cores: usize) -> usize {
        let is_beside = match &self.database_url {
            DatabaseUrl::Postgres(url) => self.postgres.listen && postgres::is_local(url),
            DatabaseUrl::Sqlite(_) => false,
        };
        let share = if is_beside { cores.div_ceil(2) } else { cores };
        self.instance.threads.unwrap_or(share)
    }

    /// Returns the settings in which instances should not differ, as JSON without secrets.
    pub fn shared_settings(&self) -> String {
        let shared = Self {
            instance_id: None,
            listen: Listen::default(),
            instance: InstanceConfig {
                zone: None,
                ..self.instance.clone()
            },
            ..self.clone()
        };
        // Texts, numbers and tables always serialise.
        serde_json::to_string(&shared).unwrap_or_default()
    }

    /// True if only programs on this machine can reach `listen`.
    pub fn listens_on_loopback(&self) -> bool {
        self.listen.is_local()
    }

    /// True if other machines can reach `listen` without a token, although no setting allows that.
    pub fn is_open_to_all(&self) -> bool {
        !self.listens_on_loopback() && self.tokens.is_empty() && !self.insecure
    }

    /// Returns the path of `public_url` without a slash at its end; empty without that setting.
    pub fn public_path(&self) -> String {
        // The configuration was validated at start, so this is a URL.
        let url = self.public_url.as_deref().map(url::Url::parse);
        let url = url.and_then(Result::ok);
        let path = url.as_ref().map_or("", url::Url::path);
        path.trim_end_matches('/').to_owned()
    }

    /// Returns the scheme of the API's URLs.
    pub fn scheme(&self) -> &'static str {
        match self.tls.certificate {
            Some(_) => "https",
            None => "http",
        }
    }

    /// True if steps may call private, link-local and loopback addresses.
    pub fn allows_private_addresses(&self) -> bool {
        self.calls
            .allow_private_addresses
            .or(self.listens_on_loopback())
    }

    /// True if a step may name a URL instead of a registered agent.
    pub fn allows_url_steps(&self) -> bool {
        self.calls.allow_url_steps.or(self.listens_on_loopback())
    }

    /// True if `reply_to` may name a URL that no configured receiver covers.
    pub fn allows_reply_urls(&self) -> bool {
        self.courier.allow_urls.or(self.listens_on_loopback())
    }

    /// True if messages may be sent without a signature.
    pub fn allows_unsigned(&self) -> bool {
        self.courier.allow_unsigned.or(self.listens_on_loopback())
    }
}

/// The most connections to `listen`, and the time limits of each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenerConfig {
    pub max_connections: usize,
    /// The most connections among them that have not sent a request yet.
    pub max_without_request: usize,
    /// The most bytes of responses that clients have not read yet.
    pub max_response_bytes: ByteSize,
    /// The most bytes of request bodies that are being received or handled.
    pub max_request_bytes: ByteSize,
    /// The time limit of the head of a request, and of the TLS handshake before the first one.
    pub head_timeout: Span,
    /// The time limit of the whole body of a request.
    pub body_timeout: Span,
    /// The time limit of each pause while a body is received or a response is sent.
    pub stall_timeout: Span,
    /// The time limit of the wait for the next request on a keep-alive connection.
    pub idle_timeout: Span,
    /// The permissions of a Unix socket.
    pub unix_mode: UnixMode,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_without_request: 2_000,
            max_response_bytes: ByteSize::mib(256),
            max_request_bytes: ByteSize::mib(256),
            head_timeout: Span::from_secs(10),
            body_timeout: Span::from_secs(60),
            stall_timeout: Span::from_secs(20),
            idle_timeout: Span::from_secs(75),
            unix_mode: UnixMode(0o600),
        }
    }
}

/// The time before a stop.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShutdownConfig {
    /// The time after SIGTERM in which the instance still accepts everything, while `/readyz` fails.
    pub drain: Span,
}

impl Default for ShutdownConfig {
    fn default() -> Self {
        Self {
            drain: Span::from_secs(0),
        }
    }
}

/// Both files, or neither. With neither, the API is plain HTTP.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM files.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceConfig {
    /// The time after the last renewal of a lease in which the other instances count this one as alive.
    pub lease: Span,
    /// The zone of the instance, which prefers the endpoints of its zone to others.
    pub zone: Option<String>,
    /// The number of worker threads; see [`Config::threads`] for the default.
    pub threads: Option<usize>,
}

impl Default for InstanceConfig {
    fn default() -> Self {
        Self {
            lease: Span::from_secs(10),
            zone: None,
            threads: None,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// The polling interval for pending steps, in case a notification was lost.
    pub poll: Span,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            poll: Span::from_secs(1),
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisorConfig {
    /// The polling interval for expired steps.
    pub interval: Span,
    /// The most steps that one command expires.
    pub batch: usize,
    /// The interval of the search for tasks that will be late.
    pub prediction_interval: Span,
    /// True if an agent that makes tasks late has an alert.
    pub alert_at_risk: bool,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            interval: Span::from_secs(1),
            batch: 500,
            prediction_interval: Span::from_secs(5),
            alert_at_risk: false,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// The time that an ended task is kept.
    pub keep: KeepTime,
    /// The times for tasks that ended in this state, instead of `keep`.
    pub processed: Option<KeepTime>,
    pub undone: Option<KeepTime>,
    pub cancelled: Option<KeepTime>,
    /// The times for tasks of one workflow, instead of all of the above.
    pub workflows: BTreeMap<WorkflowName, WorkflowRetention>,
    pub interval: Span,
    /// The most tasks that are purged in one transaction.
    pub batch: usize,
}

/// A workflow's missing values are those for all tasks.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkflowRetention {
    pub keep: Option<KeepTime>,
    pub processed: Option<KeepTime>,
    pub undone: Option<KeepTime>,
    pub cancelled: Option<KeepTime>,
}

impl RetentionConfig {
    pub fn rules(&self) -> Retention {
        let of_workflow = |(name, of): (&WorkflowName, &WorkflowRetention)| {
            let rule = KeepRule {
                keep: of.keep,
                processed: of.processed,
                undone: of.undone,
                cancelled: of.cancelled,
            };
            (name.clone(), rule)
        };
        Retention {
            tasks: KeepRule {
                keep: Some(self.keep),
                processed: self.processed,
                undone: self.undone,
                cancelled: self.cancelled,
            },
            workflows: self.workflows.iter().map(of_workflow).collect(),
        }
    }
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            keep: KeepTime::For(Span::from_secs(30 * 86_400)),
            processed: None,
            undone: None,
            cancelled: None,
            workflows: BTreeMap::new(),
            interval: Span::from_secs(60),
            batch: 500,
        }
    }
}

/// The record of attempts: what was sent and what came back.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordConfig {
    /// The attempts that are recorded although they succeed. Attempts that fail always are.
    pub successes: RecordSuccesses,
    /// True: the beginnings of the bodies of requests and responses are recorded.
    pub bodies: bool,
    /// The time that a recorded attempt is kept, unless its task is deleted before.
    pub keep: Span,
    /// The most bytes that the attempts of one task take.
    pub max_task_bytes: ByteSize,
    /// The most bytes that all recorded attempts take.
    pub max_bytes: ByteSize,
}

impl Default for RecordConfig {
    fn default() -> Self {
        Self {
            successes: RecordSuccesses::Sampled,
            bodies: true,
            keep: Span::from_secs(14 * 86_400),
            max_task_bytes: ByteSize::mib(4),
            max_bytes: ByteSize::gib(2),
        }
    }
}

/// The ledger of what happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerConfig {
    /// The time for which positions can be read from.
    pub keep: Span,
    /// The time for which the record of what people and definitions changed is kept.
    pub keep_changes: Span,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            keep: Span::from_secs(7 * 86_400),
            keep_changes: Span::from_secs(400 * 86_400),
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// The longest request body the API reads.
    pub max_request: ByteSize,
    /// The most steps of one task.
    pub max_steps: usize,
    /// The longest response of a remote service that is kept as a step's output.
    pub max_output: ByteSize,
    /// The most bytes that one task keeps of outputs, signals, request bodies of operators, lists and decisions
    /// together.
    pub max_task_outputs: ByteSize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_request: ByteSize::mib(1),
            max_steps: 500,
            max_output: ByteSize::kib(256),
            max_task_outputs: ByteSize::mib(32),
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallsConfig {
    pub connect_timeout: Span,
    /// A connection of this age gets no further calls.
    pub max_connection_age: Span,
    /// See [`Config::allows_private_addresses`].
    pub allow_private_addresses: Auto,
    /// Private addresses that may be called although `allow_private_addresses` is false.
    pub allow: AllowList,
    /// See [`Config::allows_url_steps`].
    pub allow_url_steps: Auto,
    /// True: the keys of steps are derived from the caller, the Idempotency-Key and the request, if the submission
    /// has such a key. A task that was lost in a restore and is submitted again has its previous keys.
    pub stable_keys: bool,
}

impl Default for CallsConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Span::from_secs(5),
            max_connection_age: Span::from_secs(300),
            allow_private_addresses: Auto::Auto,
            allow: AllowList::default(),
            allow_url_steps: Auto::Auto,
            stable_keys: true,
        }
    }
}

/// The delivery of messages: replies to submitters, and alerts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryConfig {
    /// The polling interval for messages, in case a notification was lost.
    pub poll: Span,
    /// The longest time that a receiver may take to respond.
    pub timeout: Span,
    /// The most messages in flight to one address.
    pub max_in_flight: usize,
    /// The longest wait after the first failure of a message. It doubles with each failure, up to `retry_max`.
    pub retry_initial: Span,
    pub retry_max: Span,
    /// The longest time that a message is retried, or waits for a failing address, before it becomes a dead letter.
    pub give_up_after: Span,
    /// The most bytes of messages that wait for one receiver. Beyond it, the receiver's next messages have no inputs
    /// and outputs.
    pub max_waiting_bytes: ByteSize,
    /// See [`Config::allows_reply_urls`].
    pub allow_urls: Auto,
    /// See [`Config::allows_unsigned`].
    pub allow_unsigned: Auto,
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        Self {
            poll: Span::from_secs(1),
            timeout: Span::from_secs(15),
            max_in_flight: 16,
            retry_initial: Span::from_secs(5),
            retry_max: Span::from_secs(15 * 60),
            give_up_after: Span::from_secs(86_400),
            max_waiting_bytes: ByteSize::gib(1),
            allow_urls: Auto::Auto,
            allow_unsigned: Auto::Auto,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// The most tasks in the cache. More tasks cause fewer reads; fewer need less memory.
    pub cache_tasks: usize,
    /// The most memory of the cached tasks, with their inputs and outputs.
    pub cache_bytes: ByteSize,
    /// The largest size of the database file. Beyond it submissions are refused as on a full disk.
    pub max_size: Option<ByteSize>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            cache_tasks: 20_000,
            cache_bytes: ByteSize::mib(256),
            max_size: None,
        }
    }
}

/// Settings that only apply if `database_url` is a PostgreSQL database.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PostgresConfig {
    /// Connections for the reads of callers. Provost uses six more for its own work.
    pub max_connections: u32,
    /// True: the instance listens for notifications of other instances.
    pub listen: bool,
    /// True: the schema is migrated at start.
    pub migrate: bool,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            max_connections: 6,
            listen: true,
            migrate: true,
        }
    }
}

#[cfg(test)]
mod example_tests;

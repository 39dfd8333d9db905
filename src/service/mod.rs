//! One instance of Provost: store, scheduler, supervisor and API in one process.

mod agent;
mod message;
mod queue;
pub(crate) mod schedule;
mod task;
mod upkeep;
mod view;

mod background;
mod component;
mod database;
mod health;
mod loops;
mod notify;
mod reload;
mod start;

use std::{
    io,
    num::NonZeroUsize,
    sync::{Arc, LazyLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::{runtime::Handle, sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    agent::{
        controls::BreakerUpkeep, endpoint_checks::EndpointChecks, secret_alerts::SecretAlerts,
        secrets::SecretUpkeep,
    },
    component::Components,
    message::waiting_limit::WaitingLimit,
    queue::{rate::RateUpkeep, slot_shares::SlotUpkeep},
    reload::Live,
    schedule::ScheduleLoop,
    task::{
        admission::AdmissionLoop,
        bulk_jobs::{BulkJobLoop, BulkJobPurge},
        children::ChildrenLoop,
        open_replies::OpenReplyCount,
    },
    upkeep::peers::PeerWatcher,
    view::predictions::Predictions,
};
pub use self::{database::migrate, notify::Systemd, reload::ReloadError};
use crate::{
    agent::{
        AddressPolicy, AgentRefresher, AgentSettings, Agents, OwnAddresses, Post, QueueCalls,
        SecretReader, describe_metrics as describe_agent_metrics, install_crypto,
    },
    api::{self, App, ByteBudget, EndedTasks, Gauges, WorkflowCache},
    broker::Brokers,
    chance, clock,
    config::{Config, DatabaseUrl, Listen},
    console,
    delivery::{Receivers, StoreAlerts},
    domain::{
        definition::Limits,
        message::Sender,
        task::{KeyPrefixes, RecordSuccesses, ReplyAddresses, ReplyKey},
        values::InstanceId,
    },
    instance::{Hold, JoinError, LocalLease, Membership},
    listener::{self, Listener, Server, Tls, TlsError},
    scheduler::{self, Dispatcher, Local},
    store::{
        CacheLimits, Health, OpenError, RecordLimits, Store, StoreError, WriterSettings, postgres,
    },
    telemetry::Metrics,
};

/// The most commands in one transaction.
const BATCH: usize = 512;
/// The longest time that open HTTP exchanges may take after all other components have ended.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Error)]
pub enum StartError {
    #[error("{0}")]
    Database(#[from] OpenError),
    #[error("the store cannot be used: {0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Instance(#[from] JoinError),
    #[error("listen: {address} cannot be used: {reason}; choose another address with --listen")]
    Listen { address: Listen, reason: String },
    #[error("{0}")]
    Tls(#[from] TlsError),
}

/// The name of the key that the migrations made.
const REPLY_TOKENS: &str = "reply-tokens";

/// A running instance. It runs until [`Service::stop`].
pub struct Service {
    pub address: Listen,
    instance: InstanceId,
    live: Live,
    agents: Arc<Agents>,
    components: Components,
    /// Makes `/readyz` fail, before anything else stops.
    draining: CancellationToken,
    drain: Duration,
    /// Stops the API, after the last call that could need it.
    goodbye: CancellationToken,
    dispatcher: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
    server: JoinHandle<()>,
    member: Arc<Membership>,
    /// Ends the renewal of the leases, after the last work that depends on them.
    left: CancellationToken,
    leases: JoinHandle<()>,
    store: Option<Store>,
    writer: JoinHandle<()>,
    /// Nothing is written after this.
    closed: CancellationToken,
    keeper: Option<JoinHandle<()>>,
}

impl Service {
    pub async fn start(config: Config, metrics: Metrics) -> Result<Self, StartError> {
        install_crypto();
        describe_agent_metrics();
        let health = Health::default();
        let (server, address, tls) = open(&config, health.clone())?;
        let instance = config.instance_id.clone().unwrap_or_else(new_instance_id);
        let database = start::open(&config, &address, &health).await?;
        let calls = AgentSettings {
            instance: instance.clone(),
            is_shared: database.connections.is_shared,
            max_output: config.limits.max_output.as_usize(),
            connect_timeout: config.calls.connect_timeout.duration(),
            max_connection_age: config.calls.max_connection_age.duration(),
            addresses: addresses(&config, &address),
            zone: config.instance.zone.clone(),
            record_successes: config.record.successes,
            configured: Arc::new(config.agents.keys().cloned().collect()),
            ..AgentSettings::default()
        };
        calls.secrets.configure(&config.secrets);
        let replies = calls.replies.clone();
        let queues = calls.queues.clone();
        let post = Post::new(&calls, config.courier.timeout.duration());
        let brokers = Arc::new(Brokers::new(&config, instance.as_str()));
        let receivers = Receivers::new(&config, post.clone(), brokers.clone());
        let receivers = Arc::new(ArcSwap::from_pointee(receivers));
        let tokens = Arc::new(ArcSwap::from_pointee(config.tokens.clone()));
        let agents = Arc::new(Agents::new(calls));
        let components = Components::new();
        // If the start fails, components that were already started are stopped before the store closes, so that
        // they do not report a failure.
        let undone = components.stop.clone().drop_guard();
        let closed = CancellationToken::new();
        let unopened = closed.clone().drop_guard();
        let keeper = database.keeper.map(|keeper| {
            let keep = health::keep(keeper, health.clone(), closed.clone());
            components.spawn("store keeper", keep)
        });
        let hold = Arc::new(Hold::new(config.hold));
        let local_lease = Arc::new(LocalLease::with(hold.clone()));
        let (local, dispatches) = Local::new(instance.clone(), local_lease.clone(), agents.clone());
        let public_url = public_url(&config, &address);
        let sender = Arc::new(ArcSwap::from_pointee(Sender {
            console_url: console_url(&config, public_url.as_deref()),
            public_url,
            webhooks: Receivers::alert_webhooks(&config),
            ask_key: None,
            full: Arc::default(),
        }));
        let live = Live {
            config: config.clone(),
            in_force: Arc::new(ArcSwap::from_pointee(config.clone())),
            agents: agents.clone(),
            tokens: tokens.clone(),
            receivers: receivers.clone(),
            sender: sender.clone(),
            post: post.clone(),
            brokers: brokers.clone(),
            tls,
        };
        let alerts = StoreAlerts {
            health: health.clone(),
            sender: sender.clone(),
            receivers: receivers.clone(),
            post: post.clone(),
        };
        let alerts = alerts.run(components.stop.clone());
        let alerts = background::once_released(&hold, &components.stop, alerts);
        components.spawn("store alerts", alerts);
        let settings = WriterSettings {
            cache: CacheLimits {
                tasks: NonZeroUsize::new(config.store.cache_tasks).unwrap_or(NonZeroUsize::MIN),
                bytes: usize::try_from(config.store.cache_bytes.as_u64()).unwrap_or(usize::MAX),
            },
            batch: BATCH,
            most_kept: config.limits.max_task_outputs.as_usize(),
            record: RecordLimits {
                bodies: config.record.bodies,
                task_bytes: config.record.max_task_bytes.as_u64(),
                saves_successes_later: config.record.successes == RecordSuccesses::Sampled,
            },
            sender: sender.clone(),
            reply_addresses: replies.clone(),
            health: health.clone(),
        };
        let (store, writer) = Store::new(
            database.connections,
            database.definitions,
            local.clone(),
            settings,
        );
        let writer = components.spawn("writer", writer);
        let read_key = || store.housekeeping.secret(REPLY_TOKENS);
        let reply_key =
            start::retry_while_unreachable(&store, "read the key of reply tokens", read_key)
                .await?;
        let prefixes = { reply_key.as_ref() }.filter(|_| config.calls.stable_keys);
        if let Some(prefixes) = prefixes.and_then(|secret| KeyPrefixes::new(secret.as_bytes())) {
            store.use_key_prefixes(prefixes);
        }
        let reply_key = reply_key.and_then(|secret| ReplyKey::new(secret.as_bytes()));
        let reply_key = reply_key
            .ok_or_else(|| StoreError::Corrupt("the key of reply tokens is missing".to_owned()))?;
        sender.rcu(|sender| Sender {
            ask_key: Some(reply_key.clone()),
            ..Sender::clone(sender)
        });
        if let Some(url) = &sender.load().public_url {
            let addresses = ReplyAddresses::new(url, reply_key.clone());
            let _ = replies.set(Arc::new(addresses));
        }
        if config.broker.url.is_some() {
            let _ = queues.set(QueueCalls {
                brokers: brokers.clone(),
                key: reply_key.clone(),
            });
        }
        let registered = Arc::new(AgentRefresher::new(agents.clone(), config.agents.clone()));
        let refresh = || registered.refresh(&store.housekeeping);
        start::retry_while_unreachable(&store, "read what is registered", refresh).await?;
        let lease = config.instance.lease;
        let join = || Membership::join(store.clone(), instance.clone(), lease, local_lease.clone());
        let member =
            start::retry_while_unreachable(&store, "register this instance in the database", join)
                .await?;
        let member = Arc::new(member);
        let left = CancellationToken::new();
        let leases =
            background::renew_leases(member.clone(), components.stop.clone(), left.clone());
        let leases = components.spawn("leases", leases);
        let expect = || store.expect_recoveries();
        start::retry_while_unreachable(&store, "list tasks with unreadable records", expect)
            .await?;
        let resume = || scheduler::resume_interrupted(&local, &store);
        start::retry_while_unreachable(&store, "resume interrupted steps", resume).await?;
        // In the same way messages are released that an earlier process with this id claimed, or any process on an
        // unshared store.
        let free = || store.release_queues(store.is_shared.then(|| instance.clone()));
        start::retry_while_unreachable(&store, "release interrupted messages", free).await?;

        record_settings(&store, &instance, config.shared_settings()).await;

        let goodbye = CancellationToken::new();
        let dispatcher = Dispatcher {
            local: local.clone(),
            store: store.clone(),
            dispatches,
            grace: config.shutdown_grace.duration(),
        };
        let dispatcher = components.spawn("dispatcher", dispatcher.run(components.stop.clone()));
        let mut background = background::start(
            &config,
            &local,
            &store,
            &local_lease,
            &hold,
            &metrics,
            &components,
        );
        background.push(components.spawn_loop(BreakerUpkeep {
            agents: agents.clone(),
            store: store.clone(),
            instance: instance.clone(),
            local_lease: local_lease.clone(),
            unsaved: Vec::new(),
            has_looked: false,
        }));
        background.push(components.spawn_loop(EndpointChecks::new(
            agents.clone(),
            store.clone(),
            instance.clone(),
            local_lease.clone(),
        )));
        background.push(components.spawn_loop(Predictions::new(
            agents.clone(),
            store.clone(),
            instance.clone(),
            local_lease.clone(),
            config.supervisor.prediction_interval,
            config.supervisor.alert_at_risk,
        )));
        background.push(components.spawn_loop(SecretUpkeep {
            agents: agents.clone(),
            reader: SecretReader::default(),
            is_reconfigured: false,
        }));
        background.push(components.spawn_loop(SecretAlerts::new(
            agents.clone(),
            store.clone(),
            instance.clone(),
            local_lease.clone(),
        )));
        background.push(components.spawn_loop(RateUpkeep {
            agents: agents.clone(),
            store: store.clone(),
        }));
        if store.is_shared {
            background.push(components.spawn_loop(SlotUpkeep {
                agents: agents.clone(),
                store: store.clone(),
                holder: member.holder().clone(),
                local_lease: local_lease.clone(),
            }));
        }
        background.push(components.spawn_loop(AdmissionLoop::new(
            store.clone(),
            hold.clone(),
            &instance,
        )));
        background.push(components.spawn_loop(OpenReplyCount {
            agents: agents.clone(),
            store: store.clone(),
        }));
        let delivery = background::delivery(&config, &store, &instance, &receivers, post);
        let delivery = delivery.run(components.stop.clone());
        let delivery = background::once_released(&hold, &components.stop, delivery);
        background.push(components.spawn("delivery", delivery));
        if hold.is_held() {
            background.push(components.spawn("hold", held(&hold, &local, &components)));
        }
        let workflows = Arc::new(WorkflowCache::default());
        background.push(components.spawn_loop(ChildrenLoop::new(
            store.clone(),
            workflows.clone(),
            hold.clone(),
            &instance,
        )));
        if store.is_shared {
            let peers = PeerWatcher {
                local: local.clone(),
                store: store.clone(),
                registered: registered.clone(),
                workflows: workflows.clone(),
            };
            background.extend(peers.start(database.listener, &components));
        }
        let database = config.database_url.clone();
        let draining = CancellationToken::new();
        let drain = config.shutdown.drain.duration();
        let byte_limits = config.listener.clone();
        let waiting_limit = WaitingLimit::new(&config.courier, &store, &sender, &hold);
        let app = Arc::new(App {
            store: store.for_callers(),
            local,
            agents: agents.clone(),
            registered,
            receivers,
            tokens,
            limits: Limits {
                max_steps: config.limits.max_steps,
                ..Limits::default()
            },
            config,
            in_force: live.in_force.clone(),
            metrics,
            draining: draining.clone(),
            stop: components.stop.clone(),
            workflows,
            gauges: Gauges::default(),
            ended_tasks: EndedTasks::default(),
            bulkhead: api::EvaluationBulkhead::new(),
            instance: instance.clone(),
            sender: sender.clone(),
            reply_key,
            takes_later_replies: replies.get().is_some(),
            hold,
            waits: Arc::new(Semaphore::new(server.most_waiting())),
            checks: api::RunningChecks::default(),
            responses: ByteBudget::of_responses(byte_limits.max_response_bytes.as_usize()),
            requests: ByteBudget::of_requests(byte_limits.max_request_bytes.as_usize()),
        });
        background.push(components.spawn_loop(waiting_limit));
        background.push(components.spawn_loop(ScheduleLoop::new(app.clone(), local_lease.clone())));
        background.push(components.spawn_loop(BulkJobLoop::new(
            app.clone(),
            store.clone(),
            local_lease.clone(),
        )));
        background.push(components.spawn_loop(BulkJobPurge {
            store: store.clone(),
            local_lease: local_lease.clone(),
        }));
        background.extend(background::brokers(&app, &brokers, &components));
        server.switch(console::router(&app));
        let server = components.spawn("server", server.run(goodbye.clone(), CLOSE_WITHIN));
        let threads = Handle::current().metrics().num_workers();
        info!(%address, %instance, %database, threads, "provost is ready");
        undone.disarm();
        unopened.disarm();
        Ok(Self {
            address,
            live,
            instance,
            agents,
            components,
            draining,
            drain,
            goodbye,
            dispatcher,
            background,
            server,
            member,
            left,
            leases,
            store: Some(store),
            writer,
            closed,
            keeper,
        })
    }

    /// Waits until a component of the instance has failed. Accepted tasks are safe; the process should exit, and
    /// the next one recovers.
    pub async fn failed(&self) {
        self.components.failed().await;
    }

    /// Applies the settings that can change at run time. On an error nothing changes.
    pub fn reload(&mut self, config: Config) -> Result<(), ReloadError> {
        self.live.reload(config)?;
        if let Some(store) = self.store.clone() {
            let (instance, settings) = (self.instance.clone(), self.live.config.shared_settings());
            // The settings are in force, whether they can be recorded now or not.
            tokio::spawn(async move { record_settings(&store, &instance, settings).await });
        }
        Ok(())
    }

    /// Makes `/readyz` fail, so that load balancers stop sending requests, while all requests are still accepted.
    pub async fn drain(&self) {
        if self.drain.is_zero() {
            return;
        }
        self.draining.cancel();
        // The line is written once it is true, because its readers may rely on it.
        info!(
            drain = self.drain.as_secs_f64(),
            "draining: /readyz fails, and requests are still accepted"
        );
        clock::sleep(self.drain).await;
    }

    /// Stops claiming, lets running calls end within the grace period, releases the steps of the others, and closes.
    pub async fn stop(mut self) {
        info!("stopping: no more claims; running calls may finish");
        self.agents.close();
        self.components.stop.cancel();
        for task in self.background.drain(..).chain([self.dispatcher]) {
            if let Err(error) = task.await {
                warn!(%error, "a component did not stop in time");
            }
        }
        // The lease is kept until the last call has ended, because other instances must not take its steps before.
        self.left.cancel();
        let left = async {
            let _ = (&mut self.leases).await;
            self.member.leave().await;
        };
        if clock::timeout(CLOSE_WITHIN, left).await.is_err() {
            warn!("the leases could not be released in time; they will expire");
            self.leases.abort();
        }
        drop(self.member);
        self.goodbye.cancel();
        let _ = self.server.await;
        // This drops the last handle: the writer saves its remaining commands, and ends.
        self.store.take();
        if clock::timeout(CLOSE_WITHIN, self.writer).await.is_err() {
            warn!("the writer did not end in time; its last commands got no response");
        }
        // There is no time limit, because the keeper may be writing the last copy of a deleted database.
        self.closed.cancel();
        if let Some(keeper) = self.keeper {
            let _ = keeper.await;
        }
        info!("stopped");
    }
}

/// Records in which settings this instance differs from the one that started or reloaded last.
async fn record_settings(store: &Store, instance: &InstanceId, settings: String) {
    if let Err(error) = store.record_settings(instance.to_string(), settings).await {
        warn!(%error, "the settings of this instance are not in the ledger");
    }
}

/// Binds the address. From now on the service responds that it is alive and starting.
fn open(config: &Config, health: Health) -> Result<(Server, Listen, Option<Arc<Tls>>), StartError> {
    let unusable = |error: io::Error| StartError::Listen {
        address: config.listen.clone(),
        reason: error.to_string(),
    };
    let tls = match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => Some(Arc::new(Tls::read(listener::Files {
            certificate: certificate.clone(),
            key: key.clone(),
        })?)),
        _ => None,
    };
    let limits = listener::ListenerLimits::new(&config.listener);
    let mode = config.listener.unix_mode;
    let listener = Listener::bind(&config.listen, mode, limits).map_err(unusable)?;
    let address = listener.address().map_err(unusable)?;
    let starting = api::starting(health, config.public_path().into());
    let server = listener.serve(starting, api::refuse, tls.clone());
    Ok((server, address, tls))
}

/// Reports that this instance is held, and wakes the claimer when it is released.
fn held(
    hold: &Arc<Hold>,
    local: &Arc<Local>,
    components: &Components,
) -> impl Future<Output = ()> + use<> {
    warn!(
        "held: this instance calls no step, delivers no message, and recovers and deletes nothing until POST /v1/hold/release"
    );
    let local = local.clone();
    let look = async move { local.check_all_queues() };
    let look = background::once_released(hold, &components.stop, look);
    let stop = components.stop.clone();
    async move {
        look.await;
        // A component runs until the stop.
        stop.cancelled().await;
    }
}

/// The addresses that calls and messages may use: never those of this service or its database.
fn addresses(config: &Config, address: &Listen) -> AddressPolicy {
    let own = OwnAddresses {
        listener: address.tcp(),
        database: match &config.database_url {
            DatabaseUrl::Sqlite(_) => Vec::new(),
            DatabaseUrl::Postgres(url) => postgres::addresses(url),
        },
    };
    let allow = config.calls.allow.0.clone();
    AddressPolicy::new(config.allows_private_addresses(), allow, own)
}

/// The base URL of links in messages; without public_url the listening address, if it is an IP address.
fn public_url(config: &Config, address: &Listen) -> Option<String> {
    if let Some(url) = &config.public_url {
        return Some(url.trim_end_matches('/').to_owned());
    }
    let reachable = address
        .tcp()
        .filter(|address| !address.ip().is_unspecified());
    let Some(address) = reachable else {
        if !config.alert_webhooks.is_empty() {
            warn!(
                "alerts are sent without links: set public_url to the URL under which people reach this service"
            );
        }
        return None;
    };
    Some(format!("{}://{address}", config.scheme()))
}

/// The base URL of links for browsers, which have no token.
fn console_url(config: &Config, public_url: Option<&str>) -> Option<String> {
    let default = public_url.filter(|_| config.tokens.is_empty());
    let url = config.console_url.as_deref().or(default);
    url.map(|url| url.trim_end_matches('/').to_owned())
}

/// Returns an id that is unique for each start: the host, the process and a random part.
fn new_instance_id() -> InstanceId {
    static HOST: LazyLock<String> = LazyLock::new(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.trim();
        if name.is_empty() { "local" } else { name }.to_owned()
    });
    let random: u32 = chance::random();
    InstanceId::new(format!("{}-{}-{random:08x}", *HOST, std::process::id()))
}

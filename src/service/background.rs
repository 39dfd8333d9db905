//! Starts the loops of an instance: claimer, supervisor, delivery, retention, and upkeep of the metrics.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    component::Components,
    loops,
    task::attempts::{AttemptPurge, SampleUpkeep},
    upkeep::{
        clock::ClockWatch,
        maintenance::{
            AlertUpkeep, LeaseRenewal, MetricsUpkeep, Reconciliation, Supervision, TaskPurge,
            WorkerUpkeep,
        },
        vacuum::VacuumLoop,
    },
    view::{
        activity::{ActivityTidying, ActivityUpkeep},
        ledger::LedgerUpkeep,
    },
};
use crate::{
    agent::Post,
    api::App,
    broker::{Broker, Brokers},
    config::Config,
    delivery::{BrokerAlerts, DeliveryLoop, DeliverySettings, Receivers},
    domain::{
        agent::MissingAgents,
        message::DeliveryPolicy,
        upkeep::Retention,
        values::{InstanceId, renew_after},
    },
    instance::{Hold, LocalLease, Membership},
    intake::{Intake, LaterReplies},
    retention::{self, Pacing, Sweep},
    scheduler::{self, ClaimerSettings, Local},
    store::{CausesSeen, FailuresSeen, LocalScheduler, Store},
    supervisor::Supervisor,
    telemetry::Metrics,
};

pub(super) fn start(
    config: &Config,
    local: &Arc<Local>,
    store: &Store,
    local_lease: &Arc<LocalLease>,
    hold: &Arc<Hold>,
    metrics: &Metrics,
    components: &Components,
) -> Vec<JoinHandle<()>> {
    let stop = &components.stop;
    let settings = ClaimerSettings {
        poll: config.scheduler.poll.duration(),
        is_notified: config.postgres.listen || !store.is_shared,
    };
    let claimer = scheduler::run_claimer(local.clone(), store.clone(), settings, stop.clone());
    let mut running = vec![
        components.spawn("claimer", claimer),
        components.spawn_loop(Supervision {
            missing: MissingAgents::default(),
            missing_alerts: None,
            reported_agents: None,
            supervisor: Supervisor::new(
                store.clone(),
                local.instance().clone(),
                local_lease.clone(),
                config.supervisor.batch,
            ),
            local: local.clone(),
            store: store.clone(),
            interval: config.supervisor.interval.duration(),
        }),
        components.spawn_loop(Reconciliation {
            local: local.clone(),
            store: store.clone(),
            interval: renew_after(config.instance.lease),
            skipped: 0,
        }),
        components.spawn_loop(MetricsUpkeep(metrics.clone())),
        components.spawn_loop(AlertUpkeep {
            store: store.clone(),
            local_lease: local_lease.clone(),
            seen: CausesSeen::default(),
            seen_failures: FailuresSeen::default(),
            rounds: 0,
        }),
        components.spawn_loop(SampleUpkeep(store.clone())),
        components.spawn_loop(ActivityUpkeep(store.clone())),
        components.spawn_loop(ActivityTidying {
            store: store.clone(),
            local_lease: local_lease.clone(),
        }),
        components.spawn_loop(AttemptPurge {
            store: store.clone(),
            local_lease: local_lease.clone(),
            keep: config.record.keep,
            most_bytes: config.record.max_bytes.as_u64(),
        }),
        components.spawn_loop(LedgerUpkeep {
            store: store.clone(),
            local_lease: local_lease.clone(),
            keep: config.ledger.keep,
            keep_changes: config.ledger.keep_changes,
            is_complete: false,
        }),
        components.spawn_loop(WorkerUpkeep {
            local: local.clone(),
            store: store.clone(),
        }),
    ];
    if !store.is_shared {
        let vacuum = VacuumLoop::new(store.clone(), hold.clone());
        running.push(components.spawn_loop(vacuum));
    }
    if let Some(watch) = ClockWatch::new(store) {
        running.push(components.spawn_loop(watch));
    }
    let retention = config.retention.rules();
    if retention.periods().is_empty() {
        info!("retention is off: ended tasks are kept forever");
    } else {
        let keep = config.retention.keep;
        info!(%keep, rules = retention.workflows.len(), "retention: tasks are deleted, with their history, this long after they ended (retention.keep)");
        let purge = purge(config, retention, store, local_lease, stop.clone());
        running.push(components.spawn_loop(purge));
    }
    running
}

/// Runs `work` once the instance is not held; not at all if the instance is stopped before.
pub(super) fn once_released<F>(
    hold: &Arc<Hold>,
    stop: &CancellationToken,
    work: F,
) -> impl Future<Output = ()> + use<F>
where
    F: Future<Output = ()>,
{
    let (hold, stop) = (hold.clone(), stop.clone());
    async move {
        if stop.run_until_cancelled(hold.released()).await.is_some() {
            work.await;
        }
    }
}

pub(super) fn delivery(
    config: &Config,
    store: &Store,
    instance: &InstanceId,
    receivers: &Arc<ArcSwap<Receivers>>,
    post: Post,
) -> DeliveryLoop {
    let of = &config.courier;
    let settings = DeliverySettings {
        poll: of.poll.duration(),
        timeout: of.timeout,
        max_in_flight: of.max_in_flight,
        policy: DeliveryPolicy {
            initial: of.retry_initial,
            max: of.retry_max,
            give_up_after: of.give_up_after,
        },
        grace: config.shutdown_grace.duration(),
    };
    let (store, receivers) = (store.clone(), receivers.clone());
    DeliveryLoop::new(store, instance.clone(), receivers, post, settings)
}

/// Starts the connections to the message brokers, and the readers of their queues. Does nothing without a broker.
pub(super) fn brokers(
    app: &Arc<App>,
    brokers: &Arc<Brokers>,
    components: &Components,
) -> Vec<JoinHandle<()>> {
    let stop = &components.stop;
    let keep = |broker: Arc<dyn Broker>| {
        let stop = stop.clone();
        components.spawn("broker", async move {
            stop.run_until_cancelled(broker.keep()).await;
        })
    };
    let mut running: Vec<_> = brokers
        .all()
        .map(|(_, broker)| keep(broker.clone()))
        .collect();
    for config in &app.config.intake {
        let intake = Intake::new(app.clone(), brokers.clone(), config.clone());
        let intake = once_released(&app.hold, stop, intake.run(stop.clone()));
        running.push(components.spawn("intake", intake));
    }
    if !running.is_empty() {
        let (brokers, store) = (brokers.clone(), app.store.clone());
        let alerts = BrokerAlerts { brokers, store };
        let alerts = once_released(&app.hold, stop, alerts.run(stop.clone()));
        running.push(components.spawn("broker alerts", alerts));
    }
    if app.config.broker.url.is_some() {
        let replies = LaterReplies::new(app.clone(), brokers.clone());
        let replies = once_released(&app.hold, stop, replies.run(stop.clone()));
        running.push(components.spawn("replies from a queue", replies));
    }
    running
}

/// Keeps this instance registered until `left`; after `stop` it no longer supervises.
pub(super) async fn renew_leases(
    member: Arc<Membership>,
    stop: CancellationToken,
    left: CancellationToken,
) {
    let renewal = LeaseRenewal {
        member,
        stop,
        has_stopped: false,
        // The instance may have been released since it joined.
        is_held: true,
    };
    loops::run(renewal, left).await;
}

/// Deletes tasks that ended long ago.
fn purge(
    config: &Config,
    retention: Retention,
    store: &Store,
    local_lease: &Arc<LocalLease>,
    stop: CancellationToken,
) -> TaskPurge {
    retention::describe();
    let pacing = match store.is_shared {
        true => Pacing::SeveralWriters,
        false => Pacing::OneWriter,
    };
    let letters = retention.dead_letters();
    let most = config.retention.batch;
    TaskPurge {
        sweep: Sweep::new(retention, letters, most, pacing, stop),
        store: store.clone(),
        local_lease: local_lease.clone(),
        interval: config.retention.interval.duration(),
    }
}

//! The loops of an instance: claimer, supervisor, delivery, retention, and upkeep of the metrics.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::{sync::Mutex, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{component::Components, loops::every, vacuum};
use crate::{
    agent::Post,
    config::Config,
    delivery::{DeliveryLoop, DeliverySettings, Receivers},
    domain::{DeliveryPolicy, InstanceId, Retention, renew_after},
    instance::{Hold, LocalLease, Membership},
    retention::{self, Pacing, Sweep},
    scheduler::{self, Local},
    store::{LocalScheduler, Store},
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
    let poll = config.scheduler.poll.duration();
    let claimer = scheduler::run_claimer(local.clone(), store.clone(), poll, stop.clone());
    let mut running = vec![
        components.spawn("claimer", claimer),
        components.spawn(
            "supervisor",
            supervise(config, local, store, local_lease, stop.clone()),
        ),
        components.spawn(
            "reconciliation",
            reconcile(config, local, store, stop.clone()),
        ),
        components.spawn("metrics", metrics.clone().keep(stop.clone())),
    ];
    if !store.is_shared {
        let vacuum = vacuum::run(store.clone(), hold.clone(), stop.clone());
        running.push(components.spawn("vacuum", vacuum));
    }
    let retention = config.retention.rules();
    if retention.periods().is_empty() {
        info!("retention is off: ended tasks are kept forever");
    } else {
        let keep = config.retention.keep;
        info!(%keep, rules = retention.workflows.len(), "retention: tasks are deleted, with their history, this long after they ended (retention.keep)");
        let purge = purge(config, retention, store, local_lease, stop.clone());
        let purge = once_released(hold, stop, purge);
        running.push(components.spawn("retention", purge));
    }
    running
}

/// Starts the loops once the instance is not held; not at all if it is stopped before.
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

fn supervise(
    config: &Config,
    local: &Local,
    store: &Store,
    local_lease: &Arc<LocalLease>,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let supervisor = Arc::new(Supervisor::new(
        store.clone(),
        local.instance().clone(),
        local_lease.clone(),
        config.supervisor.batch,
    ));
    let interval = config.supervisor.interval.duration();
    every("supervisor", interval, stop, move || {
        let supervisor = supervisor.clone();
        async move { supervisor.look().await.map(|_| ()) }
    })
}

/// As often as the lease is renewed: steps that were taken over during a lapse are dropped soon after it.
fn reconcile(
    config: &Config,
    local: &Arc<Local>,
    store: &Store,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let (local, store) = (local.clone(), store.clone());
    let interval = renew_after(config.instance.lease);
    every("reconciliation", interval, stop, move || {
        let (local, store) = (local.clone(), store.clone());
        async move { scheduler::reconcile(&local, &store).await }
    })
}

/// Keeps this instance registered until `left`; after `stop` it no longer supervises. Ends earlier only if another
/// process has the same id.
pub(super) async fn renew_leases(
    member: Arc<Membership>,
    stop: CancellationToken,
    left: CancellationToken,
) {
    let superseded = left.child_token();
    let interval = member.interval();
    every("leases", interval, superseded.clone(), move || {
        let (member, stop, superseded) = (member.clone(), stop.clone(), superseded.clone());
        async move {
            if member.renew_if_due(!stop.is_cancelled()).await.is_err() {
                superseded.cancel();
            }
            Ok(())
        }
    })
    .await;
}

/// Deletes tasks that ended long ago. Of several instances, only the supervisor does this.
fn purge(
    config: &Config,
    retention: Retention,
    store: &Store,
    local_lease: &Arc<LocalLease>,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    retention::describe();
    let pacing = match store.is_shared {
        true => Pacing::SeveralWriters,
        false => Pacing::OneWriter,
    };
    let letters = retention.dead_letters();
    let most = config.retention.batch;
    let sweep = Sweep::new(retention, letters, most, pacing, stop.clone());
    let sweep = Arc::new(Mutex::new(sweep));
    let (store, local_lease) = (store.clone(), local_lease.clone());
    every(
        "retention",
        config.retention.interval.duration(),
        stop,
        move || {
            let (sweep, mut store, local_lease) =
                (sweep.clone(), store.clone(), local_lease.clone());
            async move {
                let supervises = || local_lease.term(Instant::now()).is_some();
                if !supervises() {
                    return Ok(());
                }
                let swept = sweep.lock().await.round(&mut store, &supervises).await?;
                if swept.tasks > 0 {
                    info!(tasks = swept.tasks, "deleted tasks that ended long ago");
                }
                Ok(())
            }
        },
    )
}

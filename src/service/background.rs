//! The loops of an instance: claimer, supervisor, courier, retention, upkeep of the metrics.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{loops::every, part::Parts, vacuum};
use crate::{
    agent::Post,
    config::{Config, Keep},
    courier::{Courier, CourierSettings, Receivers},
    domain::{InstanceId, Persistence, Span, Timestamp, renew_after},
    instance::{Hold, Membership, Standing},
    scheduler::{self, Local},
    store::{LocalScheduler, Store, StoreError},
    supervisor::Supervisor,
    telemetry::Metrics,
};

pub(super) fn start(
    config: &Config,
    local: &Arc<Local>,
    store: &Store,
    standing: &Arc<Standing>,
    hold: &Arc<Hold>,
    metrics: &Metrics,
    parts: &Parts,
) -> Vec<JoinHandle<()>> {
    let stop = &parts.stop;
    let poll = config.scheduler.poll.duration();
    let claimer = scheduler::run_claimer(local.clone(), store.clone(), poll, stop.clone());
    let mut running = vec![
        parts.spawn("claimer", claimer),
        parts.spawn(
            "supervisor",
            supervise(config, local, store, standing, stop.clone()),
        ),
        parts.spawn(
            "reconciliation",
            reconcile(config, local, store, stop.clone()),
        ),
        parts.spawn("metrics", metrics.clone().keep(stop.clone())),
    ];
    if !store.is_shared {
        let vacuum = vacuum::run(store.clone(), hold.clone(), stop.clone());
        running.push(parts.spawn("vacuum", vacuum));
    }
    match &config.retention.keep {
        Keep::Forever => info!("retention is off: ended tasks are kept for ever"),
        Keep::For(keep) => {
            info!(%keep, "retention: tasks are deleted, with their history, this long after they ended (retention.keep)");
            let (interval, batch) = (config.retention.interval, config.retention.batch);
            let purge = purge(*keep, interval, batch, store.clone(), stop.clone());
            let purge = once_released(hold, stop, purge);
            running.push(parts.spawn("retention", purge));
        }
    }
    running
}

/// Begins the work when the instance is not held, or not any more; not at all if it is stopped before.
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

pub(super) fn courier(
    config: &Config,
    store: &Store,
    instance: &InstanceId,
    receivers: &Arc<ArcSwap<Receivers>>,
    post: Post,
) -> Courier {
    let of = &config.courier;
    let settings = CourierSettings {
        poll: of.poll.duration(),
        timeout: of.timeout,
        max_in_flight: of.max_in_flight,
        persistence: Persistence {
            initial: of.retry_initial,
            max: of.retry_max,
            give_up_after: of.give_up_after,
        },
        grace: config.shutdown_grace.duration(),
    };
    let (store, receivers) = (store.clone(), receivers.clone());
    Courier::new(store, instance.clone(), receivers, post, settings)
}

fn supervise(
    config: &Config,
    local: &Local,
    store: &Store,
    standing: &Arc<Standing>,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let supervisor = Arc::new(Supervisor::new(
        store.clone(),
        local.instance().clone(),
        standing.clone(),
        config.supervisor.batch,
    ));
    let interval = config.supervisor.interval.duration();
    every("supervisor", interval, stop, move || {
        let supervisor = supervisor.clone();
        async move { supervisor.look().await.map(|_| ()) }
    })
}

/// As often as the lease is renewed: what was taken over while it could not be is dropped soon after.
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

/// Keeps this instance one of those that run, until `left`; from `stop` on it does not supervise. Ends
/// before that only if another process has its id.
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

/// Deletes what ended long ago, in small transactions that leave room for others between them.
async fn purge(keep: Span, interval: Span, batch: usize, store: Store, stop: CancellationToken) {
    let stopping = stop.clone();
    every("retention", interval.duration(), stop, move || {
        let (store, stopping) = (store.clone(), stopping.clone());
        async move {
            let deleted = purge_ended(&store, keep, batch, &stopping).await?;
            if deleted > 0 {
                info!(tasks = deleted, "deleted tasks that ended long ago");
            }
            Ok(())
        }
    })
    .await;
}

/// Where a damaged part of the database keeps a task from being deleted: the others are deleted one by one.
async fn purge_each(
    store: &Store,
    before: Timestamp,
    batch: usize,
    stopping: &CancellationToken,
) -> Result<u64, StoreError> {
    let (mut deleted, mut kept) = (0, 0);
    loop {
        let ended = store.housekeeping.ended(before, kept, batch).await?;
        if ended.is_empty() {
            return Ok(deleted);
        }
        for task in ended {
            if stopping.is_cancelled() {
                return Ok(deleted);
            }
            match store.purge_one(task).await {
                Ok(count) => {
                    deleted += count;
                    kept += usize::from(count == 0);
                }
                Err(error) if error.is_damage() => {
                    warn!(%task, %error, "a task that ended long ago cannot be deleted");
                    kept += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

async fn purge_ended(
    store: &Store,
    keep: Span,
    batch: usize,
    stopping: &CancellationToken,
) -> Result<u64, StoreError> {
    let now = store.housekeeping.now().await?;
    let before = Timestamp::from_millis(now.as_millis().saturating_sub(keep.as_millis()));
    let mut deleted = 0;
    while !stopping.is_cancelled() {
        let count = match store.purge(before, batch).await {
            Err(error) if error.is_damage() => {
                deleted += purge_each(store, before, batch, stopping).await?;
                break;
            }
            count => count?,
        };
        deleted += count;
        if count < batch as u64 {
            break;
        }
    }
    // Dead letters are kept as long, counted from their death.
    while !stopping.is_cancelled() && store.purge_letters(before, batch).await? == batch as u64 {}
    Ok(deleted)
}

//! Watches what other instances on the same database changed: their notifications tell it at once, and it polls
//! as well, because a notification may be lost.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::component::Components;
use crate::{
    agent::Registered,
    api::WorkflowCache,
    domain::jittered,
    scheduler::{self, Local},
    store::{
        Store,
        postgres::{Notification, NotificationListener},
    },
};

/// The delay after which a caller who waits for a task learns that another instance ended it, where the
/// notification was lost.
const LOOK: Duration = Duration::from_millis(250);
/// The pause between two polls. Under load notifications arrive all the time, most of them about tasks that nobody
/// here waits for, and every poll costs the database something.
const REST: Duration = Duration::from_millis(50);
const REGISTRATIONS: Duration = Duration::from_secs(3);

/// The components of this instance that a notification wakes.
pub(super) struct PeerWatcher {
    pub local: Arc<Local>,
    pub store: Store,
    pub registered: Arc<Registered>,
    pub workflows: Arc<WorkflowCache>,
}

impl PeerWatcher {
    pub fn start(
        self,
        listener: Option<NotificationListener>,
        components: &Components,
    ) -> Vec<JoinHandle<()>> {
        let stop = &components.stop;
        let tasks = Arc::new(Notify::new());
        let registrations = Arc::new(Notify::new());
        let watch = watch(self.store.clone(), tasks.clone(), stop.clone());
        let (local, self_store) = (self.local.clone(), self.store.clone());
        let register = self.register(registrations.clone(), stop.clone());
        let drops = Arc::new(Notify::new());
        let look = look_at_drops(local.clone(), self_store, drops.clone(), stop.clone());
        let mut running = vec![
            components.spawn("drops", look),
            components.spawn("watch", watch),
            components.spawn("registrations", register),
        ];
        if let Some(listener) = listener {
            let hear = move |notification: Notification| {
                if notification.work {
                    local.look_everywhere();
                }
                if notification.drops {
                    local.hear_of_drops();
                    drops.notify_one();
                }
                if notification.tasks {
                    tasks.notify_one();
                }
                if notification.registrations {
                    registrations.notify_one();
                }
            };
            running.push(components.spawn("listener", listener.run(hear, stop.clone())));
        }
        running
    }

    /// Loads agents and workflows that other instances registered.
    async fn register(self, notified: Arc<Notify>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = notified.notified() => {}
                () = sleep(jittered(REGISTRATIONS, rand::random())) => {}
            }
            self.workflows.forget();
            if let Err(error) = self.registered.refresh(&self.store.housekeeping).await {
                debug!(%error, "could not load what other instances registered");
            }
        }
    }
}

/// Drops the calls that another instance has given up. Costs nothing without a notification; where one is lost, the
/// reconciliation does it.
async fn look_at_drops(
    local: Arc<Local>,
    store: Store,
    notified: Arc<Notify>,
    stop: CancellationToken,
) {
    while stop
        .run_until_cancelled(notified.notified())
        .await
        .is_some()
    {
        if let Err(error) = scheduler::reconcile_drops(&local, &store).await {
            debug!(%error, "could not load what other instances gave up");
        }
        // Under load many notifications arrive together.
        if stop.run_until_cancelled(sleep(REST)).await.is_none() {
            return;
        }
    }
}

/// Wakes callers that wait for tasks. Costs nothing if nobody waits.
async fn watch(store: Store, notified: Arc<Notify>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = notified.notified() => {}
            () = sleep(jittered(LOOK, rand::random())) => {}
        }
        if let Err(error) = store.watchers.look(&store.reader).await {
            debug!(%error, "could not load what other instances changed");
        }
        if stop.run_until_cancelled(sleep(REST)).await.is_none() {
            return;
        }
    }
}

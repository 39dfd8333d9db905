//! Watches the changes by other instances on the same database. Their notifications report changes at once, and it
//! polls as well, because a notification may be lost.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, task::JoinHandle};
use tracing::debug;

use crate::service::{
    component::Components,
    loops::{NextRound, PeriodicLoop},
};
use crate::{
    agent::AgentRefresher,
    api::WorkflowCache,
    scheduler::{self, Local},
    store::{
        Store, StoreError,
        postgres::{Notification, NotificationListener},
    },
};

/// The delay after which a caller who waits for a task learns that another instance ended it, if the notification was
/// lost.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// The pause between two polls. Under load notifications arrive all the time, most of them about tasks that no caller
/// waits for here, and every poll costs database time.
const REST: Duration = Duration::from_millis(50);
/// The interval at which registrations of other instances are loaded with notifications, and without any.
const REGISTRATIONS: Duration = Duration::from_secs(30);
const REGISTRATIONS_UNNOTIFIED: Duration = Duration::from_secs(3);
/// A rest that only a notification ends.
const LONG: Duration = Duration::from_secs(3600);

/// The components of this instance that a notification wakes.
pub(in crate::service) struct PeerWatcher {
    pub local: Arc<Local>,
    pub store: Store,
    pub registered: Arc<AgentRefresher>,
    pub workflows: Arc<WorkflowCache>,
}

impl PeerWatcher {
    pub fn start(
        self,
        listener: Option<NotificationListener>,
        components: &Components,
    ) -> Vec<JoinHandle<()>> {
        let wake: [Arc<Notify>; 3] = Default::default();
        let [tasks, registrations, drops] = wake.clone();
        let (local, peers) = (self.local.clone(), self.store.peers.clone());
        let mut running = vec![
            components.spawn_loop(DropWatch {
                local: self.local,
                store: self.store.clone(),
                notified: drops,
            }),
            components.spawn_loop(TaskWatch {
                store: self.store.clone(),
                notified: tasks,
            }),
            components.spawn_loop(RegistrationWatch {
                store: self.store,
                registered: self.registered,
                workflows: self.workflows,
                interval: match listener {
                    Some(_) => REGISTRATIONS,
                    None => REGISTRATIONS_UNNOTIFIED,
                },
                notified: registrations,
            }),
        ];
        if let Some(listener) = listener {
            let [tasks, registrations, drops] = wake;
            let hear = move |notification: Notification| {
                if notification.tasks || notification.work {
                    peers.heard();
                }
                if notification.work {
                    local.check_all_queues();
                }
                if notification.drops {
                    local.hear_of_drops();
                    drops.notify_one();
                }
                if notification.slots {
                    local.hear_of_slots();
                }
                if notification.tasks {
                    tasks.notify_one();
                }
                if notification.registrations {
                    registrations.notify_one();
                }
            };
            let listening = listener.run(hear, components.stop.clone());
            running.push(components.spawn("listener", listening));
        }
        running
    }
}

/// Loads agents and workflows that other instances registered.
struct RegistrationWatch {
    store: Store,
    registered: Arc<AgentRefresher>,
    workflows: Arc<WorkflowCache>,
    interval: Duration,
    notified: Arc<Notify>,
}

impl PeriodicLoop for RegistrationWatch {
    const NAME: &'static str = "registrations";
    const LONGEST_REST: Duration = Duration::ZERO;

    fn interval(&self) -> Duration {
        self.interval
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.workflows.clear();
        self.registered.refresh(&self.store.housekeeping).await?;
        Ok(NextRound::AfterInterval)
    }

    async fn wait_for_wake(&mut self) {
        self.notified.notified().await;
    }

    fn report(&self, error: &StoreError, _: Duration) {
        debug!(%error, "could not load what other instances registered");
    }
}

/// Drops the calls that another instance has given up. If a notification is lost, the reconciliation drops them.
struct DropWatch {
    local: Arc<Local>,
    store: Store,
    notified: Arc<Notify>,
}

impl PeriodicLoop for DropWatch {
    const NAME: &'static str = "drops";
    const LEAST_REST: Duration = REST;

    /// A round without a notification is almost never needed.
    fn interval(&self) -> Duration {
        LONG
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        scheduler::reconcile_drops(&self.local, &self.store).await?;
        Ok(NextRound::AfterInterval)
    }

    async fn wait_for_wake(&mut self) {
        self.notified.notified().await;
    }

    fn report(&self, error: &StoreError, _: Duration) {
        debug!(%error, "could not load what other instances gave up");
    }
}

/// Wakes callers that wait for tasks or follow them. It rests while there are none.
struct TaskWatch {
    store: Store,
    notified: Arc<Notify>,
}

impl PeriodicLoop for TaskWatch {
    const NAME: &'static str = "watch";
    const LEAST_REST: Duration = REST;
    const LONGEST_REST: Duration = Duration::ZERO;

    fn interval(&self) -> Duration {
        match self.store.watchers.is_empty() {
            true => LONG,
            false => CHECK_EVERY,
        }
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.store.watchers.look(&self.store.reader).await?;
        Ok(NextRound::AfterInterval)
    }

    async fn wait_for_wake(&mut self) {
        tokio::select! {
            () = self.notified.notified() => {}
            () = self.store.watchers.began() => {}
        }
    }

    fn report(&self, error: &StoreError, _: Duration) {
        debug!(%error, "could not load what other instances changed");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        agent::{AgentSettings, Agents, install_crypto},
        domain::{
            task::Actor,
            values::{Precondition, WorkflowName},
        },
        service::loops,
        store::{
            ActivationRequest,
            conformance::harness::{Harness, TestDatabase, postgres, postgres_at},
        },
    };

    /// No notification comes, because no listener is started.
    #[tokio::test]
    async fn a_version_that_another_instance_activated_is_used_after_the_next_look() {
        install_crypto();
        let other = Harness::new(postgres().await).await;
        let TestDatabase::Postgres(url) = &other.database else {
            unreachable!()
        };
        let here = Harness::new(postgres_at(url.clone()).await).await;
        let name = WorkflowName::new("order");
        for step in ["a", "b"] {
            let body = format!(r#"{{"steps":[{{"name":"{step}","agent":"x"}}]}}"#);
            let condition = Precondition::default();
            let by = Actor::submitter();
            let put = other
                .store
                .put_workflow(name.clone(), body, condition, None, by);
            put.await.unwrap();
        }
        let workflows = Arc::new(WorkflowCache::default());
        let active = async || {
            let active = workflows.resolve(&here.store, &here.store.reader, &name, None);
            active.await.unwrap().unwrap().workflow.version
        };
        assert_eq!(active().await, 2);
        let request = ActivationRequest {
            name: name.clone(),
            version: 1,
            by: Actor::operator("another"),
            reason: None,
            condition: Precondition::default(),
        };
        other.store.activate_workflow(request).await.unwrap();
        assert_eq!(active().await, 2, "nothing has said that it changed");
        let agents = Arc::new(Agents::new(AgentSettings::default()));
        let watch = RegistrationWatch {
            store: here.store.clone(),
            registered: Arc::new(AgentRefresher::new(agents, BTreeMap::new())),
            workflows: workflows.clone(),
            interval: Duration::from_millis(10),
            notified: Arc::default(),
        };
        let stop = CancellationToken::new();
        let used = async {
            while active().await != 1 {
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        let both = async { tokio::join!(loops::run(watch, stop.clone()), used) };
        let in_time = tokio::time::timeout(Duration::from_secs(60), both).await;
        assert!(in_time.is_ok(), "it never used the version");
    }
}

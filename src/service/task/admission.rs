//! Starts tasks that wait for others of their key, and cancels tasks that a later one replaces.

use std::{sync::Arc, time::Duration};

use tracing::debug;

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    domain::{
        task::{Actor, Command},
        values::{InstanceId, TaskId},
    },
    instance::Hold,
    store::{Apply, CommandError, Store, StoreError, WaitingTasks},
};

/// The most keys in one transaction.
const AT_ONCE: usize = 16;
/// The interval while no task is known to wait. Tasks that end on this instance wake the loop.
const IDLE: Duration = Duration::from_secs(10);
/// The delay after which keys that another instance has locked are looked at again.
const LOCKED_AGAIN: Duration = Duration::from_millis(20);

pub(in crate::service) struct AdmissionLoop {
    store: Store,
    waiting: Arc<WaitingTasks>,
    actor: Actor,
    /// The last key that was read from the store; empty at the beginning.
    after: String,
    /// The keys that another instance had locked.
    locked: Vec<String>,
    hold: Arc<Hold>,
}

impl AdmissionLoop {
    pub fn new(store: Store, hold: Arc<Hold>, instance: &InstanceId) -> Self {
        Self {
            hold,
            waiting: store.waiting.clone(),
            store,
            actor: Actor::scheduler(instance.as_str()),
            after: String::new(),
            locked: Vec::new(),
        }
    }

    async fn apply(&self, task: TaskId, command: Command) -> Result<(), StoreError> {
        let apply = Apply::new(task, command, self.actor.clone());
        match self.store.apply(apply).await {
            Ok(_) => Ok(()),
            Err(CommandError::Store(error)) => Err(error),
            // The task has ended in the meantime.
            Err(error) => {
                debug!(%task, %error, "a task was not admitted or replaced");
                Ok(())
            }
        }
    }
}

impl PeriodicLoop for AdmissionLoop {
    const NAME: &'static str = "admission";
    const LONGEST_REST: Duration = Duration::from_secs(5);

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        // No task starts here, and none is replaced, before an operator has compared the store with the services.
        if self.hold.is_held() {
            return Ok(NextRound::AfterInterval);
        }
        let (mut keys, ended) = self.waiting.take(AT_ONCE);
        keys.append(&mut self.locked);
        // Keys whose changes this instance has not seen are read in pages.
        let found = self.store.waiting_task_keys(&self.after).await?;
        self.after = found.last().cloned().unwrap_or_default();
        let is_idle = keys.is_empty() && found.is_empty();
        let mut begun = Vec::new();
        keys.extend(found);
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty() || !ended.is_empty() {
            let admitted = self.store.admit_tasks(keys, ended).await?;
            for (task, by) in admitted.replace {
                let reason = Some(format!("replaced by task {by}"));
                self.apply(task, Command::Cancel { reason }).await?;
            }
            for task in admitted.begin {
                self.apply(task, Command::Admit).await?;
                begun.push(task);
            }
            self.locked = admitted.locked;
        }
        // A task that an instance admitted before it was lost is started by another instance.
        for task in self.store.tasks_that_may_begin().await? {
            self.apply(task, Command::Admit).await?;
            begun.push(task);
        }
        if !begun.is_empty() {
            self.store.note_begun(begun).await?;
        }
        Ok(match (self.locked.is_empty(), is_idle) {
            (false, _) => NextRound::After(LOCKED_AGAIN),
            (true, true) => NextRound::After(IDLE),
            (true, false) => NextRound::AfterInterval,
        })
    }

    async fn wait_for_wake(&mut self) {
        self.waiting.woken().await;
    }
}

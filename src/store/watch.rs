//! Watches on tasks: each is notified after the commit that changed its task.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::{Reader, StoreError};
use crate::domain::{Task, TaskId};

/// For this long after this process has changed a task, it does not check whether another has: the process that
/// changes a task usually continues with it.
const OWN: Duration = Duration::from_millis(200);

/// What a watcher wants to be woken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    Any,
    /// The task ended, or is in error and needs an operator.
    Settled,
}

/// All watchers of this process. Costs the writer one load where nobody watches.
#[derive(Debug, Default)]
pub struct Watchers {
    count: AtomicUsize,
    next: AtomicUsize,
    /// Notified of the first watch.
    began: Notify,
    tasks: Mutex<HashMap<TaskId, WatchedTask>>,
}

#[derive(Debug, Default)]
struct WatchedTask {
    /// The latest that this process knows of.
    version: u64,
    /// When this process changed it last, or began to create it.
    changed_here: Option<Instant>,
    watchers: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    id: usize,
    interest: Interest,
    sender: watch::Sender<Option<Arc<Task>>>,
}

/// One watch on one task; ends when dropped.
#[derive(Debug)]
pub struct Watch {
    task: TaskId,
    id: usize,
    watchers: Arc<Watchers>,
    receiver: watch::Receiver<Option<Arc<Task>>>,
}

impl Watchers {
    pub fn watch(self: &Arc<Self>, task: TaskId, interest: Interest) -> Watch {
        self.begin(task, interest, None)
    }

    /// A watch on a task that this process is about to create: nobody else knows of it yet.
    pub fn watch_new(self: &Arc<Self>, task: TaskId, interest: Interest) -> Watch {
        self.begin(task, interest, Some(Instant::now()))
    }

    fn begin(
        self: &Arc<Self>,
        task: TaskId,
        interest: Interest,
        changed_here: Option<Instant>,
    ) -> Watch {
        let (sender, receiver) = watch::channel(None);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let watcher = Watcher {
            id,
            interest,
            sender,
        };
        let mut tasks = self.tasks.lock();
        let watched = tasks.entry(task).or_default();
        watched.changed_here = changed_here.or(watched.changed_here);
        watched.watchers.push(watcher);
        drop(tasks);
        if self.count.fetch_add(1, Ordering::AcqRel) == 0 {
            self.began.notify_one();
        }
        Watch {
            task,
            id,
            watchers: self.clone(),
            receiver,
        }
    }

    /// Publishes the changes of this process.
    pub(super) fn tell<'a>(&self, changed: impl Iterator<Item = &'a Arc<Task>>) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.spread(changed, Some(Instant::now()));
        }
    }

    fn spread<'a>(&self, changed: impl Iterator<Item = &'a Arc<Task>>, here: Option<Instant>) {
        let mut tasks = self.tasks.lock();
        for task in changed {
            let Some(watched) = tasks.get_mut(&task.id()) else {
                continue;
            };
            // A state that was read from the store may arrive after a newer one.
            if task.version <= watched.version {
                continue;
            }
            watched.version = task.version;
            watched.changed_here = here.or(watched.changed_here);
            for watcher in &watched.watchers {
                if watcher.interest == Interest::Any || task.is_settled() {
                    watcher.sender.send_replace(Some(task.clone()));
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits for the first watch.
    pub async fn began(&self) {
        self.began.notified().await;
    }

    /// The tasks that another process may have changed, and the versions that this one knows of.
    fn left_to_others(&self, now: Instant) -> Vec<(TaskId, u64)> {
        let is_own = |watched: &WatchedTask| {
            let changed = watched.changed_here;
            changed.is_some_and(|at| now.saturating_duration_since(at) < OWN)
        };
        let tasks = self.tasks.lock();
        let left = tasks.iter().filter(|(_, watched)| !is_own(watched));
        left.map(|(task, watched)| (*task, watched.version))
            .collect()
    }

    /// Publishes the changes of other instances, which never pass through this process's writer.
    pub async fn look(&self, reader: &Reader) -> Result<(), StoreError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let known = self.left_to_others(Instant::now());
        if known.is_empty() {
            return Ok(());
        }
        let newer = reader.newer(&known).await?;
        let newer: Vec<_> = newer.into_iter().map(Arc::new).collect();
        self.spread(newer.iter(), None);
        Ok(())
    }
}

impl Watch {
    /// The next change of interest that is newer than a version. A state that was read from the store before a
    /// watch began may arrive later, and must not count as new.
    pub async fn newer(&mut self, than: u64) -> Arc<Task> {
        loop {
            let task = self.changed().await;
            if task.version > than {
                return task;
            }
        }
    }

    /// The next change of interest since the last call: the task as it then was.
    pub async fn changed(&mut self) -> Arc<Task> {
        loop {
            if self.receiver.changed().await.is_err() {
                // The sender lives in the map until this watch is dropped.
                std::future::pending::<()>().await;
            }
            if let Some(task) = self.receiver.borrow_and_update().clone() {
                return task;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut tasks = self.watchers.tasks.lock();
        if let Some(watched) = tasks.get_mut(&self.task) {
            watched.watchers.retain(|watcher| watcher.id != self.id);
            if watched.watchers.is_empty() {
                tasks.remove(&self.task);
            }
        }
        self.watchers.count.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_task_that_this_process_creates_is_looked_for_no_sooner_than_another_may_have_changed_it() {
        let watchers = Arc::new(Watchers::default());
        let [new, old] = [1, 2].map(|id| TaskId(Uuid::from_u128(id)));
        let now = Instant::now();
        let _old = watchers.watch(old, Interest::Settled);
        let created = watchers.watch_new(new, Interest::Settled);
        assert_eq!(watchers.left_to_others(now), [(old, 0)]);
        let mut later = watchers.left_to_others(Instant::now() + OWN);
        later.sort_unstable();
        assert_eq!(later, [(new, 0), (old, 0)]);
        drop(created);
        assert_eq!(
            watchers.left_to_others(Instant::now() + OWN),
            [(old, 0)],
            "nobody waits for it any more"
        );
    }
}

//! Watches on tasks: each is notified after the commit that changed its task.
//!
//! For all callers that wait for tasks or follow them, one common read finds the changes of other instances.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::domain::{task::Task, values::TaskId};
use crate::{
    clock::{self, Instant},
    store::{Reader, StoreError, source::SeenVersion},
};

/// For this time after this process has changed a task, it does not check whether another has: the process that changes
/// a task usually continues with it.
const OWN: Duration = Duration::from_millis(200);

/// The most tasks whose versions are read with one statement.
const LOOKED_AT: usize = 2_000;

/// The most settled tasks that are read at once. A task can be large.
const LOADED: usize = 16;

/// All watchers of this process. They cost the writer one atomic load if there are none.
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
    /// The latest version that this process knows of.
    version: u64,
    /// The time when this process last changed the task, or began to create it.
    changed_here: Option<Instant>,
    watchers: Vec<(usize, Watcher)>,
}

#[derive(Debug)]
enum Watcher {
    /// Gets the task when it has ended, or is in error and needs an operator.
    Settled(watch::Sender<Option<Arc<Task>>>),
    /// Notified of every change. The follower reads the data that it needs.
    Change(Arc<Notify>),
}

/// The entry of one watcher among those of its task.
#[derive(Debug)]
struct WatcherEntry {
    task: TaskId,
    id: usize,
    watchers: Arc<Watchers>,
}

/// Waits until a task has settled. Ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    receiver: watch::Receiver<Option<Arc<Task>>>,
    _place: WatcherEntry,
}

/// Follows every change of a task. Ends when it is dropped.
#[derive(Debug)]
pub struct Follow {
    changed: Arc<Notify>,
    place: WatcherEntry,
}

impl Watchers {
    pub fn watch(self: &Arc<Self>, task: TaskId) -> Watch {
        self.begin_watch(task, None)
    }

    /// Watches a task that this process is about to create, and no other process knows yet.
    pub fn watch_new(self: &Arc<Self>, task: TaskId) -> Watch {
        self.begin_watch(task, Some(clock::instant()))
    }

    fn begin_watch(self: &Arc<Self>, task: TaskId, changed_here: Option<Instant>) -> Watch {
        let (sender, receiver) = watch::channel(None);
        Watch {
            receiver,
            _place: self.begin(task, Watcher::Settled(sender), changed_here),
        }
    }

    pub fn follow(self: &Arc<Self>, task: TaskId) -> Follow {
        let changed = Arc::new(Notify::new());
        Follow {
            changed: changed.clone(),
            place: self.begin(task, Watcher::Change(changed), None),
        }
    }

    fn begin(
        self: &Arc<Self>,
        task: TaskId,
        watcher: Watcher,
        changed_here: Option<Instant>,
    ) -> WatcherEntry {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut tasks = self.tasks.lock();
        let watched = tasks.entry(task).or_default();
        watched.changed_here = changed_here.or(watched.changed_here);
        watched.watchers.push((id, watcher));
        drop(tasks);
        if self.count.fetch_add(1, Ordering::AcqRel) == 0 {
            self.began.notify_one();
        }
        WatcherEntry {
            task,
            id,
            watchers: self.clone(),
        }
    }

    /// Publishes the changes of this process.
    pub(in crate::store) fn tell<'a>(&self, changed: impl Iterator<Item = &'a Arc<Task>>) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.spread(changed, Some(clock::instant()));
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
            for (_, watcher) in &watched.watchers {
                match watcher {
                    Watcher::Change(changed) => changed.notify_one(),
                    Watcher::Settled(sender) if task.is_settled() => {
                        sender.send_replace(Some(task.clone()));
                    }
                    Watcher::Settled(_) => {}
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

    /// Returns the tasks that another process may have changed, with the versions that this process knows.
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

    /// Publishes the changes of other instances, which are not made by this process's writer.
    pub async fn look(&self, reader: &Reader) -> Result<(), StoreError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let known = self.left_to_others(clock::instant());
        for known in known.chunks(LOOKED_AT) {
            let ids: Vec<_> = known.iter().map(|(id, _)| *id).collect();
            let seen = reader.versions(&ids).await?;
            let settled = self.note(known, &seen);
            for settled in settled.chunks(LOADED) {
                let loaded = reader.tasks_of(settled).await?.tasks;
                let loaded: Vec<_> = loaded.into_iter().map(Arc::new).collect();
                self.spread(loaded.iter(), None);
            }
        }
        Ok(())
    }

    /// Notifies the followers of tasks that have another version than the known one, or do not exist any more. Returns
    /// the tasks with a waiting watcher that seem to have settled.
    fn note(&self, known: &[(TaskId, u64)], seen: &[SeenVersion]) -> Vec<TaskId> {
        let seen: HashMap<_, _> = seen.iter().map(|seen| (seen.task, seen)).collect();
        let mut settled = Vec::new();
        let mut tasks = self.tasks.lock();
        for (task, _) in known {
            let Some(watched) = tasks.get_mut(task) else {
                continue;
            };
            let seen = seen.get(task);
            if seen.is_some_and(|seen| seen.version <= watched.version) {
                continue;
            }
            let mut is_awaited = false;
            for (_, watcher) in &watched.watchers {
                match watcher {
                    Watcher::Change(changed) => changed.notify_one(),
                    Watcher::Settled(_) => is_awaited = true,
                }
            }
            match seen {
                Some(seen) if is_awaited && seen.may_have_settled => settled.push(*task),
                Some(seen) => watched.version = seen.version,
                // Its followers will find that it does not exist.
                None => {}
            }
        }
        settled
    }
}

impl Watch {
    /// Waits until the task has settled with a version newer than this one, and returns it. A state that was read from
    /// the store before the watch began may arrive later, and must not count as new.
    pub async fn newer(&mut self, than: u64) -> Arc<Task> {
        loop {
            let task = self.changed().await;
            if task.version > than {
                return task;
            }
        }
    }

    /// Waits until the task has settled since the last call, and returns it.
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

impl Follow {
    /// Notes that the follower has read this version of the task, which is not reported again.
    pub fn has_read(&self, version: u64) {
        let mut tasks = self.place.watchers.tasks.lock();
        if let Some(watched) = tasks.get_mut(&self.place.task)
            // Another watcher of the task may not have seen it yet.
            && watched.watchers.len() == 1
        {
            watched.version = watched.version.max(version);
        }
    }

    /// Waits until the task has changed since the last call, or may have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for WatcherEntry {
    fn drop(&mut self) {
        let mut tasks = self.watchers.tasks.lock();
        if let Some(watched) = tasks.get_mut(&self.task) {
            watched.watchers.retain(|(id, _)| *id != self.id);
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
        let now = clock::instant();
        let _old = watchers.watch(old);
        let created = watchers.watch_new(new);
        assert_eq!(watchers.left_to_others(now), [(old, 0)]);
        let mut later = watchers.left_to_others(clock::instant() + OWN);
        later.sort_unstable();
        assert_eq!(later, [(new, 0), (old, 0)]);
        drop(created);
        assert_eq!(
            watchers.left_to_others(clock::instant() + OWN),
            [(old, 0)],
            "nobody waits for it any more"
        );
    }

    #[test]
    fn a_follower_is_woken_by_another_version_or_by_the_end_of_the_record() {
        let watchers = Arc::new(Watchers::default());
        let task = TaskId(Uuid::from_u128(1));
        let follow = watchers.follow(task);
        let seen = |version| SeenVersion {
            task,
            version,
            may_have_settled: true,
        };
        let is_woken = || {
            let woken = std::pin::pin!(follow.changed());
            futures::FutureExt::now_or_never(woken).is_some()
        };
        follow.has_read(3);
        assert_eq!(watchers.left_to_others(clock::instant()), [(task, 3)]);
        for (seen, expected) in [
            (Some(seen(3)), false),
            (Some(seen(4)), true),
            (Some(seen(4)), false),
            (None, true),
        ] {
            let seen: Vec<_> = seen.into_iter().collect();
            let settled = watchers.note(&[(task, 3)], &seen);
            assert_eq!(is_woken(), expected, "{seen:?}");
            assert!(settled.is_empty(), "nobody waits for its end");
        }
        let _watch = watchers.watch(task);
        assert_eq!(watchers.note(&[(task, 4)], &[seen(5)]), [task]);
    }
}

//! Who waits for a task: told after the commit that changed it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;

use crate::domain::{Task, TaskId};

/// What a watcher wants to be woken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    Any,
    /// The task ended, or came to rest in error.
    Settled,
}

/// All watchers of this process. Costs the writer one load where nobody watches.
#[derive(Debug, Default)]
pub struct Watchers {
    count: AtomicUsize,
    next: AtomicUsize,
    tasks: Mutex<HashMap<TaskId, Vec<Watcher>>>,
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
        let (sender, receiver) = watch::channel(None);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().entry(task).or_default().push(Watcher {
            id,
            interest,
            sender,
        });
        self.count.fetch_add(1, Ordering::Release);
        Watch {
            task,
            id,
            watchers: self.clone(),
            receiver,
        }
    }

    pub(super) fn tell<'a>(&self, changed: impl Iterator<Item = &'a Arc<Task>>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let tasks = self.lock();
        for task in changed {
            for watcher in tasks.get(&task.id()).into_iter().flatten() {
                if watcher.interest == Interest::Any || task.is_settled() {
                    watcher.sender.send_replace(Some(task.clone()));
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Vec<Watcher>>> {
        // A panic while holding the lock leaves the map valid.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
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
        let mut tasks = self.watchers.lock();
        if let Some(watchers) = tasks.get_mut(&self.task) {
            watchers.retain(|watcher| watcher.id != self.id);
            if watchers.is_empty() {
                tasks.remove(&self.task);
            }
        }
        self.watchers.count.fetch_sub(1, Ordering::Release);
    }
}

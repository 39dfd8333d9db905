//! Keys of limited tasks in which something has changed, so that another task may begin. This set is a hint: the record
//! is searched as well.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::values::TaskId;

/// The most keys, and the most tasks, that are kept in memory.
const MOST: usize = 10_000;
/// The most ended tasks that are taken at once.
const ENDED_AT_ONCE: usize = 256;

#[derive(Default)]
pub struct WaitingTasks {
    changed: Mutex<Changed>,
    woken: Notify,
}

#[derive(Default)]
struct Changed {
    keys: HashSet<String>,
    ended: Vec<TaskId>,
}

impl WaitingTasks {
    /// Notes a key of which a task has ended, or replaces others, or could not be counted.
    pub(super) fn look_at(&self, key: String) {
        let mut changed = self.changed.lock();
        if changed.keys.len() < MOST {
            changed.keys.insert(key);
        }
        drop(changed);
        self.woken.notify_one();
    }

    pub(super) fn ended(&self, task: TaskId) {
        let mut changed = self.changed.lock();
        if changed.ended.len() < MOST {
            changed.ended.push(task);
        }
    }

    /// Returns up to `most` keys, and tasks that have ended.
    pub fn take(&self, most: usize) -> (Vec<String>, Vec<TaskId>) {
        let mut changed = self.changed.lock();
        let keys: Vec<_> = changed.keys.iter().take(most).cloned().collect();
        for key in &keys {
            changed.keys.remove(key);
        }
        let ended = changed.ended.len().min(ENDED_AT_ONCE);
        let ended = changed.ended.drain(..ended).collect();
        if !changed.keys.is_empty() || !changed.ended.is_empty() {
            self.woken.notify_one();
        }
        (keys, ended)
    }

    pub async fn woken(&self) {
        self.woken.notified().await;
    }
}

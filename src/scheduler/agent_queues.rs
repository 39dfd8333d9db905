//! Which agents have steps in their queues, and when the next delayed one is due. A hint that saves
//! queries, never the truth: a poll looks at every queue anyway.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::domain::AgentName;

#[derive(Debug, Default)]
pub(super) struct AgentQueues {
    /// Agents whose queue is not known to be empty.
    waiting: Mutex<HashSet<AgentName>>,
    count: AtomicUsize,
    next_due: Mutex<Option<Instant>>,
    everywhere: AtomicBool,
    wake: Notify,
}

impl AgentQueues {
    /// Whether a step that becomes ready must wait after others. Takes no lock where no step is queued.
    pub fn has_queued(&self, agent: &AgentName) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.waiting.lock().contains(agent)
    }

    pub fn grew(&self, agent: &AgentName) {
        let mut waiting = self.waiting.lock();
        if !waiting.contains(agent) {
            waiting.insert(agent.clone());
            self.count.store(waiting.len(), Ordering::Release);
        }
        drop(waiting);
        self.wake.notify_one();
    }

    pub fn drained(&self, agent: &AgentName) {
        let mut waiting = self.waiting.lock();
        waiting.remove(agent);
        self.count.store(waiting.len(), Ordering::Release);
    }

    pub fn capacity_freed(&self, agent: &AgentName) {
        if self.has_queued(agent) {
            self.wake.notify_one();
        }
    }

    pub fn look_again(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.wake.notify_one();
        }
    }

    /// Queues may have grown that this instance does not know of.
    pub fn look_everywhere(&self) {
        self.everywhere.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Whether no steps are known to be queued.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub fn take_everywhere(&self) -> bool {
        self.everywhere.swap(false, Ordering::AcqRel)
    }

    pub fn due_in(&self, wait: Duration) {
        let due = Instant::now() + wait;
        let mut next = self.next_due.lock();
        if next.is_none_or(|known| due < known) {
            *next = Some(due);
            drop(next);
            self.wake.notify_one();
        }
    }

    /// Forgets the next due time and answers whether it has come.
    pub fn take_due(&self) -> bool {
        let mut next = self.next_due.lock();
        let due = next.is_some_and(|due| due <= Instant::now());
        if due {
            *next = None;
        }
        due
    }

    pub fn next_due_at(&self) -> Option<Instant> {
        *self.next_due.lock()
    }

    pub fn all(&self) -> Vec<AgentName> {
        self.waiting.lock().iter().cloned().collect()
    }

    pub async fn woken(&self) {
        self.wake.notified().await;
    }
}

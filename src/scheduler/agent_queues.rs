//! The agents whose queues may contain steps, and when the next delayed step is due. This is a hint that saves
//! queries, and never authoritative: a poll looks at every queue anyway.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    clock::{self, Instant},
    domain::values::AgentName,
};

#[derive(Debug, Default)]
pub(super) struct AgentQueues {
    /// Agents whose queue is not known to be empty.
    waiting: Mutex<HashSet<AgentName>>,
    count: AtomicUsize,
    next_due: Mutex<Option<Instant>>,
    everywhere: AtomicBool,
    /// The number of saved claims of this instance.
    claims: AtomicU64,
    wake: Notify,
}

impl AgentQueues {
    /// True if a step that becomes ready must wait after others. Takes no lock while no step is queued.
    pub fn has_queued(&self, agent: &AgentName) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.waiting.lock().contains(agent)
    }

    pub fn note_queued(&self, agent: &AgentName) {
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

    pub fn note_claims(&self, count: usize) {
        self.claims.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    pub fn check_again(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.wake.notify_one();
        }
    }

    /// Requests a look at all queues, because some may have grown without the knowledge of this instance.
    pub fn check_all(&self) {
        self.everywhere.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// True if no steps are known to be queued.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub fn take_everywhere(&self) -> bool {
        self.everywhere.swap(false, Ordering::AcqRel)
    }

    pub fn due_in(&self, wait: Duration) {
        let due = clock::instant() + wait;
        let mut next = self.next_due.lock();
        if next.is_none_or(|known| due < known) {
            *next = Some(due);
            drop(next);
            self.wake.notify_one();
        }
    }

    /// Returns whether the next due time has come. A due time that has come is cleared.
    pub fn take_due(&self) -> bool {
        let mut next = self.next_due.lock();
        let due = next.is_some_and(|due| due <= clock::instant());
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

    pub async fn wait_for_wake(&self) {
        self.wake.notified().await;
    }
}

//! The state that all bulkheads of an instance share, and the events by which they wake others: freed capacity, and
//! calls that could not begin.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::domain::values::AgentName;

type OnFreed = Box<dyn Fn(&AgentName) + Send + Sync>;

/// The state that all bulkheads of an instance share.
#[derive(Default)]
pub(in crate::agent) struct Gate {
    closed: AtomicBool,
    on_freed: OnceLock<OnFreed>,
    /// The recent average time that the save of a claim takes, in microseconds.
    commit_micros: AtomicU64,
}

impl Gate {
    /// Closes the gate: no slot is given out any more. Slots in use are still taken back.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn on_freed(&self, notify: OnFreed) {
        // One scheduler listens for the life of the process. A second registration is a bug, and must not silently
        // replace the first listener.
        if self.on_freed.set(notify).is_err() {
            tracing::error!("a listener for freed capacity is already set: the new one is ignored");
        }
    }

    /// Records that the save of some claims took this long.
    pub fn add_commit_time(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let known = self.commit_micros.load(Ordering::Relaxed);
        // An update that another thread makes at the same moment may be lost.
        let smoothed = known - known / 8 + took / 8;
        self.commit_micros.store(smoothed, Ordering::Relaxed);
    }

    /// Returns the recent average time that the save of a claim takes.
    pub(super) fn commit_time(&self) -> Duration {
        Duration::from_micros(self.commit_micros.load(Ordering::Relaxed))
    }

    pub fn freed(&self, agent: &AgentName) {
        if let Some(notify) = self.on_freed.get() {
            notify(agent);
        }
    }
}

/// The events of calls that could not begin: `calls` for the rate limit, `slots` for the shared slots of all
/// instances.
#[derive(Clone, Default)]
pub(in crate::agent) struct Wants {
    pub calls: Arc<Notify>,
    pub slots: Arc<Notify>,
}

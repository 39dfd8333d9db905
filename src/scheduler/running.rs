//! The calls of this process: those that were claimed and are about to start, those that are running, and those that
//! were dropped and must not start any more.

use std::collections::{HashMap, hash_map::Entry};

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::domain::{
    task::DroppedBy,
    values::{Attempt, StepRef},
};

#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<Key, TrackedCall>>);

pub(super) type Key = (StepRef, Attempt);

#[derive(Debug)]
struct TrackedCall {
    state: CallState,
    dropped_by: DroppedBy,
}

#[derive(Debug)]
enum CallState {
    /// The claim is saved; the call has not started.
    Queued,
    Running(JoinHandle<()>),
    /// No call may start for this attempt until the attempt is over in the store.
    Barred,
}

/// A call, for the comparison with the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownCall {
    pub key: Key,
    pub dropped_by: DroppedBy,
}

/// A call that was dropped.
#[derive(Debug)]
pub(super) struct DroppedCall {
    pub key: Key,
    /// The handle of the call's task, if the call had started. The call has ended when this task has.
    pub handle: Option<JoinHandle<()>>,
}

impl DroppedCall {
    /// Waits until no attempt can follow, because an abort only requests the end of a call.
    pub async fn over(self) {
        if let Some(handle) = self.handle {
            // The task was aborted, or has ended.
            let _ = handle.await;
        }
    }
}

impl Running {
    /// Adds calls whose claims have just been saved.
    pub fn queue(&self, calls: impl Iterator<Item = (Key, DroppedBy)>) {
        let mut all = self.0.lock();
        for (key, dropped_by) in calls {
            if let Entry::Vacant(entry) = all.entry(key) {
                entry.insert(TrackedCall {
                    state: CallState::Queued,
                    dropped_by,
                });
            }
        }
    }

    /// Starts a call that is queued and has not been dropped. The lock is held during the spawn, so that a call which
    /// ends at once finds the entry that it removes.
    pub fn start(&self, key: Key, spawn: impl FnOnce() -> JoinHandle<()>) {
        if let Some(held) = self.0.lock().get_mut(&key)
            && matches!(held.state, CallState::Queued)
        {
            held.state = CallState::Running(spawn());
        }
    }

    /// Removes a call that has ended without being dropped.
    pub fn ended(&self, key: Key) {
        if let Entry::Occupied(entry) = self.0.lock().entry(key)
            && !matches!(entry.get().state, CallState::Barred)
        {
            entry.remove();
        }
    }

    /// Drops a call whose attempt is over. Returns whether there was one.
    pub fn abort(&self, key: Key) -> bool {
        let mut calls = self.0.lock();
        let Entry::Occupied(entry) = calls.entry(key) else {
            return false;
        };
        match &entry.get().state {
            CallState::Barred => return false,
            CallState::Queued => {}
            CallState::Running(handle) => handle.abort(),
        }
        entry.remove();
        true
    }

    /// Drops a call whose attempt is not over, and prevents the start of another one for it until [`Running::lift`].
    /// Returns `None` if the call does not exist, or if it was dropped before.
    pub fn bar(&self, key: Key) -> Option<DroppedCall> {
        let mut calls = self.0.lock();
        let held = calls.get_mut(&key)?;
        let handle = match std::mem::replace(&mut held.state, CallState::Barred) {
            CallState::Barred => return None,
            CallState::Queued => None,
            CallState::Running(handle) => {
                handle.abort();
                Some(handle)
            }
        };
        Some(DroppedCall { key, handle })
    }

    /// Prevents the start of a call for an attempt without a known call. Returns false if there is one.
    pub fn bar_unknown(&self, key: Key) -> bool {
        match self.0.lock().entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(TrackedCall {
                    state: CallState::Barred,
                    dropped_by: DroppedBy::Nothing,
                });
                true
            }
        }
    }

    /// Removes the bar of an attempt. It is over in the store, so no call can start for it.
    pub fn lift(&self, key: Key) {
        self.0.lock().remove(&key);
    }

    /// Returns all calls that have not been dropped.
    pub fn all(&self) -> Vec<KnownCall> {
        let calls = self.0.lock();
        let known = calls
            .iter()
            .filter(|(_, held)| !matches!(held.state, CallState::Barred));
        known
            .map(|(key, held)| KnownCall {
                key: *key,
                dropped_by: held.dropped_by,
            })
            .collect()
    }

    pub fn contains(&self, key: Key) -> bool {
        self.0.lock().contains_key(&key)
    }

    /// Drops every call.
    pub fn abort_all(&self) -> Vec<DroppedCall> {
        let calls = std::mem::take(&mut *self.0.lock());
        calls
            .into_iter()
            .map(|(key, held)| {
                let handle = match held.state {
                    CallState::Running(handle) => {
                        handle.abort();
                        Some(handle)
                    }
                    CallState::Queued | CallState::Barred => None,
                };
                DroppedCall { key, handle }
            })
            .collect()
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}

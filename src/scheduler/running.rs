//! The calls of this process: those that were claimed and are about to start, those that are running, and those
//! that were dropped and must not start any more.

use std::collections::{HashMap, hash_map::Entry};

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::domain::{Attempt, StepRef};

#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<Key, TrackedCall>>);

pub(super) type Key = (StepRef, Attempt);

#[derive(Debug)]
struct TrackedCall {
    state: CallState,
    is_dropped_by_undo: bool,
}

#[derive(Debug)]
enum CallState {
    /// The claim is saved; the call has not started.
    Queued,
    UnderWay(JoinHandle<()>),
    /// No call may start under this attempt until it is over by the record.
    Barred,
}

/// A call as it is compared with the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownCall {
    pub key: Key,
    pub is_dropped_by_undo: bool,
}

/// A call that was dropped.
#[derive(Debug)]
pub(super) struct DroppedCall {
    pub key: Key,
    /// Of the call, if it had started: it has ended when this has.
    pub handle: Option<JoinHandle<()>>,
}

impl DroppedCall {
    /// Waits until no try can follow: to abort a call only asks for its end.
    pub async fn over(self) {
        if let Some(handle) = self.handle {
            // It was aborted, or has ended.
            let _ = handle.await;
        }
    }
}

impl Running {
    /// A claim is saved.
    pub fn queue(&self, calls: impl Iterator<Item = (Key, bool)>) {
        let mut all = self.0.lock();
        for (key, is_dropped_by_undo) in calls {
            if let Entry::Vacant(entry) = all.entry(key) {
                entry.insert(TrackedCall {
                    state: CallState::Queued,
                    is_dropped_by_undo,
                });
            }
        }
    }

    /// Starts a call that was queued and not dropped since. Under one lock: a call that ends at once removes
    /// an entry that is there.
    pub fn start(&self, key: Key, spawn: impl FnOnce() -> JoinHandle<()>) {
        if let Some(held) = self.0.lock().get_mut(&key)
            && matches!(held.state, CallState::Queued)
        {
            held.state = CallState::UnderWay(spawn());
        }
    }

    /// A call has ended by itself.
    pub fn ended(&self, key: Key) {
        if let Entry::Occupied(entry) = self.0.lock().entry(key)
            && !matches!(entry.get().state, CallState::Barred)
        {
            entry.remove();
        }
    }

    /// Drops a call whose attempt is over. Whether there was one.
    pub fn abort(&self, key: Key) -> bool {
        let mut calls = self.0.lock();
        let Entry::Occupied(entry) = calls.entry(key) else {
            return false;
        };
        match &entry.get().state {
            CallState::Barred => return false,
            CallState::Queued => {}
            CallState::UnderWay(handle) => handle.abort(),
        }
        entry.remove();
        true
    }

    /// Drops a call whose attempt is not over, and lets none start under it until [`Running::lift`]. `None`
    /// where there is none, or where it was dropped before.
    pub fn bar(&self, key: Key) -> Option<DroppedCall> {
        let mut calls = self.0.lock();
        let held = calls.get_mut(&key)?;
        let handle = match std::mem::replace(&mut held.state, CallState::Barred) {
            CallState::Barred => return None,
            CallState::Queued => None,
            CallState::UnderWay(handle) => {
                handle.abort();
                Some(handle)
            }
        };
        Some(DroppedCall { key, handle })
    }

    /// Lets no call start under an attempt that none is known of; false where there is one.
    pub fn bar_unknown(&self, key: Key) -> bool {
        match self.0.lock().entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(TrackedCall {
                    state: CallState::Barred,
                    is_dropped_by_undo: false,
                });
                true
            }
        }
    }

    /// The attempt is over by the record: nothing can start under it any more.
    pub fn lift(&self, key: Key) {
        self.0.lock().remove(&key);
    }

    /// All that have not been dropped.
    pub fn all(&self) -> Vec<KnownCall> {
        let calls = self.0.lock();
        let known = calls
            .iter()
            .filter(|(_, held)| !matches!(held.state, CallState::Barred));
        known
            .map(|(key, held)| KnownCall {
                key: *key,
                is_dropped_by_undo: held.is_dropped_by_undo,
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
                    CallState::UnderWay(handle) => {
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

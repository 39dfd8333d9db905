//! The calls under way in this process.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::task::AbortHandle;

use crate::domain::{Attempt, StepRef};

#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<(StepRef, Attempt), AbortHandle>>);

impl Running {
    /// Starts a call and enters it, under one lock: a call that ends at once removes an entry that
    /// is there.
    pub fn start(&self, step: StepRef, attempt: Attempt, spawn: impl FnOnce() -> AbortHandle) {
        let mut calls = self.lock();
        calls.insert((step, attempt), spawn());
    }

    pub fn remove(&self, step: StepRef, attempt: Attempt) {
        self.lock().remove(&(step, attempt));
    }

    /// Whether there was such a call.
    pub fn abort(&self, step: StepRef, attempt: Attempt) -> bool {
        let call = self.lock().remove(&(step, attempt));
        call.inspect(AbortHandle::abort).is_some()
    }

    pub fn all(&self) -> Vec<(StepRef, Attempt)> {
        self.lock().keys().copied().collect()
    }

    pub fn contains(&self, step: StepRef, attempt: Attempt) -> bool {
        self.lock().contains_key(&(step, attempt))
    }

    /// Drops every call and answers which they were.
    pub fn abort_all(&self) -> Vec<(StepRef, Attempt)> {
        let calls = std::mem::take(&mut *self.lock());
        calls
            .into_iter()
            .map(|(call, handle)| {
                handle.abort();
                call
            })
            .collect()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(StepRef, Attempt), AbortHandle>> {
        // A panic while holding the lock leaves the map valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

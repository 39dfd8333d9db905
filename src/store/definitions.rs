//! Compiled workflow definitions, kept so that a task of a known workflow compiles nothing.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use lru::LruCache;

use crate::domain::{Definition, WorkflowRef};

/// Shared by the readers, the writer and the API. A version never changes, so nothing here is stale.
#[derive(Debug)]
pub struct Definitions(Mutex<LruCache<WorkflowRef, Arc<Definition>>>);

impl Definitions {
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self(Mutex::new(LruCache::new(capacity)))
    }

    pub fn get(&self, workflow: &WorkflowRef) -> Option<Arc<Definition>> {
        self.lock().get(workflow).cloned()
    }

    pub fn put(&self, workflow: WorkflowRef, definition: Arc<Definition>) {
        self.lock().put(workflow, definition);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<WorkflowRef, Arc<Definition>>> {
        // A panic while holding the lock leaves the cache valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Compiled workflow definitions, kept so that a task of a known workflow compiles nothing.

use std::{num::NonZeroUsize, sync::Arc};

use lru::LruCache;
use parking_lot::Mutex;

use crate::domain::{Definition, WorkflowRef};

/// Shared by the readers, the writer and the API. A version never changes, so nothing here is stale.
#[derive(Debug)]
pub struct Definitions(Mutex<LruCache<WorkflowRef, Arc<Definition>>>);

impl Definitions {
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self(Mutex::new(LruCache::new(capacity)))
    }

    pub fn get(&self, workflow: &WorkflowRef) -> Option<Arc<Definition>> {
        self.0.lock().get(workflow).cloned()
    }

    pub fn put(&self, workflow: WorkflowRef, definition: Arc<Definition>) {
        self.0.lock().put(workflow, definition);
    }
}

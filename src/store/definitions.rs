//! Compiled definitions, kept so that a task of a known definition compiles nothing.

use std::{num::NonZeroUsize, sync::Arc};

use lru::LruCache;
use parking_lot::Mutex;

use super::inline_definitions::InlineDefinitions;
use crate::domain::{Definition, WorkflowRef};

/// Shared by the readers, the writer and the API.
#[derive(Debug)]
pub struct Definitions {
    /// A version never changes, so nothing here is stale.
    workflows: Mutex<LruCache<WorkflowRef, Arc<Definition>>>,
    pub inline: InlineDefinitions,
}

impl Definitions {
    /// `capacity`: the most workflow versions that are kept.
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self {
            workflows: Mutex::new(LruCache::new(capacity)),
            inline: InlineDefinitions::default(),
        }
    }

    pub fn get(&self, workflow: &WorkflowRef) -> Option<Arc<Definition>> {
        self.workflows.lock().get(workflow).cloned()
    }

    pub fn put(&self, workflow: WorkflowRef, definition: Arc<Definition>) {
        self.workflows.lock().put(workflow, definition);
    }
}

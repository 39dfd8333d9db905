//! Compiled definitions, kept so that a task of a known definition compiles nothing.

use std::{num::NonZeroUsize, sync::Arc};

use lru::LruCache;
use parking_lot::Mutex;

use super::inline::InlineDefinitions;
use crate::domain::{
    definition::{Definition, StepLayout},
    values::WorkflowRef,
};

/// Shared by the readers, the writer and the API.
#[derive(Debug)]
pub struct CompiledDefinitions {
    /// A version never changes, so nothing here is stale.
    workflows: Mutex<LruCache<WorkflowRef, Arc<Definition>>>,
    /// The definitions of tasks that have had another version before. Most such tasks share one.
    laid_out: Mutex<LruCache<(WorkflowRef, StepLayout), Arc<Definition>>>,
    pub inline: InlineDefinitions,
}

impl CompiledDefinitions {
    /// `capacity`: the most workflow versions that are kept.
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self {
            workflows: Mutex::new(LruCache::new(capacity)),
            laid_out: Mutex::new(LruCache::new(capacity)),
            inline: InlineDefinitions::default(),
        }
    }

    pub fn get(&self, workflow: &WorkflowRef) -> Option<Arc<Definition>> {
        self.workflows.lock().get(workflow).cloned()
    }

    /// Returns a version with its steps at the indexes of the layout, or `None` if they do not fit it.
    pub fn laid_out(
        &self,
        workflow: &WorkflowRef,
        definition: &Definition,
        layout: &StepLayout,
    ) -> Option<Arc<Definition>> {
        let key = (workflow.clone(), layout.clone());
        if let Some(known) = self.laid_out.lock().get(&key) {
            return Some(known.clone());
        }
        let laid_out = Arc::new(definition.with_layout(layout)?);
        self.laid_out.lock().put(key, laid_out.clone());
        Some(laid_out)
    }

    pub fn put(&self, workflow: WorkflowRef, definition: Arc<Definition>) {
        self.workflows.lock().put(workflow, definition);
    }
}

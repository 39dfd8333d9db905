//! Limits of running tasks: how many tasks of a workflow with the same key run at once, and what happens with further
//! tasks.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{definition::OnConflict, queue::key::short, task::aggregate::Details};

/// A key of a task for a limit: the task counts as one of this key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskKey {
    /// The workflow, the template and the key, as one text.
    pub name: String,
    pub by: String,
    pub key: String,
    pub max_running: u32,
    pub on_conflict: OnConflict,
}

/// A key for which a task waits.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct AwaitedKey {
    #[schema(example = "{{ task.labels.customer }}")]
    pub by: String,
    #[schema(example = "acme")]
    pub key: String,
    #[schema(example = 1)]
    pub max_running: u32,
    pub on_conflict: OnConflict,
}

impl Details {
    /// Returns the keys of the task for its limits, in one order for all tasks.
    pub fn task_keys(&self) -> Vec<TaskKey> {
        let Some(workflow) = &self.workflow else {
            return Vec::new();
        };
        let limits = self.definition.policies.limits.iter();
        let keys = limits.map(|limit| {
            let key = short(self.render_key(&limit.key));
            // Texts always serialise.
            let name = serde_json::to_string(&(workflow.name.as_str(), &limit.by, &key));
            TaskKey {
                name: name.unwrap_or_default(),
                by: limit.by.clone(),
                key,
                max_running: limit.max_running,
                on_conflict: limit.on_conflict,
            }
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        keys.dedup_by(|a, b| a.name == b.name);
        keys
    }

    /// Returns the keys as [`Details::task_keys`] does, in the form that a response shows.
    pub fn awaited_keys(&self) -> Vec<AwaitedKey> {
        let limits = self.definition.policies.limits.iter();
        let keys = limits.map(|limit| AwaitedKey {
            by: limit.by.clone(),
            key: short(self.render_key(&limit.key)),
            max_running: limit.max_running,
            on_conflict: limit.on_conflict,
        });
        keys.collect()
    }
}

//! A cache of compiled workflows, so that a submission reads and compiles nothing.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;

use crate::{
    api::{App, Problem},
    domain::{
        definition::Definition,
        values::{Span, WorkflowName, WorkflowRef, nearest},
    },
    store::{ActiveWorkflow, Reader, Store, StoreError, StoredWorkflow, WorkflowRecord},
};

/// A compiled version of a workflow.
#[derive(Clone, Debug)]
pub struct CompiledWorkflow {
    pub workflow: WorkflowRef,
    pub definition: Arc<Definition>,
    /// The time limit of tasks of this version that set none of their own.
    pub complete_within: Option<Span>,
}

/// A choice among the versions of a workflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VersionChoice {
    /// The version of tasks that name none.
    Active,
    /// The version that was registered last.
    Latest,
    Number(u32),
}

impl From<Option<u32>> for VersionChoice {
    fn from(version: Option<u32>) -> Self {
        version.map_or(Self::Active, Self::Number)
    }
}

/// The active versions of all workflows in use. It is bounded because only an administrator can register workflows.
#[derive(Default)]
pub struct WorkflowCache(ArcSwap<ActiveVersions>);

#[derive(Clone, Default)]
struct ActiveVersions {
    known: HashMap<WorkflowName, CachedVersion>,
    /// The number of calls of `clear`. A version that was read before the last of them may be outdated.
    clear_count: u64,
}

#[derive(Clone)]
struct CachedVersion {
    workflow: CompiledWorkflow,
    /// The number of the workflow's last activation when the version was read; 0 if there was none.
    activations: u64,
}

impl WorkflowCache {
    fn active(&self, name: &WorkflowName) -> Option<CompiledWorkflow> {
        let versions = self.0.load();
        versions.known.get(name).map(|known| known.workflow.clone())
    }

    /// Returns the name that is most similar to `name`, among the workflows in use here.
    pub fn nearest(&self, name: &WorkflowName) -> Option<WorkflowName> {
        let versions = self.0.load();
        let known = versions.known.keys().map(WorkflowName::as_str);
        nearest(name.as_str(), known).map(WorkflowName::new)
    }

    /// Empties the cache, so that versions are loaded on next use: other instances may have registered or activated
    /// some.
    pub fn clear(&self) {
        self.0.rcu(|versions| ActiveVersions {
            known: HashMap::new(),
            clear_count: versions.clear_count + 1,
        });
    }

    /// Does what the function [`resolve`] does.
    pub async fn resolve(
        &self,
        store: &Store,
        reader: &Reader,
        name: &WorkflowName,
        version: impl Into<VersionChoice>,
    ) -> Result<Option<CompiledWorkflow>, StoreError> {
        let version = version.into();
        let active = self.active(name);
        if let Some(active) = active
            && (version == VersionChoice::Active
                || version == VersionChoice::Number(active.workflow.version))
        {
            return Ok(Some(active));
        }
        let record = match version {
            VersionChoice::Active => return self.read_active(store, reader, name).await,
            VersionChoice::Latest => reader.workflow(name, None).await?,
            VersionChoice::Number(version) => reader.workflow(name, Some(version)).await?,
        };
        record.map(|record| compile(store, &record)).transpose()
    }

    async fn read_active(
        &self,
        store: &Store,
        reader: &Reader,
        name: &WorkflowName,
    ) -> Result<Option<CompiledWorkflow>, StoreError> {
        let forgotten = self.clear_count();
        let Some(active) = reader.active_workflow(name).await? else {
            return Ok(None);
        };
        let ActiveWorkflow { record, number } = active;
        let known = compile(store, &record)?;
        self.insert_if_newer(&known, number, forgotten);
        Ok(Some(known))
    }

    /// Returns the number of calls of `clear` until now. It must be read before the record is read.
    fn clear_count(&self) -> u64 {
        self.0.load().clear_count
    }

    /// Keeps the workflow unless a newer version is cached, or the cache was emptied since `clear_count` was read. So a
    /// slow reader neither replaces a newer version nor brings back an outdated one.
    fn insert_if_newer(&self, workflow: &CompiledWorkflow, activations: u64, forgotten: u64) {
        let rank = |activations: u64, workflow: &CompiledWorkflow| {
            (activations, workflow.workflow.version)
        };
        self.0.rcu(|versions| {
            let mut next = ActiveVersions::clone(versions);
            if next.clear_count != forgotten {
                return next;
            }
            let name = &workflow.workflow.name;
            let known = next.known.get(name);
            let newest = known.map(|known| rank(known.activations, &known.workflow));
            if newest.is_none_or(|newest| newest < rank(activations, workflow)) {
                let workflow = workflow.clone();
                let known = CachedVersion {
                    workflow,
                    activations,
                };
                next.known.insert(name.clone(), known);
            }
            next
        });
    }
}

/// Returns a version of a workflow; `None` if it does not exist. The active one comes from memory once this process
/// has used it.
pub async fn resolve(
    app: &App,
    name: &WorkflowName,
    version: impl Into<VersionChoice>,
) -> Result<Option<CompiledWorkflow>, Problem> {
    let (store, reader) = (&app.store, &app.store.reader);
    Ok(app.workflows.resolve(store, reader, name, version).await?)
}

/// Reads the active version from the record, so that [`resolve`] returns no older one.
pub async fn load_active(app: &App, name: &WorkflowName) -> Result<(), Problem> {
    let reader = &app.store.reader;
    app.workflows.read_active(&app.store, reader, name).await?;
    Ok(())
}

/// Compiles a stored workflow. It was validated when it was registered, so the agents that it names are not checked
/// again.
fn compile(store: &Store, record: &WorkflowRecord) -> Result<CompiledWorkflow, StoreError> {
    let workflow = WorkflowRef {
        name: record.name.clone(),
        version: record.version,
    };
    let stored = StoredWorkflow::of(record)?;
    let definition = match store.definitions.get(&workflow) {
        Some(definition) => definition,
        None => {
            let compiled = stored.definition();
            let definition = Arc::new(compiled.map_err(|error| record.corrupt(error))?);
            store.definitions.put(workflow.clone(), definition.clone());
            definition
        }
    };
    Ok(CompiledWorkflow {
        workflow,
        definition,
        complete_within: stored.complete_within,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{definition::Policies, template::Payload};

    fn known(version: u32) -> CompiledWorkflow {
        CompiledWorkflow {
            workflow: WorkflowRef {
                name: WorkflowName::new("order"),
                version,
            },
            definition: Arc::new(Definition {
                stops: Vec::new(),
                finally: Vec::new(),
                whiles: Vec::new(),
                steps: Vec::new(),
                undos: Vec::new(),
                order: Vec::new(),
                policies: Policies::default(),
                input_schema: None,
                output: None,
                source: Payload::null(),
                laid_out: None,
            }),
            complete_within: None,
        }
    }

    fn active(workflows: &WorkflowCache) -> Option<u32> {
        let active = workflows.active(&WorkflowName::new("order"));
        active.map(|active| active.workflow.version)
    }

    #[test]
    fn an_older_answer_never_replaces_a_newer_one() {
        let workflows = WorkflowCache::default();
        // The third one is a roll-back, and the fourth was read before it.
        for (version, activations, newest) in [(2, 0, 2), (1, 0, 2), (1, 1, 1), (3, 0, 1)] {
            workflows.insert_if_newer(&known(version), activations, workflows.clear_count());
            assert_eq!(active(&workflows), Some(newest));
        }
    }

    #[test]
    fn what_was_read_before_it_was_forgotten_is_not_learned() {
        let workflows = WorkflowCache::default();
        let before = workflows.clear_count();
        workflows.clear();
        workflows.insert_if_newer(&known(2), 0, before);
        assert_eq!(active(&workflows), None);
        workflows.insert_if_newer(&known(1), 1, workflows.clear_count());
        assert_eq!(active(&workflows), Some(1));
    }
}

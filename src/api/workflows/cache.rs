//! A cache of compiled workflows, so that a submission reads and compiles nothing.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;

use crate::{
    api::{App, Problem},
    domain::{Definition, Span, WorkflowName, WorkflowRef, nearest},
    store::{StoredWorkflow, WorkflowRecord},
};

/// A compiled version of a workflow.
#[derive(Clone, Debug)]
pub struct CompiledWorkflow {
    pub workflow: WorkflowRef,
    pub definition: Arc<Definition>,
    /// The time limit of its tasks that set none of their own.
    pub complete_within: Option<Span>,
}

/// The latest versions of all workflows in use. It is bounded because only an administrator can register workflows.
#[derive(Default)]
pub struct WorkflowCache(ArcSwap<HashMap<WorkflowName, CompiledWorkflow>>);

impl WorkflowCache {
    fn latest(&self, name: &WorkflowName) -> Option<CompiledWorkflow> {
        self.0.load().get(name).cloned()
    }

    /// Among the workflows in use here, the one whose name is most similar.
    pub fn nearest(&self, name: &WorkflowName) -> Option<WorkflowName> {
        let known = self.0.load();
        nearest(name.as_str(), known.keys().map(WorkflowName::as_str)).map(WorkflowName::new)
    }

    /// Other instances may have registered newer versions: they are loaded on next use.
    pub fn forget(&self) {
        self.0.store(Arc::default());
    }

    /// A slower reader never replaces a newer version by an older one.
    pub(super) fn learn(&self, known: &CompiledWorkflow) {
        self.0.rcu(|latest| {
            let mut next = HashMap::clone(latest);
            let newest = next
                .entry(known.workflow.name.clone())
                .or_insert_with(|| known.clone());
            if newest.workflow.version < known.workflow.version {
                *newest = known.clone();
            }
            next
        });
    }
}

/// The latest version of a workflow, or the given version; `None` if it does not exist. The latest comes from
/// memory once this process has used or registered it.
pub async fn resolve(
    app: &App,
    name: &WorkflowName,
    version: Option<u32>,
) -> Result<Option<CompiledWorkflow>, Problem> {
    let latest = app.workflows.latest(name);
    if let Some(latest) = latest
        && version.is_none_or(|version| version == latest.workflow.version)
    {
        return Ok(Some(latest));
    }
    let Some(record) = app.store.reader.workflow(name, version).await? else {
        return Ok(None);
    };
    let known = compile(app, &record)?;
    if version.is_none() {
        app.workflows.learn(&known);
    }
    Ok(Some(known))
}

/// Reads the latest version from the record, so that [`resolve`] returns no older one.
pub async fn learn_latest(app: &App, name: &WorkflowName) -> Result<(), Problem> {
    if let Some(record) = app.store.reader.workflow(name, None).await? {
        let latest = app.workflows.latest(name);
        if latest.is_none_or(|latest| latest.workflow.version < record.version) {
            app.workflows.learn(&compile(app, &record)?);
        }
    }
    Ok(())
}

/// A stored workflow was validated when it was registered: it is compiled without checking whether its agents exist
/// now.
fn compile(app: &App, record: &WorkflowRecord) -> Result<CompiledWorkflow, Problem> {
    let workflow = WorkflowRef {
        name: record.name.clone(),
        version: record.version,
    };
    let stored = StoredWorkflow::of(record)?;
    let definition = match app.store.definitions.get(&workflow) {
        Some(definition) => definition,
        None => {
            let compiled = stored.definition();
            let definition = Arc::new(compiled.map_err(|error| record.corrupt(error))?);
            app.store
                .definitions
                .put(workflow.clone(), definition.clone());
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
    use crate::domain::{Payload, Policies};

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let name = WorkflowName::new("order");
        let known = |version| CompiledWorkflow {
            workflow: WorkflowRef {
                name: name.clone(),
                version,
            },
            definition: Arc::new(Definition {
                steps: Vec::new(),
                undos: Vec::new(),
                order: Vec::new(),
                policies: Policies::default(),
                input_schema: None,
                output: None,
                source: Payload::null(),
            }),
            complete_within: None,
        };
        let workflows = WorkflowCache::default();
        for (learned, latest) in [(2, 2), (1, 2), (3, 3)] {
            workflows.learn(&known(learned));
            let found = workflows.latest(&name).unwrap();
            assert_eq!(found.workflow.version, latest);
        }
    }
}

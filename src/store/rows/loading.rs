//! Loads tasks: requests the workflows of their rows, then assembles each task of its row and those of its steps.

use std::{collections::HashMap, sync::Arc};

use super::{
    columns::Columns,
    task::{assemble, workflow_ref},
};
use crate::domain::{
    definition::{Definition, StepLayout},
    task::Task,
    values::{TaskId, WorkflowRef},
};
use crate::store::{
    CompiledDefinitions, StoreError, UnreadableTask, Validation,
    definition::stored_workflow::{StoredWorkflow, compile},
    error::corrupt,
};

/// The result of loading tasks.
#[derive(Debug, Default)]
pub struct Loaded {
    pub tasks: Vec<Task>,
    /// The tasks that exist and cannot be read. They do not affect the others.
    pub unreadable: Vec<UnreadableTask>,
    /// True if a damaged part of the database was read: on SQLite the transaction can write nothing any more.
    pub is_spoilt: bool,
}

impl Loaded {
    /// Returns the one requested task, if it exists.
    pub fn one(mut self) -> Result<Option<Task>, StoreError> {
        match self.unreadable.pop() {
            Some(unreadable) => Err(unreadable.into()),
            None => Ok(self.tasks.pop()),
        }
    }
}

/// Converts the rows of tasks and their steps to aggregates: the unknown workflows are requested first, and the tasks
/// are assembled after that.
pub struct Loading<'d, R> {
    tasks: Vec<R>,
    definitions: &'d CompiledDefinitions,
    /// The workflows, or why one cannot be read. They are kept here as well, because the cache of `definitions` is
    /// bounded, and may evict what it gets.
    workflows: HashMap<WorkflowRef, Result<Arc<Definition>, String>>,
}

impl<'d, R: Columns> Loading<'d, R> {
    pub fn new(tasks: Vec<R>, definitions: &'d CompiledDefinitions) -> Self {
        Self {
            tasks,
            definitions,
            workflows: HashMap::new(),
        }
    }

    /// Returns the workflows that must be passed to [`Loading::workflow`].
    pub fn missing(&mut self) -> Vec<WorkflowRef> {
        let mut missing = Vec::new();
        for row in &self.tasks {
            // Values that cannot be read here cause an error when the task is assembled.
            let (Ok(None), Ok(Some(workflow))) = (row.text("steps"), workflow_ref(row)) else {
                continue;
            };
            if self.workflows.contains_key(&workflow) || missing.contains(&workflow) {
                continue;
            }
            match self.definitions.get(&workflow) {
                Some(known) => {
                    self.workflows.insert(workflow, Ok(known));
                }
                None => missing.push(workflow),
            }
        }
        missing
    }

    pub fn workflow(&mut self, workflow: WorkflowRef, found: Result<Option<R>, StoreError>) {
        let definition = found.and_then(|row| {
            let row = row.ok_or_else(|| corrupt("it is missing"))?;
            let stored = StoredWorkflow::parse(&row.get::<String>("body")?)?;
            stored.definition().map(Arc::new)
        });
        if let Ok(definition) = &definition {
            self.definitions.put(workflow.clone(), definition.clone());
        }
        let definition = definition.map_err(|error| {
            let WorkflowRef { name, version } = &workflow;
            format!(
                "version {version} of its workflow {name}: {}",
                error.damage()
            )
        });
        self.workflows.insert(workflow, definition);
    }

    /// Returns the tasks, each with its steps. `steps` must be in the order of tasks and their steps.
    pub fn tasks(self, steps: Vec<R>) -> Result<Loaded, StoreError> {
        let mut steps = steps.into_iter().peekable();
        let mut loaded = Loaded {
            tasks: Vec::with_capacity(self.tasks.len()),
            unreadable: Vec::new(),
            is_spoilt: false,
        };
        for row in &self.tasks {
            let id: TaskId = row.get("id")?;
            let of = |row: &R| row.get::<TaskId>("task_id").ok();
            // Steps without a task are ignored.
            while steps.next_if(|row| of(row) < Some(id)).is_some() {}
            let own = std::iter::from_fn(|| steps.next_if(|row| of(row) == Some(id)));
            let own: Vec<_> = own.collect();
            match self.definition(row).and_then(|of| assemble(row, of, &own)) {
                Ok(task) => loaded.tasks.push(task),
                Err(error) => loaded.unreadable.push(UnreadableTask {
                    task: id,
                    reason: error.damage(),
                }),
            }
        }
        Ok(loaded)
    }

    pub(super) fn definition(&self, row: &R) -> Result<Arc<Definition>, StoreError> {
        if let Some(steps) = row.text("steps")? {
            return inline(row.text("policies")?.as_deref(), &steps, self.definitions);
        }
        let workflow = workflow_ref(row)?;
        let found = workflow
            .as_ref()
            .and_then(|workflow| self.workflows.get(workflow));
        let (Some(workflow), Some(found)) = (&workflow, found) else {
            return Err(corrupt("it has neither steps nor a workflow"));
        };
        let definition = found.clone().map_err(StoreError::Corrupt)?;
        let Some(layout) = row.text("layout")? else {
            return Ok(definition);
        };
        let layout = StepLayout::parse(&layout);
        let laid_out = layout.and_then(|layout| {
            let definitions = &self.definitions;
            definitions.laid_out(workflow, &definition, &layout)
        });
        laid_out.ok_or_else(|| corrupt("the order of its steps does not fit its workflow"))
    }
}

/// Returns the definition of inline steps. Tasks in memory with the same steps share it.
fn inline(
    policies: Option<&str>,
    steps: &str,
    definitions: &CompiledDefinitions,
) -> Result<Arc<Definition>, StoreError> {
    let text = definitions.inline.text(steps, policies);
    if let Some(known) = definitions.inline.get(&text, Validation::Stored) {
        return Ok(known);
    }
    let definition = Arc::new(compile(policies, steps)?);
    definitions
        .inline
        .put(&text, &definition, Validation::Stored);
    Ok(definition)
}

//! Saves what a task that has moved to another version of its workflow changes in addition to other changes: columns
//! that otherwise never change.

use crate::domain::values::AgentName;
use crate::store::{Batch, StoreError, Transaction, batch::TaskChange, statement::Statement};

/// Deletes the records of running steps that the version before limited. Relies on limited_steps_by_task.
const FORGET_LIMITED: &str = "DELETE FROM limited_steps WHERE task_id = $1";

/// Relies on the primary key, as do the others.
const SET_VERSION: &str = "UPDATE tasks SET workflow_version = $2 WHERE id = $1";

const SET_LAYOUT: &str = "UPDATE task_details SET layout = $2 WHERE task_id = $1";

const SET_AGENT: &str =
    "UPDATE steps SET agent = $3 WHERE task_id = $1 AND idx = $2 AND agent <> $3";

impl Batch {
    /// Returns whether a task of the batch has moved to another version of its workflow.
    pub fn has_moves(&self) -> bool {
        self.changes.iter().any(TaskChange::is_move)
    }
}

impl TaskChange {
    pub fn is_move(&self) -> bool {
        self.base.is_some() && self.had_steps.is_some()
    }

    /// Returns the number of steps that may have rows. Steps from this index on may have none yet.
    pub fn known_steps(&self) -> usize {
        self.had_steps.unwrap_or(self.task.steps.len())
    }
}

impl Transaction<'_> {
    /// Saves the moves after the rest of the batch was saved, and the rows of its tasks are locked.
    pub(in crate::store) async fn save_moves(&mut self, batch: &Batch) -> Result<(), StoreError> {
        for change in batch.changes.iter().filter(|change| change.is_move()) {
            self.save_move(change).await?;
        }
        Ok(())
    }

    async fn save_move(&mut self, change: &TaskChange) -> Result<(), StoreError> {
        let (task, id) = (&change.task, change.task.id());
        let version = task.details.workflow.as_ref();
        let version = version.map(|workflow| workflow.version);
        self.run(Statement::new(SET_VERSION).bind(id).bind(version))
            .await?;
        let layout = task.details.definition.laid_out.as_ref();
        let layout = layout.map(|laid_out| laid_out.layout.as_json());
        self.run(Statement::new(SET_LAYOUT).bind(id).bind(layout))
            .await?;
        if !task.has_step_limits() {
            // They would not be deleted when the steps end.
            self.run(Statement::new(FORGET_LIMITED).bind(id)).await?;
        }
        let known = change.steps.iter();
        for index in known.filter(|index| index.at() < change.known_steps()) {
            let agent = task.definition(*index).agent();
            let set = Statement::new(SET_AGENT)
                .bind(id)
                .bind(*index)
                .bind(agent.map_or("", AgentName::as_str));
            self.run(set).await?;
        }
        Ok(())
    }
}

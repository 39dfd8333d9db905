//! Reads the summaries of tasks, as pages of tasks list them, and the predictions that tasks will be late.

use super::{columns::Columns, task::workflow_ref};
use crate::domain::{
    values::{AgentName, TaskId, Timestamp},
    view::AtRisk,
};
use crate::store::{StoreError, TaskSummary, UnreadableTask};

/// Reads a row with the columns of `tasks_at_risk`.
pub fn at_risk(row: &impl Columns) -> Result<AtRisk, StoreError> {
    let agent: String = row.get("agent")?;
    Ok(AtRisk {
        predicted_end: row.get("predicted_end")?,
        agent: AgentName::new(agent),
        since: row.get("since")?,
    })
}

pub fn summary(row: &impl Columns) -> Result<TaskSummary, StoreError> {
    let task = row.get("id")?;
    summary_of(task, row).map_err(|error| {
        let reason = error.damage();
        UnreadableTask { task, reason }.into()
    })
}

fn summary_of(id: TaskId, row: &impl Columns) -> Result<TaskSummary, StoreError> {
    Ok(TaskSummary {
        id,
        key: row.get("key")?,
        workflow: workflow_ref(row)?,
        state: row.get("state")?,
        priority: row.get("priority")?,
        labels: row.get("labels")?,
        created_at: row.get("created_at")?,
        start_at: row.get("start_at")?,
        complete_by: row.get("complete_by")?,
        at_risk: match row.get::<Option<Timestamp>>("since")? {
            Some(_) => Some(at_risk(row)?),
            None => None,
        },
        ended_at: row.get("ended_at")?,
        version: row.get("version")?,
        error: row.get("error")?,
    })
}

//! The tasks of a workflow by version. Only the latest tasks are looked at, so that it costs the same with any number of them.

use crate::domain::{
    task::TaskStatus,
    values::{Timestamp, WorkflowName},
};
use crate::store::{Reader, StoreError, rows::Columns, statement::Statement};

/// The most tasks of a workflow that are looked at, and the most in error beside them.
pub const MOST_OF_WORKFLOW: u64 = 1000;

/// The number of tasks of one version in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionCount {
    pub version: u32,
    pub state: TaskStatus,
    pub tasks: u64,
    /// The time of the first of them.
    pub since: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkflowUsage {
    /// The numbers of the latest [`MOST_OF_WORKFLOW`] tasks.
    pub latest: Vec<VersionCount>,
    /// The numbers of the latest [`MOST_OF_WORKFLOW`] tasks in error, however old they are.
    pub in_error: Vec<VersionCount>,
}

/// Relies on tasks_by_workflow or tasks_failed. `{tasks}` is the table with its index.
const LATEST: &str = r#"
SELECT workflow_version, state, count(*) AS tasks, min(created_at) AS since FROM (
    SELECT workflow_version, state, created_at FROM {tasks}
    WHERE workflow = $1{condition} ORDER BY id DESC LIMIT $2) AS counted
GROUP BY workflow_version, state ORDER BY workflow_version DESC, state"#;

pub(super) fn sql(tasks: &str, condition: &str) -> String {
    { LATEST.replace("{tasks}", tasks) }.replace("{condition}", condition)
}

impl Reader {
    pub async fn workflow_usage(&self, name: &WorkflowName) -> Result<WorkflowUsage, StoreError> {
        let statement = |index, condition| {
            let table = self.source.by_index("tasks", index);
            let statement = Statement::new(sql(&table, condition)).bind(name);
            statement.bind(MOST_OF_WORKFLOW)
        };
        let latest = statement("tasks_by_workflow", "");
        let in_error = statement("tasks_failed", " AND state = 'error'");
        let mut found = self
            .view_along_indexes(vec![latest, in_error])
            .await?
            .into_iter();
        let mut counts = || {
            let rows = found.next().unwrap_or_default();
            let counts = rows.iter().map(|row| {
                let state: String = row.get("state")?;
                let known = TaskStatus::ALL.iter().find(|known| known.as_str() == state);
                Ok(VersionCount {
                    version: row.get("workflow_version")?,
                    state: *known
                        .ok_or_else(|| StoreError::Corrupt(format!("the state {state:?}")))?,
                    tasks: row.get("tasks")?,
                    since: row.get("since")?,
                })
            });
            counts.collect::<Result<Vec<_>, StoreError>>()
        };
        Ok(WorkflowUsage {
            latest: counts()?,
            in_error: counts()?,
        })
    }
}

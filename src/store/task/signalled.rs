//! Finds the tasks that a signal may be meant for, by their key.

use crate::domain::values::{TaskId, Timestamp};
use crate::store::{
    Reader, StoreError,
    rows::{Columns, Row},
    statement::Statement,
};

/// Relies on tasks_by_key. Bounds the tasks that are read, even if the key was used often.
const OF_KEY: &str = r#"
SELECT id, ended_at FROM (
    SELECT id, workflow, ended_at FROM tasks WHERE "key" = $1 ORDER BY id DESC LIMIT 100) AS newest
WHERE workflow = $2 ORDER BY id DESC"#;

/// The newest tasks of a workflow with a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TasksOfKey {
    /// The tasks that have not ended, newest first.
    pub live: Vec<TaskId>,
    /// The newest task that has ended.
    pub ended: Option<TaskId>,
}

impl Reader {
    pub async fn tasks_of_key(&self, workflow: &str, key: &str) -> Result<TasksOfKey, StoreError> {
        let statement = Statement::new(OF_KEY).bind(key).bind(workflow);
        let task = |row: &Row| Ok((row.get("id")?, row.get("ended_at")?));
        let found: Vec<(TaskId, Option<Timestamp>)> = self.all(statement, task).await?;
        let mut tasks = TasksOfKey::default();
        for (task, ended_at) in found {
            match ended_at {
                None => tasks.live.push(task),
                Some(_) => {
                    tasks.ended.get_or_insert(task);
                }
            }
        }
        Ok(tasks)
    }
}

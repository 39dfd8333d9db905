//! The tasks that a signal may be meant for, by their key.

use super::{
    Reader, StoreError,
    rows::{Columns, Row},
    statement::Statement,
};
use crate::domain::{TaskId, Timestamp};

/// Relies on tasks_by_key. So many at most are looked at, however often the key was used.
const OF_KEY: &str = r#"
SELECT id, ended_at FROM (
    SELECT id, workflow, ended_at FROM tasks WHERE "key" = $1 ORDER BY id DESC LIMIT 100) AS newest
WHERE workflow = $2 ORDER BY id DESC"#;

/// The newest tasks of a workflow with a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TasksOfKey {
    /// Those that have not ended, newest first.
    pub live: Vec<TaskId>,
    /// The newest that has.
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

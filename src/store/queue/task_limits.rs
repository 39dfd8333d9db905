//! Records which tasks run and which wait, if workflows limit how many tasks of one key run at once.

use std::collections::HashMap;

use futures::FutureExt;
use uuid::Uuid;

use crate::domain::{definition::OnConflict, queue::TaskKey, values::TaskId};
use crate::store::{
    Store, StoreError, Transaction,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
};

/// The states of a task that counts for a key. The state 1, between them, is that of a task that may begin and has not
/// been begun yet.
const WAITS: i64 = 0;
const HAS_BEGUN: i64 = 2;

const WAITING: &str = "= 0";
const RUNNING: &str = "> 0";

/// The most waiting tasks that are read for one key.
const LOOKED_AT: usize = 512;
/// The most tasks that are admitted, or cancelled for others, at once.
const AT_ONCE: usize = 64;

/// Counts the running tasks of one key, and says whether others wait. A task that has ended does not count, even if its
/// row says so.
const USED: &str = r#"
SELECT (SELECT count(*) FROM limited_tasks JOIN tasks ON tasks.id = limited_tasks.task_id
        WHERE limit_key = $1 AND limited_tasks.state > 0 AND tasks.ended_at IS NULL) AS running,
       (SELECT count(*) FROM (SELECT 1 FROM limited_tasks WHERE limit_key = $1 AND state = 0 LIMIT 1) AS first) AS waiting"#;

const ADD: &str = r#"
INSERT INTO limited_tasks (limit_key, task_id, state, max_running, on_conflict) VALUES ($1, $2, $3, $4, $5)"#;

/// Finds the running tasks of one key, or the oldest of the waiting ones.
const OF_KEY: &str = r#"
SELECT task_id, max_running, on_conflict
FROM limited_tasks JOIN tasks ON tasks.id = limited_tasks.task_id
WHERE limit_key = $1 AND limited_tasks.state {state} AND tasks.ended_at IS NULL{begins}
ORDER BY task_id {order} LIMIT $2"#;

const KEYS_OF_TASK: &str =
    "SELECT limit_key, max_running FROM limited_tasks WHERE task_id = $1 ORDER BY limit_key";

const LET_BEGIN: &str = "UPDATE limited_tasks SET state = 1 WHERE task_id = $1 AND state = 0";

/// Relies on limited_tasks_admitted.
const MAY: &str = "SELECT DISTINCT task_id FROM limited_tasks WHERE state = 1 LIMIT $1";

const BEGUN: &str = r#"
UPDATE limited_tasks SET state = 2
WHERE state = 1 AND task_id IN (SELECT id FROM tasks WHERE id = $1 AND (NOT waits OR ended_at IS NOT NULL))"#;

/// Goes from one key to the next along limited_tasks_waiting.
const WAITING_KEYS: &str = r#"
WITH RECURSIVE found (name, place) AS (
    SELECT (SELECT limit_key FROM limited_tasks WHERE state = 0 AND limit_key > $1 ORDER BY limit_key LIMIT 1), 1
    UNION ALL
    SELECT (SELECT limit_key FROM limited_tasks WHERE state = 0 AND limit_key > found.name ORDER BY limit_key LIMIT 1),
           place + 1
    FROM found WHERE name IS NOT NULL AND place < $2)
SELECT name FROM found WHERE name IS NOT NULL"#;

const FORGET_ENDED: &str = "DELETE FROM limited_tasks WHERE task_id = $1";

/// Deletes rows that a process left when it ended, of tasks that have ended or do not exist any more: among the running
/// ones, or among the oldest waiting ones.
const FORGET_LEFT_OVER: &str = r#"
DELETE FROM limited_tasks
WHERE limit_key = $1 AND task_id IN (
    SELECT task_id FROM (
        SELECT task_id FROM limited_tasks WHERE limit_key = $1 AND state {state} ORDER BY task_id LIMIT 1000) AS first
    WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE id = first.task_id AND ended_at IS NULL))"#;

/// A task that counts for a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitedTask {
    pub key: TaskKey,
    pub task: TaskId,
    pub waits: bool,
}

/// The number of running tasks of a key, and whether others wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeyTasks {
    pub running: u64,
    pub has_waiting: bool,
}

/// The result of checking some keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Admissions {
    /// The tasks that may begin now.
    pub begin: Vec<TaskId>,
    /// The tasks that must be cancelled, each with the task that replaces it.
    pub replace: Vec<(TaskId, TaskId)>,
    /// The keys that another instance is checking now.
    pub locked: Vec<String>,
}

impl Transaction<'_> {
    /// Returns whether this transaction has the lock of the key. No other instance counts its tasks until it ends.
    pub async fn lock_task_key(&mut self, name: &str) -> Result<bool, StoreError> {
        self.try_lock(format!("tasks of {name}")).await
    }

    pub async fn tasks_of_key(&mut self, name: &str) -> Result<KeyTasks, StoreError> {
        let used = self.fetch_first(Statement::new(USED).bind(name)).await?;
        let used = used.ok_or_else(|| corrupt("a count without a row"))?;
        Ok(KeyTasks {
            running: used.get("running")?,
            has_waiting: used.get::<u64>("waiting")? > 0,
        })
    }

    pub async fn add_limited_task(&mut self, limited: &LimitedTask) -> Result<(), StoreError> {
        let LimitedTask { key, task, waits } = limited;
        let add = Statement::new(ADD)
            .bind(key.name.as_str())
            .bind(*task)
            .bind(if *waits { WAITS } else { HAS_BEGUN })
            .bind(key.max_running)
            .bind(key.on_conflict.as_str());
        self.run(add).await
    }

    async fn of_key(
        &mut self,
        name: &str,
        state: &str,
        order: &str,
        limit: usize,
    ) -> Result<Vec<(TaskId, u64, String)>, StoreError> {
        // The record of these tasks says that they wait, in any state: earlier versions gave some of them the state
        // `processing`. A task that is paused, or in error before it has begun, leaves its slot to others.
        let begins = match state {
            WAITING => " AND tasks.waits AND NOT tasks.paused AND tasks.state <> 'error'",
            _ => "",
        };
        let sql = OF_KEY.replace("{state}", state).replace("{order}", order);
        let sql = sql.replace("{begins}", begins);
        let found = self
            .fetch(Statement::new(sql).bind(name).bind(limit))
            .await?;
        let one = |row: &Row| {
            let task = row.get::<Uuid>("task_id")?;
            Ok((
                TaskId(task),
                row.get("max_running")?,
                row.get("on_conflict")?,
            ))
        };
        found.iter().map(one).collect()
    }

    /// Admits waiting tasks of one key that have room in all of their keys.
    async fn admit_key(&mut self, name: &str, admitted: &mut Admissions) -> Result<(), StoreError> {
        if !self.lock_task_key(name).await? {
            admitted.locked.push(name.to_owned());
            return Ok(());
        }
        for state in [RUNNING, WAITING] {
            let forget = FORGET_LEFT_OVER.replace("{state}", state);
            self.run(Statement::new(forget).bind(name)).await?;
        }
        let newest = self.of_key(name, WAITING, "DESC", 1).await?;
        let Some((newest, _, on_conflict)) = newest.into_iter().next() else {
            return Ok(());
        };
        if on_conflict == OnConflict::Replace.as_str() {
            let mut others = self.of_key(name, RUNNING, "", AT_ONCE).await?;
            others.extend(self.of_key(name, WAITING, "", AT_ONCE).await?);
            let others = others.into_iter().map(|(task, ..)| task);
            let older = others.filter(|task| *task < newest);
            admitted.replace.extend(older.map(|task| (task, newest)));
        }
        let mut running: HashMap<String, u64> = HashMap::new();
        for (task, ..) in self.of_key(name, WAITING, "", LOOKED_AT).await? {
            let found = self.fetch(Statement::new(KEYS_OF_TASK).bind(task)).await?;
            let mut keys: Vec<(String, u64)> = Vec::new();
            for row in &found {
                keys.push((row.get("limit_key")?, row.get("max_running")?));
            }
            for (other, _) in &keys {
                if running.contains_key(other) {
                    continue;
                }
                if !self.lock_task_key(other).await? {
                    admitted.locked.push(name.to_owned());
                    return Ok(());
                }
                let counted = self.tasks_of_key(other).await?;
                running.insert(other.clone(), counted.running);
            }
            let has_room = |(key, most): &(String, u64)| running.get(key).is_some_and(|n| n < most);
            if keys.iter().all(has_room) {
                self.run(Statement::new(LET_BEGIN).bind(task)).await?;
                admitted.begin.push(task);
                for (key, _) in &keys {
                    *running.entry(key.clone()).or_default() += 1;
                }
            } else if !keys.iter().any(|key| key.0 == name && has_room(key)) {
                // The tasks after this one wait for the same key.
                return Ok(());
            }
            if admitted.begin.len() >= AT_ONCE {
                admitted.locked.push(name.to_owned());
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Store {
    /// Admits waiting tasks of these keys, as far as there is room, and returns the tasks to begin and to cancel.
    /// `ended`: tasks that do not count any more.
    pub async fn admit_tasks(
        &self,
        keys: Vec<String>,
        ended: Vec<TaskId>,
    ) -> Result<Admissions, StoreError> {
        self.send_write(true, None, move |tx| {
            let (keys, ended) = (keys.clone(), ended.clone());
            async move {
                tx.lock_out_of_order();
                for task in ended {
                    tx.run(Statement::new(FORGET_ENDED).bind(task)).await?;
                }
                let mut admitted = Admissions::default();
                for key in &keys {
                    tx.admit_key(key, &mut admitted).await?;
                }
                Ok(admitted)
            }
            .boxed()
        })
        .await
    }

    /// Records that these tasks have begun, or have ended.
    pub async fn note_begun(&self, tasks: Vec<TaskId>) -> Result<(), StoreError> {
        self.send_write(true, None, move |tx| {
            let tasks = tasks.clone();
            async move {
                tx.lock_out_of_order();
                for task in tasks {
                    tx.run(Statement::new(BEGUN).bind(task)).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await
    }

    /// Returns tasks that may begin, and may not have been begun yet.
    pub async fn tasks_that_may_begin(&self) -> Result<Vec<TaskId>, StoreError> {
        let may = Statement::new(MAY).bind(AT_ONCE);
        let task = |row: &Row| Ok(TaskId(row.get("task_id")?));
        self.housekeeping.all(may, task).await
    }

    /// Returns the next keys after this one that have waiting tasks.
    pub async fn waiting_task_keys(&self, after: &str) -> Result<Vec<String>, StoreError> {
        let reader = &self.housekeeping;
        let keys = Statement::new(WAITING_KEYS).bind(after).bind(AT_ONCE);
        reader.all(keys, |row: &Row| row.get("name")).await
    }
}

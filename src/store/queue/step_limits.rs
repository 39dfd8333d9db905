//! Records the running steps that their workflows limit, by the keys for which they count.

use std::collections::HashMap;

use crate::domain::{
    queue::{LimitedKey, RateBucket, StepLane},
    values::{StepRef, WorkflowName},
};
use crate::store::{
    Reader, StoreError, Transaction,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
};

/// Reads the rows of the keys, and finds the step of each by its primary key. A row whose step does not run is not
/// counted.
const RUNNING: &str = r#"
SELECT limit_key, count(*) AS count
FROM limited_steps JOIN steps ON steps.task_id = limited_steps.task_id AND steps.idx = limited_steps.idx
WHERE limit_key {keys} AND steps.state = 'processing' GROUP BY limit_key"#;

const ADD: &str = r#"
INSERT INTO limited_steps (limit_key, task_id, idx) VALUES ($1, $2, $3)
ON CONFLICT (limit_key, task_id, idx) DO NOTHING"#;

/// Relies on limited_steps_by_task.
const REMOVE: &str = "DELETE FROM limited_steps WHERE task_id = $1 AND idx = $2";

/// Deletes rows of tasks that were purged, or were cancelled although they could not be read. Waits for no other
/// transaction.
const FORGET: &str = r#"
DELETE FROM limited_steps
WHERE (limit_key, task_id, idx) IN (
    SELECT limit_key, task_id, idx FROM limited_steps
    WHERE limit_key {keys}
      AND NOT EXISTS (
        SELECT 1 FROM steps
        WHERE steps.task_id = limited_steps.task_id AND steps.idx = limited_steps.idx AND steps.state = 'processing')
    LIMIT 100 {lock})"#;

impl Transaction<'_> {
    /// Returns whether this transaction has the lock of the workflow's limits. No other instance claims steps that this
    /// workflow limits until it ends, so the running ones can be counted for all agents.
    pub async fn lock_step_limits(&mut self, workflow: &str) -> Result<bool, StoreError> {
        self.try_lock(format!("steps of {workflow}")).await
    }

    /// Returns how many steps of each of these keys run.
    pub async fn running_of_keys(
        &mut self,
        keys: &[String],
    ) -> Result<HashMap<String, u32>, StoreError> {
        let running = running(self.dialect().is_one_of, keys)?;
        counts(&self.fetch(running).await?)
    }

    /// Records that a step of this key begins.
    pub async fn add_limited_step(&mut self, key: &str, step: StepRef) -> Result<(), StoreError> {
        let add = Statement::new(ADD).bind(key);
        self.run(add.bind(step.task).bind(step.step)).await
    }

    /// Records that a step does not run any more.
    pub async fn remove_limited_step(&mut self, step: StepRef) -> Result<(), StoreError> {
        let remove = Statement::new(REMOVE).bind(step.task);
        self.run(remove.bind(step.step)).await
    }

    /// Deletes steps of these keys that do not run any more.
    pub async fn forget_limited_steps(&mut self, keys: &[String]) -> Result<(), StoreError> {
        let sql = FORGET.replace("{lock}", self.dialect().exclusive_unlocked);
        let sql = sql.replace("{keys}", &self.dialect().is_one_of.replace('?', "$1"));
        let keys = serde_json::to_string(keys).map_err(corrupt)?;
        self.run(Statement::new(sql).bind(keys)).await
    }
}

/// The used part of the limits of a workflow on its steps, by the ids of the keys.
#[derive(Debug)]
pub struct StepKeyUsage {
    /// The number of running steps.
    pub running: HashMap<String, u32>,
    pub buckets: HashMap<String, RateBucket>,
}

impl Reader {
    pub async fn step_key_usage(
        &self,
        workflow: &WorkflowName,
        keys: &[String],
    ) -> Result<StepKeyUsage, StoreError> {
        let running = self.fetch(running(self.source.is_one_of(), keys)?).await?;
        let rated: Vec<_> = keys.iter().map(|key| rate_key(key)).collect();
        let scope = StepLane::scope(workflow.as_str());
        let buckets = self.key_usage(&scope, Some(&[]), &rated).await?.buckets;
        let buckets = buckets.into_iter().map(|(key, bucket)| (key.key, bucket));
        Ok(StepKeyUsage {
            running: counts(&running)?,
            buckets: buckets.collect(),
        })
    }
}

/// Returns the name under which the bucket of a workflow's key is stored.
pub(in crate::store) fn rate_key(id: &str) -> LimitedKey {
    LimitedKey {
        limit: 0,
        key: id.to_owned(),
    }
}

fn running(is_one_of: &str, keys: &[String]) -> Result<Statement, StoreError> {
    let sql = RUNNING.replace("{keys}", &is_one_of.replace('?', "$1"));
    let keys = serde_json::to_string(keys).map_err(corrupt)?;
    Ok(Statement::new(sql).bind(keys))
}

fn counts(found: &[Row]) -> Result<HashMap<String, u32>, StoreError> {
    let count = |row: &Row| Ok((row.get("limit_key")?, row.get("count")?));
    found.iter().map(count).collect()
}

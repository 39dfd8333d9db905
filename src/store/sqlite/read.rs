//! Reads, on connections that never write. WAL gives each a consistent view beside the writer.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{QueryBuilder, SqlitePool};

use super::now;
use crate::{
    domain::{Attempt, StepRef, Task, TaskId, Timestamp, WorkflowName},
    store::{
        AgentRecord, Alert, AlertQuery, Change, Counts, Definitions, Reader, StoreError,
        TaskFilter, TaskQuery, TaskSummary, WorkflowRecord, filter::filter, rows,
    },
};

const SUMMARIES: &str = r#"
SELECT id, "key", workflow, workflow_version, labels, priority, created_at, version, state, complete_by,
       ended_at, error
FROM tasks WHERE true"#;

const HISTORY: &str = r#"
SELECT version, at, events FROM history
WHERE task_id = ?1 AND version > ?2 ORDER BY version LIMIT ?3"#;

/// Relies on steps_line.
const PLACE_IN_LINE: &str = r#"
SELECT count(*) AS ahead FROM steps
WHERE agent = ?1 AND due_at IS NOT NULL AND queued = 1
  AND (priority > ?2 OR (priority = ?2 AND (task_id, idx) < (?3, ?4)))"#;

/// Relies on steps_processing.
const EXPIRED: &str = r#"
SELECT task_id, idx, attempt FROM steps
WHERE state = 'processing' AND complete_by <= ?1 ORDER BY complete_by LIMIT ?2"#;

/// Relies on tasks_overdue.
const OVERDUE: &str = r#"
SELECT id FROM tasks
WHERE overdue_at IS NOT NULL AND overdue_at <= ?1 ORDER BY overdue_at LIMIT ?2"#;

/// Relies on steps_processing: what runs is little beside what there is.
const PROCESSING: &str = r#"
SELECT task_id, idx, attempt FROM steps INDEXED BY steps_processing
WHERE state = 'processing' AND (task_id, idx) > (?1, ?2) ORDER BY task_id, idx LIMIT ?3"#;

const WORKFLOWS: &str = r#"
SELECT name, version, body, created_at FROM workflows AS latest
WHERE version = (SELECT max(version) FROM workflows WHERE name = latest.name)
ORDER BY name"#;

const WORKFLOW: &str = r#"
SELECT name, version, body, created_at FROM workflows
WHERE name = ?1 AND (?2 IS NULL OR version = ?2) ORDER BY version DESC LIMIT 1"#;

/// Relies on tasks_by_state, which leaves out the one state that only grows.
const COUNT_TASKS: &str = r#"
SELECT state, count(*) AS count FROM tasks INDEXED BY tasks_by_state
WHERE state <> 'processed' GROUP BY state"#;

/// Relies on steps_line.
const COUNT_QUEUED: &str = r#"
SELECT agent, count(*) AS count FROM steps
WHERE due_at IS NOT NULL AND queued = 1 GROUP BY agent"#;

const COUNT_OTHERS: &str = r#"
SELECT (SELECT count(*) FROM steps WHERE due_at IS NOT NULL AND queued = 0) AS delayed,
       (SELECT count(*) FROM steps WHERE state = 'processing') AS processing,
       (SELECT count(*) FROM alerts WHERE state <> 'closed') AS alerts"#;

pub struct SqliteReader {
    pool: SqlitePool,
    definitions: Arc<Definitions>,
}

impl SqliteReader {
    pub(super) fn new(pool: SqlitePool, definitions: Arc<Definitions>) -> Self {
        Self { pool, definitions }
    }
}

#[async_trait]
impl Reader for SqliteReader {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(now())
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        // One transaction, so that the task and its steps are of one version.
        let mut view = self.pool.begin().await?;
        let mut tasks = super::rows::load(&mut view, &[id], &self.definitions).await?;
        Ok(tasks.pop())
    }

    async fn tasks(&self, query: &TaskQuery) -> Result<Vec<TaskSummary>, StoreError> {
        let mut sql = QueryBuilder::new(SUMMARIES);
        filter(&mut sql, &query.filter);
        if let Some(before) = query.before {
            sql.push(" AND id < ")
                .push_bind(before.0.as_bytes().to_vec());
        }
        sql.push(" ORDER BY id DESC LIMIT ")
            .push_bind(query.limit as i64);
        let found = sql.build().fetch_all(&self.pool).await?;
        found.iter().map(rows::summary).collect()
    }

    async fn task_ids(
        &self,
        filtered: &TaskFilter,
        after: Option<TaskId>,
        limit: usize,
    ) -> Result<Vec<TaskId>, StoreError> {
        let mut sql = QueryBuilder::new("SELECT id FROM tasks WHERE true");
        filter(&mut sql, filtered);
        if let Some(after) = after {
            sql.push(" AND id > ")
                .push_bind(after.0.as_bytes().to_vec());
        }
        sql.push(" ORDER BY id LIMIT ").push_bind(limit as i64);
        let found = sql.build().fetch_all(&self.pool).await?;
        found.iter().map(|row| rows::task_id(row, "id")).collect()
    }

    async fn count_tasks(&self, filtered: &TaskFilter) -> Result<u64, StoreError> {
        let mut sql = QueryBuilder::new("SELECT count(*) AS count FROM tasks WHERE true");
        filter(&mut sql, filtered);
        let row = sql.build().fetch_one(&self.pool).await?;
        rows::number(&row, "count")
    }

    async fn history(
        &self,
        id: TaskId,
        after: u64,
        limit: usize,
    ) -> Result<Option<Vec<Change>>, StoreError> {
        let found = sqlx::query(HISTORY)
            .bind(id.0.as_bytes().as_slice())
            .bind(after as i64)
            .bind(limit as i64)
            .fetch_all(&self.pool)
            .await?;
        if found.is_empty() {
            let exists = sqlx::query("SELECT 1 FROM tasks WHERE id = ?1")
                .bind(id.0.as_bytes().as_slice())
                .fetch_optional(&self.pool)
                .await?;
            return Ok(exists.map(|_| Vec::new()));
        }
        found
            .iter()
            .map(rows::change)
            .collect::<Result<_, _>>()
            .map(Some)
    }

    async fn place_in_line(&self, task: &Task, step: StepRef) -> Result<u64, StoreError> {
        let row = sqlx::query(PLACE_IN_LINE)
            .bind(task.definition(step.step).agent().as_str())
            .bind(task.details.priority.get())
            .bind(step.task.0.as_bytes().as_slice())
            .bind(step.step.0)
            .fetch_one(&self.pool)
            .await?;
        rows::number(&row, "ahead")
    }

    async fn expired(&self, limit: usize) -> Result<Vec<(StepRef, Attempt)>, StoreError> {
        let found = sqlx::query(EXPIRED)
            .bind(now().as_millis())
            .bind(limit as i64)
            .fetch_all(&self.pool)
            .await?;
        found.iter().map(rows::held_step).collect()
    }

    async fn overdue(&self, limit: usize) -> Result<Vec<TaskId>, StoreError> {
        let found = sqlx::query(OVERDUE)
            .bind(now().as_millis())
            .bind(limit as i64)
            .fetch_all(&self.pool)
            .await?;
        found.iter().map(|row| rows::task_id(row, "id")).collect()
    }

    async fn processing(
        &self,
        after: Option<StepRef>,
        limit: usize,
    ) -> Result<Vec<(StepRef, Attempt)>, StoreError> {
        let task = after.map(|after| after.task.0.as_bytes().to_vec());
        let found = sqlx::query(PROCESSING)
            .bind(task.unwrap_or_default())
            .bind(after.map_or(-1, |after| i64::from(after.step.0)))
            .bind(limit as i64)
            .fetch_all(&self.pool)
            .await?;
        found.iter().map(rows::held_step).collect()
    }

    async fn workflows(&self) -> Result<Vec<WorkflowRecord>, StoreError> {
        let found = sqlx::query(WORKFLOWS).fetch_all(&self.pool).await?;
        found.iter().map(rows::workflow).collect()
    }

    async fn workflow(
        &self,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<Option<WorkflowRecord>, StoreError> {
        let found = sqlx::query(WORKFLOW)
            .bind(name.as_str())
            .bind(version)
            .fetch_optional(&self.pool)
            .await?;
        found.as_ref().map(rows::workflow).transpose()
    }

    async fn agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        let found = sqlx::query("SELECT name, spec FROM agents ORDER BY name")
            .fetch_all(&self.pool)
            .await?;
        found.iter().map(rows::agent).collect()
    }

    async fn alerts(&self, query: &AlertQuery) -> Result<Vec<Alert>, StoreError> {
        let mut sql = QueryBuilder::new(
            "SELECT id, task_id, step, kind, message, state, raised_at, acknowledged_at, acknowledged_by, \
             closed_at FROM alerts WHERE true",
        );
        if let Some(state) = query.state {
            sql.push(" AND state = ").push_bind(state.as_str());
        }
        if let Some(task) = query.task {
            sql.push(" AND task_id = ")
                .push_bind(task.0.as_bytes().to_vec());
        }
        if let Some(before) = query.before {
            sql.push(" AND id < ")
                .push_bind(before.0.as_bytes().to_vec());
        }
        sql.push(" ORDER BY id DESC LIMIT ")
            .push_bind(query.limit as i64);
        let found = sql.build().fetch_all(&self.pool).await?;
        found.iter().map(rows::alert).collect()
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        let mut counts = Counts::default();
        for row in sqlx::query(COUNT_TASKS).fetch_all(&self.pool).await? {
            counts.tasks.push(rows::task_count(&row)?);
        }
        for row in sqlx::query(COUNT_QUEUED).fetch_all(&self.pool).await? {
            counts.queued.push(rows::line_count(&row)?);
        }
        let others = sqlx::query(COUNT_OTHERS).fetch_one(&self.pool).await?;
        counts.delayed = rows::number(&others, "delayed")?;
        counts.processing = rows::number(&others, "processing")?;
        counts.open_alerts = rows::number(&others, "alerts")?;
        Ok(counts)
    }
}

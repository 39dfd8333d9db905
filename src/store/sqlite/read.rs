//! Reads, on connections that never write. WAL gives each a consistent view beside the writer.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{QueryBuilder, Row, Sqlite, SqlitePool};

use super::{leases, now, rows};
use crate::{
    domain::{
        AgentName, Attempt, InstanceId, StepRef, Task, TaskId, TaskStatus, Timestamp, WorkflowName,
    },
    store::{
        AgentRecord, Alert, AlertQuery, Change, Counts, Definitions, ExpiredStep, Instances,
        Reader, StoreError, TaskFilter, TaskQuery, TaskSummary, WorkflowRecord,
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

/// Relies on steps_processing, which covers the search for lost instances: that reads all of it, and
/// what runs is little beside what there is. The second part is only gone through if one is lost.
const EXPIRED: &str = r#"
WITH lost AS MATERIALIZED (
    SELECT DISTINCT locked_by AS id FROM steps INDEXED BY steps_processing
    WHERE state = 'processing' AND locked_by <> ?3
      AND locked_by NOT IN (SELECT id FROM instances WHERE until > ?1))
SELECT task_id, idx, attempt, complete_by, locked_by IN (SELECT id FROM lost) AS lost
FROM steps INDEXED BY steps_processing
WHERE state = 'processing' AND complete_by <= ?1
UNION ALL
SELECT task_id, idx, attempt, complete_by, true
FROM steps INDEXED BY steps_processing
WHERE state = 'processing' AND complete_by > ?1
  AND EXISTS (SELECT 1 FROM lost) AND locked_by IN (SELECT id FROM lost)
ORDER BY complete_by LIMIT ?2"#;

/// Relies on tasks_overdue.
const OVERDUE: &str = r#"
SELECT id FROM tasks
WHERE overdue_at IS NOT NULL AND overdue_at <= ?1 ORDER BY overdue_at LIMIT ?2"#;

/// Relies on steps_processing: what runs is little beside what there is.
const PROCESSING: &str = r#"
SELECT task_id, idx, attempt FROM steps INDEXED BY steps_processing
WHERE state = 'processing' AND (task_id, idx) > (?1, ?2) AND (?4 IS NULL OR locked_by = ?4)
ORDER BY task_id, idx LIMIT ?3"#;

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
        let mut tasks = rows::load(&mut view, &[id], &self.definitions).await?;
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
        count(&row, "count")
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
        count(&row, "ahead")
    }

    async fn expired(
        &self,
        asker: &InstanceId,
        limit: usize,
    ) -> Result<Vec<ExpiredStep>, StoreError> {
        let found = sqlx::query(EXPIRED)
            .bind(now().as_millis())
            .bind(limit as i64)
            .bind(asker.as_str())
            .fetch_all(&self.pool)
            .await?;
        found.iter().map(rows::expired_step).collect()
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
        locked_by: Option<&InstanceId>,
        after: Option<StepRef>,
        limit: usize,
    ) -> Result<Vec<(StepRef, Attempt)>, StoreError> {
        let task = after.map(|after| after.task.0.as_bytes().to_vec());
        let found = sqlx::query(PROCESSING)
            .bind(task.unwrap_or_default())
            .bind(after.map_or(-1, |after| i64::from(after.step.0)))
            .bind(limit as i64)
            .bind(locked_by.map(InstanceId::as_str))
            .fetch_all(&self.pool)
            .await?;
        found.iter().map(rows::held_step).collect()
    }

    async fn instances(&self) -> Result<Instances, StoreError> {
        let mut view = self.pool.begin().await?;
        Ok(Instances {
            now: now(),
            records: leases::all(&mut view).await?,
            supervisor: leases::supervisor(&mut view).await?,
        })
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
        let records = found.iter().map(|row| {
            let spec: String = row.try_get("spec")?;
            Ok(AgentRecord {
                name: rows::agent_name(row, "name")?,
                spec: serde_json::from_str(&spec).map_err(rows::corrupt)?,
            })
        });
        records.collect()
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
            let state: String = row.try_get("state")?;
            if let Some(state) = TaskStatus::parse(&state) {
                counts.tasks.push((state, count(&row, "count")?));
            }
        }
        for row in sqlx::query(COUNT_QUEUED).fetch_all(&self.pool).await? {
            let agent: AgentName = rows::agent_name(&row, "agent")?;
            counts.queued.push((agent, count(&row, "count")?));
        }
        let others = sqlx::query(COUNT_OTHERS).fetch_one(&self.pool).await?;
        counts.delayed = count(&others, "delayed")?;
        counts.processing = count(&others, "processing")?;
        counts.open_alerts = count(&others, "alerts")?;
        Ok(counts)
    }
}

fn count(row: &sqlx::sqlite::SqliteRow, column: &str) -> Result<u64, StoreError> {
    let count: i64 = row.try_get(column)?;
    Ok(count.unsigned_abs())
}

/// Each part relies on an index of its own, or narrows what another has found.
fn filter(sql: &mut QueryBuilder<Sqlite>, filter: &TaskFilter) {
    if let Some(state) = filter.state {
        sql.push(" AND state = ").push_bind(state.as_str());
        if state != TaskStatus::Processed {
            // Said in full, so that the planner sees that tasks_by_state covers it.
            sql.push(" AND state <> 'processed'");
        }
    }
    if let Some(workflow) = &filter.workflow {
        sql.push(" AND workflow = ").push_bind(workflow.clone());
    }
    if let Some(key) = &filter.key {
        sql.push(" AND \"key\" = ").push_bind(key.clone());
    }
    if let Some(agent) = &filter.agent {
        sql.push(" AND EXISTS (SELECT 1 FROM steps WHERE task_id = tasks.id AND agent = ")
            .push_bind(agent.clone())
            .push(")");
    }
    for (label, value) in &filter.labels {
        sql.push(" AND id IN (SELECT task_id FROM task_labels WHERE label = ")
            .push_bind(label.clone())
            .push(" AND value = ")
            .push_bind(value.clone())
            .push(")");
    }
    if let Some(after) = filter.created_after {
        sql.push(" AND created_at > ").push_bind(after.as_millis());
    }
    if let Some(before) = filter.created_before {
        sql.push(" AND created_at < ").push_bind(before.as_millis());
    }
}

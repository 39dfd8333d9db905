//! The writer's transaction.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::{Row, Sqlite, sqlite::SqliteRow};
use tokio::time::Instant;

use super::{files::Files, save, space};
use crate::{
    domain::{AgentName, AgentSpec, InstanceId, Leases, StepRef, TaskId, Timestamp, WorkflowName},
    store::{
        Alert, AlertId, Batch, Definitions, KnownKey, Loaded, Promoted, Saved, StoreError,
        Transaction, WorkflowRecord, leases, outbox,
        reading::{self, BACKLOG, Statement},
        rows,
    },
};

/// Relies on steps_line.
const QUEUED: &str = r#"
SELECT task_id, idx FROM steps
WHERE agent = ?1 AND due_at IS NOT NULL AND queued = 1
ORDER BY priority DESC, task_id, idx
LIMIT ?2"#;

/// Relies on steps_delayed.
const PROMOTE: &str = r#"
UPDATE steps SET queued = 1
WHERE (task_id, idx) IN (
    SELECT task_id, idx FROM steps
    WHERE due_at IS NOT NULL AND queued = 0 AND due_at <= ?1
    ORDER BY due_at LIMIT ?2)"#;

const PROMOTE_ONE: &str =
    "UPDATE steps SET queued = 1 WHERE task_id = ?1 AND idx = ?2 AND due_at <= ?3 AND queued = 0";

const IDEMPOTENCY: &str = r#"
SELECT "key", fingerprint, task_id FROM idempotency_keys
WHERE "key" IN (SELECT value FROM json_each(?1))"#;

const LATEST_WORKFLOW: &str = "SELECT name, version, body, created_at FROM workflows WHERE name = ?1 ORDER BY version DESC LIMIT 1";

const ADD_WORKFLOW: &str =
    "INSERT INTO workflows (name, version, body, created_at) VALUES (?1, ?2, ?3, ?4)";

const PUT_AGENT: &str = r#"
INSERT INTO agents (name, spec, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, updated_at = excluded.updated_at"#;

const ADD_AGENT: &str = r#"
INSERT INTO agents (name, spec, updated_at) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO NOTHING"#;

const ACKNOWLEDGE: &str = r#"
UPDATE alerts
SET state = CASE state WHEN 'open' THEN 'acknowledged' ELSE state END,
    acknowledged_at = coalesce(acknowledged_at, ?2), acknowledged_by = coalesce(acknowledged_by, ?3)
WHERE id = ?1
RETURNING id, task_id, step, receiver, kind, message, state, raised_at, acknowledged_at, acknowledged_by, closed_at"#;

/// Steps, history, labels, alerts and keys go by cascade.
const PURGE: &str = r#"
DELETE FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each(?1)) AND ended_at IS NOT NULL AND ended_at < ?2"#;

const HEARTBEAT: &str =
    "INSERT INTO heartbeat (id, at) VALUES (1, ?1) ON CONFLICT (id) DO UPDATE SET at = excluded.at";

pub(super) struct SqliteTransaction<'c> {
    pub tx: sqlx::Transaction<'c, Sqlite>,
    pub definitions: &'c Definitions,
    pub files: &'c Files,
    pub now: Timestamp,
    pub instant: Instant,
    /// How many the file may have.
    pub max_pages: Option<u64>,
}

impl SqliteTransaction<'_> {
    /// How many rows it changed.
    async fn write_agent(
        &mut self,
        statement: &'static str,
        name: &AgentName,
        spec: &AgentSpec,
    ) -> Result<u64, StoreError> {
        let written = sqlx::query(statement)
            .bind(name.as_str())
            .bind(serde_json::to_string(spec).map_err(rows::corrupt)?)
            .bind(self.now.as_millis())
            .execute(&mut *self.tx)
            .await?;
        Ok(written.rows_affected())
    }
}

#[async_trait]
impl outbox::Session for SqliteTransaction<'_> {
    type Row = SqliteRow;

    /// Nobody else writes.
    const SKIP_LOCKED: &'static str = "";
    const SHARE_UNLOCKED: &'static str = "";

    fn at(&self) -> Timestamp {
        self.now
    }

    async fn fetch(&mut self, statement: Statement) -> Result<Vec<SqliteRow>, StoreError> {
        let query = super::rows::query(statement);
        Ok(query.fetch_all(&mut *self.tx).await?)
    }

    async fn execute(&mut self, statement: Statement) -> Result<u64, StoreError> {
        let query = super::rows::query(statement);
        Ok(query.execute(&mut *self.tx).await?.rows_affected())
    }
}

#[async_trait]
impl Transaction for SqliteTransaction<'_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn instant(&self) -> Instant {
        self.instant
    }

    async fn load(&mut self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        super::rows::load(&mut self.tx, ids, self.definitions, &self.files.health).await
    }

    async fn sizes(&mut self, ids: &[TaskId]) -> Result<HashMap<TaskId, usize>, StoreError> {
        super::rows::sizes(&mut self.tx, ids).await
    }

    async fn idempotency(&mut self, keys: &[&str]) -> Result<Vec<KnownKey>, StoreError> {
        let keys = serde_json::to_string(keys).map_err(rows::corrupt)?;
        let found = sqlx::query(IDEMPOTENCY)
            .bind(keys)
            .fetch_all(&mut *self.tx)
            .await?;
        found.iter().map(rows::known_key).collect()
    }

    async fn queued(
        &mut self,
        agent: &AgentName,
        limit: usize,
    ) -> Result<Vec<StepRef>, StoreError> {
        let found = sqlx::query(QUEUED)
            .bind(agent.as_str())
            .bind(limit as i64)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(StoreError::from)
            .inspect_err(|error| self.files.health.note(error))?;
        found.iter().map(rows::step_ref).collect()
    }

    async fn promote(&mut self) -> Result<Promoted, StoreError> {
        sqlx::query(PROMOTE)
            .bind(self.now.as_millis())
            .bind(Promoted::MOST)
            .execute(&mut *self.tx)
            .await?;
        let found = sqlx::query(BACKLOG).fetch_all(&mut *self.tx).await?;
        reading::backlog(&found)
    }

    async fn promote_one(&mut self, step: StepRef) -> Result<(), StoreError> {
        sqlx::query(PROMOTE_ONE)
            .bind(step.task.0.as_bytes().as_slice())
            .bind(step.step.0)
            .bind(self.now.as_millis())
            .execute(&mut *self.tx)
            .await?;
        Ok(())
    }

    async fn save(&mut self, batch: &Batch) -> Result<Saved, StoreError> {
        save::save(&mut self.tx, batch, self.now).await
    }

    async fn latest_workflow(
        &mut self,
        name: &WorkflowName,
    ) -> Result<Option<WorkflowRecord>, StoreError> {
        let latest = sqlx::query(LATEST_WORKFLOW)
            .bind(name.as_str())
            .fetch_optional(&mut *self.tx)
            .await?;
        latest.as_ref().map(rows::workflow).transpose()
    }

    async fn add_workflow(
        &mut self,
        name: &WorkflowName,
        version: u32,
        body: &str,
    ) -> Result<(), StoreError> {
        sqlx::query(ADD_WORKFLOW)
            .bind(name.as_str())
            .bind(version)
            .bind(body)
            .bind(self.now.as_millis())
            .execute(&mut *self.tx)
            .await?;
        Ok(())
    }

    async fn agent(&mut self, name: &AgentName) -> Result<Option<String>, StoreError> {
        let row = sqlx::query("SELECT spec FROM agents WHERE name = ?1")
            .bind(name.as_str())
            .fetch_optional(&mut *self.tx)
            .await?;
        Ok(row.map(|row| row.try_get("spec")).transpose()?)
    }

    async fn put_agent(&mut self, name: &AgentName, spec: &AgentSpec) -> Result<(), StoreError> {
        self.write_agent(PUT_AGENT, name, spec).await?;
        Ok(())
    }

    async fn add_agent(&mut self, name: &AgentName, spec: &AgentSpec) -> Result<(), StoreError> {
        match self.write_agent(ADD_AGENT, name, spec).await? {
            0 => Err(StoreError::Retryable(format!(
                "agent `{name}` was registered in the meantime"
            ))),
            _ => Ok(()),
        }
    }

    async fn delete_agent(&mut self, name: &AgentName) -> Result<bool, StoreError> {
        let deleted = sqlx::query("DELETE FROM agents WHERE name = ?1")
            .bind(name.as_str())
            .execute(&mut *self.tx)
            .await?;
        Ok(deleted.rows_affected() > 0)
    }

    async fn acknowledge(&mut self, alert: AlertId, by: &str) -> Result<Option<Alert>, StoreError> {
        let row = sqlx::query(ACKNOWLEDGE)
            .bind(alert.0.as_bytes().as_slice())
            .bind(self.now.as_millis())
            .bind(by)
            .fetch_optional(&mut *self.tx)
            .await?;
        row.as_ref().map(rows::alert).transpose()
    }

    async fn purge(
        &mut self,
        tasks: &[TaskId],
        ended_before: Timestamp,
    ) -> Result<u64, StoreError> {
        // One form of the statement for any number.
        let ids: Vec<_> = tasks
            .iter()
            .map(|task| format!("\"{}\"", task.0.simple()))
            .collect();
        let deleted = sqlx::query(PURGE)
            .bind(format!("[{}]", ids.join(",")))
            .bind(ended_before.as_millis())
            .execute(&mut *self.tx)
            .await?;
        Ok(deleted.rows_affected())
    }

    async fn leases(&mut self, instance: &InstanceId) -> Result<Leases, StoreError> {
        let found = super::rows::query(leases::of(instance));
        leases::found(&found.fetch_all(&mut *self.tx).await?)
    }

    async fn save_leases(&mut self, before: &Leases, after: &Leases) -> Result<Saved, StoreError> {
        for change in leases::changes(before, after) {
            let changed = super::rows::query(change).execute(&mut *self.tx).await?;
            if changed.rows_affected() == 0 {
                return Ok(Saved::Conflict);
            }
        }
        Ok(Saved::All)
    }

    async fn forget_instances(&mut self, ended_before: Timestamp) -> Result<(), StoreError> {
        let forgotten = super::rows::query(leases::forget(ended_before));
        forgotten.execute(&mut *self.tx).await?;
        Ok(())
    }

    async fn give_back(&mut self, pages: u32) -> Result<(), StoreError> {
        Ok(space::give_back(&mut self.tx, pages, self.max_pages).await?)
    }

    async fn heartbeat(&mut self) -> Result<(), StoreError> {
        sqlx::query(HEARTBEAT)
            .bind(self.now.as_millis())
            .execute(&mut *self.tx)
            .await?;
        Ok(())
    }

    async fn commit(self: Box<Self>) -> Result<(), StoreError> {
        // After it the gap would be hidden.
        self.files.check_before_commit()?;
        self.tx.commit().await?;
        // Not before: what was committed to a file that was removed meanwhile must not be answered as done.
        self.files.check_committed()
    }
}

//! The writer's transaction.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::Sqlite;
use tokio::time::Instant;

use super::{files::DatabaseFiles, save, space};
use crate::{
    domain::{AgentName, Message, StepRef, TaskId, Timestamp},
    store::{
        Batch, Definitions, KnownKey, Loaded, Saved, StoreError,
        error::corrupt,
        rows::{self, Row},
        statement::Statement,
        transaction::{Dialect, Session, Transaction},
    },
};

/// Relies on steps_line.
const QUEUED: &str = r#"
SELECT task_id, idx FROM steps
WHERE agent = ?1 AND due_at IS NOT NULL AND queued = 1
ORDER BY priority DESC, task_id, idx
LIMIT ?2"#;

const PROMOTE: &str = r#"
UPDATE steps SET queued = 1
WHERE (task_id, idx) IN (
    SELECT task_id, idx FROM steps
    WHERE due_at IS NOT NULL AND queued = 0 AND due_at <= $1
    ORDER BY due_at LIMIT $2)"#;

const PROMOTE_ONE: &str =
    "UPDATE steps SET queued = 1 WHERE task_id = $1 AND idx = $2 AND due_at <= $3 AND queued = 0";

const IDEMPOTENCY: &str = r#"
SELECT "key", fingerprint, task_id FROM idempotency_keys
WHERE "key" IN (SELECT value FROM json_each(?1))"#;

/// Steps, history, labels, alerts and keys go by cascade.
const PURGE: &str = r#"
DELETE FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each(?1)) AND ended_at IS NOT NULL AND ended_at < ?2"#;

/// Nobody else writes: nothing is locked.
static DIALECT: Dialect = Dialect {
    skip_locked: "",
    share_unlocked: "",
    promote: PROMOTE,
    promote_one: PROMOTE_ONE,
    agent: "SELECT spec FROM agents WHERE name = $1",
    heartbeat: "INSERT INTO heartbeat (id, at) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET at = excluded.at",
};

pub(super) struct SqliteTransaction<'c> {
    pub tx: sqlx::Transaction<'c, Sqlite>,
    pub definitions: &'c Definitions,
    pub files: &'c DatabaseFiles,
    pub now: Timestamp,
    pub instant: Instant,
    /// How many the file may have.
    pub max_pages: Option<u64>,
}

#[async_trait]
impl Session for SqliteTransaction<'_> {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn instant(&self) -> Instant {
        self.instant
    }

    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        let found = super::rows::query(statement)
            .fetch_all(&mut *self.tx)
            .await?;
        Ok(found.into_iter().map(Row::Sqlite).collect())
    }

    async fn execute(&mut self, statement: Statement) -> Result<u64, StoreError> {
        let query = super::rows::query(statement);
        Ok(query.execute(&mut *self.tx).await?.rows_affected())
    }

    async fn load(&mut self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        super::rows::load(&mut self.tx, ids, self.definitions, &self.files.health).await
    }

    async fn sizes(&mut self, ids: &[TaskId]) -> Result<HashMap<TaskId, usize>, StoreError> {
        super::rows::sizes(&mut self.tx, ids).await
    }

    async fn idempotency(&mut self, keys: &[&str]) -> Result<Vec<KnownKey>, StoreError> {
        let keys = serde_json::to_string(keys).map_err(corrupt)?;
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

    async fn save(&mut self, batch: &Batch) -> Result<Saved, StoreError> {
        if save::save(&mut self.tx, batch, self.now).await? == Saved::Conflict {
            return Ok(Saved::Conflict);
        }
        let alerts = (self as &mut Transaction<'_>).save_alerts(batch).await?;
        let messages: Vec<_> = batch.messages.iter().chain(&alerts).collect();
        self.add_messages(&messages).await?;
        Ok(Saved::All)
    }

    async fn add_messages(&mut self, messages: &[&Message]) -> Result<(), StoreError> {
        save::add_messages(&mut self.tx, messages).await
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

    async fn give_back(&mut self, pages: u32) -> Result<(), StoreError> {
        Ok(space::give_back(&mut self.tx, pages, self.max_pages).await?)
    }

    async fn commit(self: Box<Self>) -> Result<(), StoreError> {
        // After it the gap would be hidden.
        self.files.check_before_commit()?;
        self.tx.commit().await?;
        // Not before: what was committed to a file that was removed meanwhile must not be answered as done.
        self.files.check_committed()
    }
}

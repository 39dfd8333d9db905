//! The writer's transaction.

use std::{collections::HashMap, ops::Range, sync::Arc};

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

use super::{
    clock::Moment,
    connection::{ConnectionThread, Snapshot},
    files::DatabaseFiles,
    rows::{self as sqlite_rows, execute, fetch},
    save, space,
};
use crate::{
    clock::Instant,
    domain::{
        message::Message,
        queue::QueuedStep,
        values::{AgentName, TaskId, Timestamp},
    },
    store::{
        Batch, CompiledDefinitions, KnownKey, Loaded, Saved, StoreError,
        error::corrupt,
        rows::{self, Row},
        statement::Statement,
        transaction::{CommitError, Dialect, Session, Transaction},
        view::ledger_sql::LedgerDialect,
    },
};

/// Relies on steps_line.
const QUEUED: &str = r#"
SELECT task_id, idx, turn, due_at FROM steps
WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND NOT (due_at >= $2 AND due_at < $3)
ORDER BY lane, turn, task_id, idx
LIMIT $4"#;

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
WHERE "key" IN (SELECT value FROM json_each($1))"#;

/// Steps, history, attempts, labels, alerts and keys are deleted by cascade. A child stays until its parent is deleted, because
/// the parent may have to undo it.
const PURGE: &str = r#"
DELETE FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each($1)) AND ended_at IS NOT NULL AND ended_at < $2
  AND NOT EXISTS (SELECT 1 FROM child_tasks JOIN tasks AS parents ON parents.id = child_tasks.parent
                  WHERE child_tasks.child = tasks.id)"#;

const QUEUED_IN_LANE: &str = r#"
SELECT {place} AS place, task_id, idx, turn, due_at FROM steps
WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND lane = {lane}
ORDER BY turn, task_id, idx
LIMIT {limit}"#;

/// Compares a text with the texts of a JSON array.
pub(super) const IS_ONE_OF: &str = "IN (SELECT value FROM json_each(?))";

pub const JSON_ITEMS: &str = "json_each($1) AS item";

/// There is only one writer, so nothing is locked.
static DIALECT: Dialect = Dialect {
    skip_locked: "",
    share_unlocked: "",
    key_share: "",
    exclusive_unlocked: "",
    promote: PROMOTE,
    promote_one: PROMOTE_ONE,
    agent: "SELECT spec FROM agents WHERE name = $1",
    heartbeat: "INSERT INTO heartbeat (id, at) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET at = excluded.at",
    is_one_of: IS_ONE_OF,
    json_items: JSON_ITEMS,
    try_lock: None,
    queued_in_lane: QUEUED_IN_LANE,
    ledger: LedgerDialect::Sqlite,
};

/// The transaction is begun at its first write. Reads before that need not be in it, because a save compares versions.
///
/// The connection is shared. A batch is mostly one job, and jobs of the other committer may be in the queue at the same
/// time. A transaction of several jobs has the connection exclusively until it ends.
pub(super) struct SqliteTransaction<'c> {
    pub connection: &'c ConnectionThread,
    pub definitions: &'c Arc<CompiledDefinitions>,
    pub files: &'c DatabaseFiles,
    pub moment: Moment,
    /// The most pages that the file may have.
    pub max_pages: Option<u64>,
    pub jobs: &'c Arc<RwLock<()>>,
    /// The exclusive lock, if the transaction has begun.
    pub begun: Option<OwnedRwLockWriteGuard<()>>,
}

impl SqliteTransaction<'_> {
    /// Runs the job within the transaction.
    async fn write<R: Send + 'static>(
        &mut self,
        job: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let begins = self.begun.is_none();
        if begins {
            self.begun = Some(self.jobs.clone().write_owned().await);
        }
        let job = move |connection: &mut Connection| {
            if begins {
                begin(connection)?;
            }
            job(connection)
        };
        self.connection.run(job).await
    }

    /// Runs the job in one snapshot of the database, within the transaction if it has begun.
    async fn read<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        if self.begun.is_some() {
            return self.connection.run(|connection| job(connection)).await;
        }
        let _beside = self.jobs.read().await;
        let job = move |connection: &mut Connection| {
            end_left_over(connection)?;
            let _view = Snapshot::of(connection)?;
            job(connection)
        };
        self.connection.run(job).await
    }
}

/// Begins a transaction that writes. A deferred transaction that begins to write later can fail despite the busy
/// timeout.
fn begin(connection: &Connection) -> Result<(), StoreError> {
    end_left_over(connection)?;
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    Ok(())
}

fn end_left_over(connection: &Connection) -> Result<(), StoreError> {
    if !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    Ok(())
}

/// Rolls back, unless SQLite did so by itself because the disk is full or fails.
fn roll_back(connection: &mut Connection) {
    // If this fails, the next transaction rolls back first.
    let _ = end_left_over(connection);
}

fn commit(connection: &Connection, files: &DatabaseFiles) -> Result<(), StoreError> {
    // After the commit the gap would be hidden.
    files.check_before_commit()?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    // This must come after the commit: a commit to a file that was removed in the meantime must not be reported as
    // done.
    files.check_committed()?;
    #[cfg(test)]
    if crate::host::current().is_some_and(|host| host.loses_commit()) {
        let lost = "the simulation has lost the result".to_owned();
        return Err(StoreError::CommitUnknown(lost));
    }
    Ok(())
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        if self.begun.is_some() {
            self.connection.post(roll_back);
        }
    }
}

#[async_trait]
impl Session for SqliteTransaction<'_> {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn now(&self) -> Timestamp {
        self.moment.now
    }

    fn wall_now(&self) -> Timestamp {
        self.moment.wall
    }

    fn instant(&self) -> Instant {
        self.moment.instant
    }

    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        let found = self.write(move |connection| fetch(connection, &statement));
        Ok(found.await?.into_iter().map(Row::Sqlite).collect())
    }

    async fn execute(&mut self, statement: Statement) -> Result<u64, StoreError> {
        self.write(move |connection| execute(connection, &statement))
            .await
    }

    async fn load(&mut self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        let (ids, definitions) = (ids.to_vec(), self.definitions.clone());
        let health = self.files.health.clone();
        let load = move |connection: &Connection| {
            sqlite_rows::load(connection, &ids, &definitions, &health)
        };
        self.read(load).await
    }

    async fn sizes(&mut self, ids: &[TaskId]) -> Result<HashMap<TaskId, usize>, StoreError> {
        let ids = ids.to_vec();
        self.read(move |connection| sqlite_rows::sizes(connection, &ids))
            .await
    }

    async fn idempotency(&mut self, keys: &[&str]) -> Result<Vec<KnownKey>, StoreError> {
        let keys = serde_json::to_string(keys).map_err(corrupt)?;
        let find = Statement::new(IDEMPOTENCY).bind(keys);
        let found = self
            .read(move |connection| fetch(connection, &find))
            .await?;
        found.iter().map(rows::known_key).collect()
    }

    async fn queued(
        &mut self,
        agent: &AgentName,
        left: Range<Timestamp>,
        limit: usize,
    ) -> Result<Vec<QueuedStep>, StoreError> {
        let find = Statement::new(QUEUED).bind(agent);
        let find = find.bind(left.start).bind(left.end).bind(limit);
        let found = self.read(move |connection| fetch(connection, &find)).await;
        let found = found.inspect_err(|error| self.files.health.note(error))?;
        found.iter().map(rows::queued_step).collect()
    }

    async fn save(&mut self, batch: &Arc<Batch>) -> Result<Saved, StoreError> {
        let (saving, now) = (batch.clone(), self.moment.now);
        let save = move |connection: &Connection| save::save(connection, &saving, now);
        if self.write(save).await? == Saved::Conflict {
            return Ok(Saved::Conflict);
        }
        (self as &mut Transaction<'_>).save_moves(batch).await?;
        (self as &mut Transaction<'_>).save_asks(batch).await?;
        (self as &mut Transaction<'_>).save_attempts(batch).await?;
        let alerts = (self as &mut Transaction<'_>).save_alerts(batch).await?;
        let messages: Vec<_> = batch.messages.iter().chain(&alerts).collect();
        self.add_messages(&messages).await?;
        Ok(Saved::All)
    }

    async fn add_messages(&mut self, messages: &[&Message]) -> Result<(), StoreError> {
        if messages.is_empty() {
            return Ok(());
        }
        let messages: Vec<_> = messages.iter().map(|message| (*message).clone()).collect();
        self.write(move |connection| {
            save::add_messages(connection, &messages.iter().collect::<Vec<_>>())
        })
        .await
    }

    async fn purge(
        &mut self,
        tasks: &[TaskId],
        ended_before: Timestamp,
    ) -> Result<u64, StoreError> {
        // The statement has one form for any number of tasks.
        let ids: Vec<_> = tasks.iter().map(|task| task.0.simple()).collect();
        let ids = serde_json::to_string(&ids).map_err(corrupt)?;
        self.execute(Statement::new(PURGE).bind(ids).bind(ended_before))
            .await
    }

    async fn give_back(&mut self, pages: u32) -> Result<(), StoreError> {
        let max_pages = self.max_pages;
        self.write(move |connection| Ok(space::give_back(connection, pages, max_pages)?))
            .await
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StoreError> {
        if self.begun.is_none() {
            self.files.check_before_commit()?;
            return self.files.check_committed();
        }
        let files = self.files.clone();
        self.write(move |connection| commit(connection, &files))
            .await?;
        self.begun = None;
        Ok(())
    }

    /// Saves and commits in one job, which is sent to the thread once.
    async fn save_and_commit(
        mut self: Box<Self>,
        batch: &Arc<Batch>,
    ) -> Result<Saved, CommitError> {
        if self.begun.is_some() || batch.needs_more_statements() {
            // While another process keeps the database locked, each batch after this one would wait as long.
            self.write(|_| Ok(())).await.map_err(CommitError::Begin)?;
            if self.save(batch).await? == Saved::Conflict {
                return Ok(Saved::Conflict);
            }
            self.commit().await?;
            return Ok(Saved::All);
        }
        let (batch, files, now) = (batch.clone(), self.files.clone(), self.moment.now);
        let save_and_commit = move |connection: &mut Connection| {
            begin(connection).map_err(CommitError::Begin)?;
            let saved = (|| {
                if save::save(connection, &batch, now)? == Saved::Conflict {
                    return Ok(Saved::Conflict);
                }
                save::add_messages(connection, &batch.messages.iter().collect::<Vec<_>>())?;
                commit(connection, &files)?;
                Ok::<_, StoreError>(Saved::All)
            })();
            roll_back(connection);
            Ok(saved?)
        };
        let _beside = self.jobs.read().await;
        self.connection.run(save_and_commit).await
    }
}

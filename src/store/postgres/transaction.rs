//! The writer's transaction.
//!
//! Locks: every change of a task, of its steps and of its other rows is made under the lock of the task's row. A save
//! takes those locks in the order of ids, and waits if another instance holds one. A transaction that locks rows out of
//! that order (for an agent queue, a promotion or a rare write) skips locked rows, and from then on waits for no lock:
//! see [`LockOrder`]. So no deadlock is possible.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{Executor, PgConnection, Row as _, raw_sql};
use tracing::warn;

use super::{
    PgBackend, answered, answered_within,
    clock::{ClockEstimate, ClockSample},
    commit_witness::{self, CommitWitness, LostSession},
    connection::WriterSession,
    notifications::Notification,
    prepared::Prepared,
    save::{self, RowsSaved},
    session_settings::{BEGIN, BEGIN_ANYWHERE},
};
use crate::{
    clock::{self, Instant, sleep, timeout_at},
    domain::{
        message::Message,
        queue::QueuedStep,
        values::{AgentName, Leases, TaskId, Timestamp},
    },
    store::{
        Batch, KnownKey, Loaded, Saved, StoreError,
        error::corrupt,
        rows::{self, Columns, Row},
        statement::Statement,
        transaction::{CommitError, Dialect, Session, Transaction},
        upkeep::leases,
        view::ledger_sql::LedgerDialect,
    },
};

/// The time for BEGIN, which waits for no lock. Most network cuts are noticed here, because the connection is idle
/// between batches.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);

/// Relies on steps_line. Locks the tasks, not the steps, as a save does. Tasks that other instances have locked are
/// skipped, so that instances take different steps from one queue.
const QUEUED: &str = r#"
SELECT task_id, idx, turn, due_at
FROM steps
CROSS JOIN LATERAL (
    SELECT FROM tasks WHERE tasks.id = steps.task_id FOR NO KEY UPDATE SKIP LOCKED) AS locked
WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND NOT (due_at >= $2 AND due_at < $3)
ORDER BY lane, turn, task_id, idx
LIMIT $4"#;

/// Relies on steps_delayed. Locks the tasks, as every change of steps does, and skips those that others have locked. A
/// step that was changed while the lock was taken is read again, or left for the next promotion.
///
/// The versions of the tasks stay, so that no instance has to load them again. The cost of that is
/// [`RowsSaved::Missed`].
const PROMOTE: &str = r#"
WITH due AS MATERIALIZED (
    SELECT steps.ctid AS place FROM steps
    CROSS JOIN LATERAL (
        SELECT FROM tasks WHERE tasks.id = steps.task_id FOR NO KEY UPDATE SKIP LOCKED) AS locked
    WHERE due_at IS NOT NULL AND queued = 0 AND due_at <= $1
    ORDER BY due_at LIMIT $2)
UPDATE steps SET queued = 1
FROM due
WHERE steps.ctid = due.place AND queued = 0 AND due_at <= $1"#;

const PROMOTE_ONE: &str = r#"
WITH due AS MATERIALIZED (
    SELECT steps.ctid AS place FROM steps
    CROSS JOIN LATERAL (
        SELECT FROM tasks WHERE tasks.id = steps.task_id FOR NO KEY UPDATE SKIP LOCKED) AS locked
    WHERE task_id = $1 AND idx = $2 AND due_at <= $3 AND queued = 0)
UPDATE steps SET queued = 1
FROM due
WHERE steps.ctid = due.place AND queued = 0 AND due_at <= $3"#;

const TRY_LOCK: &str = r#"
SELECT CAST(pg_try_advisory_xact_lock(hashtextextended($1, 0)) AS integer)::bigint AS locked"#;

/// Reads a queue as [`QUEUED`] does, for one lane.
const QUEUED_IN_LANE: &str = r#"
SELECT {place}::bigint AS place, task_id, idx, turn, due_at
FROM steps
CROSS JOIN LATERAL (
    SELECT FROM tasks WHERE tasks.id = steps.task_id FOR NO KEY UPDATE SKIP LOCKED) AS locked
WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 AND lane = {lane}
ORDER BY turn, task_id, idx
LIMIT {limit}"#;

/// Compares a text with the texts of a JSON array.
pub(super) const IS_ONE_OF: &str = "= ANY (ARRAY(SELECT json_array_elements_text(?::text::json)))";

static DIALECT: Dialect = Dialect {
    skip_locked: "FOR NO KEY UPDATE SKIP LOCKED",
    share_unlocked: "FOR SHARE SKIP LOCKED",
    key_share: "FOR KEY SHARE",
    exclusive_unlocked: "FOR UPDATE SKIP LOCKED",
    promote: PROMOTE,
    promote_one: PROMOTE_ONE,
    agent: "SELECT spec FROM agents WHERE name = $1 FOR UPDATE",
    heartbeat: r#"
INSERT INTO heartbeat (id, at) VALUES (pg_backend_pid() % 64, $1)
ON CONFLICT (id) DO UPDATE SET at = excluded.at"#,
    is_one_of: IS_ONE_OF,
    json_items: "json_array_elements($1::text::json) AS item (value)",
    try_lock: Some(TRY_LOCK),
    queued_in_lane: QUEUED_IN_LANE,
    ledger: LedgerDialect::Postgres,
};

const IDEMPOTENCY: &str =
    r#"SELECT "key", fingerprint, task_id FROM idempotency_keys WHERE "key" = ANY ($1)"#;

/// Labels, alerts and keys are deleted by cascade. A child stays until its parent is deleted, because the parent may
/// have to undo it.
const PURGE: &str = r#"
WITH ended AS MATERIALIZED (
    SELECT id FROM tasks
    WHERE id = ANY ($1) AND ended_at IS NOT NULL AND ended_at < $2
      AND NOT EXISTS (SELECT 1 FROM child_tasks JOIN tasks AS parents ON parents.id = child_tasks.parent
                      WHERE child_tasks.child = tasks.id)
    FOR UPDATE SKIP LOCKED),
purged AS (DELETE FROM tasks WHERE id = ANY (ARRAY(SELECT id FROM ended)) RETURNING id),
purged_steps AS (DELETE FROM steps WHERE task_id = ANY (ARRAY(SELECT id FROM ended))),
purged_details AS (DELETE FROM task_details WHERE task_id = ANY (ARRAY(SELECT id FROM ended))),
purged_children AS (DELETE FROM child_tasks WHERE child = ANY (ARRAY(SELECT id FROM ended))),
purged_history AS (DELETE FROM history WHERE task_id = ANY (ARRAY(SELECT id FROM ended))),
purged_attempts AS (DELETE FROM attempts WHERE task_id = ANY (ARRAY(SELECT id FROM ended))),
purged_usage AS (DELETE FROM attempt_usage WHERE task_id = ANY (ARRAY(SELECT id FROM ended)))
SELECT count(*) AS purged FROM purged"#;

const MISSED: &str = "the database did not change every row of the tasks and steps that were to be saved, and nothing was saved: check the tables \"tasks\" and \"steps\" for triggers, rules and policies that keep rows from being changed, and the database for damage";

/// The longest time for finding out the result of a commit whose response was lost, once there is another connection.
/// It is longer than the server lets a session hang in a transaction.
const OUTCOME_WITHIN: Duration = Duration::from_secs(15);
/// The longest wait for another connection. All requests wait in the meantime, and must get an error while the database
/// cannot be reached. Giving up does no harm: a change that was saved after all is found when it is looked for.
const SOMEBODY_WITHIN: Duration = Duration::from_secs(2);
const OUTCOME_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct PgTransaction<'b> {
    backend: &'b mut PgBackend,
    state: TransactionState,
    locks: LockOrder,
    estimate: ClockEstimate,
    witness: Option<CommitWitness>,
    notification: Notification,
}

enum TransactionState {
    /// The server does not know of the transaction. If the time is known, the transaction is begun only when more than
    /// one statement writes. Reads need not be in it, because a save compares versions.
    NotBegun(WriterSession),
    Begun {
        session: WriterSession,
        /// The transaction's id, with a pooler.
        id: Option<u64>,
    },
    /// A statement failed or was cancelled: the server would respond to COMMIT by rolling back.
    Failed(WriterSession),
    /// The transaction was committed, or its connection was lost.
    Ended,
}

/// The order in which the transaction has locked rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockOrder {
    ById,
    /// The transaction must not wait for any other transaction.
    Other,
}

impl<'b> PgTransaction<'b> {
    pub async fn begin(backend: &'b mut PgBackend) -> Result<Self, StoreError> {
        let session = backend.writer.take().await?;
        let instant = clock::instant();
        let known = match backend.writer.prepared() {
            Prepared::Named => backend.clock.at(instant),
            Prepared::Unnamed => None,
        };
        let mut transaction = Self {
            backend,
            state: TransactionState::NotBegun(session),
            locks: LockOrder::ById,
            estimate: known.unwrap_or(ClockEstimate {
                now: Timestamp::from_millis(0),
                instant,
            }),
            witness: None,
            notification: Notification::default(),
        };
        if known.is_none() {
            transaction.estimate.now = transaction.tell_server().await?;
        }
        Ok(transaction)
    }

    /// Begins the transaction on the server, and returns the server's time.
    async fn tell_server(&mut self) -> Result<Timestamp, StoreError> {
        let begin = match self.prepared() {
            Prepared::Named => BEGIN,
            Prepared::Unnamed => BEGIN_ANYWHERE,
        };
        self.cut_off();
        let asked = clock::instant();
        let begun = self.session()?.connection.fetch_all(raw_sql(begin));
        // The time is in the last row.
        let row = answered_within(BEGIN_WITHIN, begun).await?.pop();
        let row = row.ok_or_else(|| corrupt("a transaction without a time"))?;
        let now = Timestamp::from_millis(row.try_get("now")?);
        self.backend.clock.set(ClockSample {
            now,
            asked,
            answered: clock::instant(),
        });
        let id = match self.prepared() {
            Prepared::Named => None,
            Prepared::Unnamed => Some(row.try_get::<&str, _>("id")?.parse().map_err(corrupt)?),
        };
        if let Some(session) = self.take_session() {
            self.state = TransactionState::Begun { session, id };
        }
        Ok(now)
    }

    fn prepared(&self) -> Prepared {
        self.backend.writer.prepared()
    }

    fn session(&mut self) -> Result<&mut WriterSession, StoreError> {
        match &mut self.state {
            TransactionState::NotBegun(session)
            | TransactionState::Begun { session, .. }
            | TransactionState::Failed(session) => Ok(session),
            TransactionState::Ended => Err(corrupt("a transaction was used after its end")),
        }
    }

    fn take_session(&mut self) -> Option<WriterSession> {
        match std::mem::replace(&mut self.state, TransactionState::Ended) {
            TransactionState::NotBegun(session)
            | TransactionState::Begun { session, .. }
            | TransactionState::Failed(session) => Some(session),
            TransactionState::Ended => None,
        }
    }

    /// Returns the connection, after the transaction was begun on the server.
    async fn connection(&mut self) -> Result<&mut PgConnection, StoreError> {
        match self.state {
            TransactionState::NotBegun(_) => {
                self.tell_server().await?;
            }
            // The server may not know of the transaction, and would commit a statement by itself.
            TransactionState::Failed(_) => return Err(failed()),
            TransactionState::Begun { .. } | TransactionState::Ended => {}
        }
        self.reading()
    }

    /// Returns the connection for reads, which need not be in the transaction.
    fn reading(&mut self) -> Result<&mut PgConnection, StoreError> {
        Ok(&mut self.session()?.connection)
    }

    fn noted<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if done.is_err() {
            self.cut_off();
        }
        done
    }

    /// Notes that a statement was begun. Unless it completes, the connection must be rolled back.
    fn cut_off(&mut self) {
        if let Some(session) = self.take_session() {
            self.state = TransactionState::Failed(session);
        }
    }

    /// Saves everything of a batch except alerts and messages.
    async fn save_rows(&mut self, batch: &Batch) -> Result<Saved, StoreError> {
        let wait = self.locks == LockOrder::ById;
        let (now, prepared) = (self.estimate.now, self.prepared());
        let locks_first = self.backend.locks_first;
        if locks_first {
            let locked = save::lock_tasks(self.connection().await?, batch, wait, prepared);
            let locked = answered(locked).await;
            if !self.noted(locked)? {
                return Ok(Saved::Conflict);
            }
        }
        let saved = save::save(self.connection().await?, batch, now, wait, prepared);
        let saved = answered(saved).await;
        match self.noted(saved)? {
            RowsSaved::All => {
                self.backend.locks_first = false;
                Ok(Saved::All)
            }
            RowsSaved::Stale => Ok(Saved::Conflict),
            RowsSaved::Missed => {
                self.cut_off();
                self.backend.locks_first = !locks_first;
                match locks_first {
                    false => Ok(Saved::Conflict),
                    true => Err(StoreError::Unavailable(MISSED.to_owned())),
                }
            }
        }
    }

    fn note(&mut self, batch: &Batch) {
        self.witness = CommitWitness::of(batch);
        for change in &batch.changes {
            self.notification.tasks |= change.task.is_settled();
            self.notification.drops |= change.drops_elsewhere;
            let mut steps = change.steps.iter();
            self.notification.work |= steps.any(|step| change.task.due_at(*step).is_some());
        }
    }

    /// Returns the connection and notifies other instances after the commit.
    fn committed(&mut self) {
        if let Some(session) = self.take_session() {
            self.backend.writer.put_back(session);
        }
        if let Some(notifier) = &self.backend.notifier {
            notifier.notify(self.notification);
        }
    }

    /// Finds out the result of a commit whose response was lost, by the record. A wrong result, either way, would be
    /// returned to a caller.
    async fn outcome(&mut self, lost: StoreError) -> Result<(), StoreError> {
        warn!(error = %lost, "the response to a commit was lost; looking up its result");
        // The old connection cannot be used any more, because its response may still arrive.
        let id = match &self.state {
            TransactionState::Begun { id, .. } => *id,
            _ => None,
        };
        let connection = self.take_session().and_then(|session| session.id);
        let asked = clock::instant();
        let mut until = asked + SOMEBODY_WITHIN;
        while clock::instant() < until {
            if let Ok(Ok(mut session)) = timeout_at(until, self.backend.writer.another()).await {
                until = asked + OUTCOME_WITHIN;
                let lost_session = match (&connection, id) {
                    (Some(id), _) => LostSession::Connection(id),
                    (None, Some(id)) => LostSession::Transaction(id),
                    (None, None) => return Err(corrupt("an unknown transaction")),
                };
                let (witness, prepared) = (self.witness.as_ref(), self.prepared());
                match commit_witness::is_committed(
                    &mut session.connection,
                    lost_session,
                    witness,
                    prepared,
                )
                .await
                {
                    Ok(Some(true)) => {
                        self.state = TransactionState::NotBegun(session);
                        return Ok(());
                    }
                    Ok(Some(false)) => return Err(StoreError::Retryable(lost.to_string())),
                    // The old session has not ended yet, or this connection was lost.
                    Ok(None) | Err(_) => {}
                }
            }
            sleep(OUTCOME_AGAIN).await;
        }
        Err(StoreError::CommitUnknown(format!(
            "the connection was lost during a commit, and its result cannot be looked up: {lost}"
        )))
    }
}

fn failed() -> StoreError {
    corrupt("a transaction in which a statement failed cannot be committed")
}

impl Drop for PgTransaction<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, TransactionState::Ended) {
            TransactionState::NotBegun(session) => self.backend.writer.put_back(session),
            TransactionState::Begun { session, .. } | TransactionState::Failed(session) => {
                self.backend.writer.recover(Some(session));
            }
            TransactionState::Ended => {}
        }
    }
}

#[async_trait]
impl Session for PgTransaction<'_> {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn now(&self) -> Timestamp {
        self.estimate.now
    }

    fn instant(&self) -> Instant {
        self.estimate.instant
    }

    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        let query = self.prepared().with_values(statement);
        let found = answered(query.fetch_all(self.connection().await?)).await;
        let found = self.noted(found)?;
        Ok(found.into_iter().map(Row::Postgres).collect())
    }

    async fn execute(&mut self, statement: Statement) -> Result<u64, StoreError> {
        let query = self.prepared().with_values(statement);
        let done = answered(query.execute(self.connection().await?)).await;
        Ok(self.noted(done)?.rows_affected())
    }

    fn lock_out_of_order(&mut self) {
        self.locks = LockOrder::Other;
    }

    fn notify(&mut self, notification: Notification) {
        self.notification |= notification;
    }

    async fn load(&mut self, ids: &[TaskId]) -> Result<Loaded, StoreError> {
        let definitions = self.backend.definitions.clone();
        let prepared = self.prepared();
        let loaded = super::rows::load(self.reading()?, ids, &definitions, prepared);
        let loaded = answered(loaded).await;
        self.noted(loaded)
    }

    async fn sizes(&mut self, ids: &[TaskId]) -> Result<HashMap<TaskId, usize>, StoreError> {
        let prepared = self.prepared();
        let sizes = super::rows::sizes(self.reading()?, ids, prepared);
        let sizes = answered(sizes).await;
        self.noted(sizes)
    }

    async fn idempotency(&mut self, keys: &[&str]) -> Result<Vec<KnownKey>, StoreError> {
        let query = self.prepared().query(IDEMPOTENCY).bind(keys);
        let found = answered(query.fetch_all(self.reading()?)).await;
        self.noted(found)?.iter().map(rows::known_key).collect()
    }

    async fn queued(
        &mut self,
        agent: &AgentName,
        left: Range<Timestamp>,
        limit: usize,
    ) -> Result<Vec<QueuedStep>, StoreError> {
        self.lock_out_of_order();
        let query = self
            .prepared()
            .query(QUEUED)
            .bind(agent.as_str())
            .bind(left.start.as_millis())
            .bind(left.end.as_millis())
            .bind(limit as i64);
        let found = answered(query.fetch_all(self.connection().await?)).await;
        self.noted(found)?.iter().map(rows::queued_step).collect()
    }

    async fn save(&mut self, batch: &Arc<Batch>) -> Result<Saved, StoreError> {
        if self.save_rows(batch).await? == Saved::Conflict {
            return Ok(Saved::Conflict);
        }
        (self as &mut Transaction<'_>).save_moves(batch).await?;
        (self as &mut Transaction<'_>).save_asks(batch).await?;
        (self as &mut Transaction<'_>).save_attempts(batch).await?;
        let alerts = (self as &mut Transaction<'_>).save_alerts(batch).await?;
        let messages: Vec<_> = batch.messages.iter().chain(&alerts).collect();
        self.add_messages(&messages).await?;
        self.note(batch);
        Ok(Saved::All)
    }

    async fn add_messages(&mut self, messages: &[&Message]) -> Result<(), StoreError> {
        let prepared = self.prepared();
        let added = save::add_messages(self.connection().await?, messages, prepared);
        let added = answered(added).await;
        self.noted(added)
    }

    async fn purge(
        &mut self,
        tasks: &[TaskId],
        ended_before: Timestamp,
    ) -> Result<u64, StoreError> {
        self.lock_out_of_order();
        let ids: Vec<_> = tasks.iter().map(|task| task.0).collect();
        let query = self
            .prepared()
            .query(PURGE)
            .bind(ids)
            .bind(ended_before.as_millis());
        let purged = answered(query.fetch_one(self.connection().await?)).await;
        Columns::get(&self.noted(purged)?, "purged")
    }

    async fn prolong_leases(
        &mut self,
        before: &Leases,
        after: &Leases,
    ) -> Result<Option<Leases>, StoreError> {
        let (TransactionState::NotBegun(_), Some(prolong)) =
            (&self.state, leases::prolong(before, after))
        else {
            return Ok(None);
        };
        // Unless the statement completes, the connection is not used again.
        self.cut_off();
        let query = self.prepared().with_values(prolong);
        let asked = clock::instant();
        let found = answered(query.fetch_optional(self.reading()?)).await?;
        if let Some(session) = self.take_session() {
            self.state = TransactionState::NotBegun(session);
        }
        let Some(row) = found.map(Row::Postgres) else {
            return Ok(None);
        };
        self.backend.clock.set(ClockSample {
            now: row.get("now")?,
            asked,
            answered: clock::instant(),
        });
        Ok(leases::prolonged(&row)?.map(|lease| Leases {
            instance: after.instance.clone(),
            supervisor: match before.supervisor == after.supervisor {
                true => Some(lease),
                false => after.supervisor.clone(),
            },
        }))
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StoreError> {
        match self.state {
            TransactionState::Failed(_) => return Err(failed()),
            TransactionState::Begun { .. } => {
                match answered(self.connection().await?.execute("COMMIT")).await {
                    Ok(_) => {}
                    // Any other error is a response: nothing was committed.
                    Err(lost @ StoreError::Lost(_)) => self.outcome(lost).await?,
                    Err(error) => return Err(error),
                }
            }
            TransactionState::NotBegun(_) | TransactionState::Ended => {}
        }
        self.committed();
        Ok(())
    }

    async fn save_and_commit(
        mut self: Box<Self>,
        batch: &Arc<Batch>,
    ) -> Result<Saved, CommitError> {
        let is_new = matches!(self.state, TransactionState::NotBegun(_));
        if !is_new || self.backend.locks_first || !save::is_one_statement(batch) {
            if self.save(batch).await? == Saved::Conflict {
                return Ok(Saved::Conflict);
            }
            self.commit().await?;
            return Ok(Saved::All);
        }
        // The statement is its own transaction: one round trip instead of three.
        self.note(batch);
        self.cut_off();
        let (now, prepared) = (self.estimate.now, self.prepared());
        let saved = save::save(self.reading()?, batch, now, true, prepared);
        let saved = answered(saved).await;
        match saved {
            Ok(RowsSaved::All) => {}
            Ok(RowsSaved::Stale | RowsSaved::Missed) => {
                self.backend.locks_first = matches!(saved, Ok(RowsSaved::Missed));
                if let Some(session) = self.take_session() {
                    self.backend.writer.put_back(session);
                }
                return Ok(Saved::Conflict);
            }
            Err(lost @ StoreError::Lost(_)) => self.outcome(lost).await?,
            Err(error) => return Err(error.into()),
        }
        self.committed();
        Ok(Saved::All)
    }
}

//! One transaction of the writer. A backend provides a [`Session`]: the frequent statements, and those that only one
//! database understands. The other statements are the same for every database, and are here.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
};

use async_trait::async_trait;
use uuid::Uuid;

use super::{
    Alert, AlertId, AlertQuery, Batch, KnownKey, Loaded, Promoted, Saved, StoreError,
    WorkflowRecord,
    batch::TaskChange,
    error::corrupt,
    message::outbox::closed_alert,
    postgres::Notification,
    queries,
    rows::{self, Columns, Row, WORKFLOW},
    statement::Statement,
    task::{
        alert,
        alert_cause::JoinedCauses,
        failure::{FailuresToSave, first_failure},
    },
    upkeep::leases,
    view::ledger_sql::LedgerDialect,
};
use crate::{
    chance,
    clock::Instant,
    domain::{
        agent::AgentSpec,
        message::{AlertNotice, Message, Sender},
        queue::QueuedStep,
        task::{AlertChange, CauseFingerprint},
        values::{
            AgentName, InstanceId, Leases, ReceiverName, StepIndex, StepName, StepRef, TaskId,
            Timestamp, WorkflowName,
        },
    },
};

const ADD_WORKFLOW: &str =
    "INSERT INTO workflows (name, version, body, created_at) VALUES ($1, $2, $3, $4)";

const PUT_AGENT: &str = r#"
INSERT INTO agents (name, spec, updated_at) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, updated_at = excluded.updated_at"#;

const ADD_AGENT: &str = r#"
INSERT INTO agents (name, spec, updated_at) VALUES ($1, $2, $3)
ON CONFLICT (name) DO NOTHING"#;

const DELETE_AGENT: &str = "DELETE FROM agents WHERE name = $1";

/// The alert of a step is acknowledged by acknowledging the alert of its cause.
const ACKNOWLEDGE: &str = r#"
UPDATE alerts
SET state = CASE state WHEN 'open' THEN 'acknowledged' ELSE state END,
    acknowledged_at = coalesce(acknowledged_at, $2), acknowledged_by = coalesce(acknowledged_by, $3)
WHERE id = coalesce((SELECT part_of FROM alerts WHERE id = $1), $1)
RETURNING id"#;

/// Relies on alerts_unclosed and alerts_unclosed_of_receiver: if the same alert is open, no other is added.
const RAISE_ALERT: &str = r#"
INSERT INTO alerts (id, task_id, idx, step, receiver, kind, message, state, raised_at, part_of, fingerprint)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'open', $8, $9, $10)
ON CONFLICT DO NOTHING"#;

/// Relies on alerts_unclosed.
const CLOSE_ALERT: &str = r#"
UPDATE alerts SET state = 'closed', closed_at = $3
WHERE task_id = $1 AND idx = $2 AND state <> 'closed'
RETURNING id, kind, message, raised_at, part_of"#;

/// The clauses and statements in which the databases differ.
pub struct Dialect {
    /// A clause by which a SELECT locks its rows and skips those that are locked.
    pub skip_locked: &'static str,
    /// The same clause with a shared lock, which prevents changes only.
    pub share_unlocked: &'static str,
    /// A clause that locks a row so that its key stays, though others may change its other columns. It waits for
    /// `exclusive_unlocked`, and for no other change.
    pub key_share: &'static str,
    /// A clause that locks the rows that no other transaction has locked, not even with `key_share`.
    pub exclusive_unlocked: &'static str,
    /// Relies on steps_delayed.
    pub promote: &'static str,
    pub promote_one: &'static str,
    /// Locks the agent's row.
    pub agent: &'static str,
    pub heartbeat: &'static str,
    /// Compares a text with the texts of a JSON array.
    pub is_one_of: &'static str,
    /// The items of the JSON array $1, as rows with the column `value`.
    pub json_items: &'static str,
    /// Takes a lock with a name until the transaction ends, unless another transaction has it.
    pub try_lock: Option<&'static str>,
    /// Up to `{limit}` steps at the head of the lane `{lane}` of the agent $1. Relies on steps_line.
    pub queued_in_lane: &'static str,
    pub ledger: LedgerDialect,
}

/// A transaction as a backend provides it. If it is dropped without [`Session::commit`], it changes nothing.
#[async_trait]
pub trait Session: Send {
    fn dialect(&self) -> &'static Dialect;

    /// Returns the transaction's time, by the store's clock.
    fn now(&self) -> Timestamp;

    /// Returns that time by the wall clock. If the store is a file, the store's clock follows a wall clock that was set
    /// only gradually. Schedules use the wall clock.
    fn wall_now(&self) -> Timestamp {
        self.now()
    }

    /// A moment of this process's clock at which the store's clock was not later than `now`: a duration that is counted
    /// from this moment ends no later than one that is counted from `now`.
    fn instant(&self) -> Instant;

    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, StoreError>;
    /// Returns the number of affected rows.
    async fn execute(&mut self, statement: Statement) -> Result<u64, StoreError>;

    /// Declares that the next statements lock rows in another order than a save does.
    fn lock_out_of_order(&mut self) {}

    /// Notifies other instances after the commit.
    fn notify(&mut self, _notification: Notification) {}

    /// Returns the tasks among `ids` that exist, in any order.
    async fn load(&mut self, ids: &[TaskId]) -> Result<Loaded, StoreError>;

    /// Returns the memory that each of the tasks among `ids` takes once it is loaded, in bytes, as far as that is known
    /// without reading it.
    async fn sizes(&mut self, ids: &[TaskId]) -> Result<HashMap<TaskId, usize>, StoreError>;

    /// Returns the tasks that were submitted under the idempotency keys among `keys`.
    async fn idempotency(&mut self, keys: &[&str]) -> Result<Vec<KnownKey>, StoreError>;

    /// Returns up to `limit` steps at the head of an agent's queue, most important first, except those that became due
    /// in the time `left`.
    async fn queued(
        &mut self,
        agent: &AgentName,
        left: Range<Timestamp>,
        limit: usize,
    ) -> Result<Vec<QueuedStep>, StoreError>;

    /// Saves a batch, each task by compare-and-set on its version.
    async fn save(&mut self, batch: &Arc<Batch>) -> Result<Saved, StoreError>;

    /// Adds messages to their queues.
    async fn add_messages(&mut self, messages: &[&Message]) -> Result<(), StoreError>;

    /// Deletes those of these tasks that ended before `ended_before`, with all rows that belong to them. Locked tasks
    /// are left for a later purge. Returns how many were deleted.
    async fn purge(&mut self, tasks: &[TaskId], ended_before: Timestamp)
    -> Result<u64, StoreError>;

    /// Returns up to this number of free pages of a database file to the disk, if the file was created for that. The
    /// file gets shorter when `-wal` is folded back. A server does this by itself.
    async fn give_back(&mut self, _pages: u32) -> Result<(), StoreError> {
        Ok(())
    }

    /// Prolongs an instance's lease, and at most takes or prolongs the supervisors', and commits, all by one statement.
    /// Returns the leases after that, or `None` if this needs more than one statement, or `before` is not on record any
    /// more.
    async fn prolong_leases(
        &mut self,
        _before: &Leases,
        _after: &Leases,
    ) -> Result<Option<Leases>, StoreError> {
        Ok(None)
    }

    async fn commit(self: Box<Self>) -> Result<(), StoreError>;

    /// Saves a batch and commits. After [`Saved::Conflict`] nothing was committed.
    async fn save_and_commit(
        mut self: Box<Self>,
        batch: &Arc<Batch>,
    ) -> Result<Saved, CommitError> {
        if self.save(batch).await? == Saved::Conflict {
            return Ok(Saved::Conflict);
        }
        self.commit().await?;
        Ok(Saved::All)
    }
}

/// The reasons why a batch was not saved.
#[derive(Debug)]
pub enum CommitError {
    /// The transaction could not be begun: no batch can be saved now.
    Begin(StoreError),
    /// This batch could not be saved.
    Save(StoreError),
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> Self {
        CommitError::Save(error)
    }
}

impl From<rusqlite::Error> for CommitError {
    fn from(error: rusqlite::Error) -> Self {
        CommitError::Save(error.into())
    }
}

pub type Transaction<'t> = dyn Session + 't;

impl Transaction<'_> {
    /// Executes a statement that may affect any number of rows.
    pub(super) async fn run(&mut self, statement: Statement) -> Result<(), StoreError> {
        self.execute(statement).await?;
        Ok(())
    }

    /// Takes the lock with this name until the transaction ends. Returns false if another instance has it.
    pub(super) async fn try_lock(&mut self, name: String) -> Result<bool, StoreError> {
        self.lock_out_of_order();
        let Some(lock) = self.dialect().try_lock else {
            return Ok(true);
        };
        let locked = self.fetch_first(Statement::new(lock).bind(name)).await?;
        let locked = locked.map(|row| row.get::<i64>("locked"));
        Ok(locked.transpose()? == Some(1))
    }

    pub(super) async fn fetch_first(
        &mut self,
        statement: Statement,
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.fetch(statement).await?.into_iter().next())
    }

    /// Returns whether any step is in the queue of an agent.
    pub async fn has_queued(&mut self, agent: &AgentName) -> Result<bool, StoreError> {
        let found = self.fetch_first(queries::any_queued(agent)).await?;
        Ok(found.is_some())
    }

    /// Enqueues delayed steps that are due, at most [`Promoted::MOST`]. Returns the agents that have queued steps after
    /// that, and when the next delayed step is due.
    pub async fn promote(&mut self) -> Result<Promoted, StoreError> {
        self.lock_out_of_order();
        let promote = Statement::new(self.dialect().promote)
            .bind(self.now())
            .bind(Promoted::MOST);
        let enqueued = self.execute(promote).await?;
        if enqueued > 0 {
            self.notify(Notification::WORK);
        }
        let mut promoted = queries::read_backlog(&self.fetch(queries::backlog()).await?)?;
        let is_due = promoted.next_due.is_some_and(|due| due <= self.now());
        promoted.is_locked = is_due && enqueued == 0;
        Ok(promoted)
    }

    /// Enqueues one delayed step, if it is due.
    pub async fn promote_one(&mut self, step: StepRef) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let promote = Statement::new(self.dialect().promote_one)
            .bind(step.task.0)
            .bind(step.step)
            .bind(self.now());
        if self.execute(promote).await? > 0 {
            self.notify(Notification::WORK);
        }
        Ok(())
    }

    /// Returns the latest version. Adding the next version fails, or is decided again, if another instance adds one at
    /// the same time.
    pub async fn latest_workflow(
        &mut self,
        name: &WorkflowName,
    ) -> Result<Option<WorkflowRecord>, StoreError> {
        self.lock_out_of_order();
        let latest = Statement::new(format!(
            "SELECT {WORKFLOW} FROM workflows WHERE name = $1 ORDER BY version DESC LIMIT 1"
        ))
        .bind(name);
        let latest = self.fetch_first(latest).await?;
        latest.as_ref().map(rows::workflow).transpose()
    }

    /// Adds a version that does not exist yet.
    pub async fn add_workflow(
        &mut self,
        name: &WorkflowName,
        version: u32,
        body: &str,
    ) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let add = Statement::new(ADD_WORKFLOW)
            .bind(name)
            .bind(version)
            .bind(body)
            .bind(self.now());
        self.execute(add).await?;
        self.notify(Notification::REGISTRATIONS);
        Ok(())
    }

    /// Returns the specification that is registered under this name, as it is stored. It is locked until the
    /// transaction ends.
    pub async fn agent(&mut self, name: &AgentName) -> Result<Option<String>, StoreError> {
        self.lock_out_of_order();
        let agent = Statement::new(self.dialect().agent).bind(name);
        let row = self.fetch_first(agent).await?;
        row.map(|row| row.get("spec")).transpose()
    }

    pub async fn put_agent(
        &mut self,
        name: &AgentName,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        self.write_agent(PUT_AGENT, name, spec).await?;
        Ok(())
    }

    /// Adds an agent. Returns [`StoreError::Retryable`] if it exists.
    pub async fn add_agent(
        &mut self,
        name: &AgentName,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        match self.write_agent(ADD_AGENT, name, spec).await? {
            0 => Err(StoreError::Retryable(format!(
                "the agent {name} was registered meanwhile"
            ))),
            _ => Ok(()),
        }
    }

    async fn write_agent(
        &mut self,
        sql: &str,
        name: &AgentName,
        spec: &AgentSpec,
    ) -> Result<u64, StoreError> {
        self.lock_out_of_order();
        let write = Statement::new(sql)
            .bind(name)
            .bind(serde_json::to_string(spec).map_err(corrupt)?)
            .bind(self.now());
        self.registered(write).await
    }

    pub async fn delete_agent(&mut self, name: &AgentName) -> Result<bool, StoreError> {
        self.lock_out_of_order();
        let delete = Statement::new(DELETE_AGENT).bind(name);
        Ok(self.registered(delete).await? > 0)
    }

    /// Returns how many rows the statement changed.
    pub(super) async fn registered(&mut self, statement: Statement) -> Result<u64, StoreError> {
        let changed = self.execute(statement).await?;
        if changed > 0 {
            self.notify(Notification::REGISTRATIONS);
        }
        Ok(changed)
    }

    /// Returns `None` if the alert does not exist.
    pub async fn acknowledge(
        &mut self,
        alert: AlertId,
        by: &str,
    ) -> Result<Option<Alert>, StoreError> {
        self.lock_out_of_order();
        let acknowledge = Statement::new(ACKNOWLEDGE)
            .bind(alert.0)
            .bind(self.now())
            .bind(by);
        let Some(acknowledged) = self.fetch_first(acknowledge).await? else {
            return Ok(None);
        };
        let query = AlertQuery {
            id: Some(acknowledged.get("id")?),
            limit: 1,
            ..AlertQuery::default()
        };
        let row = self.fetch_first(alert::page(&query)).await?;
        row.as_ref().map(alert::read).transpose()
    }

    /// Returns the record of one instance, and the supervisors' lease, which both may be missing. They are read without
    /// locks: `save_leases` compares. These three calls are made in transactions of their own, so that their locks are
    /// held only for a short time.
    pub async fn leases(&mut self, instance: &InstanceId) -> Result<Leases, StoreError> {
        leases::found(&self.fetch(leases::of(instance)).await?)
    }

    /// Saves the differences between `before`, as it was read in this transaction, and `after`: each of the two by
    /// compare-and-set on the incarnation, the term and the end of its lease, or on its absence. If either does not
    /// match, returns [`Saved::Conflict`], and all is read and decided again in a new transaction.
    pub async fn save_leases(
        &mut self,
        before: &Leases,
        after: &Leases,
    ) -> Result<Saved, StoreError> {
        for change in leases::changes(before, after) {
            if self.execute(change).await? == 0 {
                return Ok(Saved::Conflict);
            }
        }
        Ok(Saved::All)
    }

    /// Deletes the records of instances whose lease ended before `ended_before`.
    pub async fn forget_instances(&mut self, ended_before: Timestamp) -> Result<(), StoreError> {
        self.run(leases::forget(ended_before)).await
    }

    /// Saves alerts and returns the messages about them. Alerts are rare, so that a statement for each does not cost
    /// much.
    pub(super) async fn save_alerts(&mut self, batch: &Batch) -> Result<Vec<Message>, StoreError> {
        let Some(last) = batch
            .changes
            .iter()
            .rfind(|change| !change.alerts.is_empty())
        else {
            return Ok(Vec::new());
        };
        let (at, sender) = (last.at, &batch.sender);
        let mut causes = self.join_causes(batch).await?;
        let (mut of_tasks, mut left) = (Vec::new(), BTreeSet::new());
        let mut failures = FailuresToSave::default();
        for change in &batch.changes {
            for (id, alert) in &change.alerts {
                let saved =
                    self.save_alert(change, *id, alert, &mut causes, &mut failures, &mut left);
                if let Some(notice) = saved.await? {
                    let version = change.task.version;
                    of_tasks.extend(sender.alert(&notice, version, change.at, chance::id));
                    self.record_alert(&notice).await?;
                }
            }
        }
        self.save_failures(failures).await?;
        let mut messages = self.announce_causes(causes, sender, at).await?;
        messages.extend(of_tasks);
        messages.extend(self.close_causes(&left, sender, at).await?);
        Ok(messages)
    }

    /// Returns the alert if it is announced by itself: it is new or just closed, and not part of the alert of a cause.
    /// The alerts of causes of which it has closed a part are added to `left`.
    async fn save_alert<'b>(
        &mut self,
        change: &TaskChange,
        id: Uuid,
        alert: &'b AlertChange,
        causes: &mut JoinedCauses,
        failures: &mut FailuresToSave<'b>,
        left: &mut BTreeSet<Uuid>,
    ) -> Result<Option<AlertNotice>, StoreError> {
        let at = change.at;
        match alert {
            AlertChange::Raise {
                step,
                kind,
                message,
                cause,
                failure,
            } => {
                let alert = AlertNotice::raised(id, kind.as_str(), message, at);
                let notice = change.notice(*step, alert);
                let part_of = cause.as_ref().and_then(|cause| causes.id(*kind, cause));
                let has_words = cause
                    .as_ref()
                    .is_none_or(|cause| causes.has_words(*kind, cause));
                let failure = match has_words {
                    true => Cow::Borrowed(&**failure),
                    false => Cow::Owned(failure.without_words()),
                };
                let fingerprint = failure.fingerprint();
                let is_new = self
                    .insert_alert(&notice, Some(*step), part_of, Some(fingerprint))
                    .await?;
                if is_new {
                    let first = || first_failure(&change.task, *step);
                    failures.add(fingerprint, failure, at, first);
                    if let Some(cause) = cause {
                        causes.add(*kind, cause);
                    }
                }
                Ok((is_new && part_of.is_none()).then_some(notice))
            }
            AlertChange::Close { step } => {
                let close = Statement::new(CLOSE_ALERT)
                    .bind(change.task.id().0)
                    .bind(*step)
                    .bind(at);
                let Some(closed) = self.fetch_first(close).await? else {
                    return Ok(None);
                };
                if let Some(cause) = closed.get("part_of")? {
                    left.insert(cause);
                    return Ok(None);
                }
                Ok(Some(change.notice(*step, closed_alert(&closed, at)?)))
            }
        }
    }

    /// Raises an alert unless there is one already, and notifies the alert webhooks.
    pub(super) async fn raise_alert(
        &mut self,
        alert: &AlertNotice,
        step: Option<StepIndex>,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        if self.insert_alert(alert, step, None, None).await? {
            self.notify_webhooks(alert, 0, sender).await?;
        }
        Ok(())
    }

    /// Returns whether the alert is new.
    pub(super) async fn insert_alert(
        &mut self,
        alert: &AlertNotice,
        step: Option<StepIndex>,
        part_of: Option<Uuid>,
        failure: Option<CauseFingerprint>,
    ) -> Result<bool, StoreError> {
        let insert = Statement::new(RAISE_ALERT)
            .bind(alert.id)
            .bind(alert.task.map(|task| task.0))
            .bind(step.map(|step| i64::from(step.0)))
            .bind(alert.step.as_ref().map(StepName::as_str))
            .bind(alert.receiver.as_ref().map(ReceiverName::as_str))
            .bind(alert.kind.as_str())
            .bind(alert.message.as_str())
            .bind(alert.raised_at)
            .bind(part_of)
            .bind(failure.map(|failure| failure.to_string()));
        Ok(self.execute(insert).await? > 0)
    }

    /// `version`: see [`Sender::alert`].
    pub(super) async fn notify_webhooks(
        &mut self,
        alert: &AlertNotice,
        version: u64,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        self.record_alert(alert).await?;
        let messages = sender.alert(alert, version, self.now(), chance::id);
        self.add_messages(&messages.iter().collect::<Vec<_>>())
            .await
    }

    /// Makes a test write, to show that the store can commit.
    pub async fn heartbeat(&mut self) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let beat = Statement::new(self.dialect().heartbeat).bind(self.now());
        self.run(beat).await
    }
}

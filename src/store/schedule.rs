//! The record of schedules: one row for each, which is changed by compare-and-set, and its latest runs.

use std::sync::Arc;

use futures::FutureExt;
use thiserror::Error;

use super::{
    Reader, RegisterError, Store, StoreError, Transaction,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
};
use crate::{
    chance,
    domain::{
        message::Sender,
        message::{schedule_alert_subject, schedule_failing},
        schedule::{
            KEPT_RUNS, MISSED_AFTER, RunRefusal, ScheduleRule, ScheduleRun, ScheduleSpec,
            ScheduleState, Timing, TriggerRequest,
        },
        task::AlertKind,
        values::{ETag, Precondition, PreconditionFailure, TaskId, Timestamp},
        view::{ChangeOrigin, LedgerRecord, LedgerSubject},
    },
};

const SCHEDULE: &str = "name, version, put_version, spec, submission, state, next_at, \
created_at, created_by, updated_at, updated_by";

/// Relies on schedules_due.
const DUE: &str = r#"
SELECT name FROM schedules WHERE next_at IS NOT NULL AND next_at <= $1 ORDER BY next_at LIMIT $2"#;

/// Relies on schedules_handled.
const AHEAD: &str = r#"
SELECT name FROM schedules WHERE handled_at > $1 ORDER BY handled_at LIMIT $2"#;

const ADD: &str = r#"
INSERT INTO schedules (name, version, put_version, spec, submission, state, handled_at, next_at,
                       created_at, created_by, updated_at, updated_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (name) DO NOTHING"#;

/// Changes nothing if another instance has changed the schedule since it was read.
const CHANGE: &str = r#"
UPDATE schedules SET version = version + 1, put_version = $3, spec = $4, submission = $5, state = $6,
    handled_at = $7, next_at = $8, updated_at = $9, updated_by = $10
WHERE name = $1 AND version = $2"#;

const PUT_RUN: &str = r#"
INSERT INTO schedule_runs (schedule, number, state, request_key, run) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (schedule, number) DO UPDATE SET state = excluded.state, run = excluded.run"#;

/// Waiting runs are kept.
const FORGET_RUNS: &str =
    "DELETE FROM schedule_runs WHERE schedule = $1 AND number <= $2 AND state <> 'queued'";

const ASKED_FOR: &str =
    "SELECT run FROM schedule_runs WHERE schedule = $1 AND request_key = $2 ORDER BY number";

/// The milliseconds for which a schedule that cannot be read is left alone.
const REST: i64 = 300_000;

/// A schedule as it is on record.
#[derive(Clone, Debug)]
pub struct ScheduleRecord {
    pub name: String,
    pub version: u64,
    put_version: u64,
    pub spec: ScheduleSpec,
    /// The submission of its tasks, as JSON.
    pub submission: String,
    pub state: ScheduleState,
    pub next_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub created_by: String,
    pub updated_at: Timestamp,
    pub updated_by: String,
}

impl ScheduleRecord {
    /// Returns the ETag of the parts that callers change. Runs do not change it.
    pub fn etag(&self) -> ETag {
        ETag::of_schedule(self.state.id, self.put_version)
    }

    pub fn rule(&self) -> Result<ScheduleRule, StoreError> {
        let faults =
            |faults: Vec<(&str, String)>| corrupt(format!("schedule {}: {faults:?}", self.name));
        Ok(ScheduleRule {
            name: self.name.clone(),
            timing: Timing::of(&self.spec).map_err(faults)?,
            spec: self.spec.clone(),
            missed_after: MISSED_AFTER,
        })
    }

    fn read(row: &Row) -> Result<Self, StoreError> {
        let (spec, state): (String, String) = (row.get("spec")?, row.get("state")?);
        Ok(Self {
            name: row.get("name")?,
            version: row.get("version")?,
            put_version: row.get("put_version")?,
            spec: serde_json::from_str(&spec).map_err(corrupt)?,
            submission: row.get("submission")?,
            state: serde_json::from_str(&state).map_err(corrupt)?,
            next_at: row.get("next_at")?,
            created_at: row.get("created_at")?,
            created_by: row.get("created_by")?,
            updated_at: row.get("updated_at")?,
            updated_by: row.get("updated_by")?,
        })
    }
}

/// The changes that processing a schedule has made.
#[derive(Clone, Debug)]
pub struct ScheduleSave {
    /// The record as it was read, with the new state and the time when it is due again.
    pub record: ScheduleRecord,
    pub runs: Vec<ScheduleRun>,
    /// True if its last run had failed before.
    pub was_failing: bool,
}

/// A command of an operator on a schedule.
#[derive(Clone, Debug)]
pub enum ScheduleCommand {
    Pause {
        by: String,
        reason: Option<String>,
        discards: bool,
    },
    Resume {
        by: String,
    },
    /// Makes a run now, or one for each of these times.
    MakeRuns {
        trigger: TriggerRequest,
        times: Option<Vec<Timestamp>>,
    },
}

impl ScheduleCommand {
    fn by(&self) -> &str {
        match self {
            ScheduleCommand::Pause { by, .. } | ScheduleCommand::Resume { by } => by,
            ScheduleCommand::MakeRuns { trigger, .. } => &trigger.by,
        }
    }
}

/// The schedule after a command, and the runs that the command made.
#[derive(Clone, Debug)]
pub struct CommandedSchedule {
    pub record: ScheduleRecord,
    pub runs: Vec<ScheduleRun>,
    /// True if an earlier request with the same Idempotency-Key made the runs.
    pub is_replayed: bool,
}

#[derive(Clone, Debug, Error)]
pub enum ScheduleError {
    #[error(transparent)]
    Refused(#[from] RunRefusal),
    #[error("this Idempotency-Key was used with another request")]
    KeyReused,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The data of a PUT of a schedule.
#[derive(Clone, Debug)]
pub struct SchedulePut {
    pub name: String,
    pub spec: ScheduleSpec,
    pub submission: String,
    pub paused: Option<bool>,
    pub by: String,
    pub condition: Precondition,
}

impl Reader {
    /// Returns the names of up to `most` schedules that are due, longest due first.
    pub async fn due_schedules(&self, most: usize) -> Result<Vec<String>, StoreError> {
        let due = Statement::new(DUE).bind(self.wall_now().await?).bind(most);
        self.all(due, |row: &Row| row.get("name")).await
    }

    /// Returns the names of schedules of which fire times after this time have been handled.
    pub async fn schedules_ahead(
        &self,
        of: Timestamp,
        most: usize,
    ) -> Result<Vec<String>, StoreError> {
        let ahead = Statement::new(AHEAD).bind(of).bind(most);
        self.all(ahead, |row: &Row| row.get("name")).await
    }

    pub async fn schedule(&self, name: &str) -> Result<Option<ScheduleRecord>, StoreError> {
        self.first(one(name), ScheduleRecord::read).await
    }

    /// Returns up to `most` schedules after this name, by name. A schedule that cannot be read does not prevent the
    /// others from being listed.
    pub async fn schedules(
        &self,
        after: &str,
        most: usize,
    ) -> Result<Vec<(String, Result<ScheduleRecord, StoreError>)>, StoreError> {
        let page =
            format!("SELECT {SCHEDULE} FROM schedules WHERE name > $1 ORDER BY name LIMIT $2");
        let page = Statement::new(page).bind(after).bind(most);
        let entry = |row: &Row| Ok((row.get("name")?, ScheduleRecord::read(row)));
        self.all(page, entry).await
    }

    /// Returns up to `most` runs before this number, the latest first.
    pub async fn schedule_runs(
        &self,
        name: &str,
        before: Option<u64>,
        most: usize,
    ) -> Result<Vec<ScheduleRun>, StoreError> {
        let page = "SELECT run FROM schedule_runs WHERE schedule = $1 AND number < $2 ORDER BY number DESC LIMIT $3";
        let page = Statement::new(page)
            .bind(name)
            .bind(before.unwrap_or(u64::MAX))
            .bind(most);
        self.all(page, run).await
    }

    /// Returns those of these tasks that have not ended.
    pub async fn unended(&self, tasks: &[TaskId]) -> Result<Vec<TaskId>, StoreError> {
        match unended(tasks) {
            Some(unended) => self.all(unended, |row: &Row| row.get("id")).await,
            None => Ok(Vec::new()),
        }
    }
}

fn one(name: &str) -> Statement {
    Statement::new(format!("SELECT {SCHEDULE} FROM schedules WHERE name = $1")).bind(name)
}

fn run(row: &Row) -> Result<ScheduleRun, StoreError> {
    let json: String = row.get("run")?;
    serde_json::from_str(&json).map_err(corrupt)
}

/// Relies on the primary key of tasks. A schedule has at most a hundred tasks on record.
fn unended(tasks: &[TaskId]) -> Option<Statement> {
    let (first, others) = tasks.split_first()?;
    let mut unended = Statement::new("SELECT id FROM tasks WHERE ended_at IS NULL AND id IN ($1");
    unended = unended.bind(*first);
    for task in others {
        unended.push(", ?", *task);
    }
    unended.sql.push(')');
    Some(unended)
}

impl Store {
    /// Returns false if another instance has changed the schedule since it was read.
    pub async fn save_schedule(&self, save: ScheduleSave) -> Result<bool, StoreError> {
        let (save, sender) = (Arc::new(save), self.sender.clone());
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (save, sender) = (save.clone(), sender.load_full());
            async move { save_decision(tx, &save, &sender).await }.boxed()
        })
        .await
    }

    /// Postpones a schedule whose record cannot be read, and raises an alert about it.
    pub async fn rest_schedule(&self, name: String, reason: String) -> Result<(), StoreError> {
        let (rest, sender) = (Arc::new((name, reason)), self.sender.clone());
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (rest, sender) = (rest.clone(), sender.load_full());
            async move {
                tx.lock_out_of_order();
                let (name, reason) = &*rest;
                let next_at =
                    Timestamp::from_millis(tx.wall_now().as_millis().saturating_add(REST));
                let rest = Statement::new(
                    "UPDATE schedules SET next_at = $2, version = version + 1 WHERE name = $1",
                );
                tx.run(rest.bind(name.as_str()).bind(next_at)).await?;
                raise(tx, name, reason, &sender).await
            }
            .boxed()
        })
        .await
    }

    /// Returns the schedule after the PUT, and whether it is new.
    pub async fn put_schedule(
        &self,
        put: SchedulePut,
    ) -> Result<(ScheduleRecord, bool), RegisterError> {
        let (put, sender) = (Arc::new(put), self.sender.clone());
        let origin = self.origin();
        let put = self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (put, sender, origin) = (put.clone(), sender.load_full(), origin.clone());
            async move { put_schedule(tx, &put, &sender, &origin).await }.boxed()
        });
        let put = put.await?.map_err(RegisterError::Unmet)?;
        self.schedules.notify_one();
        Ok(put)
    }

    /// Returns false if the schedule does not exist.
    pub async fn delete_schedule(
        &self,
        name: String,
        condition: Precondition,
    ) -> Result<bool, RegisterError> {
        let (delete, sender) = (Arc::new((name, condition)), self.sender.clone());
        let origin = self.origin();
        let deleted = self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (delete, sender, origin) = (delete.clone(), sender.load_full(), origin.clone());
            async move { delete_schedule(tx, &delete.0, &delete.1, &sender, &origin).await }.boxed()
        });
        deleted.await?.map_err(RegisterError::Unmet)
    }

    /// Returns `None` if the schedule does not exist.
    pub async fn command_schedule(
        &self,
        name: String,
        command: ScheduleCommand,
    ) -> Result<Option<CommandedSchedule>, ScheduleError> {
        let asked = Arc::new((name, command));
        let origin = self.origin();
        let commanded = self.send_write(true, None, move |tx| {
            let (asked, origin) = (asked.clone(), origin.clone());
            async move {
                match command_schedule(tx, &asked.0, &asked.1, &origin).await {
                    Err(ScheduleError::Store(error)) => Err(error),
                    commanded => Ok(commanded),
                }
            }
            .boxed()
        });
        let commanded = commanded.await??;
        self.schedules.notify_one();
        Ok(commanded)
    }
}

async fn save_decision(
    tx: &mut Transaction<'_>,
    save: &ScheduleSave,
    sender: &Sender,
) -> Result<bool, StoreError> {
    tx.lock_out_of_order();
    let record = &save.record;
    if !change(tx, record).await? {
        return Ok(false);
    }
    save_runs(tx, record, &save.runs).await?;
    match &record.state.failing {
        Some(reason) => raise(tx, &record.name, reason, sender).await?,
        None if save.was_failing => close(tx, &record.name, sender).await?,
        None => {}
    }
    Ok(true)
}

async fn raise(
    tx: &mut Transaction<'_>,
    name: &str,
    reason: &str,
    sender: &Sender,
) -> Result<(), StoreError> {
    let alert = schedule_failing(chance::id(), name, &reason, tx.now());
    tx.raise_alert(&alert, None, sender).await
}

async fn close(tx: &mut Transaction<'_>, name: &str, sender: &Sender) -> Result<(), StoreError> {
    let kind = AlertKind::ScheduleFailing;
    let subject = schedule_alert_subject(name);
    tx.close_alert_of(kind, &subject, sender).await
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(corrupt)
}

/// Returns false if the schedule does not have its version any more.
async fn change(tx: &mut Transaction<'_>, record: &ScheduleRecord) -> Result<bool, StoreError> {
    let change = Statement::new(CHANGE)
        .bind(record.name.as_str())
        .bind(record.version)
        .bind(record.put_version)
        .bind(json(&record.spec)?)
        .bind(record.submission.as_str())
        .bind(json(&record.state)?)
        .bind(record.state.handled_at)
        .bind(record.next_at)
        .bind(record.updated_at)
        .bind(record.updated_by.as_str());
    Ok(tx.execute(change).await? > 0)
}

async fn save_runs(
    tx: &mut Transaction<'_>,
    record: &ScheduleRecord,
    runs: &[ScheduleRun],
) -> Result<(), StoreError> {
    for run in runs {
        let request = run.request.as_ref().map(|request| request.key.as_str());
        let put = Statement::new(PUT_RUN)
            .bind(record.name.as_str())
            .bind(run.number)
            .bind(run.state.as_str())
            .bind(request)
            .bind(json(run)?);
        tx.run(put).await?;
    }
    if runs.is_empty() {
        return Ok(());
    }
    let oldest = record.state.next_number.saturating_sub(KEPT_RUNS + 1);
    let forget = Statement::new(FORGET_RUNS)
        .bind(record.name.as_str())
        .bind(oldest);
    tx.run(forget).await
}

async fn read(tx: &mut Transaction<'_>, name: &str) -> Result<Option<ScheduleRecord>, StoreError> {
    let row = tx.fetch_first(one(name)).await?;
    row.as_ref().map(ScheduleRecord::read).transpose()
}

fn changed_meanwhile(name: &str) -> StoreError {
    StoreError::Retryable(format!("schedule {name} was changed meanwhile"))
}

async fn put_schedule(
    tx: &mut Transaction<'_>,
    put: &SchedulePut,
    sender: &Sender,
    origin: &ChangeOrigin,
) -> Result<Result<(ScheduleRecord, bool), PreconditionFailure>, StoreError> {
    tx.lock_out_of_order();
    let now = tx.wall_now();
    let known = read(tx, &put.name).await?;
    if let Err(unmet) = put
        .condition
        .check(known.as_ref().map(ScheduleRecord::etag))
    {
        return Ok(Err(unmet));
    }
    let Some(before) = known else {
        let mut state = ScheduleState::new(chance::id(), now);
        state.put(None, &put.spec, put.paused, &put.by, now);
        let version = u64::try_from(now.as_millis()).unwrap_or(1);
        let record = ScheduleRecord {
            name: put.name.clone(),
            version,
            put_version: 1,
            spec: put.spec.clone(),
            submission: put.submission.clone(),
            state,
            next_at: Some(now),
            created_at: now,
            created_by: put.by.clone(),
            updated_at: now,
            updated_by: put.by.clone(),
        };
        let add = Statement::new(ADD)
            .bind(record.name.as_str())
            .bind(record.version)
            .bind(record.put_version)
            .bind(json(&record.spec)?)
            .bind(record.submission.as_str())
            .bind(json(&record.state)?)
            .bind(record.state.handled_at)
            .bind(record.next_at)
            .bind(record.created_at)
            .bind(record.created_by.as_str())
            .bind(record.updated_at)
            .bind(record.updated_by.as_str());
        if tx.execute(add).await? == 0 {
            return Err(changed_meanwhile(&put.name));
        }
        note_put(tx, None, &record, origin).await?;
        return Ok(Ok((record, true)));
    };
    let is_same = before.spec == put.spec && before.submission == put.submission;
    let is_paused = before.state.pause.is_some();
    if is_same && put.paused.is_none_or(|paused| paused == is_paused) {
        return Ok(Ok((before, false)));
    }
    let mut record = ScheduleRecord {
        put_version: before.put_version + 1,
        spec: put.spec.clone(),
        submission: put.submission.clone(),
        next_at: Some(now),
        updated_at: now,
        updated_by: put.by.clone(),
        ..before.clone()
    };
    let spec = Some(&before.spec);
    record.state.put(spec, &put.spec, put.paused, &put.by, now);
    if !change(tx, &record).await? {
        return Err(changed_meanwhile(&put.name));
    }
    if before.state.failing.is_some() {
        close(tx, &put.name, sender).await?;
    }
    note_put(tx, Some(&before), &record, origin).await?;
    record.version += 1;
    Ok(Ok((record, false)))
}

/// Records a PUT in the ledger, with what differs.
async fn note_put(
    tx: &mut Transaction<'_>,
    before: Option<&ScheduleRecord>,
    after: &ScheduleRecord,
    origin: &ChangeOrigin,
) -> Result<(), StoreError> {
    let shown = |record: &ScheduleRecord| -> Result<String, StoreError> {
        let (spec, submission) = (json(&record.spec)?, &record.submission);
        Ok(format!(
            "{{\"schedule\":{spec},\"submission\":{submission}}}"
        ))
    };
    let before = before.map(shown).transpose()?;
    let after_shown = shown(after)?;
    let record = LedgerRecord::new("schedule.put", LedgerSubject::Schedule, &after.name, origin);
    tx.add_records(&[record.with_difference(before.as_deref(), Some(&after_shown))])
        .await
}

async fn delete_schedule(
    tx: &mut Transaction<'_>,
    name: &str,
    condition: &Precondition,
    sender: &Sender,
    origin: &ChangeOrigin,
) -> Result<Result<bool, PreconditionFailure>, StoreError> {
    tx.lock_out_of_order();
    if condition.is_given() {
        let Some(record) = read(tx, name).await? else {
            return Ok(Ok(false));
        };
        if let Err(unmet) = condition.check(Some(record.etag())) {
            return Ok(Err(unmet));
        }
    }
    let delete = Statement::new("DELETE FROM schedules WHERE name = $1").bind(name);
    let was_there = tx.execute(delete).await? > 0;
    if was_there {
        let runs = Statement::new("DELETE FROM schedule_runs WHERE schedule = $1").bind(name);
        tx.run(runs).await?;
        close(tx, name, sender).await?;
        let record = LedgerRecord::new("schedule.deleted", LedgerSubject::Schedule, name, origin);
        tx.add_records(&[record]).await?;
    }
    Ok(Ok(was_there))
}

async fn command_schedule(
    tx: &mut Transaction<'_>,
    name: &str,
    command: &ScheduleCommand,
    origin: &ChangeOrigin,
) -> Result<Option<CommandedSchedule>, ScheduleError> {
    tx.lock_out_of_order();
    let now = tx.wall_now();
    let Some(mut record) = read(tx, name).await? else {
        return Ok(None);
    };
    if let ScheduleCommand::MakeRuns { trigger, .. } = command
        && let Some(request) = &trigger.request
    {
        let asked = Statement::new(ASKED_FOR)
            .bind(name)
            .bind(request.key.as_str());
        let rows = tx.fetch(asked).await?;
        let runs = rows.iter().map(run).collect::<Result<Vec<_>, _>>()?;
        if let Some(first) = runs.first() {
            if first.request.as_ref().map(|known| &known.fingerprint) != Some(&request.fingerprint)
            {
                return Err(ScheduleError::KeyReused);
            }
            return Ok(Some(CommandedSchedule {
                record,
                runs,
                is_replayed: true,
            }));
        }
    }
    let before = record.state.clone();
    let runs = match command {
        ScheduleCommand::Pause {
            by,
            reason,
            discards,
        } => record.state.pause(by, reason.clone(), *discards, now),
        ScheduleCommand::Resume { by } => {
            record.state.resume(by, now);
            Vec::new()
        }
        ScheduleCommand::MakeRuns { trigger, times } => {
            if let Some(statement) = unended(&record.state.running) {
                let rows = tx.fetch(statement).await?;
                let known = rows.iter().map(|row| row.get("id"));
                let known = known.collect::<Result<Vec<TaskId>, StoreError>>()?;
                record.state.running.retain(|task| known.contains(task));
            }
            match times {
                None => vec![record.state.trigger(trigger, now)?],
                Some(times) => record.state.backfill(times, trigger, now)?,
            }
        }
    };
    if record.state == before {
        let is_replayed = false;
        return Ok(Some(CommandedSchedule {
            record,
            runs,
            is_replayed,
        }));
    }
    if record.state.pause != before.pause {
        record.put_version += 1;
        record.updated_at = now;
        command.by().clone_into(&mut record.updated_by);
    }
    record.next_at = Some(now);
    if !change(tx, &record).await? {
        return Err(changed_meanwhile(name).into());
    }
    save_runs(tx, &record, &runs).await?;
    let (kind, reason) = match command {
        ScheduleCommand::Pause { reason, .. } => ("schedule.paused", reason.as_deref()),
        ScheduleCommand::Resume { .. } => ("schedule.resumed", None),
        ScheduleCommand::MakeRuns { times: None, .. } => ("schedule.triggered", None),
        ScheduleCommand::MakeRuns { times: Some(_), .. } => ("schedule.backfilled", None),
    };
    let noted = LedgerRecord::new(kind, LedgerSubject::Schedule, name, origin);
    tx.add_records(&[noted.because(reason)]).await?;
    record.version += 1;
    Ok(Some(CommandedSchedule {
        record,
        runs,
        is_replayed: false,
    }))
}

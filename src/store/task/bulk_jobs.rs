//! The record of bulk jobs: one row for each, which is changed by compare-and-set. What a change does is a rule of the
//! domain; the instance that holds the lease of a job is the only one that saves its progress.

use std::sync::Arc;

use futures::FutureExt;
use thiserror::Error;
use uuid::Uuid;

use super::bulk_tasks;
use crate::domain::{
    task::{BulkChange, BulkJob, BulkOrder, BulkRefusal},
    values::{InstanceId, Timestamp},
    view::{ChangeOrigin, LedgerRecord, LedgerSubject},
};
use crate::store::{
    BulkJobId, Idempotency, Reader, Store, StoreError, Transaction,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
};

const JOB: &str = "id, version, command, progress";

/// Relies on bulk_jobs_due.
const DUE: &str = r#"
SELECT id, due_at FROM bulk_jobs WHERE due_at IS NOT NULL ORDER BY due_at LIMIT $1"#;

/// Relies on bulk_jobs_due.
const OPEN: &str = "SELECT count(*) AS count FROM bulk_jobs WHERE due_at IS NOT NULL";

const ADD: &str = r#"
INSERT INTO bulk_jobs (id, version, state, due_at, kept_until, request_key, fingerprint, created_at, command, progress)
VALUES ($1, 1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING"#;

/// Changes nothing if another instance has changed the job since it was read.
const CHANGE: &str = r#"
UPDATE bulk_jobs SET version = version + 1, state = $3, due_at = $4, kept_until = $5, progress = $6
WHERE id = $1 AND version = $2"#;

/// Relies on bulk_jobs_by_key.
const BY_KEY: &str = "SELECT id, version, command, progress, fingerprint FROM bulk_jobs WHERE request_key = $1 AND request_key IS NOT NULL";

/// Relies on bulk_jobs_kept.
const OVER: &str = r#"
SELECT id FROM bulk_jobs WHERE kept_until IS NOT NULL AND kept_until <= $1 ORDER BY kept_until LIMIT 1"#;

/// The most jobs on record that run. Each costs the instances a look.
const MOST_OPEN: u64 = 100;
/// The milliseconds for which a job that cannot be read is left alone.
const REST: i64 = 300_000;

/// A job as it is on record.
#[derive(Clone, Debug)]
pub struct BulkJobRecord {
    pub id: BulkJobId,
    version: u64,
    pub order: BulkOrder,
    pub job: BulkJob,
}

/// A job that has work now or later.
#[derive(Clone, Copy, Debug)]
pub struct DueBulkJob {
    pub id: BulkJobId,
    pub due_at: Timestamp,
}

/// A job that is to be recorded.
#[derive(Clone, Debug)]
pub struct NewBulkJob {
    pub id: BulkJobId,
    pub order: BulkOrder,
    pub job: BulkJob,
    pub idempotency: Option<Idempotency>,
}

/// The job after a request.
#[derive(Clone, Debug)]
pub struct CommandedBulkJob {
    pub record: BulkJobRecord,
    /// True if an earlier request with the same Idempotency-Key made it.
    pub is_replayed: bool,
}

#[derive(Clone, Debug, Error)]
pub enum BulkJobError {
    #[error("this Idempotency-Key was used with another request")]
    KeyReused,
    #[error("{MOST_OPEN} bulk jobs run already: wait until one of them has ended, or stop one")]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BulkJobRecord {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let (command, progress): (String, String) = (row.get("command")?, row.get("progress")?);
        Ok(Self {
            id: row.get("id")?,
            version: row.get("version")?,
            order: serde_json::from_str(&command).map_err(corrupt)?,
            job: serde_json::from_str(&progress).map_err(corrupt)?,
        })
    }
}

impl Reader {
    pub async fn bulk_job(&self, id: BulkJobId) -> Result<Option<BulkJobRecord>, StoreError> {
        self.first(one(id), BulkJobRecord::read).await
    }

    /// Returns up to `most` jobs before this one, the newest first. A job that cannot be read is left out.
    pub async fn bulk_jobs(
        &self,
        before: Option<BulkJobId>,
        most: usize,
    ) -> Result<Vec<BulkJobRecord>, StoreError> {
        let before = before.map_or(Uuid::max(), |before| before.0);
        let page = format!("SELECT {JOB} FROM bulk_jobs WHERE id < $1 ORDER BY id DESC LIMIT $2");
        let page = Statement::new(page).bind(before).bind(most);
        let records = self
            .all(page, |row: &Row| Ok(BulkJobRecord::read(row)))
            .await?;
        Ok(records.into_iter().filter_map(Result::ok).collect())
    }

    /// Returns whether a purge of jobs has something to do.
    async fn has_old_bulk_jobs(&self) -> Result<bool, StoreError> {
        let over = Statement::new(OVER).bind(self.now().await?);
        let over = self.first(over, |_: &Row| Ok(()));
        Ok(over.await?.is_some())
    }

    /// Returns the jobs that have work now or later, the one that is due first before the others.
    pub async fn due_bulk_jobs(&self) -> Result<Vec<DueBulkJob>, StoreError> {
        let due = Statement::new(DUE).bind(MOST_OPEN);
        self.all(due, |row: &Row| {
            Ok(DueBulkJob {
                id: row.get("id")?,
                due_at: row.get("due_at")?,
            })
        })
        .await
    }
}

fn one(id: BulkJobId) -> Statement {
    Statement::new(format!("SELECT {JOB} FROM bulk_jobs WHERE id = $1")).bind(id)
}

impl Store {
    /// Records a job. The instances are notified that it is due.
    pub async fn add_bulk_job(&self, new: NewBulkJob) -> Result<CommandedBulkJob, BulkJobError> {
        let (new, origin) = (Arc::new(new), self.origin());
        let wakes = Some(self.bulk_due.clone());
        let added = self.send_write(true, wakes, move |tx| {
            let (new, origin) = (new.clone(), origin.clone());
            async move {
                match add(tx, &new, &origin).await {
                    Err(BulkJobError::Store(error)) => Err(error),
                    added => Ok(added),
                }
            }
            .boxed()
        });
        let added = added.await??;
        self.note_bulk_change();
        Ok(added)
    }

    /// Changes a job by a rule of the domain, and saves the outcomes of a batch with it. Returns `None` if the job does
    /// not exist.
    pub async fn change_bulk_job(
        &self,
        id: BulkJobId,
        change: BulkChange,
    ) -> Result<Option<Result<BulkJobRecord, BulkRefusal>>, StoreError> {
        self.command_bulk_job(id, change, None).await
    }

    /// Like [`Store::change_bulk_job`], with the reason that an operator gave, for the ledger.
    pub async fn command_bulk_job(
        &self,
        id: BulkJobId,
        change: BulkChange,
        reason: Option<String>,
    ) -> Result<Option<Result<BulkJobRecord, BulkRefusal>>, StoreError> {
        let is_command = matches!(change, BulkChange::Stop { .. } | BulkChange::Resume { .. });
        let wakes = is_command.then(|| self.bulk_due.clone());
        let (change, origin) = (Arc::new((change, reason)), self.origin());
        let changed = self.send_write(true, wakes, move |tx| {
            let (change, origin) = (change.clone(), origin.clone());
            async move {
                let (change, reason) = &*change;
                change_job(tx, id, change, reason.as_deref(), &origin).await
            }
            .boxed()
        });
        let changed = changed.await?;
        self.note_bulk_change();
        Ok(changed)
    }

    /// Leaves a job alone for some minutes whose record cannot be read.
    pub async fn rest_bulk_job(&self, id: BulkJobId) -> Result<(), StoreError> {
        self.send_write(true, None, move |tx| {
            async move {
                tx.lock_out_of_order();
                let next_at = Timestamp::from_millis(tx.now().as_millis().saturating_add(REST));
                let rest = "UPDATE bulk_jobs SET due_at = $2, version = version + 1 WHERE id = $1 AND due_at IS NOT NULL";
                tx.run(Statement::new(rest).bind(id).bind(next_at)).await
            }
            .boxed()
        })
        .await
    }

    /// Deletes up to `limit` tasks of a job that is kept no longer, or the job once it has none. Returns false if no
    /// job is left to delete.
    pub async fn purge_bulk_jobs(&self, limit: usize) -> Result<bool, StoreError> {
        if !self.housekeeping.has_old_bulk_jobs().await? {
            return Ok(false);
        }
        self.send_write(true, None, move |tx| {
            async move { purge(tx, limit).await }.boxed()
        })
        .await
    }

    fn note_bulk_change(&self) {
        self.bulk_jobs
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(corrupt)
}

async fn add(
    tx: &mut Transaction<'_>,
    new: &NewBulkJob,
    origin: &ChangeOrigin,
) -> Result<CommandedBulkJob, BulkJobError> {
    tx.lock_out_of_order();
    if let Some(Idempotency { key, fingerprint }) = &new.idempotency {
        let known = Statement::new(BY_KEY).bind(key.as_str());
        if let Some(row) = tx.fetch_first(known).await? {
            let before: Option<String> = row.get("fingerprint")?;
            if before.as_ref() != Some(fingerprint) {
                return Err(BulkJobError::KeyReused);
            }
            return Ok(CommandedBulkJob {
                record: BulkJobRecord::read(&row)?,
                is_replayed: true,
            });
        }
    }
    let open = tx.fetch_first(Statement::new(OPEN)).await?;
    let open = open.map_or(Ok(0), |row| row.get::<u64>("count"))?;
    if open >= MOST_OPEN {
        return Err(BulkJobError::TooMany);
    }
    let NewBulkJob {
        id,
        order,
        job,
        idempotency,
    } = new;
    let idempotency = idempotency.as_ref();
    let add = Statement::new(ADD)
        .bind(*id)
        .bind(job.state.as_str())
        .bind(job.due_at())
        .bind(job.kept_until())
        .bind(idempotency.map(|known| known.key.as_str()))
        .bind(idempotency.map(|known| known.fingerprint.as_str()))
        .bind(order.at)
        .bind(json(order)?)
        .bind(json(job)?);
    if tx.execute(add).await? == 0 {
        let reason = "a bulk job was added under the same key meanwhile".to_owned();
        return Err(StoreError::Retryable(reason).into());
    }
    let noted = LedgerRecord::new("bulk_job.added", LedgerSubject::BulkJob, id, origin);
    let said = with_reason(&order.sentence, order.reason.as_deref());
    tx.add_records(&[noted.because(Some(&said))]).await?;
    Ok(CommandedBulkJob {
        record: BulkJobRecord {
            id: *id,
            version: 1,
            order: order.clone(),
            job: job.clone(),
        },
        is_replayed: false,
    })
}

fn with_reason(sentence: &str, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{sentence}: {reason}"),
        None => sentence.to_owned(),
    }
}

async fn change_job(
    tx: &mut Transaction<'_>,
    id: BulkJobId,
    change: &BulkChange,
    reason: Option<&str>,
    origin: &ChangeOrigin,
) -> Result<Option<Result<BulkJobRecord, BulkRefusal>>, StoreError> {
    tx.lock_out_of_order();
    let Some(row) = tx.fetch_first(one(id)).await? else {
        return Ok(None);
    };
    let mut record = BulkJobRecord::read(&row)?;
    let now = tx.now();
    let before = record.job.clone();
    let change = match change {
        BulkChange::Claim { by, .. } => &BulkChange::Claim {
            by: by.clone(),
            is_holder_gone: match &before.lease {
                Some(lease) => !runs(tx, &lease.holder).await?,
                None => false,
            },
        },
        change => change,
    };
    if let Err(refusal) = record.job.change(change, now) {
        return Ok(Some(Err(refusal)));
    }
    if record.job == before {
        return Ok(Some(Ok(record)));
    }
    let update = Statement::new(CHANGE)
        .bind(id)
        .bind(record.version)
        .bind(record.job.state.as_str())
        .bind(record.job.due_at())
        .bind(record.job.kept_until())
        .bind(json(&record.job)?);
    if tx.execute(update).await? == 0 {
        return Err(StoreError::Retryable(format!(
            "bulk job {id} was changed meanwhile"
        )));
    }
    record.version += 1;
    let kind = match change {
        BulkChange::Stop { .. } => Some("bulk_job.stopped"),
        BulkChange::Resume { .. } => Some("bulk_job.resumed"),
        _ => None,
    };
    if let Some(kind) = kind {
        let noted = LedgerRecord::new(kind, LedgerSubject::BulkJob, id, origin);
        let said = with_reason(&record.order.sentence, reason);
        tx.add_records(&[noted.because(Some(&said))]).await?;
    }
    if let (BulkChange::Complete { outcomes, .. }, Some(batch)) = (change, &before.batch) {
        bulk_tasks::save(tx, id, outcomes, batch.at).await?;
    }
    Ok(Some(Ok(record)))
}

/// Returns whether an instance has its lease.
async fn runs(tx: &mut Transaction<'_>, instance: &InstanceId) -> Result<bool, StoreError> {
    let live = Statement::new("SELECT id FROM instances WHERE id = $1 AND until > $2")
        .bind(instance)
        .bind(tx.now());
    Ok(tx.fetch_first(live).await?.is_some())
}

async fn purge(tx: &mut Transaction<'_>, limit: usize) -> Result<bool, StoreError> {
    tx.lock_out_of_order();
    let over = Statement::new(OVER).bind(tx.now());
    let Some(row) = tx.fetch_first(over).await? else {
        return Ok(false);
    };
    let id: BulkJobId = row.get("id")?;
    if bulk_tasks::purge(tx, id, limit).await? == 0 {
        let delete = Statement::new("DELETE FROM bulk_jobs WHERE id = $1").bind(id);
        tx.run(delete).await?;
    }
    Ok(true)
}

//! The record of attempts: saved with the change that ends an attempt, listed, and deleted when its time is over or when
//! it takes too much room. Attempts that succeeded go first.

use std::collections::BTreeSet;

use crate::domain::{
    task::{AttemptExchange, AttemptRecord},
    upkeep::RecordedHour,
    values::{Attempt, HOUR_MILLIS, StepIndex, StepRef, TaskId, Timestamp},
};
use crate::{
    chance,
    store::{
        Batch, Health, Reader, StoreError, StoreFault, Transaction,
        error::corrupt,
        rows::{Columns, Row, json},
        statement::Statement,
    },
};

/// The most rows that one statement adds.
const MOST_ADDED: usize = 16;
/// The most attempts of one task that one statement deletes.
const EVICTED_AT_ONCE: usize = 8;
/// The most statements that delete attempts of one task in one transaction.
const MOST_EVICTIONS: usize = 4;

/// The number of rows in which the bytes of an hour are counted.
const SHARDS: u8 = 8;

const ADD: &str =
    "INSERT INTO attempts (task_id, idx, attempt, ended_at, succeeded, bytes, record) VALUES ";

/// The columns in the order of [`AttemptRow`].
const COLUMNS: usize = 7;

const ADD_USAGE: &str = "INSERT INTO attempt_usage (task_id, bytes) VALUES ";

const OR_INCREASE: &str = r#"
ON CONFLICT (task_id) DO UPDATE SET bytes = attempt_usage.bytes + excluded.bytes
RETURNING task_id, bytes"#;

/// Counts the attempts of a task anew, and adds those that the transaction is about to add. Deleting attempts by age does not
/// change the usage of their tasks, so it may be too high. Relies on the key of attempts.
const COUNT_USAGE: &str = r#"
UPDATE attempt_usage
SET bytes = $2 + (SELECT CAST(coalesce(sum(attempts.bytes), 0) AS bigint) FROM attempts
                  WHERE attempts.task_id = attempt_usage.task_id)
WHERE task_id = $1
RETURNING bytes"#;

const ADD_HOUR: &str = r#"
INSERT INTO attempt_hours (hour, succeeded, shard, bytes) VALUES ($1, $2, $3, $4)
ON CONFLICT (hour, succeeded, shard) DO UPDATE SET bytes = attempt_hours.bytes + excluded.bytes"#;

/// Relies on the key of attempts. A task has at most some thousand rows, because its bytes are limited.
const EVICT: &str = r#"
DELETE FROM attempts
WHERE task_id = $1 AND (idx, attempt, ended_at) IN (
    SELECT idx, attempt, ended_at FROM attempts WHERE task_id = $1
    ORDER BY succeeded DESC, ended_at LIMIT $2)"#;

/// Relies on the key of attempts.
const LAST_OF_ATTEMPT: &str = r#"
SELECT ended_at, record FROM attempts
WHERE task_id = $1 AND idx = $2 AND attempt = $3 ORDER BY ended_at DESC LIMIT 1"#;

/// Relies on the key of attempts.
const REPLACE: &str = r#"
UPDATE attempts SET bytes = $5, record = $6
WHERE task_id = $1 AND idx = $2 AND attempt = $3 AND ended_at = $4"#;

/// Relies on attempts_by_end.
const PURGE: &str = r#"
DELETE FROM attempts
WHERE (task_id, idx, attempt, ended_at) IN (
    SELECT task_id, idx, attempt, ended_at FROM attempts WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)"#;

/// Relies on attempts_succeeded.
const PURGE_SUCCEEDED: &str = r#"
DELETE FROM attempts
WHERE succeeded = 1 AND (task_id, idx, attempt, ended_at) IN (
    SELECT task_id, idx, attempt, ended_at FROM attempts
    WHERE succeeded = 1 AND ended_at < $1 ORDER BY ended_at LIMIT $2)"#;

const FORGET_HOURS: &str = "DELETE FROM attempt_hours WHERE hour < $1";
const FORGET_SUCCEEDED_HOURS: &str = "DELETE FROM attempt_hours WHERE hour < $1 AND succeeded = 1";

const HOURS: &str = r#"
SELECT hour, succeeded, CAST(sum(bytes) AS bigint) AS bytes FROM attempt_hours
GROUP BY hour, succeeded ORDER BY hour"#;

/// Selects the attempts of a step that are listed, latest first.
#[derive(Clone, Copy, Debug)]
pub struct AttemptQuery {
    pub step: StepRef,
    /// Only this attempt.
    pub attempt: Option<Attempt>,
    /// Only those before this one, by the number of the attempt and its end.
    pub before: Option<(Attempt, Timestamp)>,
    pub limit: usize,
}

/// The limits of the record of attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLimits {
    /// True if bodies of requests and responses are recorded.
    pub bodies: bool,
    /// The most bytes of the attempts of one task.
    pub task_bytes: u64,
    /// True if attempts that succeeded are samples, which are saved later than their replies: many at once.
    pub saves_successes_later: bool,
}

impl RecordLimits {
    /// Returns the limits as the state of the store allows them now. Without room for more data the record has no bodies:
    /// what room is left is for running tasks.
    pub(in crate::store) fn while_stored_in(self, health: &Health) -> Self {
        Self {
            bodies: self.bodies && !health.has(StoreFault::Full),
            ..self
        }
    }
}

impl Default for RecordLimits {
    fn default() -> Self {
        Self {
            bodies: true,
            task_bytes: 4 << 20,
            saves_successes_later: false,
        }
    }
}

/// One row of the table of attempts.
struct AttemptRow {
    task: TaskId,
    step: StepIndex,
    attempt: Attempt,
    ended_at: Timestamp,
    has_succeeded: bool,
    record: String,
}

impl AttemptRow {
    fn of(task: TaskId, record: &AttemptRecord, limits: RecordLimits) -> Result<Self, StoreError> {
        let json = match limits.bodies {
            true => serde_json::to_string(record),
            false => {
                let mut record = record.clone();
                record.without_bodies();
                serde_json::to_string(&record)
            }
        };
        Ok(Self {
            task,
            step: record.step,
            attempt: record.attempt,
            ended_at: record.ended_at,
            has_succeeded: record.has_succeeded(),
            record: json.map_err(corrupt)?,
        })
    }

    fn bytes(&self) -> u64 {
        self.record.len() as u64
    }

    fn bind_to(self, statement: Statement) -> Statement {
        let bytes = self.bytes();
        statement
            .bind(self.task)
            .bind(self.step)
            .bind(self.attempt)
            .bind(self.ended_at)
            .bind(self.has_succeeded)
            .bind(bytes)
            .bind(self.record)
    }
}

/// The rows of attempts, and the bytes that each task adds to its usage.
struct AddedAttempts {
    rows: Vec<AttemptRow>,
    usage: Vec<(TaskId, u64)>,
}

impl AddedAttempts {
    /// The attempts of one task must follow each other.
    fn of<'r>(
        records: impl IntoIterator<Item = (TaskId, &'r AttemptRecord)>,
        limits: RecordLimits,
    ) -> Result<Self, StoreError> {
        let (mut rows, mut usage) = (Vec::new(), Vec::<(TaskId, u64)>::new());
        for (task, record) in records {
            let row = AttemptRow::of(task, record, limits)?;
            match usage.last_mut() {
                Some((last, bytes)) if *last == task => *bytes += row.bytes(),
                _ => usage.push((task, row.bytes())),
            }
            rows.push(row);
        }
        Ok(Self { rows, usage })
    }
}

/// Returns the parameters of this number of rows, as the VALUES of an INSERT.
pub(super) fn parameters(rows: usize, columns: usize) -> String {
    let values = (0..rows).map(|row| {
        let first = row * columns + 1;
        let parameters = (first..first + columns).map(|number| format!("${number}"));
        format!("({})", parameters.collect::<Vec<_>>().join(", "))
    });
    values.collect::<Vec<_>>().join(", ")
}

/// Returns a statement that adds these rows.
fn add(rows: Vec<AttemptRow>) -> Statement {
    let values = parameters(rows.len(), COLUMNS);
    let insert = Statement::new(format!("{ADD}{values} ON CONFLICT DO NOTHING"));
    rows.into_iter()
        .fold(insert, |statement, row| row.bind_to(statement))
}

/// Returns a statement that adds bytes to the usage of tasks, of which each is there once.
fn add_usage(usage: &[(TaskId, u64)]) -> Statement {
    let values = parameters(usage.len(), 2);
    let insert = Statement::new(format!("{ADD_USAGE}{values}{OR_INCREASE}"));
    usage.iter().fold(insert, |statement, (task, bytes)| {
        statement.bind(*task).bind(*bytes)
    })
}

impl Transaction<'_> {
    /// Saves the attempts that have ended and are recorded. Most batches have none, and cost nothing here.
    pub(in crate::store) async fn save_attempts(
        &mut self,
        batch: &Batch,
    ) -> Result<(), StoreError> {
        let changes = batch.changes.iter();
        let records = changes.flat_map(|change| {
            let task = change.task.id();
            change.attempts.iter().map(move |record| (task, record))
        });
        let added = AddedAttempts::of(records, batch.record)?;
        self.add_attempts(added, batch.record).await
    }

    /// Saves samples of attempts of earlier batches, except those of tasks that have been deleted since.
    pub async fn save_samples(
        &mut self,
        samples: &[(TaskId, AttemptRecord)],
        limits: RecordLimits,
    ) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let tasks: BTreeSet<_> = samples.iter().map(|(task, _)| *task).collect();
        let tasks: Vec<_> = tasks.into_iter().collect();
        let mut left = BTreeSet::new();
        for tasks in tasks.chunks(MOST_ADDED) {
            let numbers = (1..=tasks.len()).map(|number| format!("${number}"));
            let numbers = numbers.collect::<Vec<_>>().join(", ");
            let existing = Statement::new(format!("SELECT id FROM tasks WHERE id IN ({numbers})"));
            let existing = tasks.iter().copied().fold(existing, Statement::bind);
            for row in self.fetch(existing).await? {
                left.insert(row.get::<TaskId>("id")?);
            }
        }
        let mut samples: Vec<_> = samples
            .iter()
            .map(|(task, record)| (*task, record))
            .collect();
        samples.retain(|(task, _)| left.contains(task));
        samples.sort_by_key(|(task, _)| *task);
        let added = AddedAttempts::of(samples, limits)?;
        self.add_attempts(added, limits).await
    }

    /// Replaces the request of an attempt that has ended without a response, and that was rendered again, by what was sent.
    pub async fn complete_attempt(
        &mut self,
        step: StepRef,
        attempt: Attempt,
        exchange: &AttemptExchange,
        limits: RecordLimits,
    ) -> Result<bool, StoreError> {
        self.lock_out_of_order();
        let last = Statement::new(LAST_OF_ATTEMPT)
            .bind(step.task)
            .bind(step.step)
            .bind(attempt);
        let Some(row) = self.fetch_first(last).await? else {
            return Ok(false);
        };
        let ended_at: Timestamp = row.get("ended_at")?;
        let json: String = row.get("record")?;
        let mut record: AttemptRecord = serde_json::from_str(&json).map_err(corrupt)?;
        if !record.complete(exchange) {
            return Ok(true);
        }
        record.step = step.step;
        record.attempt = attempt;
        let row = AttemptRow::of(step.task, &record, limits)?;
        let (before, after) = (json.len() as u64, row.bytes());
        if let Some(added) = after.checked_sub(before).filter(|added| *added > 0) {
            self.add_usage(&[(step.task, added)], limits).await?;
        }
        let replace = Statement::new(REPLACE)
            .bind(step.task)
            .bind(step.step)
            .bind(attempt)
            .bind(ended_at)
            .bind(after)
            .bind(row.record);
        self.run(replace).await?;
        Ok(true)
    }

    async fn add_attempts(
        &mut self,
        AddedAttempts { mut rows, usage }: AddedAttempts,
        limits: RecordLimits,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        for usage in usage.chunks(MOST_ADDED) {
            self.add_usage(usage, limits).await?;
        }
        let mut by_hour = [0, 0];
        for row in &rows {
            by_hour[usize::from(row.has_succeeded)] += row.bytes();
        }
        while !rows.is_empty() {
            let left = rows.split_off(rows.len().min(MOST_ADDED));
            self.run(add(rows)).await?;
            rows = left;
        }
        let hour = self.now().as_millis() / HOUR_MILLIS;
        let shard = chance::id().as_u128() as u8 % SHARDS;
        for (has_succeeded, bytes) in [false, true].into_iter().zip(by_hour) {
            if bytes > 0 {
                let count = Statement::new(ADD_HOUR)
                    .bind(hour)
                    .bind(has_succeeded)
                    .bind(u32::from(shard))
                    .bind(bytes);
                self.run(count).await?;
            }
        }
        Ok(())
    }

    /// Adds to the bytes that the attempts of tasks take, and deletes attempts of those that take too many.
    async fn add_usage(
        &mut self,
        usage: &[(TaskId, u64)],
        limits: RecordLimits,
    ) -> Result<(), StoreError> {
        for row in self.fetch(add_usage(usage)).await? {
            let task: TaskId = row.get("task_id")?;
            let added = usage.iter().find(|(added, _)| *added == task);
            let added = added.map_or(0, |(_, bytes)| *bytes);
            if row.get::<u64>("bytes")? > limits.task_bytes {
                self.evict(task, added, limits).await?;
            }
        }
        Ok(())
    }

    /// Deletes attempts of a task until the others and those that are added have room: the oldest successes first.
    async fn evict(
        &mut self,
        task: TaskId,
        added: u64,
        limits: RecordLimits,
    ) -> Result<(), StoreError> {
        for _ in 0..MOST_EVICTIONS {
            let count = Statement::new(COUNT_USAGE).bind(task).bind(added);
            let used = self.fetch_first(count).await?;
            let used = used.map_or(Ok(0), |row| row.get::<u64>("bytes"))?;
            if used <= limits.task_bytes {
                return Ok(());
            }
            let evict = Statement::new(EVICT).bind(task).bind(EVICTED_AT_ONCE);
            if self.execute(evict).await? == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Deletes up to `limit` attempts that ended before a time; with `succeeded`, only those that succeeded. Returns how
    /// many were deleted.
    pub async fn purge_attempts(
        &mut self,
        ended_before: Timestamp,
        succeeded: bool,
        limit: usize,
    ) -> Result<u64, StoreError> {
        self.lock_out_of_order();
        let (purge, forget) = match succeeded {
            true => (PURGE_SUCCEEDED, FORGET_SUCCEEDED_HOURS),
            false => (PURGE, FORGET_HOURS),
        };
        let purge = Statement::new(purge).bind(ended_before).bind(limit);
        let count = self.execute(purge).await?;
        if count < limit as u64 {
            let hour = ended_before.as_millis() / HOUR_MILLIS;
            self.run(Statement::new(forget).bind(hour)).await?;
        }
        Ok(count)
    }
}

impl Reader {
    pub async fn attempts(&self, query: &AttemptQuery) -> Result<Vec<AttemptRecord>, StoreError> {
        let rows = self.fetch_along_indexes(page(query)).await?;
        let records = rows.iter().map(|row| listed(row, query.step.step));
        records.collect()
    }

    /// Returns the last recorded attempt of each of these steps of a task, in one statement. A step without one is left
    /// out.
    pub async fn last_attempts(
        &self,
        task: TaskId,
        steps: &[StepIndex],
    ) -> Result<Vec<AttemptRecord>, StoreError> {
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.fetch_along_indexes(lasts(task, steps)).await?;
        let records = rows.iter().map(|row| listed(row, row.get("idx")?));
        records.collect()
    }

    /// Returns the bytes of recorded attempts, by the hour in which they ended, in order.
    pub async fn recorded_hours(&self) -> Result<Vec<RecordedHour>, StoreError> {
        self.all(Statement::new(HOURS), |row| {
            Ok(RecordedHour {
                end: Timestamp::from_millis((row.get::<i64>("hour")? + 1) * HOUR_MILLIS),
                succeeded: row.get::<i64>("succeeded")? == 1,
                bytes: row.get("bytes")?,
            })
        })
        .await
    }
}

/// Relies on the key of attempts, and reads no more rows than the page has.
fn page(query: &AttemptQuery) -> Statement {
    let mut statement = Statement::new(
        "SELECT attempt, ended_at, record FROM attempts WHERE task_id = $1 AND idx = $2",
    )
    .bind(query.step.task)
    .bind(query.step.step);
    if let Some(attempt) = query.attempt {
        statement.push(" AND attempt = ?", attempt);
    }
    if let Some((attempt, ended_at)) = query.before {
        statement.push(" AND (attempt, ended_at) < (?", attempt);
        statement.push(", ?)", ended_at);
    }
    statement.push(" ORDER BY attempt DESC, ended_at DESC LIMIT ?", query.limit);
    statement
}

/// Relies on the key of attempts, and reads one row for each step.
fn lasts(task: TaskId, steps: &[StepIndex]) -> Statement {
    let mut statement = Statement::new("").bind(task);
    for (number, step) in steps.iter().enumerate() {
        if number > 0 {
            statement.sql.push_str(" UNION ALL ");
        }
        statement.push(
            "SELECT * FROM (SELECT idx, attempt, record FROM attempts WHERE task_id = $1 AND idx = ?",
            *step,
        );
        let end = format!(" ORDER BY attempt DESC, ended_at DESC LIMIT 1) AS last_{number}");
        statement.sql.push_str(&end);
    }
    statement
}

fn listed(row: &Row, step: StepIndex) -> Result<AttemptRecord, StoreError> {
    let record: Option<AttemptRecord> = json(row, "record")?;
    let record = record.ok_or_else(|| corrupt("the record of an attempt is missing"))?;
    Ok(AttemptRecord {
        step,
        attempt: row.get("attempt")?,
        ..record
    })
}

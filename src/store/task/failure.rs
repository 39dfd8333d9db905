//! The causes of failures that need a person: each has a row, the alert of each step in error names it, and its failures
//! are counted by quarters of an hour.
//!
//! The rows of steps say what needs a person now. They are counted when the number is requested, up to a limit.
//!
//! Locks: a save takes the locks of causes after those of the alerts that it joins, in the order of fingerprints. Only the
//! first failure of a cause adds a row that others may wait for. The counts have several rows for each quarter.

mod missing;
#[cfg(test)]
mod plans;
mod purge;

use std::{borrow::Cow, collections::BTreeMap};

pub use self::missing::{FailuresSeen, first_failure};
use crate::{
    chance,
    domain::{
        task::{CauseFingerprint, FailureCause, FirstFailure},
        values::{Attempt, StepName, TaskId, Timestamp},
    },
    store::{
        AlertId, Reader, StoreError, Transaction,
        error::corrupt,
        rows::{Columns, Row, json},
        statement::{BindValue, Statement},
    },
};

/// The number of quarters of an hour whose failures are listed.
pub const QUARTERS: usize = 96;
/// The most failed steps of one cause that are counted.
pub const FAILURES_COUNTED: u64 = 1001;
/// The most causes among which a list selects.
pub const MOST_CAUSES: usize = 500;

const QUARTER_MILLIS: i64 = 15 * 60 * 1000;
/// The number of rows in which the failures of a quarter are counted.
const SHARDS: u8 = 4;

const ADD: &str = r#"
INSERT INTO failure_causes (fingerprint, cause, first, first_at, last_at, failures) VALUES ($1, $2, $3, $4, $4, 0)
ON CONFLICT (fingerprint) DO NOTHING"#;

const COUNT: &str = r#"
INSERT INTO failure_quarters (fingerprint, quarter, shard, failures, last_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (fingerprint, quarter, shard) DO UPDATE SET
    failures = failure_quarters.failures + excluded.failures,
    last_at = CASE WHEN failure_quarters.last_at < excluded.last_at THEN excluded.last_at ELSE failure_quarters.last_at END"#;

/// The causes with an alert that is not closed. Each step of the recursion reads one entry of alerts_unclosed_of_failure.
const UNCLOSED: &str = r#"
WITH RECURSIVE causes (fingerprint) AS (
    SELECT (SELECT fingerprint FROM alerts WHERE fingerprint IS NOT NULL AND state <> 'closed'
            ORDER BY fingerprint LIMIT 1)
    UNION ALL
    SELECT (SELECT later.fingerprint FROM alerts AS later
            WHERE later.fingerprint > causes.fingerprint AND later.fingerprint IS NOT NULL AND later.state <> 'closed'
            ORDER BY later.fingerprint LIMIT 1)
    FROM causes WHERE causes.fingerprint IS NOT NULL)
SELECT fingerprint FROM causes WHERE fingerprint IS NOT NULL LIMIT $1"#;

/// A cause with its counts, and its latest task as the example. Relies on alerts_unclosed_of_failure and on the keys of the
/// other tables.
const CAUSES: &str = r#"
SELECT causes.fingerprint, causes.cause, causes.first, causes.first_at, causes.last_at, causes.failures,
       (SELECT count(*) FROM (
            SELECT 1 AS one FROM alerts AS one_of
            WHERE one_of.fingerprint = causes.fingerprint AND one_of.fingerprint IS NOT NULL AND one_of.state <> 'closed'
            LIMIT $1) AS counted)
       AS steps,
       (SELECT count(DISTINCT task_id) FROM (
            SELECT task_id FROM alerts AS one_of
            WHERE one_of.fingerprint = causes.fingerprint AND one_of.fingerprint IS NOT NULL AND one_of.state <> 'closed'
            LIMIT $1) AS counted)
       AS tasks,
       example.task_id AS example_task, example.step AS example_step, example.message AS example_message,
       example.raised_at AS example_at, coalesce(example.part_of, example.id) AS example_alert,
       (SELECT steps.attempt FROM steps WHERE steps.task_id = example.task_id AND steps.idx = example.idx) AS example_attempt,
       (SELECT tasks."key" FROM tasks WHERE tasks.id = example.task_id) AS example_key
FROM failure_causes AS causes
LEFT JOIN alerts AS example ON example.id = (
    SELECT latest.id FROM alerts AS latest
    WHERE latest.fingerprint = causes.fingerprint AND latest.fingerprint IS NOT NULL AND latest.state <> 'closed'
    ORDER BY latest.fingerprint DESC, latest.task_id DESC LIMIT 1)
WHERE causes.fingerprint IN ({fingerprints})"#;

/// Relies on the key of failure_quarters.
const BY_QUARTER: &str = r#"
SELECT fingerprint, quarter, CAST(sum(failures) AS bigint) AS failures, max(last_at) AS last_at
FROM failure_quarters
WHERE fingerprint IN ({fingerprints})
GROUP BY fingerprint, quarter"#;

/// A failure that needs a person.
#[derive(Clone, Debug)]
pub struct Failure {
    pub fingerprint: CauseFingerprint,
    pub cause: FailureCause,
    /// The number of tasks with a failed step, among the first [`FAILURES_COUNTED`] steps.
    pub tasks: u64,
    /// The number of failed steps, up to [`FAILURES_COUNTED`].
    pub steps: u64,
    /// The number of failures since the first one.
    pub failures: u64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// The failures in the last [`QUARTERS`] quarters of an hour, the current one last.
    pub quarters: Vec<u64>,
    /// The beginning of the first of these quarters.
    pub from: Timestamp,
    /// `None` if no step needs a person any more.
    pub example: Option<FailureExample>,
    /// The first step that failed. Its task may have been deleted.
    pub first: Option<FirstFailure>,
}

/// A failed step of a cause.
#[derive(Clone, Debug)]
pub struct FailureExample {
    pub task: TaskId,
    pub key: Option<String>,
    pub step: StepName,
    pub attempt: Option<Attempt>,
    pub message: String,
    pub at: Timestamp,
    pub alert: AlertId,
}

/// The failures of one cause that a save adds.
struct NewFailures<'c> {
    cause: Cow<'c, FailureCause>,
    first: FirstFailure,
    count: u64,
    at: Timestamp,
}

/// The failures of causes that a save adds, by fingerprint.
#[derive(Default)]
pub struct FailuresToSave<'c>(BTreeMap<String, NewFailures<'c>>);

impl<'c> FailuresToSave<'c> {
    pub fn add(
        &mut self,
        fingerprint: CauseFingerprint,
        cause: Cow<'c, FailureCause>,
        at: Timestamp,
        first: impl FnOnce() -> FirstFailure,
    ) {
        let new = self.0.entry(fingerprint.to_string());
        let new = new.or_insert_with(|| NewFailures {
            cause,
            first: first(),
            count: 0,
            at,
        });
        new.count += 1;
        new.at = new.at.max(at);
    }
}

impl Transaction<'_> {
    /// Adds the causes that are new, and counts the failures.
    pub(in crate::store) async fn save_failures(
        &mut self,
        failures: FailuresToSave<'_>,
    ) -> Result<(), StoreError> {
        for (fingerprint, new) in &failures.0 {
            let add = Statement::new(ADD)
                .bind(fingerprint.as_str())
                .bind(serde_json::to_string(&new.cause).map_err(corrupt)?)
                .bind(serde_json::to_string(&new.first).map_err(corrupt)?)
                .bind(new.at);
            self.run(add).await?;
        }
        let shard = chance::id().as_u128() as u8 % SHARDS;
        for (fingerprint, new) in &failures.0 {
            let count = Statement::new(COUNT)
                .bind(fingerprint.as_str())
                .bind(quarter_of(new.at))
                .bind(u32::from(shard))
                .bind(new.count)
                .bind(new.at);
            self.run(count).await?;
        }
        Ok(())
    }
}

fn quarter_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(QUARTER_MILLIS)
}

impl Reader {
    /// Returns the causes for which steps need a person, in no useful order: at most [`MOST_CAUSES`], and whether there are
    /// more.
    pub async fn failures(&self) -> Result<(Vec<Failure>, bool), StoreError> {
        let unclosed = Statement::new(UNCLOSED).bind(MOST_CAUSES + 1);
        let found = self.fetch_along_indexes(unclosed).await?;
        let fingerprints = found.iter().map(|row| row.get("fingerprint"));
        let mut fingerprints = fingerprints.collect::<Result<Vec<String>, _>>()?;
        let more = fingerprints.len() > MOST_CAUSES;
        fingerprints.truncate(MOST_CAUSES);
        Ok((self.failures_of(&fingerprints).await?, more))
    }

    /// Returns the cause with this fingerprint, if steps have ever failed for it.
    pub async fn failure(
        &self,
        fingerprint: CauseFingerprint,
    ) -> Result<Option<Failure>, StoreError> {
        let mut found = self.failures_of(&[fingerprint.to_string()]).await?;
        Ok(found.pop())
    }

    async fn failures_of(&self, fingerprints: &[String]) -> Result<Vec<Failure>, StoreError> {
        if fingerprints.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now().await?;
        let causes = of(CAUSES, [FAILURES_COUNTED.into()], fingerprints);
        let causes = self.fetch_along_indexes(causes).await?;
        let quarters = of(BY_QUARTER, [], fingerprints);
        let quarters = self.fetch_along_indexes(quarters).await?;
        let mut by_cause: BTreeMap<String, Vec<(i64, u64, Timestamp)>> = BTreeMap::new();
        for row in &quarters {
            let counted = (
                row.get("quarter")?,
                row.get("failures")?,
                row.get("last_at")?,
            );
            let counts = by_cause.entry(row.get("fingerprint")?).or_default();
            counts.push(counted);
        }
        let first_quarter = quarter_of(now) - (QUARTERS as i64 - 1);
        let failures = causes.iter().map(|row| {
            let text: String = row.get("fingerprint")?;
            let counts = by_cause.remove(&text).unwrap_or_default();
            failure(row, &text, &counts, first_quarter)
        });
        failures.collect()
    }
}

/// Returns a statement about the causes with these fingerprints, whose parameters follow these values.
fn of<const N: usize>(sql: &str, values: [BindValue; N], fingerprints: &[String]) -> Statement {
    let parameters = (N + 1..=N + fingerprints.len()).map(|number| format!("${number}"));
    let parameters = parameters.collect::<Vec<_>>().join(", ");
    let mut statement = Statement::new(sql.replace("{fingerprints}", &parameters));
    statement.values.extend(values);
    let fingerprints = fingerprints.iter().map(String::as_str);
    fingerprints.fold(statement, Statement::bind)
}

fn failure(
    row: &Row,
    fingerprint: &str,
    counts: &[(i64, u64, Timestamp)],
    first_quarter: i64,
) -> Result<Failure, StoreError> {
    let mut quarters = vec![0; QUARTERS];
    let mut last_at: Timestamp = row.get("last_at")?;
    let mut failures: u64 = row.get("failures")?;
    for (quarter, count, at) in counts {
        let position = usize::try_from(quarter - first_quarter).ok();
        // The clock may have been set back: such a failure counts for the last quarter.
        let position = position.map(|position| position.min(QUARTERS - 1));
        if let Some(counted) = position.and_then(|position| quarters.get_mut(position)) {
            *counted += count;
        }
        failures += count;
        last_at = last_at.max(*at);
    }
    let task: Option<TaskId> = row.get("example_task")?;
    let example = match task {
        Some(task) => Some(FailureExample {
            task,
            key: row.get("example_key")?,
            step: row.get("example_step")?,
            attempt: row.get("example_attempt")?,
            message: row.get("example_message")?,
            at: row.get("example_at")?,
            alert: row.get("example_alert")?,
        }),
        None => None,
    };
    Ok(Failure {
        fingerprint: CauseFingerprint::parse(fingerprint)
            .ok_or_else(|| corrupt(format!("{fingerprint:?} is not the fingerprint of a cause")))?,
        cause: json(row, "cause")?.ok_or_else(|| corrupt("cause is missing"))?,
        tasks: row.get("tasks")?,
        steps: row.get("steps")?,
        failures,
        first_at: row.get("first_at")?,
        last_at,
        quarters,
        from: Timestamp::from_millis(first_quarter * QUARTER_MILLIS),
        example,
        first: json(row, "first")?,
    })
}

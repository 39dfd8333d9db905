//! The result of each task of a bulk job: whether it has accepted the command, or the reason why it has refused it. A
//! task that has accepted the command and has failed since is found by its steps, when the list is read.

use super::attempts::parameters;
use crate::domain::{
    task::BulkOutcome,
    values::{Fault, TaskId, Timestamp, shortened},
};
use crate::store::{
    BulkJobId, BulkResultFilter, Reader, StoreError, Transaction,
    rows::{Columns, Row, json},
    statement::Statement,
};

/// The most rows that one statement adds.
const MOST_ADDED: usize = 25;
const COLUMNS: usize = 6;
/// The most bytes of a reason that are kept.
const LONGEST_REASON: usize = 500;
/// The most tasks that one statement examines to find those that have failed again.
const MOST_EXAMINED: usize = 10_000;

const ADD: &str = "INSERT INTO bulk_tasks (job_id, task_id, result, at, kind, reason) VALUES ";

/// Relies on the key of bulk_tasks.
const PURGE: &str = r#"
DELETE FROM bulk_tasks WHERE job_id = $1 AND (result, task_id) IN (
    SELECT result, task_id FROM bulk_tasks WHERE job_id = $1 ORDER BY result, task_id LIMIT $2)"#;

/// A task has failed again if one of its steps has failed since the command was applied. Relies on the primary keys.
const HAS_FAILED: &str = r#"
(SELECT 1 FROM steps WHERE steps.task_id = looked.task_id AND steps.state = 'error' AND steps.ended_at >= looked.at LIMIT 1) IS NOT NULL"#;

/// A request for a page of the tasks of a job, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct BulkTaskQuery {
    pub job: BulkJobId,
    pub result: BulkResultFilter,
    pub after: Option<TaskId>,
    pub limit: usize,
}

/// A task of a job, with what is known of the task now.
#[derive(Clone, Debug)]
pub struct BulkTaskRow {
    pub task: TaskId,
    /// A time before the command was applied.
    pub at: Timestamp,
    /// The kind of problem and the reason of a refusal.
    pub kind: Option<String>,
    pub reason: Option<String>,
    /// `None` if the task was deleted.
    pub state: Option<String>,
    pub key: Option<String>,
    /// The step that has failed since, with the time and the error.
    pub failed_step: Option<String>,
    pub failed_at: Option<Timestamp>,
    pub error: Option<Fault>,
}

/// A page of the tasks of a job.
#[derive(Clone, Debug)]
pub struct BulkTasks {
    pub tasks: Vec<BulkTaskRow>,
    /// There may be more tasks after this one.
    pub next: Option<TaskId>,
}

/// Saves the outcomes of a batch.
pub(super) async fn save(
    tx: &mut Transaction<'_>,
    job: BulkJobId,
    outcomes: &[BulkOutcome],
    at: Timestamp,
) -> Result<(), StoreError> {
    for outcomes in outcomes.chunks(MOST_ADDED) {
        let values = parameters(outcomes.len(), COLUMNS);
        let mut add = Statement::new(format!("{ADD}{values}"));
        for BulkOutcome { task, refusal } in outcomes {
            let result = match refusal {
                None => BulkResultFilter::Accepted,
                Some(_) => BulkResultFilter::Refused,
            };
            let refusal = refusal.as_ref();
            let reason = refusal.map(|refusal| shortened(&refusal.reason, LONGEST_REASON));
            add = add
                .bind(job)
                .bind(*task)
                .bind(result.recorded())
                .bind(at)
                .bind(refusal.map(|refusal| refusal.kind.as_str()))
                .bind(reason);
        }
        tx.run(add).await?;
    }
    Ok(())
}

/// Deletes up to `limit` tasks of a job, and returns how many.
pub(super) async fn purge(
    tx: &mut Transaction<'_>,
    job: BulkJobId,
    limit: usize,
) -> Result<u64, StoreError> {
    tx.execute(Statement::new(PURGE).bind(job).bind(limit))
        .await
}

impl Reader {
    /// Returns those of these tasks that have accepted the command of a job. Relies on the key of idempotency_keys.
    pub async fn accepted_of_bulk_job(
        &self,
        job: BulkJobId,
        tasks: &[TaskId],
    ) -> Result<Vec<TaskId>, StoreError> {
        let Some((first, others)) = tasks.split_first() else {
            return Ok(Vec::new());
        };
        let known = r#"SELECT "key" AS known FROM idempotency_keys WHERE "key" IN ($1"#;
        let mut known = Statement::new(known).bind(job.key_of(*first));
        for task in others {
            known.push(", ?", job.key_of(*task));
        }
        known.sql.push(')');
        let known: Vec<String> = self.all(known, |row: &Row| row.get("known")).await?;
        let accepted = tasks.iter().copied();
        Ok(accepted
            .filter(|task| known.contains(&job.key_of(*task)))
            .collect())
    }

    pub async fn bulk_tasks(&self, query: &BulkTaskQuery) -> Result<BulkTasks, StoreError> {
        let mut last = Statement::new("SELECT task_id FROM (");
        looked_at(&mut last, query);
        last.push(
            ") AS looked ORDER BY task_id LIMIT 1 OFFSET ?",
            MOST_EXAMINED - 1,
        );
        let mut tasks = self.all(page(query), listed).await?;
        let has_more = tasks.len() > query.limit;
        tasks.truncate(query.limit);
        let next = match has_more {
            true => tasks.last().map(|last| last.task),
            false => self.first(last, |row: &Row| row.get("task_id")).await?,
        };
        Ok(BulkTasks { tasks, next })
    }

    /// Counts the tasks of a job that have failed again, and returns whether there may be more of them.
    pub async fn count_failed_again(&self, job: BulkJobId) -> Result<(u64, bool), StoreError> {
        let query = BulkTaskQuery {
            job,
            result: BulkResultFilter::FailedAgain,
            after: None,
            limit: 0,
        };
        let mut count = Statement::new(format!(
            "SELECT count(*) AS looked, sum(CASE WHEN {HAS_FAILED} THEN 1 ELSE 0 END) AS failed FROM ("
        ));
        looked_at(&mut count, &query);
        count.sql.push_str(") AS looked");
        let counted = self.first(count, |row: &Row| {
            let failed: Option<u64> = row.get("failed")?;
            Ok((failed.unwrap_or_default(), row.get::<u64>("looked")?))
        });
        let (failed, looked) = counted.await?.unwrap_or_default();
        Ok((failed, looked >= MOST_EXAMINED as u64))
    }
}

/// Appends the tasks that a search examines. Relies on the key of bulk_tasks.
fn looked_at(statement: &mut Statement, query: &BulkTaskQuery) {
    statement.push(
        "SELECT task_id, at, kind, reason FROM bulk_tasks WHERE job_id = ?",
        query.job,
    );
    statement.push(" AND result = ?", query.result.recorded());
    if let Some(after) = query.after {
        statement.push(" AND task_id > ?", after);
    }
    statement.push(" ORDER BY task_id LIMIT ?", MOST_EXAMINED);
}

fn page(query: &BulkTaskQuery) -> Statement {
    let failed = |column: &str| {
        format!(
            "(SELECT {column} FROM steps WHERE steps.task_id = page.task_id AND steps.state = 'error' AND steps.ended_at >= page.at ORDER BY steps.ended_at DESC LIMIT 1)"
        )
    };
    let mut page = Statement::new(format!(
        r#"SELECT task_id, at, kind, reason,
       (SELECT state FROM tasks WHERE tasks.id = page.task_id) AS state,
       (SELECT "key" FROM tasks WHERE tasks.id = page.task_id) AS task_key,
       {} AS failed_step, {} AS failed_at, {} AS error
FROM (SELECT * FROM ("#,
        failed("steps.name"),
        failed("steps.ended_at"),
        failed("steps.error"),
    ));
    looked_at(&mut page, query);
    page.sql.push_str(") AS looked");
    if query.result == BulkResultFilter::FailedAgain {
        page.sql.push_str(" WHERE ");
        page.sql.push_str(HAS_FAILED);
    }
    page.push(" ORDER BY task_id LIMIT ?", query.limit + 1);
    page.sql.push_str(") AS page ORDER BY task_id");
    page
}

fn listed(row: &Row) -> Result<BulkTaskRow, StoreError> {
    Ok(BulkTaskRow {
        task: row.get("task_id")?,
        at: row.get("at")?,
        kind: row.get("kind")?,
        reason: row.get("reason")?,
        state: row.get("state")?,
        key: row.get("task_key")?,
        failed_step: row.get("failed_step")?,
        failed_at: row.get("failed_at")?,
        error: json(row, "error")?,
    })
}

//! Workers that fetch the steps of agents: when they were last seen, and the steps that they hold.

use std::sync::Arc;

use futures::FutureExt;

use crate::domain::{
    task::{OpenReply, SavedReplies},
    values::{AgentName, Attempt, Span, StepName, StepRef, Timestamp, WorkerName},
};
use crate::store::{
    Reader, Store, StoreError, Transaction,
    rows::{self, Columns, Row},
    statement::Statement,
};

/// The record of a worker that was not seen for this time is deleted.
const FORGET_AFTER: Span = Span::from_secs(24 * 3600);

/// The most workers of one statement.
const ROWS: usize = 100;

const SEEN: &str = "INSERT INTO workers (agent, name, seen_at) VALUES";
const SEEN_BEFORE: &str = r#"
ON CONFLICT (agent, name) DO UPDATE SET seen_at = excluded.seen_at WHERE excluded.seen_at > workers.seen_at"#;

/// Relies on workers_seen.
const FORGET: &str = "DELETE FROM workers WHERE seen_at < $1";

/// Relies on workers_of_agent.
const LAST_SEEN: &str =
    "SELECT name, seen_at FROM workers WHERE agent = $1 ORDER BY seen_at DESC LIMIT $2";

/// Relies on steps_fetched.
const FETCHED: &str = r#"
SELECT worker, task_id, idx, name, attempt, complete_by, reply FROM steps
WHERE agent = $1 AND worker IS NOT NULL AND state = 'processing'
ORDER BY worker, task_id, idx LIMIT $2"#;

/// A worker, with the time of its last request for work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenWorker {
    pub name: WorkerName,
    pub seen_at: Timestamp,
}

/// A step that a worker has fetched.
#[derive(Debug)]
pub struct FetchedStep {
    pub worker: WorkerName,
    pub step: StepRef,
    pub step_name: StepName,
    pub attempt: Attempt,
    /// The end of the attempt: its complete-by, or the time by which a heartbeat must come.
    pub ends_at: Timestamp,
    /// `None` if this part of the record is damaged.
    pub open: Option<Box<OpenReply>>,
}

impl Reader {
    /// Returns the workers of an agent, last seen first.
    pub async fn workers(
        &self,
        agent: &AgentName,
        limit: usize,
    ) -> Result<Vec<SeenWorker>, StoreError> {
        let statement = Statement::new(LAST_SEEN).bind(agent).bind(limit);
        let worker = |row: &Row| {
            Ok(SeenWorker {
                name: row.get("name")?,
                seen_at: row.get("seen_at")?,
            })
        };
        self.all(statement, worker).await
    }

    /// Returns the steps that the workers of an agent hold, by worker.
    pub async fn fetched(
        &self,
        agent: &AgentName,
        limit: usize,
    ) -> Result<Vec<FetchedStep>, StoreError> {
        let statement = Statement::new(FETCHED).bind(agent).bind(limit);
        let fetched = |row: &Row| {
            let replies: Option<String> = row.get("reply")?;
            let replies = replies.and_then(|json| serde_json::from_str::<SavedReplies>(&json).ok());
            Ok(FetchedStep {
                worker: row.get("worker")?,
                step: rows::step_ref(row)?,
                step_name: row.get("name")?,
                attempt: row.get("attempt")?,
                ends_at: row.get("complete_by")?,
                open: replies
                    .and_then(|replies| replies.open)
                    .map(|(open, _)| open),
            })
        };
        self.all(statement, fetched).await
    }
}

impl Store {
    /// Records when these workers were last seen, as the time that has passed since. Each worker is named once. Deletes
    /// workers that were not seen for a day.
    pub async fn save_workers(
        &self,
        mut seen: Vec<(AgentName, WorkerName, Span)>,
    ) -> Result<(), StoreError> {
        // The workers are in one order, so that instances which save the same workers cannot deadlock.
        seen.sort_unstable_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        let seen = Arc::new(seen);
        self.write(move |tx| {
            let seen = seen.clone();
            async move { save(tx, &seen).await }.boxed()
        })
        .await
    }
}

async fn save(
    tx: &mut Transaction<'_>,
    seen: &[(AgentName, WorkerName, Span)],
) -> Result<(), StoreError> {
    tx.lock_out_of_order();
    let now = tx.now();
    for seen in seen.chunks(ROWS) {
        let mut statement = Statement::new(SEEN);
        for (at, (agent, worker, ago)) in seen.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            statement.push(&format!("{comma} (?"), agent);
            statement.push(", ?", worker);
            let at = Timestamp::from_millis(now.as_millis() - ago.as_millis());
            statement.push(", ?)", at);
        }
        statement.sql.push_str(SEEN_BEFORE);
        tx.execute(statement).await?;
    }
    let before = Timestamp::from_millis(now.as_millis() - FORGET_AFTER.as_millis());
    tx.execute(Statement::new(FORGET).bind(before)).await?;
    Ok(())
}

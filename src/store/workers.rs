//! Workers that fetch the steps of agents: when they were last seen, and what they hold.

use std::sync::Arc;

use futures::FutureExt;

use super::{
    Reader, Store, StoreError, Transaction,
    rows::{self, Columns, Row},
    statement::Statement,
};
use crate::domain::{
    AgentName, Attempt, OpenReply, SavedReplies, Span, StepName, StepRef, Timestamp, WorkerName,
};

/// A worker that was not seen for so long is forgotten.
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

/// A worker, and when it last asked for work.
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
    /// `None`: this part of the record is damaged.
    pub open: Option<Box<OpenReply>>,
}

impl Reader {
    /// The workers of an agent, last seen first.
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

    /// What the workers of an agent hold, by worker.
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
    /// These workers were seen so long ago; each is named once. Forgets those that nobody has seen for a day.
    pub async fn save_workers(
        &self,
        mut seen: Vec<(AgentName, WorkerName, Span)>,
    ) -> Result<(), StoreError> {
        // In one order, so that instances which save the same workers do not wait for each other in a circle.
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

//! Counts tasks, steps, alerts and messages for the metrics.

use crate::domain::{
    task::{AlertKind, TaskStatus},
    values::AgentName,
};
use crate::store::{
    EndedCount, Reader, StoreCounts, StoreError,
    record::UNTOUCHED,
    rows::{self, Columns},
    statement::Statement,
};

/// Relies on tasks_by_state. It reads no tasks that have ended: see [`EndedCount`].
const COUNT_TASKS: &str = r#"
SELECT state, count(*) AS count FROM {tasks}
WHERE state <> 'processed' AND state IN ({live}) GROUP BY state"#;

/// Relies on steps_line.
const COUNT_QUEUED: &str = r#"
SELECT agent, count(*) AS count FROM steps
WHERE due_at IS NOT NULL AND queued = 1 GROUP BY agent"#;

/// The row of a task at risk exists until the supervising instance checks it after the end of the task, which may take
/// half a minute. There are few such rows, see [`MOST_AT_RISK`](crate::store::MOST_AT_RISK).
const COUNT_OTHERS: &str = r#"
SELECT (SELECT count(*) FROM steps WHERE due_at IS NOT NULL AND queued = 0) AS delayed,
       (SELECT count(*) FROM steps WHERE state = 'processing' AND locked_by IS NOT NULL)
       + (SELECT count(*) FROM {claimed} WHERE claimed_by IS NOT NULL) AS held,
       (SELECT count(*) FROM steps WHERE state = 'processing' AND locked_by IS NULL AND agent <> '') AS awaited,
       (SELECT count(*) FROM steps WHERE state = 'processing' AND agent = '') AS waits,
       (SELECT count(*) FROM tasks_at_risk
        WHERE (SELECT overdue_at FROM tasks WHERE tasks.id = tasks_at_risk.task_id) IS NOT NULL) AS at_risk"#;

/// Relies on steps_awaited, and reads each of its steps. It runs only as often as that is cheap.
const COUNT_OPEN: &str = r#"
SELECT agent, count(*) AS count FROM {awaited}
WHERE state = 'processing' AND locked_by IS NULL AND agent <> '' AND due_at IS NULL GROUP BY agent"#;

/// Reads the tasks that have not ended, by tasks_by_state, and their steps. Steps without rows wait, too.
const COUNT_WAITING: &str = r#"
SELECT CAST((
    SELECT count(*) FROM {tasks} JOIN steps ON steps.task_id = tasks.id
    WHERE tasks.state <> 'processed' AND tasks.state IN ({live}) AND steps.state = 'waiting')
    + (SELECT coalesce(sum({untouched}), 0) FROM {tasks}
       WHERE state <> 'processed' AND state IN ({live})) AS bigint) AS waiting"#;

/// Relies on alerts_unclosed. The alert of a cause is counted once, and so is each of its steps.
const COUNT_ALERTS: &str = r#"
SELECT kind, count(CASE WHEN part_of IS NULL THEN 1 END) AS count, count(task_id) AS steps FROM alerts
WHERE state <> 'closed' GROUP BY kind ORDER BY kind"#;

/// Relies on messages_in_queue, and on messages_died.
const COUNT_MESSAGES: &str = r#"
SELECT (SELECT count(*) FROM messages WHERE state = 'pending') AS pending,
       (SELECT count(*) FROM messages WHERE died_at IS NOT NULL AND state = 'dead') AS dead"#;

/// Returns the states of tasks that have not ended, as SQL literals.
fn live() -> String {
    let states = TaskStatus::ALL.iter().filter(|state| !state.is_ended());
    let states: Vec<_> = states
        .map(|state| format!("'{}'", state.as_str()))
        .collect();
    states.join(", ")
}

impl Reader {
    /// Returns the number of replies that services have promised to send by themselves, by agent.
    pub async fn open_replies(&self) -> Result<Vec<(AgentName, u64)>, StoreError> {
        let awaited = self.source.by_index("steps", "steps_awaited");
        let sql = COUNT_OPEN.replace("{awaited}", &awaited);
        self.all(Statement::new(sql), |row| rows::count(row, "agent"))
            .await
    }

    pub async fn counts(&self) -> Result<StoreCounts, StoreError> {
        let of_live = |sql: &str| {
            let tasks = self.source.by_index("tasks", "tasks_by_state");
            Statement::new(sql.replace("{tasks}", &tasks).replace("{live}", &live()))
        };
        let tasks = self.fetch_along_indexes(of_live(COUNT_TASKS)).await?;
        let mut counts = StoreCounts {
            tasks: tasks
                .iter()
                .map(|row| rows::count(row, "state"))
                .collect::<Result<_, _>>()?,
            queued: self
                .all(Statement::new(COUNT_QUEUED), |row| {
                    rows::count(row, "agent")
                })
                .await?,
            ..StoreCounts::default()
        };
        let claimed = self.source.by_index("tasks", "tasks_claimed");
        let others = Statement::new(COUNT_OTHERS.replace("{claimed}", &claimed));
        if let Some(row) = self.fetch(others).await?.first() {
            counts.delayed = row.get("delayed")?;
            counts.held = row.get("held")?;
            counts.awaited = row.get("awaited")?;
            counts.waits = row.get("waits")?;
            counts.at_risk = row.get("at_risk")?;
        }
        let waiting = COUNT_WAITING.replace("{untouched}", UNTOUCHED);
        if let Some(row) = self.fetch(of_live(&waiting)).await?.first() {
            counts.waiting = row.get("waiting")?;
        }
        let alerts = Statement::new(COUNT_ALERTS);
        for row in self.fetch(alerts).await? {
            let (kind, count): (String, u64) = rows::count(&row, "kind")?;
            let mut kinds = AlertKind::ALL.iter().copied();
            if kinds.any(|known| known.is_of_step() && known.as_str() == kind) {
                counts.failed += row.get::<u64>("steps")?;
            }
            counts.open_alerts.push((kind, count));
        }
        if let Some(row) = self.fetch(Statement::new(COUNT_MESSAGES)).await?.first() {
            counts.messages_pending = row.get("pending")?;
            counts.messages_dead = row.get("dead")?;
        }
        Ok(counts)
    }

    /// Counts one more page of ended tasks, at most `limit`.
    pub async fn count_ended(
        &self,
        so_far: EndedCount,
        limit: usize,
    ) -> Result<EndedCount, StoreError> {
        let Some(statement) =
            so_far.statement(|table, index| self.source.by_index(table, index), limit)
        else {
            return Ok(so_far);
        };
        match self.fetch_along_indexes(statement).await?.first() {
            Some(row) => so_far.add(row, limit),
            None => Err(StoreError::Corrupt("a count without a row".to_owned())),
        }
    }
}

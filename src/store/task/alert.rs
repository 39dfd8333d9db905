//! Lists alerts: those of causes and those without a cause, or those of single steps.

use super::alert_cause::first_failure;
use crate::domain::values::{StepName, TaskId};
use crate::store::{
    Alert, AlertQuery, AlertState, COUNTED_AT_ONCE, DEAD_LETTERS_COUNTED, Reader, StoreError,
    rows::Columns, statement::Statement,
};

/// Lists the alerts of causes, and those that are part of none. Relies on alerts_listed and alerts_listed_by_state; for
/// each cause on alerts_parts and alerts_unclosed_parts, read to their first entries; and for each receiver on
/// messages_died_by_receiver.
const LISTED_ALERTS: &str = r#"
SELECT alert.id, alert.kind, alert.state, alert.receiver, alert.raised_at, alert.acknowledged_at,
       alert.acknowledged_by, alert.closed_at, alert.part_of, alert.agent, alert.cause, alert.first, alert.members,
       alert.peak,
       CASE WHEN alert.cause IS NOT NULL AND alert.state <> 'closed' THEN (
           SELECT count(*) FROM (SELECT 1 AS one {unclosed parts} LIMIT $1) AS counted)
       WHEN alert.kind = 'message.undeliverable' AND alert.state <> 'closed' THEN (
           SELECT count(*) FROM (SELECT 1 AS one FROM messages
                                 WHERE messages.receiver = alert.receiver AND messages.died_at IS NOT NULL LIMIT $2)
           AS counted) END AS count,
       coalesce(alert.task_id, (SELECT part.task_id {unclosed parts in order} LIMIT 1)) AS task_id,
       coalesce(alert.step, (SELECT part.step {unclosed parts in order} LIMIT 1)) AS step,
       coalesce((SELECT part.message {unclosed parts in order} LIMIT 1), alert.message) AS message,
       {another task} LIMIT 1) AS task_2,
       {another task} AND looked.task_id <> {another task} LIMIT 1) LIMIT 1) AS task_3,
       (SELECT part.raised_at FROM alerts AS part WHERE part.part_of = alert.id AND part.part_of IS NOT NULL
        ORDER BY part.part_of DESC, part.id DESC LIMIT 1) AS last_at
FROM alerts AS alert
WHERE alert.part_of IS NULL"#;

/// Finds another task among the first steps, without the end of the statement. Many items of a list may be steps of one
/// task.
const ANOTHER_TASK: &str = "(SELECT looked.task_id FROM (SELECT part.task_id, part.id {unclosed parts in order} LIMIT $3) AS looked \
    WHERE looked.task_id <> (SELECT part.task_id {unclosed parts in order} LIMIT 1)";

/// The number of steps among which other tasks are looked for.
const LOOKED_AT_FOR_TASKS: u64 = 100;

const UNCLOSED_PARTS: &str = "FROM alerts AS part \
    WHERE part.part_of = alert.id AND part.part_of IS NOT NULL AND part.state <> 'closed'";

/// Lists the alerts of single steps, which name no other tasks: `nullif` gives the columns the type that they have
/// above. Relies on alerts_by_task, alerts_parts and alerts_unclosed_parts.
const SINGLE_ALERTS: &str = r#"
SELECT alert.id, alert.kind, CASE alert.state WHEN 'closed' THEN alert.state ELSE coalesce(whole.state, alert.state) END
       AS state, alert.receiver, alert.raised_at,
       coalesce(whole.acknowledged_at, alert.acknowledged_at) AS acknowledged_at,
       coalesce(whole.acknowledged_by, alert.acknowledged_by) AS acknowledged_by,
       alert.closed_at, alert.part_of, whole.agent, whole.cause, alert.first, alert.members, alert.peak,
       CAST($1 AS bigint) AS count, alert.task_id, alert.step, alert.message,
       nullif(alert.id, alert.id) AS task_2, nullif(alert.id, alert.id) AS task_3, alert.raised_at AS last_at
FROM alerts AS alert LEFT JOIN alerts AS whole ON whole.id = alert.part_of
WHERE alert.cause IS NULL"#;

/// Returns a page of alerts, read by [`read`].
pub fn page(query: &AlertQuery) -> Statement {
    let is_single = query.task.is_some() || query.part_of.is_some();
    let mut statement = if is_single {
        Statement::new(SINGLE_ALERTS).bind(1_i64)
    } else {
        let in_order = format!("{UNCLOSED_PARTS} ORDER BY part.part_of, part.id");
        let sql = LISTED_ALERTS
            .replace("{another task}", ANOTHER_TASK)
            .replace("{unclosed parts}", UNCLOSED_PARTS)
            .replace("{unclosed parts in order}", &in_order);
        Statement::new(sql)
            .bind(COUNTED_AT_ONCE)
            .bind(DEAD_LETTERS_COUNTED)
            .bind(LOOKED_AT_FOR_TASKS)
    };
    match query.state {
        Some(AlertState::Closed) => statement.push(" AND alert.state = ?", "closed"),
        Some(state) if is_single => statement.push(
            " AND alert.state <> 'closed' AND coalesce(whole.state, alert.state) = ?",
            state.as_str(),
        ),
        Some(state) => statement.push(" AND alert.state = ?", state.as_str()),
        None => {}
    }
    if let Some(task) = query.task {
        statement.push(" AND alert.task_id = ?", task.0);
    }
    if let Some(whole) = query.part_of {
        statement.push(" AND alert.part_of = ?", whole.0);
    }
    if let Some(cause) = query.cause {
        // All steps of a cause have one alert. Relies on alerts_unclosed_of_failure.
        let alert = " AND alert.id = (SELECT coalesce(part.part_of, part.id) FROM alerts AS part WHERE part.fingerprint = ? \
            AND part.fingerprint IS NOT NULL AND part.state <> 'closed' ORDER BY part.fingerprint, part.task_id LIMIT 1)";
        statement.push(alert, cause.to_string());
    }
    if let Some(id) = query.id {
        statement.push(" AND alert.id = ?", id.0);
    }
    if let Some(before) = query.before {
        statement.push(" AND alert.id < ?", before.0);
    }
    statement.push(" ORDER BY alert.id DESC LIMIT ?", query.limit);
    statement
}

impl Reader {
    pub async fn alerts(&self, query: &AlertQuery) -> Result<Vec<Alert>, StoreError> {
        let found = self.fetch_along_indexes(page(query)).await?;
        found.iter().map(read).collect()
    }
}

/// Reads a row of [`page`].
pub fn read(row: &impl Columns) -> Result<Alert, StoreError> {
    let first = first_failure(row)?;
    let (first_task, first_step) = first.map(|first| (first.task, first.step)).unzip();
    let task: Option<TaskId> = row.get("task_id")?;
    let task = task.or(first_task);
    let others: [Option<TaskId>; 2] = [row.get("task_2")?, row.get("task_3")?];
    let state: AlertState = row.get("state")?;
    let cause: Option<String> = row.get("cause")?;
    let (count, members, peak): (Option<u64>, Option<u64>, Option<u64>) =
        (row.get("count")?, row.get("members")?, row.get("peak")?);
    let count = match (state, count) {
        (AlertState::Closed, _) => peak,
        // Larger numbers are counted from time to time.
        (_, Some(COUNTED_AT_ONCE..)) if cause.is_some() => members.max(Some(COUNTED_AT_ONCE)),
        (_, count) => count,
    };
    let raised_at = row.get("raised_at")?;
    Ok(Alert {
        id: row.get("id")?,
        task,
        step: row.get::<Option<StepName>>("step")?.or(first_step),
        receiver: row.get("receiver")?,
        kind: row.get("kind")?,
        message: row.get("message")?,
        state,
        raised_at,
        acknowledged_at: row.get("acknowledged_at")?,
        acknowledged_by: row.get("acknowledged_by")?,
        closed_at: row.get("closed_at")?,
        part_of: row.get("part_of")?,
        agent: row.get("agent")?,
        cause,
        count: count.unwrap_or(1),
        last_at: row.get::<Option<_>>("last_at")?.unwrap_or(raised_at),
        tasks: task
            .into_iter()
            .chain(others.into_iter().flatten())
            .collect(),
    })
}

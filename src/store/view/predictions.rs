//! The tasks that are predicted to be late, and the data of the predictions: how fast agents work, as instances have
//! counted it, and how many steps wait for them.

use std::collections::BTreeMap;

use futures::FutureExt;

use crate::domain::{
    message::{AlertNotice, Sender},
    task::AlertKind,
    values::{AgentName, InstanceId, ReceiverName, TaskId, Timestamp},
    view::{AtRisk, CompleteSteps, QueueOutline, QueueRange, at_risk_subject},
};
use crate::{
    chance,
    store::{
        Reader, Store, StoreError, Transaction,
        error::corrupt,
        rows::{Columns, Row, at_risk},
        statement::Statement,
    },
};

/// The most tasks at risk that are on record. An operator needs no more of them to see the problem.
pub const MOST_AT_RISK: usize = 10_000;

/// The most steps of one queue that are read.
const MOST_OUTLINED: usize = 100_000;
/// Steps whose turns are within this number of milliseconds are counted together.
const OUTLINED_TOGETHER: usize = 60_000;
/// The most ranges of a queue that are returned, the first ones.
const MOST_RANGES: usize = 1000;
/// A process that has not reported for this number of milliseconds has ended.
const ENDED_AFTER: i64 = 600_000;

/// The counts of one process for each agent since the process began.
pub type CountedSteps = BTreeMap<AgentName, CompleteSteps>;

/// Relies on steps_line.
const OUTLINE: &str = r#"
SELECT min(turn) AS first, max(turn) AS last, count(*) AS steps FROM (
    SELECT turn FROM {steps} WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1
    ORDER BY agent, lane, turn LIMIT $2) AS queue
GROUP BY turn / $3 ORDER BY first LIMIT $4"#;

/// Relies on tasks_overdue.
const LIMITED: &str = r#"
SELECT id, overdue_at FROM tasks
WHERE overdue_at IS NOT NULL AND overdue_at >= $1 AND (overdue_at > $1 OR id > $2) AND overdue_at <= $3
ORDER BY overdue_at, id LIMIT $4"#;

/// Relies on tasks_overdue and alerts_unclosed_of_receiver.
const ANY_WORK: &str = r#"
SELECT 1 AS one
WHERE (SELECT overdue_at FROM tasks WHERE overdue_at IS NOT NULL ORDER BY overdue_at LIMIT 1) IS NOT NULL
   OR EXISTS (SELECT 1 FROM tasks_at_risk)
   OR EXISTS (SELECT 1 FROM alerts WHERE receiver IS NOT NULL AND state <> 'closed' AND kind = $1)"#;

const COUNTED: &str = "SELECT instance, at, counted FROM counted_steps";

const REPORT: &str = r#"
INSERT INTO counted_steps (instance, at, counted) VALUES ($1, $2, $3)
ON CONFLICT (instance) DO UPDATE SET at = excluded.at, counted = excluded.counted"#;

const FORGET_ENDED: &str = "DELETE FROM counted_steps WHERE at < $1";

const AT_RISK: &str = "SELECT task_id, predicted_end, agent, since FROM tasks_at_risk LIMIT $1";

/// Relies on the primary keys.
const ENDED: &str = r#"
SELECT task_id FROM tasks_at_risk
WHERE (SELECT overdue_at FROM tasks WHERE tasks.id = tasks_at_risk.task_id) IS NULL"#;

const AT_RISK_ONE: &str =
    "SELECT task_id, predicted_end, agent, since FROM tasks_at_risk WHERE task_id = $1";

const PUT: &str = r#"
INSERT INTO tasks_at_risk (task_id, predicted_end, agent, since) VALUES ($1, $2, $3, $4)
ON CONFLICT (task_id) DO UPDATE SET predicted_end = excluded.predicted_end, agent = excluded.agent"#;

const REMOVE: &str = "DELETE FROM tasks_at_risk WHERE task_id = $1";

/// Relies on alerts_unclosed_of_receiver.
const ALERTED: &str = r#"
SELECT receiver FROM alerts WHERE receiver IS NOT NULL AND state <> 'closed' AND kind = $1"#;

/// A task that must be complete at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitedEnd {
    pub task: TaskId,
    pub at: Timestamp,
}

/// The changes of the tasks at risk.
#[derive(Clone, Debug, Default)]
pub struct PredictionChanges {
    pub put: Vec<(TaskId, AtRisk)>,
    pub remove: Vec<TaskId>,
    /// Agents for which an alert is raised, each with its message. `close` has those whose alerts are closed.
    pub raise: Vec<(AgentName, String)>,
    pub close: Vec<ReceiverName>,
}

impl PredictionChanges {
    pub fn is_empty(&self) -> bool {
        self.put.is_empty()
            && self.remove.is_empty()
            && self.raise.is_empty()
            && self.close.is_empty()
    }
}

impl Reader {
    /// Returns whether a task may be late, or a record or an alert about such tasks exists.
    pub async fn is_anything_predicted(&self) -> Result<bool, StoreError> {
        let statement = Statement::new(ANY_WORK).bind(AlertKind::TasksAtRisk.as_str());
        Ok(self.first(statement, |_: &Row| Ok(())).await?.is_some())
    }

    /// Returns the steps that wait for an agent, up to the most that one read counts.
    pub async fn queue_outline(&self, agent: &AgentName) -> Result<QueueOutline, StoreError> {
        let steps = self.source.by_index("steps", "steps_line");
        let statement = Statement::new(OUTLINE.replace("{steps}", &steps))
            .bind(agent)
            .bind(MOST_OUTLINED)
            .bind(OUTLINED_TOGETHER)
            .bind(MOST_RANGES);
        let found = self.fetch_along_indexes(statement).await?;
        let ranges = found.iter().map(|row| {
            Ok(QueueRange {
                first: row.get("first")?,
                last: row.get("last")?,
                steps: row.get("steps")?,
            })
        });
        Ok(QueueOutline(ranges.collect::<Result<_, StoreError>>()?))
    }

    /// Returns tasks that must be complete at a time after that of `after` and not after `until`, the next one first.
    pub async fn limited_ends(
        &self,
        after: Option<LimitedEnd>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<LimitedEnd>, StoreError> {
        let (at, task) = match after {
            Some(after) => (after.at.as_millis(), after.task.0),
            None => (i64::MIN, uuid::Uuid::nil()),
        };
        let statement = Statement::new(LIMITED)
            .bind(at)
            .bind(task)
            .bind(until)
            .bind(limit);
        self.all(statement, |row| {
            Ok(LimitedEnd {
                task: row.get("id")?,
                at: row.get("overdue_at")?,
            })
        })
        .await
    }

    /// Returns the counts of each process, except of those that have ended.
    pub async fn counted_steps(&self) -> Result<Vec<(InstanceId, CountedSteps)>, StoreError> {
        let now = self.now().await?.as_millis();
        let counted = |row: &Row| {
            let (instance, at): (String, i64) = (row.get("instance")?, row.get("at")?);
            let json: String = row.get("counted")?;
            // Counts that cannot be read count as empty: the next report overwrites them.
            let counted = serde_json::from_str(&json).unwrap_or_default();
            Ok((at, InstanceId::new(instance), counted))
        };
        let found = self.all(Statement::new(COUNTED), counted).await?;
        let found = found.into_iter().filter(|(at, ..)| *at > now - ENDED_AFTER);
        Ok(found
            .map(|(_, instance, counted)| (instance, counted))
            .collect())
    }

    /// Returns all tasks that are at risk, up to [`MOST_AT_RISK`].
    pub async fn at_risk(&self) -> Result<Vec<(TaskId, AtRisk)>, StoreError> {
        let statement = Statement::new(AT_RISK).bind(MOST_AT_RISK);
        self.all(statement, |row| Ok((row.get("task_id")?, at_risk(row)?)))
            .await
    }

    /// Returns the tasks on record as at risk that have ended, or have no limit any more.
    pub async fn ended_at_risk(&self) -> Result<Vec<TaskId>, StoreError> {
        let ended = Statement::new(ENDED);
        self.all(ended, |row: &Row| row.get("task_id")).await
    }

    /// Returns the prediction for a task, if it is predicted to be late.
    pub async fn at_risk_of(&self, task: TaskId) -> Result<Option<AtRisk>, StoreError> {
        let statement = Statement::new(AT_RISK_ONE).bind(task);
        self.first(statement, |row: &Row| at_risk(row)).await
    }

    /// Returns the agents whose alerts about tasks at risk are not closed.
    pub async fn at_risk_alerts(&self) -> Result<Vec<ReceiverName>, StoreError> {
        let statement = Statement::new(ALERTED).bind(AlertKind::TasksAtRisk.as_str());
        self.all(statement, |row| {
            let receiver: String = row.get("receiver")?;
            Ok(ReceiverName::new(receiver))
        })
        .await
    }
}

impl Store {
    /// Reports the counts of this instance to other instances.
    pub async fn report_counted_steps(
        &self,
        instance: InstanceId,
        counted: &CountedSteps,
    ) -> Result<(), StoreError> {
        let json = serde_json::to_string(counted).map_err(corrupt)?;
        self.send_write(true, None, move |tx| {
            let (instance, json) = (instance.clone(), json.clone());
            async move {
                tx.lock_out_of_order();
                let now = tx.now();
                let report = Statement::new(REPORT).bind(&instance).bind(now).bind(json);
                tx.run(report).await?;
                let ended = now.as_millis() - ENDED_AFTER;
                tx.run(Statement::new(FORGET_ENDED).bind(ended)).await
            }
            .boxed()
        })
        .await
    }

    /// Saves the tasks at risk, and the alerts about them.
    pub async fn save_predictions(&self, changes: PredictionChanges) -> Result<(), StoreError> {
        let sender = self.sender.clone();
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (changes, sender) = (changes.clone(), sender.load_full());
            async move { tx.save_predictions(&changes, &sender).await }.boxed()
        })
        .await
    }
}

impl Transaction<'_> {
    async fn save_predictions(
        &mut self,
        changes: &PredictionChanges,
        sender: &Sender,
    ) -> Result<(), StoreError> {
        self.lock_out_of_order();
        for task in &changes.remove {
            self.run(Statement::new(REMOVE).bind(*task)).await?;
        }
        for (task, at_risk) in &changes.put {
            let put = Statement::new(PUT)
                .bind(*task)
                .bind(at_risk.predicted_end)
                .bind(&at_risk.agent)
                .bind(at_risk.since);
            self.run(put).await?;
        }
        for (agent, message) in &changes.raise {
            let kind = AlertKind::TasksAtRisk;
            let id = chance::id();
            let alert = AlertNotice {
                receiver: Some(at_risk_subject(agent)),
                ..AlertNotice::raised(id, kind.as_str(), message, self.now())
            };
            self.raise_alert(&alert, None, sender).await?;
        }
        for subject in &changes.close {
            self.close_alert_of(AlertKind::TasksAtRisk, subject, sender)
                .await?;
        }
        Ok(())
    }
}

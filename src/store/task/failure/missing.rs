//! Gives causes to alerts that have none, because an instance of an earlier release raised them.

use std::borrow::Cow;

use uuid::Uuid;

use super::FailuresToSave;
use crate::{
    domain::{
        task::{CauseFingerprint, FailureCause, FirstFailure, StepState, Task},
        values::{StepIndex, TaskId, Timestamp},
    },
    store::{
        Reader, StoreError, Transaction,
        rows::{Columns, Row},
        statement::Statement,
    },
};

/// The most alerts that get their causes in one round.
const BATCH: usize = 20;

/// Relies on alerts_without_failure.
const WITHOUT: &str = r#"
SELECT id, task_id, idx, raised_at,
       (SELECT whole.cause FROM alerts AS whole WHERE whole.id = alerts.part_of) AS cause
FROM alerts
WHERE fingerprint IS NULL AND task_id IS NOT NULL AND kind <> 'task.unreadable' AND state <> 'closed' AND id > $1
ORDER BY id LIMIT $2"#;

const NAME: &str = r#"
UPDATE alerts SET fingerprint = $2 WHERE id = $1 AND fingerprint IS NULL AND state <> 'closed'"#;

#[cfg(test)]
pub(super) const STATEMENTS: [&str; 2] = [WITHOUT, NAME];

/// The position among the alerts without a cause. The default is their beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailuresSeen(Option<Uuid>);

impl FailuresSeen {
    /// Returns whether alerts are left for the next round.
    pub fn has_more(&self) -> bool {
        self.0.is_some()
    }
}

/// An alert without a cause, and the cause of its step.
#[derive(Clone, Debug)]
pub struct UnnamedFailure {
    alert: Uuid,
    fingerprint: CauseFingerprint,
    cause: FailureCause,
    first: FirstFailure,
    raised_at: Timestamp,
}

impl Reader {
    /// Returns the causes of the next alerts that have none. Mostly there are no such alerts. The alert of a task that
    /// cannot be read, or whose step has continued, is left as it is.
    pub async fn unnamed_failures(
        &self,
        seen: &mut FailuresSeen,
    ) -> Result<Vec<UnnamedFailure>, StoreError> {
        let after = seen.0.take().unwrap_or(Uuid::nil());
        let without = Statement::new(WITHOUT).bind(after).bind(BATCH);
        let rows = self.fetch_along_indexes(without).await?;
        if let Some(last) = rows.get(BATCH - 1) {
            seen.0 = Some(last.get("id")?);
        }
        let mut ids = rows
            .iter()
            .map(|row| row.get("task_id"))
            .collect::<Result<Vec<TaskId>, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let tasks = self.tasks_of(&ids).await?.tasks;
        let mut unnamed = Vec::new();
        for row in &rows {
            let task: TaskId = row.get("task_id")?;
            if let Some(task) = tasks.iter().find(|loaded| loaded.id() == task) {
                unnamed.extend(unnamed_failure(row, task)?);
            }
        }
        Ok(unnamed)
    }
}

fn unnamed_failure(row: &Row, task: &Task) -> Result<Option<UnnamedFailure>, StoreError> {
    let index: StepIndex = row.get("idx")?;
    if !task.indexes().any(|known| known == index) {
        return Ok(None);
    }
    let of_alert: Option<String> = row.get("cause")?;
    let cause = match (&of_alert, &task.step(index).state) {
        (Some(of_alert), StepState::Error(fault)) => {
            let cause = FailureCause::of_step(task, index, fault);
            let own = cause.alert_cause();
            match own.is_some_and(|own| own.text == *of_alert) {
                true => cause,
                false => cause.without_words(),
            }
        }
        (None, StepState::Error(fault)) => FailureCause::of_step(task, index, fault),
        (None, _) => FailureCause::of_service_fault(task, index),
        (Some(_), _) => return Ok(None),
    };
    let raised_at = row.get("raised_at")?;
    Ok(Some(UnnamedFailure {
        alert: row.get("id")?,
        fingerprint: cause.fingerprint(),
        first: first_failure(task, index),
        cause,
        raised_at,
    }))
}

/// Returns the step as the first one that failed for its cause.
pub fn first_failure(task: &Task, step: StepIndex) -> FirstFailure {
    let details = &task.details;
    FirstFailure {
        task: task.id(),
        key: details.key.as_deref().map(str::to_owned),
        workflow: details
            .workflow
            .as_ref()
            .map(|workflow| workflow.name.to_string()),
        step: task.definition(step).name.clone(),
    }
}

impl Transaction<'_> {
    /// Saves the causes of these alerts, unless they have been closed or another instance has saved them.
    pub async fn name_failures(&mut self, unnamed: &[UnnamedFailure]) -> Result<(), StoreError> {
        self.lock_out_of_order();
        let mut failures = FailuresToSave::default();
        for failure in unnamed {
            let name = Statement::new(NAME)
                .bind(failure.alert)
                .bind(failure.fingerprint.to_string());
            if self.execute(name).await? > 0 {
                let first = || failure.first.clone();
                let cause = Cow::Borrowed(&failure.cause);
                failures.add(failure.fingerprint, cause, failure.raised_at, first);
            }
        }
        self.save_failures(failures).await
    }
}

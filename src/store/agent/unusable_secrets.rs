//! The secrets that instances cannot use: one record with their reports, and an alert for each secret.

use crate::domain::{
    agent::{SecretAlertChange, SecretReports, UnusableSecrets, secret_unusable},
    message::Sender,
    task::AlertKind,
    values::InstanceId,
};
use crate::{
    chance,
    store::{
        Reader, StoreError, Transaction,
        error::corrupt,
        rows::{Columns, Row},
        statement::Statement,
    },
};

const READ: &str = "SELECT version, reports FROM unusable_secrets";

const ADD: &str = r#"
INSERT INTO unusable_secrets (id, version, reports) VALUES (1, 1, $1)
ON CONFLICT (id) DO NOTHING"#;

/// Changes nothing if another instance has changed the record since it was read.
const CHANGE: &str = r#"
UPDATE unusable_secrets SET version = version + 1, reports = $2 WHERE version = $1"#;

impl Reader {
    /// Returns whether the record has reports of instances that are gone.
    pub async fn has_stale_secret_reports(&self) -> Result<bool, StoreError> {
        let reports = self.first(Statement::new(READ), reports).await?;
        let Some(reports) = reports else {
            return Ok(false);
        };
        Ok(reports.is_stale(self.now().await?))
    }
}

/// A record that cannot be read counts as empty: the instances report again.
fn reports(row: &Row) -> Result<SecretReports, StoreError> {
    let json: String = row.get("reports")?;
    Ok(serde_json::from_str(&json).unwrap_or_default())
}

pub(in crate::store) async fn change(
    tx: &mut Transaction<'_>,
    report: Option<&(InstanceId, UnusableSecrets)>,
    sender: &Sender,
) -> Result<(), StoreError> {
    tx.lock_out_of_order();
    let now = tx.now();
    let row = tx.fetch_first(Statement::new(READ)).await?;
    let before = row.as_ref().map(reports).transpose()?.unwrap_or_default();
    let mut after = before.clone();
    match report {
        Some((instance, found)) => after.report(instance, found, now),
        None => after.forget_stale(now),
    }
    if after == before {
        return Ok(());
    }
    let json = serde_json::to_string(&after).map_err(corrupt)?;
    let write = match &row {
        None => Statement::new(ADD).bind(json),
        Some(row) => Statement::new(CHANGE)
            .bind(row.get::<u64>("version")?)
            .bind(json),
    };
    if tx.execute(write).await? == 0 {
        let reason = "the record of secrets that cannot be used was changed meanwhile";
        return Err(StoreError::Retryable(reason.to_owned()));
    }
    let kind = AlertKind::SecretUnusable;
    for change in after.alert_changes(&before) {
        match change {
            SecretAlertChange::Raise(subject, message) => {
                let alert = secret_unusable(chance::id(), &subject, &message, now);
                tx.raise_alert(&alert, None, sender).await?;
            }
            SecretAlertChange::Reword(subject, message) => {
                let alert = secret_unusable(chance::id(), &subject, &message, now);
                tx.reword_alert(kind, &alert, None, sender).await?;
            }
            SecretAlertChange::Close(subject) => {
                tx.close_alert_of(kind, &subject.alert_subject(), sender)
                    .await?;
            }
        }
    }
    Ok(())
}

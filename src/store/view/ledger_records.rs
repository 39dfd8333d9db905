//! Records of changes that no history has, which the transactions of the changes add to the ledger.

use std::sync::Arc;

use futures::FutureExt;

use super::ledger::json_of;
use crate::domain::{
    message::AlertNotice,
    view::{ChangeOrigin, LedgerRecord, LedgerSubject},
};
use crate::store::{Store, StoreError, Transaction, rows::Columns, statement::Statement};

impl Transaction<'_> {
    /// Adds records to the ledger, in the transaction that makes the changes.
    pub(in crate::store) async fn add_records(
        &mut self,
        records: &[LedgerRecord],
    ) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        let audited = records.iter().any(LedgerRecord::is_audited);
        let add = Statement::new(self.dialect().ledger.add())
            .bind(self.now())
            .bind(json_of(records))
            .bind(audited.then_some(1_i64));
        self.run(add).await
    }
}

impl Store {
    /// Records a change that is in no other table.
    pub async fn record(&self, record: LedgerRecord) -> Result<(), StoreError> {
        let record = Arc::new(record);
        self.send_write(true, None, move |tx| {
            let record = record.clone();
            async move { tx.add_records(std::slice::from_ref(&*record)).await }.boxed()
        })
        .await
    }
}

impl Transaction<'_> {
    /// Records an alert that webhooks are notified of: that it was raised, has changed, or is closed.
    pub(in crate::store) async fn record_alert(
        &mut self,
        alert: &AlertNotice,
    ) -> Result<(), StoreError> {
        let kind = match alert.state {
            "closed" => "alert.closed",
            _ => "alert.raised",
        };
        let origin = ChangeOrigin::service();
        let record = LedgerRecord::new(kind, LedgerSubject::Alert, alert.id, &origin);
        let message = format!("{}: {}", alert.kind, alert.message);
        self.add_records(&[record.because(Some(&message))]).await
    }
}

/// Reads the settings of the instance that started last.
const SETTINGS: &str = "SELECT settings FROM ledger_settings WHERE id = 1";

const PUT_SETTINGS: &str = r#"
INSERT INTO ledger_settings (id, settings) VALUES (1, $1)
ON CONFLICT (id) DO UPDATE SET settings = excluded.settings"#;

impl Store {
    /// Records in which settings an instance differs from the one that started last. `settings` is a JSON document without
    /// secrets.
    pub async fn record_settings(
        &self,
        instance: String,
        settings: String,
    ) -> Result<(), StoreError> {
        let known = Statement::new(SETTINGS);
        let known = self
            .housekeeping
            .first(known, |row| row.get::<String>("settings"));
        if known.await?.as_ref() == Some(&settings) {
            return Ok(());
        }
        let noted = Arc::new((instance, settings));
        self.send_write(true, None, move |tx| {
            let noted = noted.clone();
            async move {
                let (instance, settings) = (&noted.0, noted.1.as_str());
                let before = tx.fetch_first(Statement::new(SETTINGS)).await?;
                let before = before
                    .map(|row| row.get::<String>("settings"))
                    .transpose()?;
                tx.run(Statement::new(PUT_SETTINGS).bind(settings)).await?;
                // The settings of the first instance differ from none.
                let Some(before) = before.filter(|before| before != settings) else {
                    return Ok(());
                };
                let origin = ChangeOrigin {
                    by: format!("instance:{instance}"),
                    ..ChangeOrigin::default()
                };
                let kind = "instance.settings";
                let record = LedgerRecord::new(kind, LedgerSubject::Instance, instance, &origin);
                let record = record.with_difference(Some(&before), Some(settings));
                tx.add_records(&[record]).await
            }
            .boxed()
        })
        .await
    }
}

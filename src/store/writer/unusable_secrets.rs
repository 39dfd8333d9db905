//! Keeps the record of secrets that instances cannot use.

use std::sync::Arc;

use futures::FutureExt;

use super::Store;
use crate::{
    domain::{agent::UnusableSecrets, values::InstanceId},
    store::{StoreError, agent::unusable_secrets},
};

impl Store {
    /// Records that the instance can use every secret except these. Raises and closes alerts.
    pub async fn report_secrets(
        &self,
        instance: InstanceId,
        found: UnusableSecrets,
    ) -> Result<(), StoreError> {
        self.change_secret_reports(Some(Arc::new((instance, found))))
            .await
    }

    /// Closes alerts of secrets that only instances which are gone could not use.
    pub async fn forget_stale_secret_reports(&self) -> Result<(), StoreError> {
        self.change_secret_reports(None).await
    }

    async fn change_secret_reports(
        &self,
        report: Option<Arc<(InstanceId, UnusableSecrets)>>,
    ) -> Result<(), StoreError> {
        let sender = self.sender.clone();
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (report, sender) = (report.clone(), sender.load_full());
            async move { unusable_secrets::change(tx, report.as_deref(), &sender).await }.boxed()
        })
        .await
    }
}

//! Steps of agents that do not exist, or would not: how many wait, and the alert about each agent.

use std::collections::BTreeSet;

use futures::FutureExt;
use uuid::Uuid;

use super::{
    Reader, Store, StoreError, Transaction, rows::Columns, rows::Row, statement::Statement,
};
use crate::domain::{AgentName, AlertKind, MissingAgentChanges, ReceiverName, missing_agent_alert};

/// The most steps that are counted.
pub const MOST_COUNTED: u64 = 10_000;

/// Relies on steps_line.
const QUEUED: &str = r#"
SELECT count(*) AS count FROM (
    SELECT 1 AS one FROM steps WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 LIMIT $2) AS queue"#;

/// Relies on steps_delayed, which has no agent: of the steps that are due next, those of this agent.
const DELAYED: &str = r#"
SELECT count(*) AS count FROM (
    SELECT agent FROM steps WHERE due_at IS NOT NULL AND queued = 0 ORDER BY due_at LIMIT $2) AS delayed
WHERE agent = $1"#;

/// Relies on alerts_unclosed_of_receiver.
const ALERTED: &str = r#"
SELECT receiver FROM alerts WHERE receiver IS NOT NULL AND state <> 'closed' AND kind = $1"#;

impl Transaction<'_> {
    /// Counts the steps of an agent that are queued, or will be; up to [`MOST_COUNTED`].
    pub(super) async fn steps_that_wait_for(
        &mut self,
        agent: &AgentName,
    ) -> Result<u64, StoreError> {
        let mut count = 0;
        for sql in [QUEUED, DELAYED] {
            let counted = Statement::new(sql).bind(agent).bind(MOST_COUNTED);
            if let Some(row) = self.fetch_first(counted).await? {
                count += row.get::<u64>("count")?;
            }
        }
        Ok(count.min(MOST_COUNTED))
    }

    async fn change_missing_agents(
        &mut self,
        changes: &MissingAgentChanges,
        sender: &crate::domain::Sender,
    ) -> Result<(), StoreError> {
        self.lock_out_of_order();
        for agent in &changes.raise {
            let alert = missing_agent_alert(Uuid::now_v7(), agent, self.now());
            self.raise_alert(&alert, None, sender).await?;
        }
        for subject in &changes.close {
            self.close_alert_of(AlertKind::AgentMissing, subject, sender)
                .await?;
        }
        Ok(())
    }
}

impl Reader {
    /// The alerts about agents that do not exist which are not closed.
    pub async fn missing_agent_alerts(&self) -> Result<BTreeSet<ReceiverName>, StoreError> {
        let statement = Statement::new(ALERTED).bind(AlertKind::AgentMissing.as_str());
        let alerts = self.all(statement, |row: &Row| {
            let receiver: String = row.get("receiver")?;
            Ok(ReceiverName::new(receiver))
        });
        Ok(alerts.await?.into_iter().collect())
    }
}

impl Store {
    pub async fn change_missing_agents(
        &self,
        changes: MissingAgentChanges,
    ) -> Result<(), StoreError> {
        let sender = self.sender.clone();
        self.send_write(true, Some(self.outbox.clone()), move |tx| {
            let (changes, sender) = (changes.clone(), sender.load_full());
            async move { tx.change_missing_agents(&changes, &sender).await }.boxed()
        })
        .await
    }
}

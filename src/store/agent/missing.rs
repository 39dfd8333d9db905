//! Steps of agents that do not exist, or are to be deleted: counts the waiting steps, and lists the alert about each
//! agent.

use std::collections::BTreeSet;

use futures::FutureExt;

use crate::domain::{
    agent::{MissingAgentChanges, missing_agent_alert},
    task::AlertKind,
    values::{AgentName, InstanceId, ReceiverName},
};
use crate::{
    chance,
    store::{
        Reader, Store, StoreError, Transaction,
        error::corrupt,
        rows::{Columns, Row},
        statement::Statement,
    },
};

/// The most steps that are counted.
pub const MOST_COUNTED: u64 = 10_000;

/// Relies on steps_line.
const QUEUED: &str = r#"
SELECT count(*) AS count FROM (
    SELECT 1 AS one FROM steps WHERE agent = $1 AND due_at IS NOT NULL AND queued = 1 LIMIT $2) AS queue"#;

/// Relies on steps_delayed, which has no agent: counts the steps of this agent among those that are due next.
const DELAYED: &str = r#"
SELECT count(*) AS count FROM (
    SELECT agent FROM steps WHERE due_at IS NOT NULL AND queued = 0 ORDER BY due_at LIMIT $2) AS delayed
WHERE agent = $1"#;

/// Relies on alerts_unclosed_of_receiver.
const ALERTED: &str = r#"
SELECT receiver FROM alerts WHERE receiver IS NOT NULL AND state <> 'closed' AND kind = $1"#;

const REPORT: &str = r#"
UPDATE instances SET configured_agents = $2 WHERE id = $1 AND coalesce(configured_agents, '') <> $2"#;

const CONFIGURED: &str =
    "SELECT configured_agents FROM instances WHERE until > $1 AND configured_agents IS NOT NULL";

impl Transaction<'_> {
    /// Counts the steps of an agent that are queued, or will be; up to [`MOST_COUNTED`].
    pub(in crate::store) async fn steps_that_wait_for(
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
        sender: &crate::domain::message::Sender,
    ) -> Result<(), StoreError> {
        self.lock_out_of_order();
        for agent in &changes.raise {
            let alert = missing_agent_alert(chance::id(), agent, self.now());
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
    /// Returns the alerts about agents that do not exist, except closed ones.
    pub async fn missing_agent_alerts(&self) -> Result<BTreeSet<ReceiverName>, StoreError> {
        let statement = Statement::new(ALERTED).bind(AlertKind::AgentMissing.as_str());
        let alerts = self.all(statement, |row: &Row| {
            let receiver: String = row.get("receiver")?;
            Ok(ReceiverName::new(receiver))
        });
        Ok(alerts.await?.into_iter().collect())
    }

    /// Returns the agents in the configuration files of instances whose leases have not expired, as those instances
    /// have reported them.
    pub async fn configured_agents(&self) -> Result<BTreeSet<AgentName>, StoreError> {
        let statement = Statement::new(CONFIGURED).bind(self.now().await?);
        let names = self.all(statement, |row: &Row| {
            let json: String = row.get("configured_agents")?;
            // A report that cannot be read counts as empty: the instance reports its agents again.
            Ok(serde_json::from_str::<Vec<AgentName>>(&json).unwrap_or_default())
        });
        Ok(names.await?.into_iter().flatten().collect())
    }
}

impl Store {
    /// Reports to other instances the agents in the configuration file of this one.
    pub async fn report_configured_agents(
        &self,
        instance: InstanceId,
        agents: &BTreeSet<AgentName>,
    ) -> Result<(), StoreError> {
        let json = serde_json::to_string(agents).map_err(corrupt)?;
        self.send_write(true, None, move |tx| {
            let report = Statement::new(REPORT).bind(&instance).bind(json.clone());
            async move {
                tx.lock_out_of_order();
                tx.run(report).await
            }
            .boxed()
        })
        .await
    }

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

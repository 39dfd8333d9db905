//! The last check of each agent, one record for each.

use std::sync::Arc;

use futures::FutureExt;

use crate::domain::{agent::AgentCheck, values::AgentName};
use crate::store::{
    Reader, Store, StoreError, Transaction,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
};

const ALL: &str = "SELECT agent, result FROM agent_checks";

const PUT: &str = r#"
INSERT INTO agent_checks (agent, result) VALUES ($1, $2)
ON CONFLICT (agent) DO UPDATE SET result = excluded.result"#;

const FORGET: &str = "DELETE FROM agent_checks WHERE agent = $1";

impl Reader {
    /// Returns all checks except those that cannot be read. Such an agent counts as not checked, and the next check
    /// overwrites its record.
    pub async fn agent_checks(&self) -> Result<Vec<(AgentName, AgentCheck)>, StoreError> {
        let check = |row: &Row| {
            let json: String = row.get("result")?;
            Ok((row.get("agent")?, serde_json::from_str(&json).ok()))
        };
        let checks = self.all(Statement::new(ALL), check).await?.into_iter();
        let readable = checks.filter_map(|(agent, check): (_, Option<_>)| Some((agent, check?)));
        Ok(readable.collect())
    }
}

impl Store {
    /// Records a check with its agent. Returns false if the agent does not exist any more.
    pub async fn keep_agent_check(
        &self,
        agent: AgentName,
        check: AgentCheck,
        is_configured: bool,
    ) -> Result<bool, StoreError> {
        let json = serde_json::to_string(&check).map_err(corrupt)?;
        let kept = Arc::new((agent, json));
        self.write(move |tx| {
            let kept = kept.clone();
            async move { keep(tx, &kept.0, &kept.1, is_configured).await }.boxed()
        })
        .await
    }
}

async fn keep(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
    json: &str,
    is_configured: bool,
) -> Result<bool, StoreError> {
    tx.lock_out_of_order();
    if !is_configured && tx.agent(agent).await?.is_none() {
        return Ok(false);
    }
    let put = Statement::new(PUT).bind(agent).bind(json.to_owned());
    tx.registered(put).await?;
    Ok(true)
}

/// Deletes the check of a deleted agent, because its findings do not apply to an agent that is registered under its
/// name later.
pub(in crate::store) async fn forget(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
) -> Result<(), StoreError> {
    tx.execute(Statement::new(FORGET).bind(agent)).await?;
    Ok(())
}

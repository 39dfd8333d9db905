//! The record of how instances share the slots of agents.

use std::sync::Arc;

use futures::FutureExt;

use crate::store::{
    Reader, Store, StoreError, Transaction,
    error::corrupt,
    rows::{Columns, Row},
    statement::Statement,
    upkeep::leases,
};
use crate::{
    domain::{
        queue::{SlotGrant, SlotNeed, SlotShares},
        values::{AgentName, Holder},
    },
    store::postgres::Notification,
};

const ALL: &str = "SELECT agent, version, shares FROM slot_shares";

const OF_ONE: &str = "SELECT version, shares FROM slot_shares WHERE agent = $1";

const ADD: &str = r#"
INSERT INTO slot_shares (agent, version, shares) VALUES ($1, 1, $2)
ON CONFLICT (agent) DO NOTHING"#;

/// Changes nothing if another instance has changed the shares since they were read.
const CHANGE: &str =
    "UPDATE slot_shares SET version = version + 1, shares = $3 WHERE agent = $1 AND version = $2";

const FORGET: &str = "DELETE FROM slot_shares WHERE agent = $1";

/// The shares of slots, and the live processes, as an instance reads them without a transaction.
#[derive(Clone, Debug)]
pub struct KnownShares {
    pub by_agent: Vec<(AgentName, SlotShares)>,
    /// The processes whose leases have not expired.
    pub live: Vec<Holder>,
}

impl Reader {
    pub async fn slot_shares(&self) -> Result<KnownShares, StoreError> {
        let known = |row: &Row| Ok((row.get("agent")?, shares(row)?));
        let live = leases::live(self.now().await?);
        Ok(KnownShares {
            by_agent: self.all(Statement::new(ALL), known).await?,
            live: self.all(live, |row: &Row| leases::holder(row)).await?,
        })
    }

    pub async fn slots_of(&self, agent: &AgentName) -> Result<SlotShares, StoreError> {
        let asked = Statement::new(OF_ONE).bind(agent);
        let found = self.all(asked, |row: &Row| shares(row)).await?;
        Ok(found.into_iter().next().unwrap_or_default())
    }
}

/// A record that cannot be read counts as empty, and the next change overwrites it.
fn shares(row: &impl Columns) -> Result<SlotShares, StoreError> {
    let json: String = row.get("shares")?;
    Ok(serde_json::from_str(&json).unwrap_or_default())
}

impl Store {
    /// Updates the slots of these agents that the instance holds. Each agent is named once.
    pub async fn grant_slots(
        &self,
        by: Holder,
        mut needs: Vec<(AgentName, SlotNeed)>,
    ) -> Result<Vec<(AgentName, SlotGrant)>, StoreError> {
        // The agents are in one order, so that instances cannot deadlock.
        needs.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let asked = Arc::new((by, needs));
        self.send_write(true, None, move |tx| {
            let asked = asked.clone();
            async move {
                tx.lock_out_of_order();
                let (by, needs) = &*asked;
                let rows = tx.fetch(leases::live(tx.now())).await?;
                let live = rows.iter().map(leases::holder);
                let live = live.collect::<Result<Vec<_>, _>>()?;
                let mut grants = Vec::with_capacity(needs.len());
                for (agent, need) in needs {
                    grants.push((agent.clone(), grant(tx, agent, by, *need, &live).await?));
                }
                Ok(grants)
            }
            .boxed()
        })
        .await
    }
}

/// Deletes the shares of a deleted agent, so that no instance holds a slot of an agent that is registered under its
/// name later.
pub(in crate::store) async fn forget(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
) -> Result<(), StoreError> {
    tx.execute(Statement::new(FORGET).bind(agent)).await?;
    Ok(())
}

async fn grant(
    tx: &mut Transaction<'_>,
    agent: &AgentName,
    by: &Holder,
    need: SlotNeed,
    live: &[Holder],
) -> Result<SlotGrant, StoreError> {
    let row = tx.fetch_first(Statement::new(OF_ONE).bind(agent)).await?;
    let before = row.as_ref().map(shares).transpose()?;
    let mut after = before.clone().unwrap_or_default();
    let grant = after.grant(by, need, live);
    if before.as_ref() == Some(&after) {
        return Ok(grant);
    }
    let json = serde_json::to_string(&after).map_err(corrupt)?;
    let version = |row: &Row| row.get::<u64>("version");
    let write = match row.as_ref().map(version).transpose()? {
        None => Statement::new(ADD).bind(agent).bind(json),
        Some(version) => Statement::new(CHANGE).bind(agent).bind(version).bind(json),
    };
    if tx.execute(write).await? == 0 {
        let reason =
            format!("the slots of agent {agent} were shared out by another instance meanwhile");
        return Err(StoreError::Retryable(reason));
    }
    if grant.is_contested {
        tx.notify(Notification::SLOTS);
    }
    Ok(grant)
}

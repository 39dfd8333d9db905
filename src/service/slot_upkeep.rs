//! Shares the slots of agents with other instances: gets what is wanted here, and gives back what others wait for. Only
//! for agents that are called; without one there is nothing to do.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::Agents,
    domain::{AgentName, Holder, SlotGrant, SlotNeed},
    instance::LocalLease,
    store::{Store, StoreError},
};

/// A rest that only a call or a notification ends.
const LONG: Duration = Duration::from_secs(3600);
const LOOK: Duration = Duration::from_secs(1);
/// While others have slots that are due to this instance, or wait for those that it uses.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const GIVE_BACK: Duration = Duration::from_millis(20);
/// Between two rounds: what is wanted meanwhile comes together.
const LEAST_REST: Duration = Duration::from_millis(2);

pub(super) struct SlotUpkeep {
    pub agents: Arc<Agents>,
    pub store: Store,
    pub holder: Holder,
    pub local_lease: Arc<LocalLease>,
}

type Needs = Vec<(AgentName, SlotNeed)>;
type Grants = Vec<(AgentName, SlotGrant)>;

impl PeriodicLoop for SlotUpkeep {
    const NAME: &'static str = "slots";
    const LEAST_REST: Duration = LEAST_REST;
    const LONGEST_REST: Duration = Duration::from_secs(1);

    /// Between rounds that fail.
    fn interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let limited = self.agents.slot_limited().into_iter();
        let needs: HashMap<_, _> = limited
            .filter_map(|agent| Some((agent.name().clone(), agent.take_slot_need()?)))
            .collect();
        if needs.is_empty() {
            return Ok(NextRound::After(LONG));
        }
        let asked = Instant::now();
        let settled = self.settle(needs.clone()).await;
        let grants = settled.inspect_err(|_| self.ask_again(needs.keys()))?;
        // Its slots are its own as long as nobody can have taken it for dead, since before the record was read.
        let now = Instant::now();
        let valid_until = match self.local_lease.was_alive_since(asked, now) {
            true => self.local_lease.alive_until(),
            false => now,
        };
        let half = valid_until.saturating_duration_since(now) / 2;
        let mut next = LOOK.min(half.max(GIVE_BACK));
        for (name, grant) in grants {
            let (Some(agent), Some(need)) = (self.agents.get(&name), needs.get(&name)) else {
                continue;
            };
            let gives_back = need.in_use > grant.slots && grant.is_contested;
            let waits = grant.is_short && need.wants > grant.slots;
            if gives_back {
                next = next.min(GIVE_BACK);
            } else if waits {
                next = next.min(LOOK_AGAIN);
            }
            agent.grant_slots(grant, need.wants, valid_until);
        }
        Ok(NextRound::After(next))
    }

    async fn woken(&mut self) {
        self.agents.wanting_slots().await;
    }
}

impl SlotUpkeep {
    /// Changes the record only where it is not so already.
    async fn settle(&self, mut needs: HashMap<AgentName, SlotNeed>) -> Result<Grants, StoreError> {
        let known = self.store.housekeeping.slot_shares().await?;
        let known_shares: HashMap<_, _> = known.by_agent.into_iter().collect();
        let mut grants = Grants::new();
        needs.retain(|agent, need| {
            let shares = known_shares.get(agent);
            let mut after = shares.cloned().unwrap_or_default();
            let grant = after.settle(&self.holder, *need, &known.live);
            if shares == Some(&after) {
                grants.push((agent.clone(), grant));
                return false;
            }
            if let Some(agent) = self.agents.get(agent) {
                need.in_use = agent.cap_slots(grant.slots);
            }
            true
        });
        if !needs.is_empty() {
            let needs: Needs = needs.into_iter().collect();
            grants.extend(self.store.settle_slots(self.holder.clone(), needs).await?);
        }
        Ok(grants)
    }

    fn ask_again<'a>(&self, agents: impl Iterator<Item = &'a AgentName>) {
        for agent in agents.filter_map(|agent| self.agents.get(agent)) {
            agent.ask_for_slots_again();
        }
    }
}

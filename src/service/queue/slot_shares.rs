//! Shares the slots of agents with other instances: requests the slots that are wanted here, and gives back the slots
//! that others wait for. It has nothing to do while no agent is called.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::Agents,
    clock,
    domain::{
        queue::{SlotGrant, SlotNeed},
        values::{AgentName, Holder},
    },
    instance::LocalLease,
    store::{Store, StoreError},
};

/// A rest that only a call or a notification ends.
const LONG: Duration = Duration::from_secs(3600);
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The interval while other instances hold slots that are due to this one.
const CHECK_AGAIN: Duration = Duration::from_millis(250);
const GIVE_BACK: Duration = Duration::from_millis(20);
/// The minimum rest between two rounds, so that several wants are processed together.
const LEAST_REST: Duration = Duration::from_millis(2);

pub(in crate::service) struct SlotUpkeep {
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

    /// The wait after a round that failed.
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
        let asked = clock::instant();
        let settled = self.grant(needs.clone()).await;
        let grants = settled.inspect_err(|_| self.ask_again(needs.keys()))?;
        // The slots belong to this instance while no other can have treated it as lost, from before the read of the
        // store on.
        let now = clock::instant();
        let valid_until = match self.local_lease.was_alive_since(asked, now) {
            true => self.local_lease.alive_until(),
            false => now,
        };
        let half = valid_until.saturating_duration_since(now) / 2;
        let mut next = CHECK_EVERY.min(half.max(GIVE_BACK));
        for (name, grant) in grants {
            let (Some(agent), Some(need)) = (self.agents.get(&name), needs.get(&name)) else {
                continue;
            };
            let gives_back = need.in_use > grant.slots && grant.is_contested;
            let waits = grant.is_short && need.wants > grant.slots;
            if gives_back {
                next = next.min(GIVE_BACK);
            } else if waits {
                next = next.min(CHECK_AGAIN);
            }
            agent.grant_slots(grant, need.wants, valid_until);
        }
        Ok(NextRound::After(next))
    }

    async fn wait_for_wake(&mut self) {
        self.agents.wanting_slots().await;
    }
}

impl SlotUpkeep {
    /// Changes the shares in the store only if they differ from the result.
    async fn grant(&self, mut needs: HashMap<AgentName, SlotNeed>) -> Result<Grants, StoreError> {
        let known = self.store.housekeeping.slot_shares().await?;
        let known_shares: HashMap<_, _> = known.by_agent.into_iter().collect();
        let mut grants = Grants::new();
        needs.retain(|agent, need| {
            let shares = known_shares.get(agent);
            let mut after = shares.cloned().unwrap_or_default();
            let grant = after.grant(&self.holder, *need, &known.live);
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
            grants.extend(self.store.grant_slots(self.holder.clone(), needs).await?);
        }
        Ok(grants)
    }

    fn ask_again<'a>(&self, agents: impl Iterator<Item = &'a AgentName>) {
        for agent in agents.filter_map(|agent| self.agents.get(agent)) {
            agent.ask_for_slots_again();
        }
    }
}

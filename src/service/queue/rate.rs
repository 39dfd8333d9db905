//! Gets further calls for agents whose rate is limited, from their own bucket when it has some, or from the bucket
//! that all instances share. Only agents that want calls are looked at.

use std::{sync::Arc, time::Duration};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::{Agents, RateAction},
    domain::values::AgentName,
    store::{Store, StoreError},
};

/// A rest that only a want ends.
const LONG: Duration = Duration::from_secs(3600);
/// The minimum rest between two rounds, so that several wants are processed together.
const LEAST_REST: Duration = Duration::from_millis(1);

pub(in crate::service) struct RateUpkeep {
    pub agents: Arc<Agents>,
    pub store: Store,
}

impl PeriodicLoop for RateUpkeep {
    const NAME: &'static str = "rate limits";
    const LEAST_REST: Duration = LEAST_REST;
    const LONGEST_REST: Duration = Duration::from_secs(1);

    /// The wait after a round that failed.
    fn interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let mut next = LONG;
        let mut to_grant = Vec::new();
        for agent in self.agents.rate_limited() {
            match agent.take_want() {
                None => {}
                // The bucket has filled in the meantime.
                Some(RateAction::Wait(wait)) if wait.is_zero() => agent.granted(0),
                Some(RateAction::Wait(wait)) => {
                    agent.want_again(wait);
                    next = next.min(wait);
                }
                Some(RateAction::Grant(limit)) => to_grant.push((agent.name().clone(), limit)),
            }
        }
        if to_grant.is_empty() {
            return Ok(NextRound::After(next));
        }
        let asked = to_grant.iter().map(|(agent, _)| agent.clone()).collect();
        let granted = self.store.grant_calls(to_grant).await;
        let granted = granted.inspect_err(|_| self.ask_again(asked))?;
        for (agent, granted) in granted {
            match self.agents.get(&agent) {
                Some(agent) if granted.calls > 0 => agent.granted(granted.calls),
                Some(agent) => next = next.min(agent.want_again(granted.next_in)),
                None => {}
            }
        }
        Ok(NextRound::After(next))
    }

    async fn wait_for_wake(&mut self) {
        self.agents.wanting().await;
    }
}

impl RateUpkeep {
    fn ask_again(&self, agents: Vec<AgentName>) {
        for agent in agents.iter().filter_map(|agent| self.agents.get(agent)) {
            agent.want_again(Duration::ZERO);
        }
    }
}

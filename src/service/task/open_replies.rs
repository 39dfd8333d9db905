//! Counts the awaited replies of the agents that limit them (`max_open`). The store contains them, no matter which
//! instance got the promise; between two counts an instance adds and subtracts its own. Nothing is counted without
//! such an agent.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::Agents,
    clock,
    store::{Store, StoreError},
};

const INTERVAL: Duration = Duration::from_secs(1);
/// The rest after a count, as a multiple of its duration: a hundredth of the time is spent counting.
const RESTS: u32 = 100;

pub(in crate::service) struct OpenReplyCount {
    pub agents: Arc<Agents>,
    pub store: Store,
}

impl PeriodicLoop for OpenReplyCount {
    const NAME: &'static str = "open replies";
    const AT_ONCE: bool = true;

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let agents = self.agents.open_limited();
        if agents.is_empty() {
            return Ok(NextRound::AfterInterval);
        }
        let started = clock::instant();
        let counts = self.store.housekeeping.open_replies().await?;
        let counts: HashMap<_, _> = counts.into_iter().collect();
        for agent in agents {
            let open = counts.get(agent.name()).copied().unwrap_or_default();
            agent.counted_open(u32::try_from(open).unwrap_or(u32::MAX));
        }
        let rest = (started.elapsed() * RESTS).max(INTERVAL);
        Ok(NextRound::After(rest))
    }

    async fn wait_for_wake(&mut self) {
        self.agents.limited().await;
    }
}

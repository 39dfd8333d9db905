//! Records what this instance saw of endpoints with breakers, lets one instance probe an endpoint when its time has come,
//! and ends pauses. Without a pause and without a breaker that is not closed there is nothing to do.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{info, warn};

use super::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::{Agent, Agents, BreakerReport},
    domain::{AgentName, BreakerState, ControlChange, InstanceId, Observation, Timestamp},
    instance::LocalLease,
    store::{ControlRequest, Store, StoreError},
};

/// A rest that only a report ends.
const LONG: Duration = Duration::from_secs(3600);
/// Where this instance may not probe now, it looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(super) struct BreakerUpkeep {
    pub agents: Arc<Agents>,
    pub store: Store,
    pub instance: InstanceId,
    pub local_lease: Arc<LocalLease>,
    /// Reports that the store could not save yet.
    pub unsaved: Vec<BreakerReport>,
}

impl PeriodicLoop for BreakerUpkeep {
    const NAME: &'static str = "breakers";
    const AT_ONCE: bool = true;
    const LONGEST_REST: Duration = Duration::from_secs(1);

    /// Between rounds that fail.
    fn interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        self.unsaved.extend(self.agents.take_reports());
        while let Some(report) = self.unsaved.first() {
            self.record(report).await?;
            self.unsaved.remove(0);
        }
        let mut next = LONG;
        let agents = self.agents.list();
        for agent in agents
            .iter()
            .filter(|agent| !agent.control().control.is_empty())
        {
            next = next.min(self.look(agent).await?);
        }
        Ok(NextRound::After(next))
    }

    async fn woken(&mut self) {
        self.agents.reported().await;
    }
}

impl BreakerUpkeep {
    /// Ends the pause if it is over, and probes what is due. Returns when to look again.
    async fn look(&self, agent: &Agent) -> Result<Duration, StoreError> {
        let now = self.store.housekeeping.now().await?;
        agent.look_at(now);
        let may_probe = self.local_lease.may_claim(Instant::now());
        if may_probe && agent.spec().breaker.is_some() {
            let known = agent.control();
            for url in known.control.due_probes(now) {
                let seen = Observation::Due;
                let change = ControlChange::Endpoint { url, seen };
                self.change(agent, change, Some(known.version)).await?;
            }
        }
        let due = agent.control().control.next_due(now);
        let rest = due.map_or(LONG, |due| due.since(now));
        // It is due, but not for this instance, or the specification says nothing of a breaker any more.
        Ok(if rest.is_zero() { LOOK_AGAIN } else { rest })
    }

    async fn record(&self, report: &BreakerReport) -> Result<(), StoreError> {
        let Some(agent) = self.agents.get(&report.agent) else {
            return Ok(());
        };
        self.change(&agent, report.change.clone(), report.seen)
            .await
    }

    async fn change(
        &self,
        agent: &Agent,
        change: ControlChange,
        seen: Option<u64>,
    ) -> Result<(), StoreError> {
        let request = ControlRequest {
            agent: agent.name().clone(),
            spec: agent.spec().clone(),
            change: change.clone(),
            seen,
            operator: None,
            instance: self.instance.clone(),
        };
        let changed = self.store.change_control(request).await?;
        if changed.is_changed {
            match &change {
                ControlChange::Endpoint { url, .. } => {
                    let breaker = changed.record.control.breakers.get(url);
                    let state = breaker.map(|breaker| (&breaker.state, &*breaker.reason));
                    log(agent.name(), url, state);
                }
                ControlChange::Throttle { wait, reason } => {
                    info!(agent = %agent.name(), %wait, reason, "a service asked to be left alone for a while");
                }
                _ => {}
            }
        }
        let now: Timestamp = self.store.housekeeping.now().await?;
        agent.take_control(changed.record, now, true);
        Ok(())
    }
}

fn log(agent: &AgentName, endpoint: &str, now: Option<(&BreakerState, &str)>) {
    match now {
        None => info!(%agent, endpoint, "a breaker has closed: the endpoint works again"),
        Some((BreakerState::HalfOpen { .. }, _)) => {
            info!(%agent, endpoint, "a breaker is half-open: a few calls show whether the endpoint works again");
        }
        Some((_, reason)) => {
            warn!(%agent, endpoint, reason, "a breaker has opened: the endpoint is not called for a while");
        }
    }
}

//! Records the observations of this instance about endpoints, lets one instance probe an endpoint when its time has
//! come, and ends pauses and ejections. It has nothing to do while no agent is paused and every endpoint is called.

use std::{sync::Arc, time::Duration};

use tracing::{debug, info, warn};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::{Agent, Agents},
    clock,
    domain::{
        agent::{
            Breaker, BreakerReport, BreakerState, ControlChange, Ejection, Observation,
            RecordSource,
        },
        values::{AgentName, InstanceId, Timestamp},
    },
    instance::LocalLease,
    store::{ControlRecord, ControlRequest, ControlResponse, Store, StoreError},
};

/// The longest rest. Only a report ends it earlier.
const LONG: Duration = Duration::from_secs(3600);
/// The longest rest of an agent with windows, so that a clock change delays the start or end of a window by no more.
const WINDOWS: Duration = Duration::from_secs(30);
/// The rest if a probe is due that this instance may not make now.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

pub(in crate::service) struct BreakerUpkeep {
    pub agents: Arc<Agents>,
    pub store: Store,
    pub instance: InstanceId,
    pub local_lease: Arc<LocalLease>,
    /// Reports that the store could not save yet.
    pub unsaved: Vec<BreakerReport>,
    /// True after the first round.
    pub has_looked: bool,
}

impl PeriodicLoop for BreakerUpkeep {
    const NAME: &'static str = "breakers";
    const AT_ONCE: bool = true;
    const LONGEST_REST: Duration = Duration::from_secs(1);

    /// The wait after a round that failed.
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
        let needs_look =
            |agent: &&Arc<Agent>| agent.spec().needs_looks() || !agent.control().control.is_empty();
        let concerned: Vec<_> = agents.iter().filter(needs_look).collect();
        if !concerned.is_empty() {
            let now = self.store.housekeeping.now().await?;
            for agent in concerned {
                next = next.min(self.check(agent, now).await?);
            }
        }
        self.has_looked = true;
        Ok(NextRound::After(next))
    }

    async fn wait_for_wake(&mut self) {
        self.agents.reported().await;
    }
}

impl BreakerUpkeep {
    /// Ends a pause or ejection that is over, and makes the probes that are due. Returns the time until the next look.
    async fn check(&self, agent: &Agent, now: Timestamp) -> Result<Duration, StoreError> {
        agent.look_at(now);
        // The configuration file may have changed while no instance ran.
        if !self.has_looked && agent.control().control.has_strangers(agent.spec()) {
            self.change(agent, ControlChange::Respecified, None).await?;
        }
        let may_probe = self.local_lease.may_claim(clock::instant());
        if may_probe && agent.spec().breaker.is_some() {
            for url in agent.control().control.due_probes(agent.spec(), now) {
                let seen = Observation::Due;
                let change = ControlChange::Endpoint { url, seen };
                let version = agent.control().version;
                self.change(agent, change, Some(version)).await?;
            }
        }
        let due = agent.control().control.next_due(now);
        let mut rest = due.map_or(LONG, |due| due.since(now));
        if let Some(changes_at) = agent.window_changes_at() {
            rest = rest.min(changes_at.since(now)).min(WINDOWS);
        }
        let rest = match self.count_left(agent).await? {
            true => rest.min(CHECK_AGAIN),
            false => rest,
        };
        // A change is due, but this instance may not make it, or the specification has no breaker any more.
        Ok(if rest.is_zero() { CHECK_AGAIN } else { rest })
    }

    /// Records how many calls are left at endpoints that are drained. Returns true if there is such an endpoint,
    /// because work that began there still makes calls.
    async fn count_left(&self, agent: &Agent) -> Result<bool, StoreError> {
        let mut drains = false;
        for (endpoint, (_, calls)) in agent.spec().endpoints.iter().zip(agent.endpoints()) {
            if !endpoint.drain {
                continue;
            }
            drains = true;
            let url = endpoint.url.clone();
            let known = agent.control().control.left;
            let known = known
                .get(&url)
                .and_then(|left| left.get(self.instance.as_str()));
            if known != Some(&calls) {
                let change = ControlChange::Left { url, calls };
                self.change(agent, change, None).await?;
            }
        }
        Ok(drains)
    }

    async fn record(&self, report: &BreakerReport) -> Result<(), StoreError> {
        let Some(agent) = self.agents.get(&report.agent) else {
            return Ok(());
        };
        let ControlChange::Endpoint { url, .. } = &report.change else {
            return self.change(&agent, report.change.clone(), None).await;
        };
        // The store may have changed in another respect in the meantime; the report still counts in this case.
        while let Some(version) = agent.counts_for(report) {
            let changed = self.ask(&agent, &report.change, Some(version)).await?;
            let is_answer = changed.is_changed || changed.record.version <= version;
            let source = match is_answer {
                true => RecordSource::Report(url),
                false => RecordSource::Change,
            };
            self.take(&agent, changed.record, source).await?;
        }
        Ok(())
    }

    async fn change(
        &self,
        agent: &Agent,
        change: ControlChange,
        seen: Option<u64>,
    ) -> Result<(), StoreError> {
        let changed = self.ask(agent, &change, seen).await?;
        self.take(agent, changed.record, RecordSource::Change).await
    }

    async fn ask(
        &self,
        agent: &Agent,
        change: &ControlChange,
        seen: Option<u64>,
    ) -> Result<ControlResponse, StoreError> {
        let request = ControlRequest {
            agent: agent.name().clone(),
            spec: agent.spec().clone(),
            change: change.clone(),
            seen,
            operator: None,
            instance: self.instance.clone(),
        };
        let before = agent.control().control;
        let changed = self.store.change_control(request).await?;
        if changed.is_changed {
            match change {
                ControlChange::Endpoint {
                    url,
                    seen: Observation::Failing { .. },
                } => {
                    if let Some(ejection) = changed.record.control.ejections.get(url) {
                        let Ejection { until, reason, .. } = ejection;
                        warn!(agent = %agent.name(), endpoint = url, reason, %until, "an endpoint is ejected: the others take its calls");
                    }
                }
                ControlChange::Endpoint { url, .. } => log(
                    agent.name(),
                    url,
                    before.breakers.get(url),
                    changed.record.control.breakers.get(url),
                ),
                ControlChange::Throttle { wait, reason } => {
                    info!(agent = %agent.name(), %wait, reason, "a service asked to be left alone for a while");
                }
                _ => {}
            }
        }
        Ok(changed)
    }

    async fn take(
        &self,
        agent: &Agent,
        record: ControlRecord,
        source: RecordSource<'_>,
    ) -> Result<(), StoreError> {
        let now = self.store.housekeeping.now().await?;
        agent.take_control(record, now, source);
        Ok(())
    }
}

fn log(agent: &AgentName, endpoint: &str, before: Option<&Breaker>, now: Option<&Breaker>) {
    let is_half_open = |breaker: &Breaker| matches!(breaker.state, BreakerState::HalfOpen { .. });
    match now {
        None => info!(%agent, endpoint, "a breaker has closed: the endpoint works again"),
        // This state repeats while no step needs the endpoint.
        Some(now) if is_half_open(now) && before.is_some_and(is_half_open) => {
            debug!(%agent, endpoint, "a breaker is still half-open");
        }
        Some(now) if is_half_open(now) => {
            info!(%agent, endpoint, "a breaker is half-open: a few calls show whether the endpoint works again");
        }
        Some(Breaker { reason, .. }) => {
            warn!(%agent, endpoint, reason, "a breaker has opened: the endpoint is not called for a while");
        }
    }
}

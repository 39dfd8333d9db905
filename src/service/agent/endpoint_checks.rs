//! Makes the health checks of agents with `health`, only on the instance that supervises, and records their results.
//! It looks for such agents once a second.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, info, warn};

use crate::service::loops::{NextRound, PeriodicLoop};
use crate::{
    agent::{Agents, CheckResult},
    chance,
    clock::{self, Instant},
    domain::{
        agent::{CheckTally, ControlChange, HealthChange, HealthSpec, RecordSource},
        values::{AgentName, InstanceId},
    },
    instance::LocalLease,
    store::{ControlRequest, Store, StoreError},
};

/// The interval at which new agents and endpoints are found.
const FIND_EVERY: Duration = Duration::from_secs(1);
/// The most checks at the same time: a thousand endpoints that hang must not occupy a thousand connections.
const MOST_CHECKS: usize = 64;

/// An agent, and the URL of its endpoint.
type CheckedEndpoint = (AgentName, String);

pub(in crate::service) struct EndpointChecks {
    agents: Arc<Agents>,
    store: Store,
    instance: InstanceId,
    local_lease: Arc<LocalLease>,
    planned: HashMap<CheckedEndpoint, PlannedCheck>,
    looked_at: Option<Instant>,
    running: JoinSet<(CheckedEndpoint, CheckResult)>,
    /// The results of checks that have ended.
    results: Vec<(CheckedEndpoint, CheckResult)>,
}

struct PlannedCheck {
    spec: HealthSpec,
    next: Instant,
    tally: CheckTally,
    running: Option<AbortHandle>,
}

impl PlannedCheck {
    /// Plans the first check for a random time within the interval, so that the checks do not coincide.
    fn new(spec: HealthSpec, now: Instant) -> Self {
        let chance: f64 = chance::random();
        Self {
            next: now + spec.interval.duration().mul_f64(chance),
            spec,
            tally: CheckTally::default(),
            running: None,
        }
    }

    fn is_running(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| !running.is_finished())
    }
}

impl Drop for PlannedCheck {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

impl PeriodicLoop for EndpointChecks {
    const NAME: &'static str = "endpoint checks";
    /// The minimum rest, so that several results are processed together.
    const LEAST_REST: Duration = Duration::from_millis(20);
    const LONGEST_REST: Duration = FIND_EVERY;

    fn interval(&self) -> Duration {
        FIND_EVERY
    }

    async fn round(&mut self) -> Result<NextRound, StoreError> {
        let now = clock::instant();
        if self.local_lease.term(now).is_none() {
            self.planned.clear();
            self.results.clear();
            self.looked_at = None;
            return Ok(NextRound::AfterInterval);
        }
        let is_due = |then: Instant| now.duration_since(then) >= FIND_EVERY;
        if self.looked_at.is_none_or(is_due) {
            self.plan(now);
            self.looked_at = Some(now);
        }
        while let Some((endpoint, result)) = self.results.pop() {
            self.take(endpoint, result).await?;
        }
        self.begin(now);
        let next = self
            .planned
            .values()
            .filter(|planned| !planned.is_running());
        let next = next.map(|planned| planned.next).min();
        let rest = next.map_or(FIND_EVERY, |next| next.saturating_duration_since(now));
        let is_full = self.running.len() >= MOST_CHECKS;
        Ok(NextRound::After(if is_full {
            FIND_EVERY
        } else {
            rest.min(FIND_EVERY)
        }))
    }

    async fn wait_for_wake(&mut self) {
        while let Some(ended) = self.running.join_next().await {
            // An aborted check has no result.
            if let Ok(result) = ended {
                self.results.push(result);
                return;
            }
        }
        std::future::pending().await
    }
}

impl EndpointChecks {
    pub fn new(
        agents: Arc<Agents>,
        store: Store,
        instance: InstanceId,
        local_lease: Arc<LocalLease>,
    ) -> Self {
        Self {
            agents,
            store,
            instance,
            local_lease,
            planned: HashMap::new(),
            looked_at: None,
            running: JoinSet::new(),
            results: Vec::new(),
        }
    }

    fn plan(&mut self, now: Instant) {
        let mut known = HashSet::new();
        for agent in self.agents.checked() {
            let Some(health) = &agent.spec().health else {
                continue;
            };
            let endpoints = agent.spec().endpoints.iter();
            for endpoint in endpoints.filter(|endpoint| !endpoint.drain) {
                let checked = (agent.name().clone(), endpoint.url.clone());
                let planned = self.planned.get(&checked);
                if planned.is_none_or(|planned| planned.spec != *health) {
                    let planned = PlannedCheck::new(health.clone(), now);
                    self.planned.insert(checked.clone(), planned);
                }
                known.insert(checked);
            }
        }
        self.planned.retain(|checked, _| known.contains(checked));
    }

    /// Starts the checks whose time has come. Those that have waited longest are first.
    fn begin(&mut self, now: Instant) {
        let Some(store_now) = self.store.reader.estimated_now() else {
            return;
        };
        let room = MOST_CHECKS.saturating_sub(self.running.len());
        let planned = self.planned.iter_mut();
        let mut due: Vec<_> = planned
            .filter(|(_, planned)| planned.next <= now && !planned.is_running())
            .collect();
        due.sort_by_key(|(_, planned)| planned.next);
        for ((agent, url), planned) in due.into_iter().take(room) {
            let Some(known) = self.agents.get(agent) else {
                continue;
            };
            let interval = planned.spec.interval.duration();
            // Checks that were not made in time are not repeated later.
            planned.next = (planned.next + interval).max(now + interval / 2);
            let (spec, checked) = (planned.spec.clone(), (agent.clone(), url.clone()));
            planned.running = Some(self.running.spawn(async move {
                let result = known.check(&checked.1, &spec, store_now).await;
                (checked, result)
            }));
        }
    }

    async fn take(
        &mut self,
        endpoint: CheckedEndpoint,
        result: CheckResult,
    ) -> Result<(), StoreError> {
        let (Some(planned), Some(agent)) = (
            self.planned.get_mut(&endpoint),
            self.agents.get(&endpoint.0),
        ) else {
            return Ok(());
        };
        let url = &endpoint.1;
        let result = match result {
            CheckResult::Healthy => Ok(()),
            CheckResult::Unhealthy(why) => Err(why),
            CheckResult::NotMade(why) => {
                debug!(agent = %agent.name(), endpoint = url, why, "an endpoint could not be checked");
                return Ok(());
            }
        };
        let is_unhealthy = agent.control().control.unhealthy.contains_key(url);
        let change = planned
            .tally
            .add(&planned.spec, result.is_ok(), is_unhealthy);
        let result = match (change, result) {
            (Some(HealthChange::BecomesUnhealthy), Err(why)) => Err(format!(
                "{} checks in a row failed; the last one: {why}",
                planned.spec.unhealthy_after
            )),
            (Some(HealthChange::BecomesHealthy), Ok(())) => Ok(()),
            _ => return Ok(()),
        };
        let reason = result.clone().err();
        let request = ControlRequest {
            agent: agent.name().clone(),
            spec: agent.spec().clone(),
            change: ControlChange::Checked {
                url: url.clone(),
                result,
            },
            seen: None,
            operator: None,
            instance: self.instance.clone(),
        };
        let changed = self.store.change_control(request).await?;
        let now = self.store.housekeeping.now().await?;
        if changed.is_changed {
            match reason {
                Some(reason) => {
                    warn!(agent = %agent.name(), endpoint = url, reason, "the checks of an endpoint fail: it gets no calls");
                }
                None => {
                    info!(agent = %agent.name(), endpoint = url, "the checks of an endpoint succeed again: it is called");
                }
            }
        }
        agent.take_control(changed.record, now, RecordSource::Change);
        Ok(())
    }
}

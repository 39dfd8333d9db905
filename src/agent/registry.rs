//! The agents that an instance knows, by name. Read on every claim and every call, changed rarely: so
//! readers take a snapshot and writers swap it.

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    access::{AccessFault, AgentAccess},
    capacity::{Bulkhead, CallSlot, Gate, Slot, Wants},
    connector::CallConnector,
    guard::{BreakerReport, Guard, RecordSource, Reports, Stopped},
    http,
    meters::{self, CallMetrics, MADE_FOR_URLS},
    rate::Want,
    routing::Endpoints,
    secrets::SecretStore,
    settings::{AgentSettings, ReplyAddress},
    transport::Transport,
};
use crate::{
    domain::{
        AdaptedLimit, AdaptiveLimit, AgentCheck, AgentMode, AgentName, AgentSpec, DowntimeWindow,
        ETag, Endpoint, EndpointState, HttpVersion, LaneRule, PastStop, Pause, Redactor,
        RetryBudgetUse, SecretSubject, SlotGrant, SlotNeed, SlowStartLimit, Timestamp,
        UnusableSecret, UnusableSecrets,
    },
    store::ControlRecord,
};

/// How many origins of step URLs are remembered while no call to them is in flight.
const ORIGINS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// One agent: its specification, its capacity and the way its calls go.
pub struct Agent {
    name: AgentName,
    spec: AgentSpec,
    bulkhead: Arc<Bulkhead>,
    guard: Arc<Guard>,
    wire: Arc<Transport>,
    lanes: Option<Arc<LaneRule>>,
}

impl Agent {
    /// How its queue is divided, if it is.
    pub fn lane_rule(&self) -> Option<&Arc<LaneRule>> {
        self.lanes.as_ref()
    }

    pub fn name(&self) -> &AgentName {
        &self.name
    }

    pub fn spec(&self) -> &AgentSpec {
        &self.spec
    }

    pub fn try_take(&self) -> Option<Slot> {
        self.bulkhead.try_take()
    }

    pub fn free(&self) -> usize {
        self.bulkhead.free()
    }

    /// A slot, or a claim ahead of one.
    fn try_claim(&self) -> Option<CallSlot> {
        let slot = self.bulkhead.try_take().map(CallSlot::Free);
        slot.or_else(|| self.bulkhead.try_claim_ahead().map(CallSlot::Ahead))
    }

    /// How many steps may be claimed now.
    fn claimable(&self) -> usize {
        self.free() + self.bulkhead.free_ahead()
    }

    /// So many of its replies are awaited, by the record.
    pub fn counted_open(&self, open: u32) {
        self.bulkhead.counted_open(open);
    }

    pub fn in_flight(&self) -> u32 {
        self.bulkhead.in_flight()
    }

    /// The limit on replies that are awaited, where it stops the next call.
    pub fn blocking_limit(&self) -> Option<u32> {
        self.bulkhead.blocking_limit()
    }

    pub(super) fn wire(&self) -> &Transport {
        &self.wire
    }

    /// Why it is not called, if it is not.
    pub fn stopped(&self) -> Option<Stopped> {
        let stopped = self.guard.stopped();
        let stopped = stopped.or_else(|| {
            self.secret_fault()
                .map(|fault| Stopped::Secret(fault.message))
        });
        stopped.or_else(|| self.bulkhead.blocking_rate().map(Stopped::Rate))
    }

    /// Whether this instance has the secrets that its requests need.
    fn has_secrets(&self) -> bool {
        let access = self.wire.access.as_ref();
        access.is_none_or(|access| access.is_ready())
    }

    /// Why this instance cannot make its requests, if a secret is missing.
    fn secret_fault(&self) -> Option<AccessFault> {
        self.wire.access.as_ref()?.fault()
    }

    /// Comes before its secrets are taken again, so that the next claim finds the note.
    fn note_secret_fault(&self) {
        if let Some(fault) = self.secret_fault()
            && !fault.is_unread
        {
            self.guard.note_secret_fault(fault.message, Instant::now());
        }
    }

    /// Its pause and its breakers, as this process knows them.
    pub fn control(&self) -> ControlRecord {
        self.guard.record()
    }

    /// Whether nothing may be given to its workers.
    pub fn is_paused(&self) -> bool {
        self.guard.is_paused()
    }

    /// The pause that holds, by an operator or in a window of downtime.
    pub fn pause(&self) -> Option<Pause> {
        self.guard.pause()
    }

    /// When the next window of downtime begins, or the one that holds ends.
    pub fn window_changes_at(&self) -> Option<Timestamp> {
        self.guard.window_changes_at()
    }

    pub fn next_windows(&self, now: Timestamp, most: usize) -> Vec<DowntimeWindow> {
        self.guard.next_windows(now, most)
    }

    /// Whether it is left alone because the service asked for that.
    pub fn is_throttled(&self) -> bool {
        self.guard.is_throttled()
    }

    /// The record says so.
    pub fn take_control(&self, record: ControlRecord, now: Timestamp, source: RecordSource<'_>) {
        self.guard.take(record, now, source);
    }

    /// The version of the record for which a report of an endpoint counts; none if it has been overtaken.
    pub fn counts_for(&self, report: &BreakerReport) -> Option<u64> {
        self.guard.counts_for(report)
    }

    /// How it gets the further calls that it wants, if it wants some.
    pub fn take_want(&self) -> Option<Want> {
        self.bulkhead.rate.take_want(Instant::now())
    }

    /// Nothing was granted, and there is more in `next_in`: how long to wait until it is asked for again.
    pub fn want_again(&self, next_in: Duration) -> Duration {
        self.bulkhead.rate.want_again(next_in)
    }

    /// So many further calls may begin, or may have come to begin by themselves.
    pub fn granted(&self, calls: u32) {
        self.bulkhead.rate.granted(calls, Instant::now());
        self.bulkhead.announce();
    }

    /// What to settle of its slots with other instances, if there is something.
    pub fn take_slot_need(&self) -> Option<SlotNeed> {
        let now = Instant::now();
        self.bulkhead.slots.take_need(self.in_flight(), now)
    }

    /// No call begins beyond so many slots. Returns how many this process cannot give back.
    pub fn cap_slots(&self, slots: u32) -> u32 {
        let capped = self.bulkhead.slots.cap(slots);
        capped.max(self.in_flight())
    }

    /// Nothing could be settled.
    pub fn ask_for_slots_again(&self) {
        self.bulkhead.slots.ask_again();
    }

    /// So many calls may be in flight until then.
    pub fn grant_slots(&self, grant: SlotGrant, wanted: u32, valid_until: Instant) {
        meters::show_slots(&self.name, grant.slots);
        if self.bulkhead.slots.granted(grant, wanted, valid_until) {
            self.bulkhead.announce();
        }
    }

    /// The state of each of its endpoints, and how many calls of this process are in flight there.
    pub fn endpoints(&self) -> Vec<(EndpointState, u32)> {
        let states = self.guard.endpoint_states();
        let mut loads = self.wire.endpoints.under_way();
        // The specification may be just changing.
        let load = |_: &EndpointState| loads.next().unwrap_or_default();
        let loads: Vec<_> = states.iter().map(load).collect();
        states.into_iter().zip(loads).collect()
    }

    /// How many calls each of its endpoints may get at once; `None` if it is not adaptive.
    pub fn limits(&self) -> Option<Vec<AdaptiveLimit>> {
        self.guard.limits()
    }

    /// How many calls each of its endpoints may get that has just recovered.
    pub fn slow_starts(&self) -> Vec<Option<u32>> {
        self.guard.slow_starts()
    }

    /// The limit that keeps its calls from beginning, if endpoints have just recovered.
    pub fn slow_start_limit(&self) -> Option<SlowStartLimit> {
        self.guard.slow_start_limit()
    }

    /// Its retries of late, if they have a budget.
    pub fn retry_budget(&self) -> Option<RetryBudgetUse> {
        self.wire.budget.as_ref().map(|budget| budget.in_use())
    }

    /// The limit that keeps its calls from beginning, if it is adaptive.
    pub fn adapted_limit(&self) -> Option<AdaptedLimit> {
        self.guard.adapted_limit()
    }

    /// Its pause may have ended, or an endpoint is called again.
    pub fn look_at(&self, now: Timestamp) {
        self.guard.look_at(now);
    }

    pub(super) fn meters(&self) -> &CallMetrics {
        &self.wire.meters
    }
}

pub struct Agents {
    settings: AgentSettings,
    connector: CallConnector,
    /// For agents whose endpoints speak HTTP/2.
    http2_connector: CallConnector,
    gate: Arc<Gate>,
    registered: ArcSwap<HashMap<AgentName, Arc<Agent>>>,
    origins: Mutex<LruCache<AgentName, Arc<Agent>>>,
    url_meters: Arc<CallMetrics>,
    /// An agent was limited whose awaited replies have to be counted.
    limited: Notify,
    reports: Arc<Reports>,
    wants: Wants,
    /// Agents with lanes are or were registered.
    has_lanes: AtomicBool,
    /// The last check of each agent that was checked.
    checks: ArcSwap<HashMap<AgentName, Arc<AgentCheck>>>,
}

impl Agents {
    /// The metrics recorder must be installed before the first call: agents keep the handles they find.
    pub fn new(settings: AgentSettings) -> Self {
        let connector = http::connector(&settings);
        Self {
            http2_connector: connector.with_http2(),
            connector,
            settings,
            gate: Arc::default(),
            registered: ArcSwap::default(),
            origins: Mutex::new(LruCache::unbounded()),
            url_meters: Arc::new(CallMetrics::new(MADE_FOR_URLS)),
            limited: Notify::new(),
            reports: Arc::default(),
            wants: Wants::default(),
            has_lanes: AtomicBool::new(false),
            checks: ArcSwap::default(),
        }
    }

    /// Adds an agent, or changes one: its calls in flight continue and keep their slots.
    pub fn put(&self, name: AgentName, spec: AgentSpec) {
        // Before it is known, and before it has more slots: nothing is claimed by those as if its queue were not divided.
        if let Some(lanes) = LaneRule::of(&spec.limits, spec.fairness.as_ref()) {
            self.has_lanes.store(true, Ordering::Release);
            self.divide(&name, &Arc::new(lanes));
        }
        self.registered.rcu(|known| {
            let mut next = HashMap::clone(known);
            let agent = self.registered_agent(&name, &spec, known.get(&name));
            next.insert(name.clone(), Arc::new(agent));
            next
        });
        if let Some(agent) = self.get(&name) {
            agent.guard.configure(agent.spec());
            // A secret may have changed since it was read above.
            if let Some(access) = &agent.wire.access {
                access.refresh();
            }
            agent.bulkhead.limit_open(agent.spec().max_open);
            if agent.spec().max_open.is_some() {
                self.limited.notify_one();
            }
            // There is something to be looked at.
            if agent.spec().needs_looks() {
                self.reports.wake();
            }
            // Not before it is known: they would be asked for in vain.
            if agent.bulkhead.slots.is_wanting() {
                self.wants.slots.notify_one();
            }
        }
        // New capacity is free capacity.
        self.gate.freed(&name);
    }

    /// Has the queue of a known agent divided, which stays as it was otherwise.
    fn divide(&self, name: &AgentName, lanes: &Arc<LaneRule>) {
        self.registered.rcu(|known| {
            let Some(agent) = known.get(name) else {
                return Arc::clone(known);
            };
            let divided = Agent {
                name: agent.name.clone(),
                spec: agent.spec.clone(),
                bulkhead: Arc::clone(&agent.bulkhead),
                guard: Arc::clone(&agent.guard),
                wire: Arc::clone(&agent.wire),
                lanes: Some(Arc::clone(lanes)),
            };
            let mut next = HashMap::clone(known);
            next.insert(name.clone(), Arc::new(divided));
            Arc::new(next)
        });
    }

    /// Does not affect calls in flight. True if the agent was known.
    pub fn remove(&self, name: &AgentName) -> bool {
        let before = self.registered.rcu(|known| {
            let mut next = HashMap::clone(known);
            next.remove(name);
            next
        });
        let removed = before.get(name);
        if let Some(removed) = removed {
            removed.guard.removed();
        }
        removed.is_some()
    }

    /// A registered agent, or the one for the origin of a step's URL, made on first use.
    pub fn get(&self, name: &AgentName) -> Option<Arc<Agent>> {
        if is_origin(name) {
            return Some(self.for_origin(name));
        }
        self.registered.load().get(name).map(Arc::clone)
    }

    /// Those of the configuration file.
    pub fn configured(&self) -> &BTreeSet<AgentName> {
        &self.settings.configured
    }

    /// The registered agents, by name.
    pub fn list(&self) -> Vec<Arc<Agent>> {
        let mut all: Vec<_> = self.registered.load().values().map(Arc::clone).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The record says so.
    pub fn take_checks(&self, checks: Vec<(AgentName, AgentCheck)>) {
        let checks = checks.into_iter();
        let checks = checks.map(|(name, check)| (name, Arc::new(check)));
        self.checks.store(Arc::new(checks.collect()));
    }

    /// The last check of an agent, and whether the agent still has the specification that was checked.
    pub fn last_check(&self, name: &AgentName) -> Option<(Arc<AgentCheck>, bool)> {
        let check = self.checks.load().get(name).map(Arc::clone)?;
        let agent = self.registered.load().get(name).map(Arc::clone)?;
        let is_current = check.spec == check_tag(&agent.spec);
        Some((check, is_current))
    }

    /// `None` when the agent is at capacity or unknown, lacks a secret, or after [`Agents::close`].
    pub fn try_take(&self, name: &AgentName) -> Option<Slot> {
        if is_origin(name) {
            return self.for_origin(name).try_take();
        }
        let registered = self.registered.load();
        let agent = registered.get(name)?;
        agent.has_secrets().then(|| agent.try_take())?
    }

    /// [`Agents::try_take`]; if no slot is free, a claim ahead of one that is freed soon.
    pub fn try_claim(&self, name: &AgentName) -> Option<CallSlot> {
        if is_origin(name) {
            return self.for_origin(name).try_claim();
        }
        let registered = self.registered.load();
        let agent = registered.get(name)?;
        agent.has_secrets().then(|| agent.try_claim())?
    }

    /// Claims took so long to be saved.
    pub fn committed(&self, took: Duration) {
        self.gate.committed(took);
    }

    /// Why the agent was not called until a moment, if there was such a time. `now` is the store's time at `instant`.
    pub fn past_stop(
        &self,
        name: &AgentName,
        now: Timestamp,
        instant: Instant,
    ) -> Option<Arc<PastStop>> {
        let registered = self.registered.load();
        registered.get(name)?.guard.past_stop(now, instant)
    }

    /// A secret is another one: agents that waited for it are called.
    pub fn secrets_changed(&self) {
        for agent in self.list() {
            if let Some(access) = &agent.wire.access {
                agent.note_secret_fault();
                access.refresh();
                self.gate.freed(&agent.name);
            }
        }
    }

    /// The secrets of this instance.
    pub fn secrets(&self) -> &SecretStore {
        &self.settings.secrets
    }

    /// Hides the secrets of all agents that this process knows; `None` if there are none.
    pub fn all_secrets(&self) -> Option<Redactor> {
        self.settings.secrets.used.all()
    }

    /// Hides the secrets that an agent has sent to its service.
    pub fn secrets_of(&self, name: &AgentName) -> Redactor {
        self.settings.secrets.used.of(name)
    }

    /// The secrets that an agent may not have here, were it registered so: the pointer of each, and why.
    pub fn secret_faults(&self, name: &AgentName, spec: &AgentSpec) -> Vec<(String, String)> {
        let is_configured = self.settings.configured.contains(name);
        self.settings.secrets.faults(spec, is_configured)
    }

    /// What keeps this instance from calls because of secrets: each secret that it cannot use, with the agents that name
    /// it, and each agent whose secrets are there but do not fit.
    pub fn unusable_secrets(&self) -> UnusableSecrets {
        let secrets = &self.settings.secrets;
        let mut unusable = UnusableSecrets::new();
        for (name, reason) in secrets.without_value() {
            let fault = UnusableSecret {
                reason,
                ..UnusableSecret::default()
            };
            unusable.insert(SecretSubject::Secret(name), fault);
        }
        let registered = self.registered.load();
        let mut faulty: Vec<_> = registered
            .values()
            .filter_map(|agent| Some((agent, agent.secret_fault()?)))
            .collect();
        // Which of them is named must not change from one look to the next.
        faulty.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        for (agent, fault) in faulty {
            let refused = self.secret_faults(&agent.name, &agent.spec);
            let mut is_explained = false;
            for used in agent.spec.secrets() {
                let subject = SecretSubject::Secret(used.name.clone());
                let why = refused.iter().find(|(pointer, _)| *pointer == used.pointer);
                let known = match why {
                    Some((_, reason)) => {
                        unusable.entry(subject).or_insert_with(|| UnusableSecret {
                            reason: reason.clone(),
                            ..UnusableSecret::default()
                        })
                    }
                    None => match unusable.get_mut(&subject) {
                        Some(known) => known,
                        None => continue,
                    },
                };
                known.add_agent(&agent.name);
                is_explained = true;
            }
            if !is_explained {
                let subject = match fault.secret {
                    Some(secret) => SecretSubject::Secret(secret),
                    None => SecretSubject::Agent(agent.name.clone()),
                };
                let known = unusable.entry(subject).or_insert_with(|| UnusableSecret {
                    reason: fault.message,
                    ..UnusableSecret::default()
                });
                known.add_agent(&agent.name);
            }
        }
        unusable
    }

    /// How many slots can be taken now.
    pub fn free(&self, name: &AgentName) -> usize {
        self.count(name, Agent::free)
    }

    /// How many of its steps may be claimed now.
    pub fn claimable(&self, name: &AgentName) -> usize {
        self.count(name, Agent::claimable)
    }

    fn count(&self, name: &AgentName, count: impl Fn(&Agent) -> usize) -> usize {
        if is_origin(name) {
            return count(&self.for_origin(name));
        }
        let registered = self.registered.load();
        let agent = registered.get(name);
        agent.map_or(0, |agent| match agent.has_secrets() {
            true => count(agent),
            false => 0,
        })
    }

    /// The agents whose rate is limited.
    pub fn rate_limited(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let limited = registered
            .values()
            .filter(|agent| agent.spec.rate_limit.is_some());
        limited.map(Arc::clone).collect()
    }

    /// The agents whose endpoints are checked.
    pub fn checked(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let checked = registered
            .values()
            .filter(|agent| agent.spec.health.is_some());
        checked.map(Arc::clone).collect()
    }

    /// The agents whose awaited replies are limited.
    pub fn open_limited(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let limited = registered
            .values()
            .filter(|agent| agent.bulkhead.is_open_limited());
        limited.map(Arc::clone).collect()
    }

    /// Whether the queue of any agent is divided into lanes.
    pub fn has_lanes(&self) -> bool {
        self.has_lanes.load(Ordering::Acquire)
    }

    /// How the queue of an agent is divided, if it is.
    pub fn lane_rule(&self, name: &AgentName) -> Option<Arc<LaneRule>> {
        if !self.has_lanes() {
            return None;
        }
        self.registered.load().get(name)?.lanes.clone()
    }

    /// What calls have shown of endpoints since the last time.
    pub fn take_reports(&self) -> Vec<BreakerReport> {
        self.reports.take()
    }

    /// Comes back when there are reports, or an agent has another pause or breaker.
    pub async fn reported(&self) {
        self.reports.woken().await;
    }

    /// Comes back when an agent wants more calls than its rate lets begin.
    pub async fn wanting(&self) {
        self.wants.calls.notified().await;
    }

    /// Comes back when an agent wants more slots than this instance has, or another instance has changed what it holds.
    pub async fn wanting_slots(&self) {
        self.wants.slots.notified().await;
    }

    /// Another instance has changed what it holds of the slots of an agent.
    pub fn hear_of_slots(&self) {
        self.wants.slots.notify_one();
    }

    /// The agents whose calls in flight are limited over all instances.
    pub fn slot_limited(&self) -> Vec<Arc<Agent>> {
        let registered = self.registered.load();
        let limited = registered
            .values()
            .filter(|agent| agent.spec.max_in_flight.is_some());
        limited.map(Arc::clone).collect()
    }

    /// Comes back when an agent was limited.
    pub async fn limited(&self) {
        self.limited.notified().await;
    }

    /// A reply of this agent is no longer awaited.
    pub fn closed_open(&self, name: &AgentName) {
        if let Some(agent) = self.registered.load().get(name)
            && agent.bulkhead.is_open_limited()
        {
            agent.bulkhead.closed_open();
        }
    }

    /// `notify` is called whenever an agent may have capacity again, on the thread that released it: it must only
    /// wake another task. It is set once.
    pub fn on_freed(&self, notify: impl Fn(&AgentName) + Send + Sync + 'static) {
        self.gate.on_freed(Box::new(notify));
    }

    /// Gives out no more slots, permanently: the instance is stopping. Running calls continue.
    pub fn close(&self) {
        self.gate.close();
    }

    /// Whether nothing is given out any more.
    pub fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    pub(super) fn reply_address(&self) -> Option<&ReplyAddress> {
        self.settings.replies.get()
    }

    #[cfg(test)]
    pub(super) fn origins_known(&self) -> usize {
        self.origins.lock().len()
    }

    fn registered_agent(
        &self,
        name: &AgentName,
        spec: &AgentSpec,
        before: Option<&Arc<Agent>>,
    ) -> Agent {
        if let Some(before) = before {
            // With another specification it may need no such secret.
            before.note_secret_fault();
        }
        let meters = match before {
            Some(before) => Arc::clone(&before.wire.meters),
            None => Arc::new(CallMetrics::new(name.as_str())),
        };
        self.agent(name, spec.clone(), meters, before)
    }

    fn agent(
        &self,
        name: &AgentName,
        spec: AgentSpec,
        meters: Arc<CallMetrics>,
        before: Option<&Arc<Agent>>,
    ) -> Agent {
        let bulkhead = match before {
            Some(before) => Arc::clone(&before.bulkhead),
            None => Arc::new(Bulkhead::new(
                name.clone(),
                most_in_flight(&spec),
                Arc::clone(&self.gate),
                self.wants.clone(),
                meters.in_flight.clone(),
            )),
        };
        let guard = match before {
            Some(before) => Arc::clone(&before.guard),
            None => Arc::new(Guard::new(
                name.clone(),
                self.settings.instance.clone(),
                Arc::clone(&bulkhead),
                Arc::clone(&self.reports),
            )),
        };
        guard.configure(&spec);
        bulkhead.rate.configure(
            spec.rate_limit.as_ref(),
            self.settings.is_shared,
            Instant::now(),
        );
        bulkhead
            .slots
            .configure(spec.max_in_flight, self.settings.is_shared);
        // Where more than slots is counted, nothing is claimed before all of it is free.
        let is_plain = spec.rate_limit.is_none() && spec.max_open.is_none();
        bulkhead.allow_claims_ahead(is_plain && spec.limits.is_empty() && spec.fairness.is_none());
        let endpoints = Endpoints::new(
            &spec.endpoints,
            &self.settings.addresses,
            self.settings.zone.as_deref(),
            before.map(|before| &before.wire.endpoints),
            |endpoint| guard.allowed(&endpoint.url),
        );
        let is_configured = self.settings.configured.contains(name);
        let connector = match spec.http_version {
            Some(HttpVersion::Http2) => &self.http2_connector,
            Some(HttpVersion::Http1) | None => &self.connector,
        };
        let wire = Arc::new(Transport {
            agent: name.clone(),
            access: AgentAccess::of(
                name,
                &spec,
                is_configured,
                &self.settings.secrets,
                connector,
                &self.connector,
            ),
            connector: connector.clone(),
            endpoints,
            retry: spec.retry.clone(),
            budget: spec.retry.budget_percent.map(|_| {
                let known = before.and_then(|before| before.wire.budget.clone());
                known.unwrap_or_default()
            }),
            max_output: self.settings.max_output,
            replies: Arc::clone(&self.settings.replies),
            queues: Arc::clone(&self.settings.queues),
            meters,
            guard: spec.watches_calls().then(|| Arc::clone(&guard)),
            throttled: spec.rate_limit.is_some().then(|| Arc::clone(&guard)),
        });
        Agent {
            name: name.clone(),
            lanes: LaneRule::of(&spec.limits, spec.fairness.as_ref()).map(Arc::new),
            spec,
            bulkhead,
            guard,
            wire,
        }
    }

    fn for_origin(&self, origin: &AgentName) -> Arc<Agent> {
        let mut origins = self.origins.lock();
        if let Some(agent) = origins.get(origin) {
            return Arc::clone(agent);
        }
        while origins.len() >= ORIGINS.get()
            && let Some(idle) = least_recently_used_idle(&origins)
        {
            origins.pop(&idle);
        }
        let spec = AgentSpec {
            mode: AgentMode::Call,
            endpoints: vec![Endpoint {
                url: origin.as_str().to_owned(),
                max_in_flight: self.settings.default_max_in_flight,
                zone: None,
                drain: false,
            }],
            ..AgentSpec::default()
        };
        let agent = Arc::new(self.agent(origin, spec, Arc::clone(&self.url_meters), None));
        origins.put(origin.clone(), Arc::clone(&agent));
        agent
    }
}

/// Forgetting an agent in use would forget its calls in flight and save no memory, because its users hold it: so
/// the memory is bounded by the idle agents plus those with calls in flight.
fn least_recently_used_idle(origins: &LruCache<AgentName, Arc<Agent>>) -> Option<AgentName> {
    origins
        .iter()
        .rev()
        .find(|(_, agent)| Arc::strong_count(agent) == 1 && agent.in_flight() == 0)
        .map(|(name, _)| name.clone())
}

/// By which it is known whether an agent was changed after a check.
pub fn check_tag(spec: &AgentSpec) -> String {
    ETag::of_agent(spec).to_string()
}

/// The names of registered agents hold no `:`, the origins of URLs always do.
fn is_origin(name: &AgentName) -> bool {
    name.as_str().contains(':')
}

fn most_in_flight(spec: &AgentSpec) -> u32 {
    spec.endpoints.iter().fold(0, |sum, endpoint| {
        sum.saturating_add(endpoint.max_in_flight)
    })
}

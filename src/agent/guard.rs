//! The shell of the state machine that keeps calls from an agent in this process, [`AgentGuard`]: it locks the machine, calls
//! it, and does what has changed. Slots, metrics and the shared record follow. A call takes no lock here where its result
//! decides nothing.

mod gauges;
mod reports;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tracing::debug;

use self::gauges::EndpointGauges;
pub(super) use self::reports::Reports;
use super::{last_stop::LastStop, meters, queue::capacity::Bulkhead};
use crate::{
    clock::{self, Instant},
    domain::{
        agent::{
            AdaptedLimit, AdaptiveLimit, AgentGuard, AgentSpec, AgentStop, BreakerReport,
            CallPermit, DowntimeWindow, EndpointState, GuardChanges, HealthSample, LoadSample,
            PastStop, Pause, RecordSource, SlowStartLimit,
        },
        values::{AgentName, InstanceId, Timestamp},
    },
    store::ControlRecord,
};

pub(super) struct Guard {
    agent: AgentName,
    instance: InstanceId,
    bulkhead: Arc<Bulkhead>,
    reports: Arc<Reports>,
    /// The zero of the times that the machine gets.
    start: Instant,
    is_paused: AtomicBool,
    last_stop: LastStop,
    state: Mutex<GuardState>,
}

struct GuardState {
    machine: AgentGuard,
    /// The number of calls that each endpoint may have in flight, in the order of the specification. Every call reads
    /// the number of its endpoint.
    allowed: Vec<Arc<AtomicU32>>,
}

impl Guard {
    pub fn new(
        agent: AgentName,
        instance: InstanceId,
        bulkhead: Arc<Bulkhead>,
        reports: Arc<Reports>,
    ) -> Self {
        let machine = AgentGuard::new(agent.clone(), instance.clone());
        Self {
            agent,
            instance,
            bulkhead,
            reports,
            start: clock::instant(),
            is_paused: AtomicBool::new(false),
            last_stop: LastStop::default(),
            state: Mutex::new(GuardState {
                machine,
                allowed: Vec::new(),
            }),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Gives the agent another specification. Endpoints that stay keep what was seen of them.
    pub fn configure(&self, spec: &AgentSpec) {
        let mut state = self.state.lock();
        let machine = &state.machine;
        let before = EndpointGauges::of(machine.spec());
        let known = machine.endpoints().iter().zip(&state.allowed);
        let mut known: Vec<_> = known
            .map(|(endpoint, allowed)| (endpoint.url().to_owned(), Arc::clone(allowed)))
            .collect();
        for gone in state.machine.configure(spec, self.now()) {
            before.clear(&self.agent, &gone);
        }
        let endpoints = state.machine.endpoints().iter();
        let allowed = endpoints.map(|endpoint| {
            let at = known.iter().position(|(url, _)| url == endpoint.url());
            at.map_or_else(Arc::default, |at| known.swap_remove(at).1)
        });
        state.allowed = allowed.collect();
        let gauges = EndpointGauges::of(spec);
        let ended = before.without(gauges);
        for endpoint in state.machine.endpoints() {
            ended.clear(&self.agent, endpoint.url());
        }
        gauges.show(&state.machine);
        self.resize(&mut state);
    }

    /// Returns the count that the calls of an endpoint are limited by.
    pub fn allowed(&self, url: &str) -> Arc<AtomicU32> {
        let state = self.state.lock();
        let mut endpoints = state.machine.endpoints().iter();
        let at = endpoints.position(|endpoint| endpoint.url() == url);
        let allowed = at.and_then(|at| state.allowed.get(at));
        allowed.map_or_else(Arc::default, Arc::clone)
    }

    /// The record is as it says now.
    pub fn take(&self, record: ControlRecord, store_now: Timestamp, source: RecordSource<'_>) {
        let mut state = self.state.lock();
        let ControlRecord { version, control } = record;
        let is_known = source == RecordSource::Read && version <= state.machine.record().0;
        let machine = &mut state.machine;
        let changes = machine.take_record(version, control, source, store_now, self.now());
        self.follow(&mut state, changes);
        EndpointGauges::of(state.machine.spec()).show(&state.machine);
        if !is_known {
            self.reports.wake();
        }
    }

    /// A pause or an ejection may have ended.
    pub fn look_at(&self, store_now: Timestamp) {
        let mut state = self.state.lock();
        let changes = state.machine.look(store_now, self.now());
        self.follow(&mut state, changes);
        EndpointGauges::of(state.machine.spec()).show(&state.machine);
    }

    /// A response asked for no call in this time.
    pub fn throttle(&self, wait: Duration, reason: &str) {
        let mut state = self.state.lock();
        let changes = state.machine.throttle(wait, reason, self.now());
        self.follow(&mut state, changes);
    }

    /// A call to the endpoint begins. `None` where its result decides nothing.
    pub fn begin<'a>(&'a self, url: &'a str, deadline: Instant) -> Option<WatchedCall<'a>> {
        let mut state = self.state.lock();
        let spec = state.machine.spec();
        let leaves_out = spec.leaves_endpoints_out();
        // Calls that are still to begin, or whose replies are being saved, have slots too.
        let is_full = spec.adaptive.is_some() && self.bulkhead.is_full();
        let permit = state.machine.begin(url, self.now(), is_full)?;
        Some(WatchedCall {
            guard: self,
            url,
            permit,
            leaves_out,
            deadline,
            is_over: false,
        })
    }

    fn ended(&self, call: &WatchedCall<'_>, health: HealthSample<'_>, load: LoadSample<'_>) {
        let now = self.now();
        let mut state = self.state.lock();
        let machine = &mut state.machine;
        let changes = machine.end(call.url, call.permit, health, load, now);
        if changes.limit_fell {
            self.log_limit(machine, call.url);
        }
        self.follow(&mut state, changes);
    }

    fn log_limit(&self, machine: &AgentGuard, url: &str) {
        let mut endpoints = machine.endpoints().iter();
        let endpoint = endpoints.find(|endpoint| endpoint.url() == url);
        if let Some(known) = endpoint.and_then(|endpoint| endpoint.adaptive()) {
            let (limit, reason) = (known.limit(), known.reason());
            debug!(agent = %self.agent, endpoint = %url, limit, reason, "limit of calls in flight has fallen");
        }
    }

    /// Does what follows from a transition of the machine.
    fn follow(&self, state: &mut GuardState, changes: GuardChanges) {
        if let Some(is_throttled) = changes.is_throttled {
            meters::show_throttle(&self.agent, is_throttled);
        }
        if let Some(is_paused) = changes.is_paused {
            self.is_paused.store(is_paused, Ordering::Relaxed);
        }
        if changes.capacity {
            self.resize(state);
        }
        if let Some(is_paused) = changes.is_paused {
            meters::show_pause(&self.agent, is_paused);
            // An agent without endpoints has no calls whose limit could grow.
            self.bulkhead.announce();
        }
        for report in changes.reports {
            self.reports.add(report);
        }
    }

    /// Gives the endpoints and the bulkhead as many calls as the machine allows.
    fn resize(&self, state: &mut GuardState) {
        let gauges = EndpointGauges::of(state.machine.spec());
        for ((endpoint, most), allowed) in state.machine.endpoint_calls().zip(&state.allowed) {
            if allowed.swap(most, Ordering::Relaxed) != most {
                gauges.show_limit(&self.agent, endpoint.url(), most);
            }
        }
        let capacity = state.machine.capacity(self.now());
        if let Some(stop) = capacity.past_stop {
            self.last_stop.set(stop);
        }
        self.bulkhead.resize(capacity.calls);
    }

    /// The agent is removed: nothing keeps calls from it any more.
    pub fn removed(&self) {
        let state = self.state.lock();
        let gauges = EndpointGauges::of(state.machine.spec());
        for endpoint in state.machine.endpoints() {
            gauges.clear(&self.agent, endpoint.url());
        }
        meters::show_pause(&self.agent, false);
        if state.machine.is_throttled() {
            meters::show_throttle(&self.agent, false);
        }
    }

    /// This instance could make no request until now, because of a secret.
    pub fn note_secret_fault(&self, why: String, now: Instant) {
        self.last_stop.note_secret_fault(why, now);
    }

    /// Returns why no call was made until a moment, if there was such a time since this process knows the agent. `store_now`
    /// is the store's time at `instant`.
    pub fn past_stop(&self, store_now: Timestamp, instant: Instant) -> Option<Arc<PastStop>> {
        self.last_stop.get(&self.instance, store_now, instant)
    }

    /// Returns the version of the record for which the report counts; `None` if it has been overtaken.
    pub fn counts_for(&self, report: &BreakerReport) -> Option<u64> {
        self.state.lock().machine.counts_for(report)
    }

    /// Returns the state of each endpoint, as it is listed in the specification.
    pub fn endpoint_states(&self) -> Vec<EndpointState> {
        let state = self.state.lock();
        let endpoints = state.machine.endpoints().iter();
        endpoints.map(|endpoint| endpoint.state().clone()).collect()
    }

    /// Returns the limit of each endpoint, as it is listed in the specification; `None` if the agent is not adaptive.
    pub fn limits(&self) -> Option<Vec<AdaptiveLimit>> {
        self.state.lock().machine.limits()
    }

    /// Returns how many calls each endpoint may get that has just recovered, as it is listed in the specification.
    pub fn slow_starts(&self) -> Vec<Option<u32>> {
        self.state.lock().machine.slow_starts()
    }

    /// Returns the limit that keeps calls from beginning, if endpoints have just recovered and nothing else does.
    pub fn slow_start_limit(&self) -> Option<SlowStartLimit> {
        let slots = self.bulkhead.slots.most();
        self.state.lock().machine.slow_start_limit(slots)
    }

    /// Returns the limit that keeps calls from beginning, if the agent is adaptive and nothing else does.
    pub fn adapted_limit(&self) -> Option<AdaptedLimit> {
        let slots = self.bulkhead.slots.most();
        self.state.lock().machine.adapted_limit(slots)
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// Returns the pause that holds.
    pub fn pause(&self) -> Option<Pause> {
        self.state.lock().machine.pause().cloned()
    }

    /// Returns when the next window of downtime begins, or the one that holds ends.
    pub fn window_changes_at(&self) -> Option<Timestamp> {
        self.state.lock().machine.window_changes_at()
    }

    /// Returns the next windows of downtime.
    pub fn next_windows(&self, store_now: Timestamp, most: usize) -> Vec<DowntimeWindow> {
        self.state.lock().machine.next_windows(store_now, most)
    }

    pub fn is_throttled(&self) -> bool {
        self.state.lock().machine.is_throttled()
    }

    pub fn record(&self) -> ControlRecord {
        let state = self.state.lock();
        let (version, control) = state.machine.record();
        ControlRecord {
            version,
            control: control.clone(),
        }
    }

    /// Returns why no call can be made at all.
    pub fn stop(&self) -> Option<AgentStop> {
        self.state.lock().machine.stop(self.now())
    }
}

/// A call whose result may decide about its endpoint. Dropped before it ended, it counts as failed if its time was over.
pub(super) struct WatchedCall<'a> {
    guard: &'a Guard,
    url: &'a str,
    permit: CallPermit,
    leaves_out: bool,
    deadline: Instant,
    is_over: bool,
}

impl WatchedCall<'_> {
    /// Returns whether an endpoint that fails is left out because of it.
    pub fn leaves_out(&self) -> bool {
        self.leaves_out
    }

    /// An error says what was wrong.
    pub fn ended(mut self, result: Result<(), &str>, load: LoadSample<'_>) {
        self.is_over = true;
        let health = match result {
            Ok(()) => HealthSample::Succeeded,
            Err(why) => HealthSample::Failed(why),
        };
        self.guard.ended(&self, health, load);
    }
}

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let why = "no response before complete-by";
        let (health, load) = match clock::instant() >= self.deadline {
            true => (HealthSample::Failed(why), LoadSample::Refused(why)),
            false => (HealthSample::Unclear, LoadSample::Unclear),
        };
        self.guard.ended(self, health, load);
    }
}

#[cfg(test)]
mod tests;

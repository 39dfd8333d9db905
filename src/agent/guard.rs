//! What keeps calls from an agent in this process: a pause, and the breakers of its endpoints, as the shared record has
//! them and as this process has just seen for itself. It says how many calls each endpoint may take; a call asks no
//! lock of it where the agent has no breaker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{capacity::Bulkhead, meters};
use crate::{
    domain::{
        AgentName, AgentSpec, BreakerSpec, BreakerState, CallSample, CallWindow, ControlChange,
        InstanceId, LONGEST_THROTTLE, Observation, Pause, RateLimitSpec, SlowStart, Span, Throttle,
        Timestamp,
    },
    store::ControlRecord,
};

/// What this process has seen of an endpoint, for the record that all instances share.
#[derive(Clone, Debug)]
pub struct BreakerReport {
    pub agent: AgentName,
    pub change: ControlChange,
    /// Of the endpoint, if the change is one of an endpoint: what was seen before an earlier one changes nothing.
    epoch: u64,
}

/// Reports that are to be recorded, of all agents.
#[derive(Default)]
pub(super) struct Reports {
    waiting: Mutex<Vec<BreakerReport>>,
    wake: Notify,
}

impl Reports {
    fn add(&self, report: BreakerReport) {
        self.waiting.lock().push(report);
        self.wake.notify_one();
    }

    pub fn take(&self) -> Vec<BreakerReport> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// There may be something to record, or to look at later.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    pub async fn woken(&self) {
        self.wake.notified().await;
    }
}

/// Where a record comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordSource<'a> {
    /// It was read.
    Read,
    /// This process has changed it, or would have.
    Change,
    /// This is what the report of an endpoint came to, by its URL.
    Report(&'a str),
}

/// Why an agent is not called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stopped {
    Paused(Pause),
    /// All its endpoints have breakers that are not closed. The next look is at this time, where it is known.
    Breaker {
        until: Option<Timestamp>,
        reason: String,
    },
    /// The service asked for that.
    Throttled(Throttle),
    /// Its rate lets no further call begin now.
    Rate(RateLimitSpec),
    /// This instance lacks a secret that its requests need.
    Secret(String),
}

pub(super) struct Guard {
    agent: AgentName,
    instance: InstanceId,
    bulkhead: Arc<Bulkhead>,
    reports: Arc<Reports>,
    start: Instant,
    is_paused: AtomicBool,
    state: Mutex<GuardState>,
}

#[derive(Default)]
struct GuardState {
    breaker: Option<BreakerSpec>,
    record: ControlRecord,
    is_paused: bool,
    is_throttled: bool,
    /// Until then, by what this process learned itself.
    throttled_until: Option<Instant>,
    endpoints: Vec<GuardedEndpoint>,
}

struct GuardedEndpoint {
    url: String,
    max: u32,
    /// How many calls it may have under way; read on every call.
    allowed: Arc<AtomicU32>,
    position: Position,
    /// Since this process came to its position. What earlier calls bring does not count.
    epoch: u64,
    window: CallWindow,
    /// Calls of this epoch, and of earlier ones, that have not ended.
    under_way: u32,
    earlier: u32,
    /// Canaries that had no response when their time was over.
    unanswered: u32,
    /// Canaries that succeeded.
    succeeded: u32,
    /// After it has closed.
    slow_start: Option<SlowStart>,
    /// Whether this process waits for its report to be recorded.
    is_reported: bool,
}

/// What this process may do with an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    Closed,
    /// Open, or half-open by another instance.
    Open,
    /// Half-open by this instance.
    Canaries,
    /// Closed, whatever fails.
    Unwatched,
}

impl GuardedEndpoint {
    fn new(url: &str, max: u32) -> Self {
        Self {
            url: url.to_owned(),
            max,
            allowed: Arc::new(AtomicU32::new(max)),
            position: Position::Closed,
            epoch: 0,
            window: CallWindow::default(),
            under_way: 0,
            earlier: 0,
            unanswered: 0,
            succeeded: 0,
            slow_start: None,
            is_reported: false,
        }
    }

    fn take(&mut self, position: Position) {
        let was_stopped = matches!(self.position, Position::Open | Position::Canaries);
        self.slow_start = (was_stopped && position == Position::Closed).then(SlowStart::default);
        self.position = position;
        self.epoch += 1;
        self.window = CallWindow::default();
        self.earlier += std::mem::take(&mut self.under_way);
        self.unanswered = 0;
        self.succeeded = 0;
        self.is_reported = false;
    }

    fn most(&self, canaries: u32) -> u32 {
        match self.position {
            Position::Closed | Position::Unwatched => match self.slow_start {
                Some(slow_start) => self.max.min(slow_start.most(canaries)),
                None => self.max,
            },
            Position::Open => 0,
            Position::Canaries => {
                let hanging = self.earlier + self.unanswered.min(self.under_way);
                self.max.min(hanging.saturating_add(canaries))
            }
        }
    }
}

impl GuardState {
    fn position(&self, url: &str, instance: &InstanceId) -> Position {
        if self.breaker.is_none() {
            return Position::Closed;
        }
        match self
            .record
            .control
            .breakers
            .get(url)
            .map(|known| &known.state)
        {
            None => Position::Closed,
            Some(BreakerState::HalfOpen { prober, .. }) if prober == instance => Position::Canaries,
            Some(
                BreakerState::Open { .. }
                | BreakerState::HalfOpen { .. }
                | BreakerState::ForcedOpen,
            ) => Position::Open,
            Some(BreakerState::ForcedClosed) => Position::Unwatched,
        }
    }

    /// Sets what each endpoint may take. Returns what all may take together.
    fn recount(&self) -> u32 {
        let canaries = self.breaker.as_ref().map_or(0, |breaker| breaker.canaries);
        let each = self.endpoints.iter().map(|endpoint| {
            let most = endpoint.most(canaries);
            endpoint.allowed.store(most, Ordering::Relaxed);
            most
        });
        let sum = each.fold(0u32, u32::saturating_add);
        if sum == 0 || self.is_paused || self.is_throttled {
            return 0;
        }
        // Calls that are still under way to an open endpoint hold slots, which the others must not lack.
        let open = self.endpoints.iter();
        let open = open.filter(|endpoint| endpoint.position == Position::Open);
        open.fold(sum, |sum, endpoint| sum.saturating_add(endpoint.earlier))
    }
}

impl Guard {
    pub fn new(
        agent: AgentName,
        instance: InstanceId,
        bulkhead: Arc<Bulkhead>,
        reports: Arc<Reports>,
    ) -> Self {
        Self {
            agent,
            instance,
            bulkhead,
            reports,
            start: Instant::now(),
            is_paused: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// The agent has this specification from now on. Endpoints that stay keep what was seen of them.
    pub fn configure(&self, spec: &AgentSpec) {
        let mut state = self.state.lock();
        let is_new = state.breaker != spec.breaker;
        state.breaker.clone_from(&spec.breaker);
        let mut before = std::mem::take(&mut state.endpoints);
        for endpoint in &spec.endpoints {
            let known = before.iter().position(|known| known.url == endpoint.url);
            let is_known = known.is_some();
            let mut guarded = match known {
                Some(known) => before.swap_remove(known),
                None => GuardedEndpoint::new(&endpoint.url, endpoint.max_in_flight),
            };
            guarded.max = endpoint.max_in_flight;
            let position = state.position(&endpoint.url, &self.instance);
            if is_new || !is_known {
                guarded.take(position);
            }
            if state.breaker.is_none() {
                guarded.slow_start = None;
            }
            state.endpoints.push(guarded);
        }
        for gone in before {
            meters::show_breaker(&self.agent, &gone.url, None);
        }
        if is_new && state.breaker.is_none() {
            for unguarded in &state.endpoints {
                meters::show_breaker(&self.agent, &unguarded.url, None);
            }
        }
        self.resize(&state);
    }

    /// The count that the calls of an endpoint are limited by.
    pub fn allowed(&self, url: &str) -> Arc<AtomicU32> {
        let state = self.state.lock();
        let known = state.endpoints.iter().find(|known| known.url == url);
        known.map_or_else(Arc::default, |known| Arc::clone(&known.allowed))
    }

    /// The record is as it says now. What this process saw of an endpoint stands until its report is recorded, unless
    /// the record has another breaker for that endpoint since.
    pub fn take(&self, record: ControlRecord, now: Timestamp, source: RecordSource<'_>) {
        let mut state = self.state.lock();
        let is_read = source == RecordSource::Read;
        if is_read && record.version <= state.record.version {
            return self.look(&mut state, now);
        }
        let before = state.record.clone();
        if record.version >= before.version {
            state.record = record;
        }
        if !is_read {
            // The record has it, and says when it ends.
            state.throttled_until = None;
        }
        let mut endpoints = std::mem::take(&mut state.endpoints);
        for endpoint in &mut endpoints {
            let breaker = |of: &ControlRecord| of.control.breakers.get(&endpoint.url).cloned();
            let is_same = breaker(&before) == breaker(&state.record);
            let is_recorded = source == RecordSource::Report(&endpoint.url);
            if endpoint.is_reported && is_same && !is_recorded {
                continue;
            }
            endpoint.is_reported = false;
            let position = state.position(&endpoint.url, &self.instance);
            if endpoint.position != position {
                endpoint.take(position);
            } else if !is_same {
                // Its time was over and it goes on: those that hang must not keep others from showing more.
                endpoint.unanswered = endpoint.under_way;
            }
        }
        state.endpoints = endpoints;
        self.look(&mut state, now);
        self.reports.wake();
    }

    /// The version of the record for which the report counts; none if it has been overtaken.
    pub fn counts_for(&self, report: &BreakerReport) -> Option<u64> {
        let ControlChange::Endpoint { url, .. } = &report.change else {
            return None;
        };
        let state = self.state.lock();
        let endpoint = state.endpoints.iter().find(|known| known.url == *url)?;
        let is_current = endpoint.is_reported && endpoint.epoch == report.epoch;
        is_current.then_some(state.record.version)
    }

    /// The agent is removed: nothing keeps calls from it any more.
    pub fn removed(&self) {
        for endpoint in &self.state.lock().endpoints {
            meters::show_breaker(&self.agent, &endpoint.url, None);
        }
        meters::show_pause(&self.agent, false);
    }

    /// A pause may have ended.
    pub fn look_at(&self, now: Timestamp) {
        self.look(&mut self.state.lock(), now);
    }

    fn look(&self, state: &mut GuardState, now: Timestamp) {
        let pause = state.record.control.pause.as_ref();
        let is_paused = pause.is_some_and(|pause| pause.holds_at(now));
        let throttle = state.record.control.throttle.as_ref();
        let is_own = state
            .throttled_until
            .is_some_and(|until| until > Instant::now());
        state.is_throttled = is_own || throttle.is_some_and(|throttle| throttle.until > now);
        let was_paused = std::mem::replace(&mut state.is_paused, is_paused);
        self.is_paused.store(is_paused, Ordering::Relaxed);
        self.resize(state);
        self.show(state);
        if is_paused != was_paused {
            meters::show_pause(&self.agent, is_paused);
            // An agent without endpoints has no calls whose limit could grow.
            self.bulkhead.announce();
        }
    }

    fn resize(&self, state: &GuardState) {
        self.bulkhead.resize(state.recount());
    }

    fn show(&self, state: &GuardState) {
        if state.breaker.is_none() {
            return;
        }
        for endpoint in &state.endpoints {
            let known = state.record.control.breakers.get(&endpoint.url);
            meters::show_breaker(&self.agent, &endpoint.url, known.map(|known| &known.state));
        }
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    pub fn is_throttled(&self) -> bool {
        self.state.lock().is_throttled
    }

    pub fn record(&self) -> ControlRecord {
        self.state.lock().record.clone()
    }

    /// Why no call can be made at all.
    pub fn stopped(&self) -> Option<Stopped> {
        let state = self.state.lock();
        if let Some(pause) = state.record.control.pause.as_ref()
            && state.is_paused
        {
            return Some(Stopped::Paused(pause.clone()));
        }
        if let Some(throttle) = &state.record.control.throttle
            && state.is_throttled
        {
            return Some(Stopped::Throttled(throttle.clone()));
        }
        let stays_closed = |endpoint: &GuardedEndpoint| {
            matches!(endpoint.position, Position::Closed | Position::Unwatched)
        };
        if state.endpoints.is_empty() || state.endpoints.iter().any(stays_closed) {
            return None;
        }
        let breakers = &state.record.control.breakers;
        let known = state
            .endpoints
            .iter()
            .filter_map(|endpoint| breakers.get(&endpoint.url));
        let opens = |state: &BreakerState| match state {
            BreakerState::Open { until } => Some(*until),
            _ => None,
        };
        Some(Stopped::Breaker {
            until: known.clone().filter_map(|known| opens(&known.state)).min(),
            reason: match known.clone().next() {
                Some(known) => known.reason.clone(),
                None => "too many calls failed".to_owned(),
            },
        })
    }

    /// A response asked for no call in so long.
    pub fn throttle(&self, wait: Duration, reason: &str) {
        let mut state = self.state.lock();
        let until = Instant::now() + wait.min(LONGEST_THROTTLE.duration());
        if state.throttled_until.is_some_and(|known| known >= until) {
            return;
        }
        state.throttled_until = Some(until);
        state.is_throttled = true;
        self.resize(&state);
        self.reports.add(BreakerReport {
            agent: self.agent.clone(),
            change: ControlChange::Throttle {
                wait: wait.min(LONGEST_THROTTLE.duration()).into(),
                reason: short(reason).to_owned(),
            },
            epoch: 0,
        });
    }

    /// A call to the endpoint begins. `None` where nobody watches.
    pub fn begin<'a>(&'a self, url: &'a str, deadline: Instant) -> Option<WatchedCall<'a>> {
        let mut state = self.state.lock();
        state.breaker.as_ref()?;
        let endpoint = state.endpoints.iter_mut().find(|known| known.url == url)?;
        endpoint.under_way += 1;
        Some(WatchedCall {
            guard: self,
            url,
            epoch: endpoint.epoch,
            began: Instant::now(),
            deadline,
            is_over: false,
        })
    }

    /// `result`: `None` if the call says nothing of the endpoint, and an error says what was wrong.
    fn ended(&self, call: &WatchedCall<'_>, result: Option<Result<(), &str>>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut known = state.endpoints.iter();
        let Some(at) = known.position(|known| known.url == call.url) else {
            return;
        };
        let endpoint = &mut state.endpoints[at];
        if endpoint.epoch != call.epoch {
            endpoint.earlier = endpoint.earlier.saturating_sub(1);
            if matches!(endpoint.position, Position::Canaries | Position::Open) {
                self.resize(state);
            }
            return;
        }
        endpoint.under_way = endpoint.under_way.saturating_sub(1);
        if endpoint.unanswered > endpoint.under_way {
            endpoint.unanswered = endpoint.under_way;
            self.resize(state);
        }
        let endpoint = &mut state.endpoints[at];
        let (Some(spec), Some(result)) = (&state.breaker, result) else {
            return;
        };
        let took = now.saturating_duration_since(call.began);
        let sample = CallSample {
            failed: result.is_err(),
            slow: spec.is_slow(took.into()),
        };
        if let Some(slow_start) = &mut endpoint.slow_start {
            slow_start.add(spec.canaries, sample);
            if slow_start.most(spec.canaries) >= endpoint.max {
                endpoint.slow_start = None;
            }
            self.resize(state);
        }
        let endpoint = &mut state.endpoints[at];
        let millis = now.saturating_duration_since(self.start).as_millis() as u64;
        let observation = match endpoint.position {
            Position::Closed => match endpoint.window.add(spec, millis, sample) {
                Some(reason) => Observation::Tripped {
                    reason: match result {
                        Ok(()) => reason,
                        Err(why) => format!("{reason}; the last one: {}", short(why)),
                    },
                },
                None => return,
            },
            Position::Canaries if endpoint.is_reported => return,
            Position::Canaries if sample.failed || sample.slow => Observation::Relapsed {
                reason: match result {
                    Err(why) => format!("it was tried again and failed: {}", short(why)),
                    Ok(()) => format!("it was tried again and took {}", Span::from(took)),
                },
            },
            Position::Canaries => {
                endpoint.succeeded += 1;
                if endpoint.succeeded < spec.canaries {
                    return;
                }
                Observation::Recovered
            }
            Position::Open | Position::Unwatched => return,
        };
        if observation != Observation::Recovered {
            // At once: the record follows.
            endpoint.take(Position::Open);
        }
        endpoint.is_reported = true;
        let report = BreakerReport {
            agent: self.agent.clone(),
            change: ControlChange::Endpoint {
                url: endpoint.url.clone(),
                seen: observation,
            },
            epoch: endpoint.epoch,
        };
        self.resize(state);
        self.reports.add(report);
    }
}

/// Enough to see what is wrong.
const LONGEST_WHY: usize = 200;

fn short(why: &str) -> &str {
    &why[..why.floor_char_boundary(LONGEST_WHY)]
}

/// A call to an endpoint with a breaker. Dropped before it ended, it counts as failed if its time was over.
pub(super) struct WatchedCall<'a> {
    guard: &'a Guard,
    url: &'a str,
    epoch: u64,
    began: Instant,
    deadline: Instant,
    is_over: bool,
}

impl WatchedCall<'_> {
    /// An error says what was wrong.
    pub fn ended(mut self, result: Result<(), &str>) {
        self.is_over = true;
        self.guard.ended(&self, Some(result));
    }
}

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let timed_out = Instant::now() >= self.deadline;
            let why = "no response before complete-by";
            self.guard.ended(self, timed_out.then_some(Err(why)));
        }
    }
}

#[cfg(test)]
mod tests;

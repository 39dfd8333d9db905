//! What keeps calls from an agent in this process: a pause, the breakers and ejections of its endpoints, as the shared
//! record has them and as this process has just seen for itself, and limits that adapt to what it sees. It says how many calls each endpoint may take; a call
//! asks no lock of it where nothing depends on how the calls of the agent go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tracing::debug;

use super::{capacity::Bulkhead, last_stop::LastStop, meters};
use crate::{
    domain::{
        AdaptedLimit, AdaptiveLimit, AgentName, AgentSpec, Blocked, BreakerState, CallSample,
        CallWindow, ControlChange, DowntimeWindow, Downtimes, Endpoint, EndpointState, InstanceId,
        LONGEST_THROTTLE, LoadSample, Observation, PastStop, Pause, RateLimitSpec, SlowStart,
        SlowStartLimit, Span, Throttle, Timestamp, may_eject, reason_to_open_all,
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
    /// No endpoint takes calls, and some have breakers that are not closed. The next look is at this time, where it is
    /// known.
    Breaker {
        until: Option<Timestamp>,
        reason: String,
    },
    /// No endpoint takes calls, because their checks fail. The next check is at this time.
    Unhealthy {
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

impl Stopped {
    /// What a step of the agent waits for.
    pub fn blocks(self, agent: AgentName) -> Blocked {
        match self {
            Self::Paused(pause) => Blocked::AgentPaused {
                agent,
                until: pause.until,
                message: pause.reason,
            },
            Self::Throttled(throttle) => Blocked::Throttled {
                agent,
                until: throttle.until,
                message: throttle.reason,
            },
            Self::Rate(limit) => Blocked::RateLimit {
                agent,
                rate: limit.rate.to_string(),
            },
            Self::Secret(message) => Blocked::Secret { agent, message },
            Self::Unhealthy { until, reason } => Blocked::Unhealthy {
                agent,
                until,
                message: reason,
            },
            Self::Breaker { until, reason } => Blocked::Breaker {
                agent,
                until,
                message: reason,
            },
        }
    }

    /// For the history, once it is over.
    fn in_words(&self) -> String {
        match self {
            Self::Paused(pause) => match &pause.reason {
                Some(reason) => format!("it was paused by {}: {reason}", pause.by),
                None => format!("it was paused by {}", pause.by),
            },
            Self::Breaker { reason, .. } => format!("its breaker was open: {reason}"),
            Self::Unhealthy { reason, .. } => format!("its checks failed: {reason}"),
            Self::Throttled(throttle) => {
                format!("its service asked for that: {}", throttle.reason)
            }
            Self::Rate(limit) => format!("its rate was used up: {}", limit.rate),
            Self::Secret(message) => message.clone(),
        }
    }
}

pub(super) struct Guard {
    agent: AgentName,
    instance: InstanceId,
    bulkhead: Arc<Bulkhead>,
    reports: Arc<Reports>,
    start: Instant,
    is_paused: AtomicBool,
    last_stop: LastStop,
    state: Mutex<GuardState>,
}

#[derive(Default)]
struct GuardState {
    /// Of the agent.
    spec: AgentSpec,
    /// When the record was last looked at, by the store's clock and by this machine's.
    looked_at: Option<(Timestamp, Instant)>,
    record: ControlRecord,
    downtimes: Downtimes,
    /// As the downtimes say, for a time.
    known_window: Option<KnownWindow>,
    /// The pause that holds, by an operator or in a window.
    pause: Option<Pause>,
    is_throttled: bool,
    /// Until then, by what this process learned itself.
    throttled_until: Option<Instant>,
    /// Why no call is made now.
    stop: Option<Stopped>,
    endpoints: Vec<GuardedEndpoint>,
}

/// What the downtimes of the agent say from a time until another, so that it is not searched for on every look.
struct KnownWindow {
    from: Timestamp,
    until: Timestamp,
    window: Option<DowntimeWindow>,
}

impl KnownWindow {
    fn at(downtimes: &Downtimes, now: Timestamp) -> Self {
        let window = downtimes.holds_at(now);
        let until = match &window {
            Some(window) => Some(window.end),
            None => downtimes.next(now, 1).first().map(|next| next.start),
        };
        Self {
            from: now,
            until: until.unwrap_or(now + LONGEST_KNOWN),
            window,
        }
    }
}

/// Where no window comes.
const LONGEST_KNOWN: Span = Span::from_secs(24 * 3600);

struct GuardedEndpoint {
    spec: Endpoint,
    /// How many calls it may have under way; read on every call.
    allowed: Arc<AtomicU32>,
    /// Only where the agent is adaptive.
    adaptive: Option<AdaptiveLimit>,
    position: Position,
    /// Since this process came to its position. What earlier calls bring does not count.
    epoch: u64,
    window: CallWindow,
    /// How many calls in a row have failed.
    failures: u32,
    /// Calls of this epoch, and of earlier ones, that have not ended.
    under_way: u32,
    earlier: u32,
    /// Canaries that had no response when their time was over.
    unanswered: u32,
    /// Canaries that succeeded.
    succeeded: u32,
    /// After it was not called.
    slow_start: Option<SlowStart>,
    /// Whether this process waits for its report to be recorded.
    is_reported: bool,
    /// Besides its breaker, by the record when it was last looked at.
    state: EndpointState,
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
    /// It is ejected or drained, or its checks fail.
    Out,
}

impl Position {
    fn takes_calls(self) -> bool {
        matches!(self, Self::Closed | Self::Unwatched)
    }
}

/// How many calls show whether an endpoint works again, where the agent has no breaker that says so.
const CANARIES: u32 = 3;

impl GuardedEndpoint {
    fn new(spec: &Endpoint) -> Self {
        Self {
            spec: spec.clone(),
            allowed: Arc::new(AtomicU32::new(spec.max_in_flight)),
            adaptive: None,
            position: Position::Closed,
            epoch: 0,
            window: CallWindow::default(),
            failures: 0,
            under_way: 0,
            earlier: 0,
            unanswered: 0,
            succeeded: 0,
            slow_start: None,
            is_reported: false,
            state: EndpointState::default(),
        }
    }

    fn take(&mut self, position: Position) {
        let returns = !self.position.takes_calls() && position == Position::Closed;
        self.slow_start = returns.then(SlowStart::default);
        self.position = position;
        self.epoch += 1;
        self.window = CallWindow::default();
        self.failures = 0;
        self.earlier += std::mem::take(&mut self.under_way);
        self.unanswered = 0;
        self.succeeded = 0;
        self.is_reported = false;
    }

    fn most(&self, canaries: u32) -> u32 {
        let max = self.spec.max_in_flight;
        let adapted = self.adaptive.as_ref().map_or(max, AdaptiveLimit::limit);
        match self.position {
            Position::Closed | Position::Unwatched => match self.slow_start {
                // Calls of before may hang: they must not keep the others out.
                Some(slow_start) => {
                    let most = slow_start.most(canaries).min(adapted);
                    max.min(self.earlier.saturating_add(most))
                }
                None => max.min(adapted),
            },
            Position::Open | Position::Out => 0,
            Position::Canaries => {
                let hanging = self.earlier + self.unanswered.min(self.under_way);
                max.min(hanging.saturating_add(canaries.min(adapted)))
            }
        }
    }

    /// The agent is adaptive from now on, or no more; what was seen of the endpoint stays.
    fn adapt(&mut self, spec: &AgentSpec) {
        let max = self.spec.max_in_flight;
        let Some(spec) = &spec.adaptive else {
            self.adaptive = None;
            return;
        };
        match &mut self.adaptive {
            Some(known) => known.configure(spec, max),
            new => *new = Some(AdaptiveLimit::new(spec, max)),
        }
    }
}

/// Which metrics its endpoints have.
#[derive(Clone, Copy)]
struct ShownStates {
    breakers: bool,
    ejections: bool,
    checks: bool,
    limits: bool,
}

impl ShownStates {
    /// Nothing is to be seen of the endpoint any more.
    fn clear(self, agent: &AgentName, url: &str) {
        if self.breakers {
            meters::show_breaker(agent, url, None);
        }
        if self.ejections {
            meters::show_ejection(agent, url, false);
        }
        if self.checks {
            meters::show_check(agent, url, true);
        }
        if self.limits {
            meters::show_limit(agent, url, 0);
        }
    }
}

impl GuardState {
    fn shown(&self) -> ShownStates {
        ShownStates {
            breakers: self.spec.breaker.is_some(),
            ejections: self.spec.ejection.is_some(),
            checks: self.spec.health.is_some(),
            limits: self.spec.watches_calls(),
        }
    }

    fn canaries(&self) -> u32 {
        let breaker = self.spec.breaker.as_ref();
        breaker.map_or(CANARIES, |breaker| breaker.canaries)
    }

    /// By the record.
    fn position(&self, endpoint: &GuardedEndpoint, instance: &InstanceId) -> Position {
        let breakers = &self.record.control.breakers;
        let breaker = breakers
            .get(&endpoint.spec.url)
            .filter(|_| self.spec.breaker.is_some());
        match breaker.map(|known| &known.state) {
            _ if !endpoint.state.is_healthy() => Position::Out,
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

    fn endpoint_state(&self, endpoint: &Endpoint, now: Timestamp) -> EndpointState {
        let control = &self.record.control;
        control.endpoint_state(endpoint, &self.spec, now)
    }

    /// By what this process knows.
    fn may_eject(&self) -> bool {
        let all = self.endpoints.iter();
        let all = all.filter(|endpoint| !endpoint.spec.drain);
        let out = all.clone();
        let out = out.filter(|endpoint| !endpoint.position.takes_calls());
        may_eject(out.count(), all.count())
    }

    /// Why the endpoints that get calls all have to be opened, if they must.
    fn reason_to_open_all(&mut self, millis: u64) -> Option<String> {
        let spec = self.spec.breaker.as_ref()?;
        let closed = self.endpoints.iter_mut();
        let closed = closed.filter(|endpoint| endpoint.position == Position::Closed);
        reason_to_open_all(spec, millis, closed.map(|endpoint| &mut endpoint.window))
    }

    /// The store's time, about.
    fn now(&self) -> Timestamp {
        match self.looked_at {
            Some((then, at)) => then + at.elapsed().into(),
            None => Timestamp::from_millis(0),
        }
    }

    /// Why no call can be made at all.
    fn stopped(&self) -> Option<Stopped> {
        if let Some(pause) = &self.pause {
            return Some(Stopped::Paused(pause.clone()));
        }
        if let Some(throttle) = &self.record.control.throttle
            && self.is_throttled
        {
            return Some(Stopped::Throttled(throttle.clone()));
        }
        let takes_calls = |endpoint: &GuardedEndpoint| endpoint.position.takes_calls();
        if self.endpoints.is_empty() || self.endpoints.iter().any(takes_calls) {
            return None;
        }
        Some(self.unavailable())
    }

    /// Why no endpoint takes calls.
    fn unavailable(&self) -> Stopped {
        let now = self.now();
        let (mut until, mut opened, mut unhealthy) = (None::<Timestamp>, None, None);
        for endpoint in &self.endpoints {
            let breaker = self.record.control.breakers.get(&endpoint.spec.url);
            let next = match (&endpoint.state, &self.spec.health) {
                (EndpointState::Unhealthy(known), Some(health)) => {
                    unhealthy.get_or_insert(&known.reason);
                    Some(known.next_check(health, now))
                }
                (EndpointState::Ejected(ejection), _) => Some(ejection.until),
                (EndpointState::Draining, _) => None,
                _ => {
                    opened = opened.or(breaker.map(|breaker| &breaker.reason));
                    match breaker.map(|breaker| &breaker.state) {
                        Some(BreakerState::Open { until }) => Some(*until),
                        _ => None,
                    }
                }
            };
            until = match (until, next) {
                (Some(until), Some(next)) => Some(until.min(next)),
                (until, next) => until.or(next),
            };
        }
        match (opened, unhealthy) {
            (None, Some(reason)) => Stopped::Unhealthy {
                until,
                reason: reason.clone(),
            },
            (reason, _) => Stopped::Breaker {
                until,
                reason: match reason {
                    Some(reason) => reason.clone(),
                    None => "too many calls failed".to_owned(),
                },
            },
        }
    }

    /// Sets what each endpoint may take. Returns what all may take together.
    fn recount(&self, agent: &AgentName) -> u32 {
        let canaries = self.canaries();
        let each = self.endpoints.iter().map(|endpoint| {
            let most = endpoint.most(canaries);
            if endpoint.allowed.swap(most, Ordering::Relaxed) != most && self.shown().limits {
                meters::show_limit(agent, &endpoint.spec.url, most);
            }
            most
        });
        let sum = each.fold(0u32, u32::saturating_add);
        if sum == 0 || self.pause.is_some() || self.is_throttled {
            return 0;
        }
        // Calls that are still under way to an open endpoint hold slots, which the others must not lack.
        let open = self.endpoints.iter();
        let open =
            open.filter(|endpoint| matches!(endpoint.position, Position::Open | Position::Out));
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
            last_stop: LastStop::default(),
            state: Mutex::default(),
        }
    }

    /// The agent has this specification from now on. Endpoints that stay keep what was seen of them.
    pub fn configure(&self, spec: &AgentSpec) {
        let mut state = self.state.lock();
        let known = &state.spec;
        let is_new = known.breaker != spec.breaker || known.ejection != spec.ejection;
        let shown = state.shown();
        if known.downtime != spec.downtime {
            state.downtimes = Downtimes::new(&spec.downtime);
            state.known_window = None;
        }
        state.spec.clone_from(spec);
        let now = state.now();
        let mut before = std::mem::take(&mut state.endpoints);
        for endpoint in &spec.endpoints {
            let known = before
                .iter()
                .position(|known| known.spec.url == endpoint.url);
            let is_known = known.is_some();
            let mut guarded = match known {
                Some(known) => before.swap_remove(known),
                None => GuardedEndpoint::new(endpoint),
            };
            guarded.spec.clone_from(endpoint);
            guarded.adapt(spec);
            guarded.state = state.endpoint_state(endpoint, now);
            let position = state.position(&guarded, &self.instance);
            let has_moved = !guarded.is_reported && guarded.position != position;
            if is_new || !is_known || has_moved {
                guarded.take(position);
            }
            if !spec.watches_calls() {
                guarded.slow_start = None;
            }
            state.endpoints.push(guarded);
        }
        let shows = state.shown();
        for gone in before {
            shown.clear(&self.agent, &gone.spec.url);
        }
        let ended = ShownStates {
            breakers: shown.breakers && !shows.breakers,
            ejections: shown.ejections && !shows.ejections,
            checks: shown.checks && !shows.checks,
            limits: shown.limits && !shows.limits,
        };
        for endpoint in &state.endpoints {
            ended.clear(&self.agent, &endpoint.spec.url);
        }
        self.show(&state);
        self.resize(&mut state);
    }

    /// The count that the calls of an endpoint are limited by.
    pub fn allowed(&self, url: &str) -> Arc<AtomicU32> {
        let state = self.state.lock();
        let known = state.endpoints.iter().find(|known| known.spec.url == url);
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
            let url = &endpoint.spec.url;
            let known = |of: &ControlRecord| {
                let breaker = of.control.breakers.get(url).cloned();
                let control = &of.control;
                let ejection = control.ejections.get(url).cloned();
                (breaker, ejection, control.unhealthy.get(url).cloned())
            };
            let is_same = known(&before) == known(&state.record);
            let is_recorded = source == RecordSource::Report(url);
            if endpoint.is_reported && is_same && !is_recorded {
                continue;
            }
            endpoint.is_reported = false;
            endpoint.state = state.endpoint_state(&endpoint.spec, now);
            let position = state.position(endpoint, &self.instance);
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
        let mut known = state.endpoints.iter();
        let endpoint = known.find(|known| known.spec.url == *url)?;
        let is_current = endpoint.is_reported && endpoint.epoch == report.epoch;
        is_current.then_some(state.record.version)
    }

    /// The agent is removed: nothing keeps calls from it any more.
    pub fn removed(&self) {
        let state = self.state.lock();
        for endpoint in &state.endpoints {
            state.shown().clear(&self.agent, &endpoint.spec.url);
        }
        meters::show_pause(&self.agent, false);
        if state.is_throttled {
            meters::show_throttle(&self.agent, false);
        }
    }

    /// A pause or an ejection may have ended.
    pub fn look_at(&self, now: Timestamp) {
        self.look(&mut self.state.lock(), now);
    }

    fn look(&self, state: &mut GuardState, now: Timestamp) {
        if !state.downtimes.is_empty() {
            let known = state.known_window.take();
            let holds = known.filter(|known| (known.from..known.until).contains(&now));
            let known = holds.unwrap_or_else(|| KnownWindow::at(&state.downtimes, now));
            state.known_window = Some(known);
        }
        let window = state.known_window.as_ref();
        let window = window.and_then(|known| known.window.as_ref());
        let pause = state.record.control.pause_at(window, now);
        let is_paused = pause.is_some();
        let was_paused = std::mem::replace(&mut state.pause, pause).is_some();
        let throttle = state.record.control.throttle.as_ref();
        let is_own = state
            .throttled_until
            .is_some_and(|until| until > Instant::now());
        let is_throttled = is_own || throttle.is_some_and(|throttle| throttle.until > now);
        if std::mem::replace(&mut state.is_throttled, is_throttled) != is_throttled {
            meters::show_throttle(&self.agent, is_throttled);
        }
        self.is_paused.store(is_paused, Ordering::Relaxed);
        self.look_at_endpoints(state, now);
        self.resize(state);
        self.show(state);
        if is_paused != was_paused {
            meters::show_pause(&self.agent, is_paused);
            // An agent without endpoints has no calls whose limit could grow.
            self.bulkhead.announce();
        }
    }

    fn look_at_endpoints(&self, state: &mut GuardState, now: Timestamp) {
        state.looked_at = Some((now, Instant::now()));
        let mut endpoints = std::mem::take(&mut state.endpoints);
        for endpoint in &mut endpoints {
            endpoint.state = state.endpoint_state(&endpoint.spec, now);
            let position = state.position(endpoint, &self.instance);
            if !endpoint.is_reported && endpoint.position != position {
                endpoint.take(position);
            }
        }
        state.endpoints = endpoints;
    }

    fn resize(&self, state: &mut GuardState) {
        let most = state.recount(&self.agent);
        let is_stopped = state.pause.is_some() || (most == 0 && !state.endpoints.is_empty());
        if is_stopped {
            let why = state.stopped();
            // What this process has just seen is in the record later.
            state.stop = why.or(state.stop.take());
        } else if let Some(stop) = state.stop.take() {
            let (until, why) = (state.now(), stop.in_words());
            let at = None;
            self.last_stop.set(PastStop { until, why, at });
        }
        self.bulkhead.resize(most);
    }

    /// This instance could make no request until now, because of a secret.
    pub fn note_secret_fault(&self, why: String, now: Instant) {
        self.last_stop.note_secret_fault(why, now);
    }

    /// Why no call was made until a moment, if there was such a time since this process knows the agent. `now` is the
    /// store's time at `instant`.
    pub fn past_stop(&self, now: Timestamp, instant: Instant) -> Option<Arc<PastStop>> {
        self.last_stop.get(&self.instance, now, instant)
    }

    fn show(&self, state: &GuardState) {
        for endpoint in &state.endpoints {
            let url = &endpoint.spec.url;
            if state.spec.breaker.is_some() {
                let known = state.record.control.breakers.get(url);
                meters::show_breaker(&self.agent, url, known.map(|known| &known.state));
            }
            if state.spec.ejection.is_some() {
                let is_ejected = matches!(endpoint.state, EndpointState::Ejected(_));
                meters::show_ejection(&self.agent, url, is_ejected);
            }
            if state.spec.health.is_some() {
                let is_unhealthy = matches!(endpoint.state, EndpointState::Unhealthy(_));
                meters::show_check(&self.agent, url, !is_unhealthy);
            }
            if state.shown().limits {
                let most = endpoint.most(state.canaries());
                meters::show_limit(&self.agent, url, most);
            }
        }
    }

    /// The state of each endpoint, as it is listed in the specification.
    pub fn endpoint_states(&self) -> Vec<EndpointState> {
        let state = self.state.lock();
        let states = state.endpoints.iter();
        states.map(|endpoint| endpoint.state.clone()).collect()
    }

    /// The limit of each endpoint, as it is listed in the specification; `None` if the agent is not adaptive.
    pub fn limits(&self) -> Option<Vec<AdaptiveLimit>> {
        let state = self.state.lock();
        state.spec.adaptive.as_ref()?;
        let limits = state.endpoints.iter();
        let limits = limits.filter_map(|endpoint| endpoint.adaptive.clone());
        Some(limits.collect())
    }

    /// How many calls each endpoint may get that has just recovered, as it is listed in the specification.
    pub fn slow_starts(&self) -> Vec<Option<u32>> {
        let state = self.state.lock();
        let canaries = state.canaries();
        let most = |endpoint: &GuardedEndpoint| {
            let slow_start = endpoint.slow_start?;
            let most = slow_start.most(canaries).min(endpoint.spec.max_in_flight);
            endpoint.position.takes_calls().then_some(most)
        };
        state.endpoints.iter().map(most).collect()
    }

    /// The limit that keeps calls from beginning, if endpoints have just recovered and nothing else does.
    pub fn slow_start_limit(&self) -> Option<SlowStartLimit> {
        let state = self.state.lock();
        let canaries = state.canaries();
        let open = state.endpoints.iter();
        let open = open.filter(|endpoint| endpoint.position.takes_calls());
        if !open.clone().any(|endpoint| endpoint.slow_start.is_some()) {
            return None;
        }
        let limit = open.clone().map(|endpoint| endpoint.most(canaries));
        let limit = limit.fold(0u32, u32::saturating_add);
        let most = open.map(|endpoint| endpoint.spec.max_in_flight);
        let most = most.fold(0u32, u32::saturating_add);
        let is_lowest = limit < most && limit <= self.bulkhead.slots.most();
        is_lowest.then_some(SlowStartLimit { limit, most })
    }

    /// The limit that keeps calls from beginning, if the agent is adaptive and nothing else does.
    pub fn adapted_limit(&self) -> Option<AdaptedLimit> {
        let state = self.state.lock();
        state.spec.adaptive.as_ref()?;
        let takes_calls = |endpoint: &&GuardedEndpoint| endpoint.position.takes_calls();
        let open = || state.endpoints.iter().filter(takes_calls);
        let limits = || open().filter_map(|endpoint| endpoint.adaptive.as_ref());
        let limit = limits().fold(0u32, |sum, known| sum.saturating_add(known.limit()));
        let most = limits().fold(0u32, |sum, known| sum.saturating_add(known.most()));
        if limit >= most || self.bulkhead.slots.most() < limit {
            return None;
        }
        let fallen = open().filter_map(|endpoint| {
            let known = endpoint.adaptive.as_ref()?;
            Some((endpoint, known, known.reason()?))
        });
        let lowest = fallen.min_by_key(|(_, known, _)| known.limit());
        Some(AdaptedLimit {
            limit,
            most,
            message: lowest.map(|(endpoint, _, reason)| match state.endpoints.len() {
                1 => reason.to_owned(),
                _ => format!("{} {reason}", endpoint.spec.url),
            }),
        })
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// The pause that holds.
    pub fn pause(&self) -> Option<Pause> {
        self.state.lock().pause.clone()
    }

    /// When the next window of downtime begins, or the one that holds ends.
    pub fn window_changes_at(&self) -> Option<Timestamp> {
        let state = self.state.lock();
        state.known_window.as_ref().map(|known| known.until)
    }

    /// The next windows of downtime.
    pub fn next_windows(&self, now: Timestamp, most: usize) -> Vec<DowntimeWindow> {
        self.state.lock().downtimes.next(now, most)
    }

    pub fn is_throttled(&self) -> bool {
        self.state.lock().is_throttled
    }

    pub fn record(&self) -> ControlRecord {
        self.state.lock().record.clone()
    }

    /// Why no call can be made at all.
    pub fn stopped(&self) -> Option<Stopped> {
        self.state.lock().stopped()
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
        meters::show_throttle(&self.agent, true);
        self.resize(&mut state);
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
        if !state.spec.watches_calls() {
            return None;
        }
        let mut known = state.endpoints.iter_mut();
        let endpoint = known.find(|known| known.spec.url == url)?;
        endpoint.under_way += 1;
        if let Some(adaptive) = &mut endpoint.adaptive {
            let in_flight = endpoint.under_way.saturating_add(endpoint.earlier);
            // Calls that are still to begin, or whose replies are being saved, have slots too.
            let is_full = in_flight >= adaptive.limit() || self.bulkhead.is_full();
            adaptive.began(in_flight, is_full);
        }
        let epoch = endpoint.epoch;
        Some(WatchedCall {
            guard: self,
            url,
            epoch,
            leaves_out: state.spec.leaves_endpoints_out(),
            began: Instant::now(),
            deadline,
            is_over: false,
        })
    }

    /// `result`: `None` if the call says nothing of the endpoint, and an error says what was wrong.
    fn ended(
        &self,
        call: &WatchedCall<'_>,
        result: Option<Result<(), &str>>,
        load: LoadSample<'_>,
    ) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut known = state.endpoints.iter();
        let Some(at) = known.position(|known| known.spec.url == call.url) else {
            return;
        };
        let endpoint = &mut state.endpoints[at];
        if endpoint.epoch != call.epoch {
            endpoint.earlier = endpoint.earlier.saturating_sub(1);
            if !endpoint.position.takes_calls() || endpoint.slow_start.is_some() {
                self.resize(state);
            }
            return;
        }
        endpoint.under_way = endpoint.under_way.saturating_sub(1);
        if endpoint.unanswered > endpoint.under_way {
            endpoint.unanswered = endpoint.under_way;
            self.resize(state);
        }
        self.adapt(state, at, call.began, now, load);
        let Some(result) = result else {
            return;
        };
        let took = now.saturating_duration_since(call.began);
        let breaker = state.spec.breaker.as_ref();
        let sample = CallSample {
            failed: result.is_err(),
            slow: breaker.is_some_and(|spec| spec.is_slow(took.into())),
        };
        let canaries = state.canaries();
        let endpoint = &mut state.endpoints[at];
        if let Some(slow_start) = &mut endpoint.slow_start {
            slow_start.add(canaries, sample);
            if slow_start.most(canaries) >= endpoint.spec.max_in_flight {
                endpoint.slow_start = None;
            }
            self.resize(state);
        }
        match state.endpoints[at].position {
            Position::Closed => {
                let millis = now.saturating_duration_since(self.start).as_millis() as u64;
                self.judge(state, at, millis, sample, result);
            }
            Position::Canaries => self.judge_canary(state, at, took.into(), sample, result),
            Position::Open | Position::Out | Position::Unwatched => {}
        }
    }

    /// The limit of an endpoint may be another one by how a call has gone.
    fn adapt(
        &self,
        state: &mut GuardState,
        at: usize,
        began: Instant,
        now: Instant,
        load: LoadSample<'_>,
    ) {
        let clock = Duration::from_millis(state.now().as_millis().try_into().unwrap_or_default());
        let endpoint = &mut state.endpoints[at];
        let is_called = endpoint.position.takes_calls();
        let Some(adaptive) = endpoint.adaptive.as_mut().filter(|_| is_called) else {
            return;
        };
        let since = |at: Instant| at.saturating_duration_since(self.start);
        let load = match load {
            LoadSample::Refused(why) => LoadSample::Refused(short(why)),
            other => other,
        };
        let before = adaptive.limit();
        if !adaptive.ended(since(began), since(now), clock, load) {
            return;
        }
        let (url, limit) = (&endpoint.spec.url, adaptive.limit());
        if limit < before {
            debug!(agent = %self.agent, endpoint = %url, limit, reason = adaptive.reason(), "limit of calls in flight has fallen");
        }
        self.resize(state);
    }

    /// A call to an endpoint whose breaker is closed has ended.
    fn judge(
        &self,
        state: &mut GuardState,
        at: usize,
        millis: u64,
        sample: CallSample,
        result: Result<(), &str>,
    ) {
        let with_cause = |reason: String| match result {
            Ok(()) => reason,
            Err(why) => format!("{reason}; the last one: {}", short(why)),
        };
        let endpoint = &mut state.endpoints[at];
        let breaker = state.spec.breaker.as_ref();
        let reason = breaker.and_then(|spec| endpoint.window.add(spec, millis, sample));
        if let Some(reason) = reason {
            let reason = with_cause(reason);
            return self.report(state, at, Observation::Tripped { reason });
        }
        if (sample.failed || sample.slow)
            && state.endpoints.len() > 1
            && let Some(reason) = state.reason_to_open_all(millis)
        {
            for at in 0..state.endpoints.len() {
                let endpoint = &state.endpoints[at];
                if endpoint.position == Position::Closed && !endpoint.window.is_empty() {
                    let reason = with_cause(reason.clone());
                    self.report(state, at, Observation::Tripped { reason });
                }
            }
            return;
        }
        let Some(ejection) = &state.spec.ejection else {
            return;
        };
        let after = ejection.after;
        let endpoint = &mut state.endpoints[at];
        endpoint.failures = match sample.failed {
            true => endpoint.failures.saturating_add(1),
            false => 0,
        };
        if endpoint.failures >= after && state.may_eject() {
            let reason = match after {
                1 => "a call failed".to_owned(),
                _ => format!("{after} calls in a row failed"),
            };
            let reason = with_cause(reason);
            self.report(state, at, Observation::Failing { reason });
        }
    }

    fn judge_canary(
        &self,
        state: &mut GuardState,
        at: usize,
        took: Span,
        sample: CallSample,
        result: Result<(), &str>,
    ) {
        let canaries = state.canaries();
        let endpoint = &mut state.endpoints[at];
        if endpoint.is_reported {
            return;
        }
        if sample.failed || sample.slow {
            let reason = match result {
                Err(why) => format!("it was tried again and failed: {}", short(why)),
                Ok(()) => format!("it was tried again and took {took}"),
            };
            return self.report(state, at, Observation::Relapsed { reason });
        }
        endpoint.succeeded += 1;
        if endpoint.succeeded >= canaries {
            self.report(state, at, Observation::Recovered);
        }
    }

    /// What was seen holds here at once, and for the others once it is recorded.
    fn report(&self, state: &mut GuardState, at: usize, seen: Observation) {
        let endpoint = &mut state.endpoints[at];
        match seen {
            Observation::Recovered | Observation::Due => {}
            Observation::Tripped { .. } | Observation::Relapsed { .. } => {
                endpoint.take(Position::Open);
            }
            Observation::Failing { .. } => endpoint.take(Position::Out),
        }
        endpoint.is_reported = true;
        let report = BreakerReport {
            agent: self.agent.clone(),
            change: ControlChange::Endpoint {
                url: endpoint.spec.url.clone(),
                seen,
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
    /// Whether an endpoint that fails gets no calls.
    leaves_out: bool,
    began: Instant,
    deadline: Instant,
    is_over: bool,
}

impl WatchedCall<'_> {
    /// Whether an endpoint that fails is left out because of it.
    pub fn leaves_out(&self) -> bool {
        self.leaves_out
    }

    /// An error says what was wrong.
    pub fn ended(mut self, result: Result<(), &str>, load: LoadSample<'_>) {
        self.is_over = true;
        self.guard.ended(&self, Some(result), load);
    }
}

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let timed_out = Instant::now() >= self.deadline;
            let why = "no response before complete-by";
            let load = match timed_out {
                true => LoadSample::Refused(why),
                false => LoadSample::Unclear,
            };
            self.guard.ended(self, timed_out.then_some(Err(why)), load);
        }
    }
}

#[cfg(test)]
mod tests;

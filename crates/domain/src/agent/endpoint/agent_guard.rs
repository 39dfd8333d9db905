//! The guard of an agent: its endpoints, and what keeps calls from all of them at once.

use std::time::Duration;

use super::{
    agent_stop::AgentStop,
    breaker_report::BreakerReport,
    endpoint_guard::{CallPermit, EndpointGuard, HealthSample},
    endpoint_set::{CallEffect, EndpointSet, short},
    window_cache::WindowCache,
};
use crate::{
    agent::{
        adaptive::LoadSample,
        control::{AgentControl, ControlChange, LONGEST_THROTTLE, Pause},
        downtime::DowntimeWindow,
        past_stop::PastStop,
        spec::AgentSpec,
    },
    values::{
        ids::{AgentName, InstanceId},
        time::Timestamp,
    },
};

/// The place that a record comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordSource<'a> {
    /// It was read.
    Read,
    /// This process has changed it, or would have.
    Change,
    /// This process has recorded its report of the endpoint with this URL, or would have.
    Report(&'a str),
}

/// The changes of a transition, for those who must know of it.
#[derive(PartialEq, Eq, Debug, Default)]
#[must_use = "slots, metrics and the shared record follow the changes"]
pub struct GuardChanges {
    /// [`AgentGuard::capacity`] may be another one.
    pub capacity: bool,
    /// The agent is paused, or is no more.
    pub is_paused: Option<bool>,
    /// The agent is throttled, or is no more.
    pub is_throttled: Option<bool>,
    /// The adaptive limit of the endpoint has fallen whose call has ended.
    pub limit_fell: bool,
    /// The shared record gets these.
    pub reports: Vec<BreakerReport>,
}

/// The calls of an agent that its endpoints take together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentCapacity {
    /// The most calls in flight. Zero: no call may begin.
    pub calls: u32,
    /// The time without calls that ends with this capacity.
    pub past_stop: Option<PastStop>,
}

/// The state machine that keeps calls from an agent in this process. `now` is the time since its start, by a clock that never
/// goes back; `store_now` is the store's time.
#[derive(Debug)]
pub struct AgentGuard {
    endpoints: EndpointSet,
    /// The version of the record.
    version: u64,
    control: AgentControl,
    /// The time of the last look at the record, by the store's clock and by that of the calls.
    looked_at: Option<(Timestamp, Duration)>,
    windows: WindowCache,
    /// The pause that holds, by an operator or in a window of downtime.
    pause: Option<Pause>,
    is_throttled: bool,
    /// The end of a throttle that this process asked for and the record does not have yet.
    throttled_until: Option<Duration>,
    /// The reason for which no call is made now.
    stop: Option<AgentStop>,
}

impl AgentGuard {
    pub fn new(agent: AgentName, instance: InstanceId) -> Self {
        Self {
            endpoints: EndpointSet::new(agent, instance),
            version: 0,
            control: AgentControl::default(),
            looked_at: None,
            windows: WindowCache::default(),
            pause: None,
            is_throttled: false,
            throttled_until: None,
            stop: None,
        }
    }

    /// Gives the agent another specification. Endpoints that stay keep what was seen of them. Returns the URLs of those that
    /// are gone.
    pub fn configure(&mut self, spec: &AgentSpec, now: Duration) -> Vec<String> {
        if self.spec().downtime != spec.downtime {
            self.windows = WindowCache::new(&spec.downtime);
        }
        let store_now = self.store_time(now);
        self.endpoints.configure(spec, &self.control, store_now)
    }

    /// The record is as it says now. What this process saw of an endpoint stands until its report is recorded, unless the
    /// record has another breaker for that endpoint since.
    pub fn take_record(
        &mut self,
        version: u64,
        control: AgentControl,
        source: RecordSource<'_>,
        store_now: Timestamp,
        now: Duration,
    ) -> GuardChanges {
        let reported = match source {
            RecordSource::Read if version <= self.version => return self.look(store_now, now),
            RecordSource::Read => None,
            RecordSource::Change | RecordSource::Report(_) => {
                // The record has it, and says when it ends.
                self.throttled_until = None;
                match source {
                    RecordSource::Report(url) => Some(url),
                    _ => None,
                }
            }
        };
        let known = &self.control;
        if version < self.version {
            // A later change has overtaken the one that this process recorded.
            self.endpoints
                .follow_change(known, known, reported, store_now);
        } else {
            self.endpoints
                .follow_change(known, &control, reported, store_now);
            (self.version, self.control) = (version, control);
        }
        self.look(store_now, now)
    }

    /// A pause, a throttle or an ejection may have ended.
    pub fn look(&mut self, store_now: Timestamp, now: Duration) -> GuardChanges {
        self.looked_at = Some((store_now, now));
        let window = self.windows.holds_at(store_now);
        let pause = self.control.pause_at(window, store_now);
        let is_paused = pause.is_some();
        let was_paused = std::mem::replace(&mut self.pause, pause).is_some();
        let throttle = self.control.throttle.as_ref();
        let is_own = self.throttled_until.is_some_and(|until| until > now);
        let is_throttled = is_own || throttle.is_some_and(|throttle| throttle.until > store_now);
        let was_throttled = std::mem::replace(&mut self.is_throttled, is_throttled);
        self.endpoints.follow_time(&self.control, store_now);
        GuardChanges {
            capacity: true,
            is_paused: (is_paused != was_paused).then_some(is_paused),
            is_throttled: (is_throttled != was_throttled).then_some(is_throttled),
            ..GuardChanges::default()
        }
    }

    /// A response asked for no call in this time.
    pub fn throttle(&mut self, wait: Duration, reason: &str, now: Duration) -> GuardChanges {
        let wait = wait.min(LONGEST_THROTTLE.duration());
        let until = now + wait;
        if self.throttled_until.is_some_and(|known| known >= until) {
            return GuardChanges::default();
        }
        self.throttled_until = Some(until);
        self.is_throttled = true;
        let change = ControlChange::Throttle {
            wait: wait.into(),
            reason: short(reason).to_owned(),
        };
        GuardChanges {
            capacity: true,
            is_throttled: Some(true),
            reports: vec![BreakerReport::of_agent(&self.endpoints.agent, change)],
            ..GuardChanges::default()
        }
    }

    /// A call to the endpoint begins. `is_full`: no slot is left for the next one. `None` if its result decides nothing.
    pub fn begin(&mut self, url: &str, now: Duration, is_full: bool) -> Option<CallPermit> {
        let is_watched = self.spec().watches_calls();
        is_watched
            .then(|| self.endpoints.begin(url, now, is_full))
            .flatten()
    }

    /// A call to the endpoint has ended.
    pub fn end(
        &mut self,
        url: &str,
        permit: CallPermit,
        health: HealthSample<'_>,
        load: LoadSample<'_>,
        now: Duration,
    ) -> GuardChanges {
        let clock = u64::try_from(self.store_time(now).as_millis()).unwrap_or_default();
        let clock = Duration::from_millis(clock);
        let effect = self.endpoints.end(url, permit, health, load, now, clock);
        let CallEffect {
            capacity,
            limit_fell,
            reports,
        } = effect;
        GuardChanges {
            capacity,
            limit_fell,
            reports,
            ..GuardChanges::default()
        }
    }

    /// Counts the calls that the endpoints may take together now.
    pub fn capacity(&mut self, now: Duration) -> AgentCapacity {
        let calls = match self.pause.is_some() || self.is_throttled {
            true => 0,
            false => self.endpoints.most_calls(),
        };
        let is_stopped = self.pause.is_some() || (calls == 0 && !self.endpoints().is_empty());
        let mut past_stop = None;
        if is_stopped {
            // The record gets the observations of this process later.
            self.stop = self.stop(now).or(self.stop.take());
        } else if let Some(stop) = self.stop.take() {
            past_stop = Some(PastStop {
                until: self.store_time(now),
                why: stop.in_words(),
                at: None,
            });
        }
        AgentCapacity { calls, past_stop }
    }

    /// Returns each endpoint with the number of calls that it may have in flight now.
    pub fn endpoint_calls(&self) -> impl Iterator<Item = (&EndpointGuard, u32)> {
        let canaries = self.canaries();
        let endpoints = self.endpoints().iter();
        endpoints.map(move |endpoint| (endpoint, endpoint.most(canaries)))
    }

    /// Returns why no call can be made at all.
    pub fn stop(&self, now: Duration) -> Option<AgentStop> {
        if let Some(pause) = &self.pause {
            return Some(AgentStop::Paused(pause.clone()));
        }
        if let Some(throttle) = &self.control.throttle
            && self.is_throttled
        {
            return Some(AgentStop::Throttled(throttle.clone()));
        }
        self.endpoints.stop(&self.control, self.store_time(now))
    }

    /// Returns the version of the record for which the report counts; `None` if it has been overtaken.
    pub fn counts_for(&self, report: &BreakerReport) -> Option<u64> {
        let mut endpoints = self.endpoints().iter();
        endpoints
            .any(|endpoint| endpoint.awaits(report))
            .then_some(self.version)
    }

    pub fn agent(&self) -> &AgentName {
        &self.endpoints.agent
    }

    pub fn spec(&self) -> &AgentSpec {
        &self.endpoints.spec
    }

    /// Returns the record, with its version.
    pub fn record(&self) -> (u64, &AgentControl) {
        (self.version, &self.control)
    }

    /// Returns the endpoints in the order of the specification.
    pub fn endpoints(&self) -> &[EndpointGuard] {
        &self.endpoints.all
    }

    pub(super) fn canaries(&self) -> u32 {
        self.endpoints.canaries()
    }

    /// Returns the pause that holds.
    pub fn pause(&self) -> Option<&Pause> {
        self.pause.as_ref()
    }

    pub fn is_throttled(&self) -> bool {
        self.is_throttled
    }

    /// Returns when the next window of downtime begins, or the one that holds ends.
    pub fn window_changes_at(&self) -> Option<Timestamp> {
        self.windows.changes_at()
    }

    /// Returns the next windows of downtime.
    pub fn next_windows(&self, store_now: Timestamp, most: usize) -> Vec<DowntimeWindow> {
        self.windows.next(store_now, most)
    }

    /// Returns the store's time, about.
    fn store_time(&self, now: Duration) -> Timestamp {
        match self.looked_at {
            Some((then, at)) => then + now.saturating_sub(at).into(),
            None => Timestamp::from_millis(0),
        }
    }
}

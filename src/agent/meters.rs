//! The metrics of an agent. The handles are made once per agent, because a look-up by label costs more than all other
//! accounting of a call. They are made when the agent is first used, because each of its series is scraped for the
//! rest of the process's life; and only a limited number of agents have labels.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;

use crate::{
    clock::{self, Instant},
    domain::{
        agent::BreakerState,
        values::AgentName,
        view::{OTHER_NAMES, URL_AGENTS, counted_name},
    },
};

/// The number of agents with a label of their own: those that were used first. Each adds about 1.7 KiB to every
/// scrape.
const MOST_LABELLED: usize = 100;
/// The number of endpoints with series of their own: those that were known first. A series is never removed, and some
/// agents get other endpoints with each release of their service.
const MOST_ENDPOINTS: usize = 1000;

/// Returns the label of an agent: its name, or a label that it shares with others.
pub fn label(agent: &str) -> String {
    static LABELLED: Mutex<Option<AgentLabels>> = Mutex::new(None);
    let mut labels = LABELLED.lock();
    labels.get_or_insert_default().of(agent)
}

#[derive(Default)]
struct AgentLabels(HashSet<String>);

impl AgentLabels {
    fn of(&mut self, agent: &str) -> String {
        let agent = counted_name(agent);
        if agent == URL_AGENTS {
            return URL_AGENTS.to_owned();
        }
        if !self.0.contains(agent) {
            if self.0.len() >= MOST_LABELLED {
                return OTHER_NAMES.to_owned();
            }
            self.0.insert(agent.to_owned());
        }
        agent.to_owned()
    }
}

/// Returns the labels of an endpoint. `None` if it has no series: its agent shares a label, or the endpoint is beyond
/// [`MOST_ENDPOINTS`].
fn endpoint_labels(agent: &AgentName, endpoint: &str) -> Option<[(&'static str, String); 2]> {
    static LABELLED: Mutex<Option<EndpointLabels>> = Mutex::new(None);
    let agent = label(agent.as_str());
    let mut labels = LABELLED.lock();
    let is_labelled = agent != OTHER_NAMES && labels.get_or_insert_default().has(&agent, endpoint);
    is_labelled.then(|| [("agent", agent), ("endpoint", endpoint.to_owned())])
}

/// The endpoints that have labels, each after the label of its agent and a space. The label contains no space.
#[derive(Default)]
struct EndpointLabels(HashSet<String>);

impl EndpointLabels {
    fn has(&mut self, agent: &str, endpoint: &str) -> bool {
        let endpoint = format!("{agent} {endpoint}");
        self.0.contains(&endpoint) || self.0.len() < MOST_ENDPOINTS && self.0.insert(endpoint)
    }
}

#[derive(Debug)]
pub(super) struct CallMetrics {
    pub retries: Retries,
    pub in_flight: InFlight,
    shared: Arc<AgentMetrics>,
}

#[derive(Debug)]
struct AgentMetrics {
    agent: String,
    /// Made at the first use of the agent.
    handles: OnceLock<Handles>,
}

#[derive(Debug)]
struct Handles {
    success: Counter,
    permanent: Counter,
    transient: Counter,
    dropped: Counter,
    retries: Counter,
    in_flight: Gauge,
    seconds: Histogram,
}

#[derive(Debug)]
pub(super) struct Retries(Arc<AgentMetrics>);

impl Retries {
    pub fn increment(&self, count: u64) {
        self.0.handles().retries.increment(count);
    }
}

#[derive(Clone, Debug)]
pub(super) struct InFlight(Arc<AgentMetrics>);

impl InFlight {
    pub fn increment(&self, count: u32) {
        self.0.handles().in_flight.increment(count);
    }

    pub fn decrement(&self, count: u32) {
        self.0.handles().in_flight.decrement(count);
    }
}

impl AgentMetrics {
    fn handles(&self) -> &Handles {
        self.handles
            .get_or_init(|| Handles::new(&label(&self.agent)))
    }
}

impl Handles {
    fn new(agent: &str) -> Self {
        let tries = |result: &'static str| counter!("provost_agent_tries_total", "agent" => agent.to_owned(), "result" => result);
        Self {
            success: tries("success"),
            permanent: tries("permanent"),
            transient: tries("transient"),
            dropped: tries("dropped"),
            retries: counter!("provost_agent_retries_total", "agent" => agent.to_owned()),
            in_flight: gauge!("provost_agent_in_flight", "agent" => agent.to_owned()),
            seconds: histogram!("provost_agent_call_seconds", "agent" => agent.to_owned()),
        }
    }
}

impl CallMetrics {
    pub fn new(agent: &str) -> Self {
        let shared = Arc::new(AgentMetrics {
            agent: agent.to_owned(),
            handles: OnceLock::new(),
        });
        Self {
            retries: Retries(Arc::clone(&shared)),
            in_flight: InFlight(Arc::clone(&shared)),
            shared,
        }
    }

    /// Counts an attempt when it ends. An attempt that ended without a result was dropped.
    pub fn begin_attempt(&self) -> AttemptMeter<'_> {
        let handles = self.shared.handles();
        AttemptMeter {
            counter: &handles.dropped,
            handles,
        }
    }

    /// Records the duration of a call, including one that was dropped.
    pub fn begin_call(&self) -> CallMeter<'_> {
        CallMeter {
            seconds: &self.shared.handles().seconds,
            began: clock::instant(),
        }
    }
}

pub(super) struct AttemptMeter<'a> {
    counter: &'a Counter,
    handles: &'a Handles,
}

impl AttemptMeter<'_> {
    pub fn success(&mut self) {
        self.counter = &self.handles.success;
    }

    pub fn permanent(&mut self) {
        self.counter = &self.handles.permanent;
    }

    pub fn transient(&mut self) {
        self.counter = &self.handles.transient;
    }
}

impl Drop for AttemptMeter<'_> {
    fn drop(&mut self) {
        self.counter.increment(1);
    }
}

pub(super) struct CallMeter<'a> {
    seconds: &'a Histogram,
    began: Instant,
}

impl Drop for CallMeter<'_> {
    fn drop(&mut self) {
        self.seconds.record(self.began.elapsed());
    }
}

/// Sets the metric of an endpoint's breaker. Agents that share a label have none.
pub(super) fn show_breaker(agent: &AgentName, endpoint: &str, state: Option<&BreakerState>) {
    let value = match state {
        None | Some(BreakerState::ForcedClosed) => 0.0,
        Some(BreakerState::HalfOpen { .. }) => 1.0,
        Some(BreakerState::Open { .. } | BreakerState::ForcedOpen) => 2.0,
    };
    if let Some(labels) = endpoint_labels(agent, endpoint) {
        gauge!("provost_breaker_state", &labels).set(value);
    }
}

/// Sets the metric that says whether an endpoint is ejected.
pub(super) fn show_ejection(agent: &AgentName, endpoint: &str, is_ejected: bool) {
    if let Some(labels) = endpoint_labels(agent, endpoint) {
        gauge!("provost_endpoint_ejected", &labels).set(f64::from(u8::from(is_ejected)));
    }
}

/// Sets the metric that says whether the checks of an endpoint succeed.
pub(super) fn show_check(agent: &AgentName, endpoint: &str, is_healthy: bool) {
    if let Some(labels) = endpoint_labels(agent, endpoint) {
        gauge!("provost_endpoint_healthy", &labels).set(f64::from(u8::from(is_healthy)));
    }
}

/// Sets the metric of the most calls that an endpoint may have in flight.
pub(super) fn show_limit(agent: &AgentName, endpoint: &str, limit: u32) {
    if let Some(labels) = endpoint_labels(agent, endpoint) {
        gauge!("provost_endpoint_limit", &labels).set(f64::from(limit));
    }
}

pub(super) fn show_pause(agent: &AgentName, is_paused: bool) {
    let agent = label(agent.as_str());
    if agent != OTHER_NAMES {
        gauge!("provost_agent_paused", "agent" => agent).set(f64::from(u8::from(is_paused)));
    }
}

pub(super) fn show_throttle(agent: &AgentName, is_throttled: bool) {
    let agent = label(agent.as_str());
    if agent != OTHER_NAMES {
        gauge!("provost_agent_throttled", "agent" => agent).set(f64::from(u8::from(is_throttled)));
    }
}

pub(super) fn count_parked_retry(agent: &AgentName) {
    counter!("provost_agent_parked_retries_total", "agent" => label(agent.as_str())).increment(1);
}

pub(super) fn show_slots(agent: &AgentName, slots: u32) {
    let agent = label(agent.as_str());
    if agent != OTHER_NAMES {
        gauge!("provost_agent_slots", "agent" => agent).set(f64::from(slots));
    }
}

/// Registers the descriptions of the metrics. Called once, after the recorder is installed.
pub fn describe() {
    metrics::describe_counter!(
        "provost_agent_tries_total",
        "Attempts of calls to remote services, by result"
    );
    metrics::describe_counter!(
        "provost_agent_retries_total",
        "Retries after a transient fault"
    );
    metrics::describe_counter!(
        "provost_agent_parked_retries_total",
        "Retries that wait longer because of their agent's retry budget"
    );
    metrics::describe_gauge!(
        "provost_agent_in_flight",
        "Occupied slots of an agent's bulkhead"
    );
    metrics::describe_gauge!(
        "provost_agent_waiting_workers",
        "Requests of workers that wait for work of an agent"
    );
    metrics::describe_counter!(
        "provost_agent_fetched_total",
        "Steps that workers have fetched"
    );
    metrics::describe_gauge!(
        "provost_breaker_state",
        "Breaker of an endpoint: 0 closed, 1 half-open, 2 open"
    );
    metrics::describe_gauge!(
        "provost_endpoint_ejected",
        "Whether an endpoint is ejected: 1 while it is"
    );
    metrics::describe_gauge!(
        "provost_endpoint_healthy",
        "Whether the checks of an endpoint succeed: 0 while it gets no calls because they fail"
    );
    metrics::describe_gauge!(
        "provost_endpoint_limit",
        "The most calls in flight to an endpoint from this instance, by its breaker, ejection, checks, slow start and adaptive limit"
    );
    metrics::describe_gauge!(
        "provost_agent_paused",
        "Whether an agent is paused: 1 while it is"
    );
    metrics::describe_gauge!(
        "provost_agent_throttled",
        "Whether the service of an agent has asked not to be called for a time: 1 until it is over"
    );
    metrics::describe_gauge!(
        "provost_agent_slots",
        "Slots of an agent that this instance holds, where all instances share them"
    );
    metrics::describe_histogram!(
        "provost_agent_call_seconds",
        metrics::Unit::Seconds,
        "Duration of a call"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_agents_have_a_label_and_the_others_share_one() {
        let mut labels = AgentLabels::default();
        for number in 0..MOST_LABELLED {
            let agent = format!("agent-{number}");
            assert_eq!(labels.of(&agent), agent);
        }
        assert_eq!(labels.of("one-more"), OTHER_NAMES);
        assert_eq!(labels.of("agent-0"), "agent-0");
        assert_eq!(labels.of("http://127.0.0.1:8080"), URL_AGENTS);
        assert_eq!(labels.of(URL_AGENTS), URL_AGENTS);
    }

    #[test]
    fn so_many_endpoints_have_series_and_keep_them() {
        let mut labels = EndpointLabels::default();
        for number in 0..MOST_ENDPOINTS {
            assert!(labels.has("payments", &format!("http://10.0.0.1:{number}")));
        }
        assert!(!labels.has("payments", "http://10.0.0.2:1"));
        assert!(labels.has("payments", "http://10.0.0.1:7"));
        assert!(!labels.has("other", "http://10.0.0.1:7"));
    }
}

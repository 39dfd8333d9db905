//! An agent's metrics. The handles are made once per agent: a look-up by label costs more than the
//! rest of the bookkeeping of a call together.

use std::time::Instant;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// The label of all agents that were made for the URL of a step. One label for all: who may submit
/// must not be able to grow the metrics without bound. No registered agent can be called so.
pub(super) const MADE_FOR_URLS: &str = "(url)";

#[derive(Debug)]
pub(super) struct Meters {
    success: Counter,
    permanent: Counter,
    transient: Counter,
    dropped: Counter,
    pub retries: Counter,
    pub in_flight: Gauge,
    seconds: Histogram,
}

impl Meters {
    pub fn new(agent: &str) -> Self {
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

    /// Counts a try when it ends, in whatever way: one that is never told its result was dropped.
    pub fn begin_try(&self) -> TryMeter<'_> {
        TryMeter {
            counter: &self.dropped,
            meters: self,
        }
    }

    /// Records how long the call took, whether it came to an end or was dropped.
    pub fn begin_call(&self) -> CallMeter<'_> {
        CallMeter {
            seconds: &self.seconds,
            began: Instant::now(),
        }
    }
}

pub(super) struct TryMeter<'a> {
    counter: &'a Counter,
    meters: &'a Meters,
}

impl TryMeter<'_> {
    pub fn success(&mut self) {
        self.counter = &self.meters.success;
    }

    pub fn permanent(&mut self) {
        self.counter = &self.meters.permanent;
    }

    pub fn transient(&mut self) {
        self.counter = &self.meters.transient;
    }
}

impl Drop for TryMeter<'_> {
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

/// Tells the exporter what each metric means. Once, after the recorder is installed.
pub fn describe() {
    metrics::describe_counter!(
        "provost_agent_tries_total",
        "Tries of calls to remote services, by how they ended"
    );
    metrics::describe_counter!(
        "provost_agent_retries_total",
        "Tries that were made again after a transient fault"
    );
    metrics::describe_gauge!(
        "provost_agent_in_flight",
        "Slots of an agent's bulkhead that are taken"
    );
    metrics::describe_histogram!(
        "provost_agent_call_seconds",
        metrics::Unit::Seconds,
        "Length of a call"
    );
}

//! Metrics of message delivery. Receivers are not labels: submitters must not be able to grow the
//! metrics without bound.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

pub struct Meters {
    pub delivered: Counter,
    pub failed: Counter,
    pub dead: Counter,
    seconds: Histogram,
    lag: Histogram,
    pub in_flight: Gauge,
}

impl Meters {
    pub fn new() -> Self {
        let result = |result: &'static str| counter!("provost_messages_total", "result" => result);
        metrics::describe_counter!(
            "provost_messages_total",
            "Delivery attempts by result: delivered, failed (will be retried) or dead"
        );
        metrics::describe_histogram!(
            "provost_message_try_seconds",
            metrics::Unit::Seconds,
            "How long a receiver took to respond"
        );
        metrics::describe_histogram!(
            "provost_message_lag_seconds",
            metrics::Unit::Seconds,
            "Time from a change to the delivery of its message"
        );
        metrics::describe_gauge!("provost_messages_in_flight", "Messages in flight");
        Self {
            delivered: result("delivered"),
            failed: result("failed"),
            dead: result("dead"),
            seconds: histogram!("provost_message_try_seconds"),
            lag: histogram!("provost_message_lag_seconds"),
            in_flight: gauge!("provost_messages_in_flight"),
        }
    }

    pub fn record_attempt(&self, took: Duration) {
        self.seconds.record(took);
    }

    pub fn record_lag(&self, lag: Duration) {
        self.lag.record(lag);
    }
}

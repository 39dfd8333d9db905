//! Metrics of an intake.

use metrics::{Counter, counter};

pub struct IntakeMeters {
    pub accepted: Counter,
    pub replayed: Counter,
    pub refused: Counter,
    pub retried: Counter,
}

impl IntakeMeters {
    pub fn new(intake: &str) -> Self {
        metrics::describe_counter!(
            "provost_intake_messages_total",
            "Messages of an intake by result: accepted, replayed (delivered again), refused (a dead letter), or \
             retried (not stored yet)"
        );
        let of = |result: &'static str| {
            let intake = intake.to_owned();
            counter!("provost_intake_messages_total", "intake" => intake, "result" => result)
        };
        Self {
            accepted: of("accepted"),
            replayed: of("replayed"),
            refused: of("refused"),
            retried: of("retried"),
        }
    }
}

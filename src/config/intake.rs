//! Queues that Provost reads: their messages are submissions.

use serde::{Deserialize, Serialize};

use super::{
    broker::{BROKER_URL, BrokerConfig, BrokerUrl},
    receivers::ListFault,
};
use crate::domain::values::{
    MAIN_BROKER, PLAIN_NAME, PLAIN_WORD, WorkflowName, is_plain_name, is_plain_word, queue_fault,
};

/// A queue whose messages are submissions.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntakeConfig {
    /// The name of the intake in history, logs and metrics, and the scope of its messages' idempotency keys.
    pub name: String,
    /// Default: `broker.url`.
    pub url: Option<BrokerUrl>,
    pub queue: String,
    /// The most messages that are read and not yet acknowledged.
    #[serde(default = "default_prefetch")]
    pub prefetch: u16,
    /// The only workflow that messages may submit, and the default of those that name none.
    pub workflow: Option<WorkflowName>,
    /// The exchange to which refused messages are published. Default: the default exchange, which delivers to the
    /// queue that the routing key names.
    #[serde(default)]
    pub dead_letter_exchange: String,
    /// Default: the name of the queue and `.dead`.
    pub dead_letter_routing_key: Option<String>,
}

pub fn default_prefetch() -> u16 {
    32
}

/// The largest `prefetch`: more would hold too many messages in memory.
const MOST_PREFETCH: u16 = 1000;

impl IntakeConfig {
    pub fn dead_letter_routing_key(&self) -> String {
        let given = self.dead_letter_routing_key.clone();
        given.unwrap_or_else(|| format!("{}.dead", self.queue))
    }
}

/// Returns the report about an intake that cannot be parsed. The value may contain a password.
pub fn allowed() -> String {
    format!(
        "each of [[intake]] needs a `name` and a `queue`, and may have a `url` ({BROKER_URL}), a `prefetch`, a `workflow`, a `dead_letter_exchange` and a `dead_letter_routing_key`"
    )
}

pub fn faults(broker: &BrokerConfig, intakes: &[IntakeConfig]) -> Vec<ListFault> {
    let mut faults = Vec::new();
    let mut fault = |at: usize, field: &str, found: String, allowed: &str| {
        faults.push((format!("intake.{at}.{field}"), found, allowed.to_owned()));
    };
    for (at, intake) in intakes.iter().enumerate() {
        let name = &intake.name;
        if !is_plain_word(name) {
            fault(at, "name", format!("{name:?}"), PLAIN_WORD);
        } else if name == MAIN_BROKER {
            let allowed = "another name: this one is for the broker of [broker]";
            fault(at, "name", format!("{name:?}"), allowed);
        } else if intakes[..at].iter().any(|other| other.name == *name) {
            let found = format!("{name:?}, which another one has already");
            fault(at, "name", found, "a unique name");
        }
        if intake.url.is_none() && broker.url.is_none() {
            let found = "no value, nor has broker.url one".to_owned();
            fault(at, "url", found, BROKER_URL);
        }
        if let Some(wrong) = queue_fault(&intake.queue) {
            let found = format!("a queue that {wrong}");
            fault(at, "queue", found, "the name of a queue");
        }
        let dead = intake.dead_letter_routing_key();
        if dead == intake.queue && intake.dead_letter_exchange.is_empty() {
            let allowed = "another queue than the one that is read: refused messages would come back without end";
            fault(at, "dead_letter_routing_key", format!("{dead:?}"), allowed);
        }
        if let Some(wrong) = queue_fault(&dead) {
            let found = format!("a queue that {wrong}");
            let allowed = "a routing key, by default the name of the queue and `.dead`";
            fault(at, "dead_letter_routing_key", found, allowed);
        }
        if intake.dead_letter_exchange.len() > 255 {
            let found = "more than 255 bytes".to_owned();
            fault(
                at,
                "dead_letter_exchange",
                found,
                "the name of an exchange, at most 255 bytes",
            );
        }
        if !(1..=MOST_PREFETCH).contains(&intake.prefetch) {
            let allowed = format!("a whole number from 1 to {MOST_PREFETCH}");
            fault(at, "prefetch", intake.prefetch.to_string(), &allowed);
        }
        if let Some(workflow) = &intake.workflow
            && !is_plain_name(workflow.as_str())
        {
            let found = format!("{:?}", workflow.as_str());
            fault(at, "workflow", found, PLAIN_NAME);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_intake_is_reported_with_its_path() {
        let intake = |name: &str, queue: &str| IntakeConfig {
            name: name.to_owned(),
            url: None,
            queue: queue.to_owned(),
            prefetch: 32,
            workflow: None,
            dead_letter_exchange: String::new(),
            dead_letter_routing_key: None,
        };
        let mut intakes = vec![
            intake("shop", "orders"),
            intake("shop", ""),
            intake("broker", "x"),
        ];
        intakes[2].prefetch = 0;
        intakes[2].dead_letter_routing_key = Some("x".to_owned());
        let found = faults(&BrokerConfig::default(), &intakes);
        let paths: Vec<_> = found.iter().map(|(path, ..)| path.as_str()).collect();
        let wanted = [
            "intake.0.url",
            "intake.1.name",
            "intake.1.url",
            "intake.1.queue",
            "intake.2.name",
            "intake.2.url",
            "intake.2.dead_letter_routing_key",
            "intake.2.prefetch",
        ];
        assert_eq!(paths, wanted);
    }
}

//! Explains in a line or two, from its history, the faults of an order and their causes.

use super::api::{FaultJson, HistoryEntryJson};

/// Returns one sentence for each notable event; none for an order without faults.
pub fn story(history: &[HistoryEntryJson]) -> Vec<String> {
    let mut sentences: Vec<Sentence> = Vec::new();
    for entry in history {
        let Some(sentence) = Sentence::of(entry) else {
            continue;
        };
        match sentences.last_mut() {
            Some(last) if last.says_the_same(&sentence) => last.times += 1,
            _ => sentences.push(sentence),
        }
    }
    sentences.into_iter().map(Sentence::text).collect()
}

struct Sentence {
    step: String,
    why: String,
    then: String,
    times: usize,
}

impl Sentence {
    fn of(entry: &HistoryEntryJson) -> Option<Self> {
        let actor = entry.by.split(':').next().unwrap_or_default();
        let (why, then) = match entry.kind.as_str() {
            "step.retrying" => (entry.error.as_ref()?.message.clone(), "retried".to_owned()),
            "step.expired" | "step.extended" => {
                (entry.reason.clone()?, format!("the {actor} retried it"))
            }
            "step.error" => {
                let why = said(entry.error.as_ref()?);
                (why, "not retried: it waits for an operator".to_owned())
            }
            _ => return None,
        };
        Some(Self {
            step: entry.step.clone()?,
            why,
            then,
            times: 1,
        })
    }

    fn says_the_same(&self, other: &Sentence) -> bool {
        self.step == other.step && self.why == other.why && self.then == other.then
    }

    fn text(self) -> String {
        let times = match self.times {
            1 => String::new(),
            2 => " twice".to_owned(),
            times => format!(" {times} times"),
        };
        format!("{}: {}; {}{times}", self.step, self.why, self.then)
    }
}

/// Returns the fault, with the response of the service if it is short.
fn said(fault: &FaultJson) -> String {
    const SHORT: usize = 120;
    match fault.body.as_deref() {
        Some(body) if !body.is_empty() && body.len() <= SHORT && !body.contains('\n') => {
            format!("{} {body}", fault.message)
        }
        _ => fault.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn history(entries: Value) -> Vec<HistoryEntryJson> {
        serde_json::from_value(entries).unwrap()
    }

    #[test]
    fn an_order_that_met_nothing_has_no_story() {
        let history = history(json!([
            { "type": "task.accepted", "by": "submitter" },
            { "type": "step.claimed", "step": "reserve", "attempt": 1, "by": "scheduler:a" },
            { "type": "step.processed", "step": "reserve", "attempt": 1, "by": "scheduler:a" },
        ]));
        assert_eq!(story(&history), [""; 0]);
    }

    #[test]
    fn the_same_fault_twice_in_a_row_is_reported_once() {
        let busy = json!({ "type": "step.retrying", "step": "charge", "by": "scheduler:a",
            "error": { "message": "the service responded 503", "at": "" } });
        let lost = json!({ "type": "step.retrying", "step": "ship", "by": "scheduler:a",
            "error": { "message": "the call broke off", "at": "" } });
        let history = history(json!([busy, busy, lost]));
        let sentences = [
            "charge: the service responded 503; retried twice",
            "ship: the call broke off; retried",
        ];
        assert_eq!(story(&history), sentences);
    }

    #[test]
    fn a_recovery_is_reported_with_who_noticed_and_why() {
        let history = history(
            json!([{ "type": "step.expired", "step": "ship", "attempt": 1,
            "by": "supervisor:a", "reason": "attempt 1 did not finish within 2s" }]),
        );
        let sentences = ["ship: attempt 1 did not finish within 2s; the supervisor retried it"];
        assert_eq!(story(&history), sentences);
    }

    #[test]
    fn a_refusal_is_reported_with_what_the_service_said_and_what_is_needed() {
        let history = history(
            json!([{ "type": "step.error", "step": "charge", "by": "scheduler:a",
            "error": { "message": "the service responded 402", "body": "{\"error\":1}", "at": "" } }]),
        );
        let sentences = [
            "charge: the service responded 402 {\"error\":1}; not retried: it waits for an operator",
        ];
        assert_eq!(story(&history), sentences);
    }
}

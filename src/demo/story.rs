//! What happened to an order and why, in a line or two, told from its history.

use super::api::{Entry, Fault, Task};

/// One sentence for each thing worth telling; none for an order that met nothing.
pub fn story(task: &Task, history: &[Entry]) -> Vec<String> {
    let mut sentences: Vec<Sentence> = Vec::new();
    for entry in history {
        let (Some(step), Some(text)) = (&entry.step, sentence(entry)) else {
            continue;
        };
        match sentences.last_mut() {
            Some(last) if last.step == *step && last.text == text => last.times += 1,
            _ => sentences.push(Sentence {
                step: step.clone(),
                text,
                times: 1,
            }),
        }
    }
    let waits = task.state == "error";
    let mut told: Vec<String> = sentences.into_iter().map(Sentence::told).collect();
    if waits {
        told.push("it waits for an operator".to_owned());
    }
    told
}

struct Sentence {
    step: String,
    text: String,
    times: usize,
}

impl Sentence {
    fn told(self) -> String {
        let times = match self.times {
            1 => String::new(),
            2 => " (twice)".to_owned(),
            times => format!(" ({times} times)"),
        };
        format!("{}: {}{times}", self.step, self.text)
    }
}

fn sentence(entry: &Entry) -> Option<String> {
    let actor = entry.by.split(':').next().unwrap_or_default();
    let fault = entry.error.as_ref().map(said);
    match entry.kind.as_str() {
        "step.retrying" => Some(format!("{}, so it was tried again", fault?)),
        "step.expired" | "step.extended" => Some(format!(
            "{}, so the {actor} had it tried again",
            entry.reason.as_deref()?
        )),
        "step.error" => Some(format!("{}, so it was not tried again", fault?)),
        "step.retried" => Some(format!("the {actor} resubmitted it")),
        "step.resolved" => Some(format!("the {actor} did it by hand")),
        "step.skipped" => Some(format!("the {actor} went on without it")),
        _ => None,
    }
}

/// The fault, with what the service said where it is short.
pub fn said(fault: &Fault) -> String {
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

    fn task(state: &str) -> Task {
        let task = json!({ "id": "1", "state": state, "created_at": "", "steps": [] });
        serde_json::from_value(task).unwrap()
    }

    fn history(entries: Value) -> Vec<Entry> {
        serde_json::from_value(entries).unwrap()
    }

    #[test]
    fn an_order_that_met_nothing_has_no_story() {
        let history = history(json!([
            { "type": "task.accepted", "by": "submitter" },
            { "type": "step.claimed", "step": "reserve", "attempt": 1, "by": "scheduler:a" },
            { "type": "step.processed", "step": "reserve", "attempt": 1, "by": "scheduler:a" },
        ]));
        assert_eq!(story(&task("processed"), &history), [""; 0]);
    }

    #[test]
    fn the_same_fault_twice_in_a_row_is_told_once() {
        let busy = json!({ "type": "step.retrying", "step": "charge", "by": "scheduler:a",
            "error": { "message": "the service answered 503", "at": "" } });
        let lost = json!({ "type": "step.retrying", "step": "ship", "by": "scheduler:a",
            "error": { "message": "the call broke off", "at": "" } });
        let history = history(json!([busy, busy, lost]));
        let told = [
            "charge: the service answered 503, so it was tried again (twice)",
            "ship: the call broke off, so it was tried again",
        ];
        assert_eq!(story(&task("processed"), &history), told);
    }

    #[test]
    fn a_recovery_is_told_with_who_noticed_and_why() {
        let history = history(
            json!([{ "type": "step.expired", "step": "ship", "attempt": 1,
            "by": "supervisor:a", "reason": "attempt 1 did not finish within 2s" }]),
        );
        let told =
            ["ship: attempt 1 did not finish within 2s, so the supervisor had it tried again"];
        assert_eq!(story(&task("processed"), &history), told);
    }

    #[test]
    fn a_refusal_is_told_with_what_the_service_said_and_what_is_needed() {
        let history = history(
            json!([{ "type": "step.error", "step": "charge", "by": "scheduler:a",
            "error": { "message": "the service answered 402", "body": "{\"error\":1}", "at": "" } }]),
        );
        let told = [
            "charge: the service answered 402 {\"error\":1}, so it was not tried again",
            "it waits for an operator",
        ];
        assert_eq!(story(&task("error"), &history), told);
    }
}

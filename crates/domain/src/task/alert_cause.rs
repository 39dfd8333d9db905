//! The common cause of steps in error. Steps that failed at one agent for one cause have one alert; so have steps of
//! one name in one workflow that call no service.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::values::{
    fault::{Fault, FaultKind},
    ids::{AgentName, StepName, TaskId, WorkflowName},
    service_words,
};

/// From this number of steps on, webhooks get a message each time that the number has grown ten times.
const FIRST_ANNOUNCED: u64 = 100;

/// The average number of steps that are counted for one alert in a millisecond.
const COUNTED_PER_MILLISECOND: u64 = 10;

const LEAST_RECOUNT: Duration = Duration::from_secs(10);

/// The most causes of one [`AlertCause::general`] that have an alert each at the same time. Steps with further causes
/// join the general one: the words of a service may contain a name, and must not make each failure a cause of its own.
pub const MOST_WORDED: usize = 20;

/// The longest part of a cause that is a name, in characters. The name of an agent may be a URL.
const NAME: usize = 200;

/// The cause of failed steps. It contains no numbers, ids or quotations from the data of tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlertCause {
    /// `None`: the steps call no service.
    pub agent: Option<AgentName>,
    /// The text of the cause, for people. It is equal for equal causes.
    pub text: String,
    /// The text without the words of the service, if it has some; `text` is this text, [`BEFORE_WORDS`] and these
    /// words.
    pub general: Option<String>,
}

/// Separates the general text of a cause and the words of a service.
pub const BEFORE_WORDS: &str = ": ";

impl AlertCause {
    /// Returns the cause of steps that call a service. `words` are those of the service, or the reason why there is no
    /// usable request or response.
    pub fn at_agent(
        agent: &AgentName,
        step: &str,
        kind: FaultKind,
        status: Option<u16>,
        words: Option<&str>,
    ) -> Self {
        let status = status.map(|status| {
            let is_success = (200..300).contains(&status);
            match is_success {
                true => format!("{}, response not usable", status_words(status)),
                false => status_words(status),
            }
        });
        let reason = match (kind, status) {
            (FaultKind::Deadline, _) => "the task was late".to_owned(),
            (FaultKind::Exhausted, Some(status)) => format!("{status}, failures exhausted"),
            (FaultKind::Exhausted, None) => "no response, failures exhausted".to_owned(),
            (_, Some(status)) => status,
            // The request could not be made, its response could not be used, or a worker reported an error: the words
            // say which.
            (_, None) => format!("step {} has no result", shortened_name(step)),
        };
        let text = format!("agent {}: {reason}", shortened_name(agent.as_str()));
        Self {
            agent: Some(agent.clone()),
            text: match words {
                Some(words) => format!("{text}{BEFORE_WORDS}{words}"),
                None => text.clone(),
            },
            general: words.map(|_| text),
        }
    }

    /// Returns the cause without the words of the service.
    #[must_use]
    pub fn without_words(&self) -> Self {
        Self {
            agent: self.agent.clone(),
            text: self.general.clone().unwrap_or_else(|| self.text.clone()),
            general: None,
        }
    }

    /// Returns the cause of a step that calls no service, or of a group: it is shared by steps of one name in one
    /// workflow.
    pub fn of_uncalled(
        workflow: Option<&WorkflowName>,
        step: &str,
        is_repeated: bool,
        kind: FaultKind,
    ) -> Self {
        let reason = match (kind, is_repeated) {
            (FaultKind::Deadline, _) => "the task was late",
            (FaultKind::Exhausted, true) => "`until` was not true after all iterations",
            (FaultKind::Exhausted, false) => "no signal came in time",
            (_, true) => "cannot be repeated",
            (_, false) => "no result",
        };
        let of = match workflow {
            Some(workflow) => format!("workflow {}", shortened_name(workflow.as_str())),
            None => "inline steps".to_owned(),
        };
        Self {
            agent: None,
            text: format!("{of}, step {}: {reason}", shortened_name(step)),
            general: None,
        }
    }
}

/// Returns the words of the service about its refusal, or the reason why there is no request or no usable reply.
pub(super) fn words(fault: &Fault) -> Option<String> {
    match (fault.kind, fault.status) {
        (FaultKind::Deadline, _) | (FaultKind::Exhausted, None) => None,
        (_, Some(status)) => words_of_body(fault, status),
        (_, None) => {
            Some(service_words::of_message(&fault.message)).filter(|words| !words.is_empty())
        }
    }
}

/// Returns the words of the service from the body of its response. The body of a success is data, and has none.
fn words_of_body(fault: &Fault, status: u16) -> Option<String> {
    let known = StatusCode::from_u16(status).ok();
    if known.is_some_and(|known| known.is_success()) {
        return None;
    }
    let reason = known.and_then(|known| known.canonical_reason());
    service_words::of_body(fault.body.as_deref()?, status, reason)
}

/// Returns the message of the alert of a step: its fault, with the words of the service.
pub fn alert_text(step: &StepName, fault: &Fault) -> String {
    let words = fault.status.and_then(|status| words_of_body(fault, status));
    match words {
        Some(words) => format!("step {step}: {}{BEFORE_WORDS}{words}", fault.message),
        None => format!("step {step}: {}", fault.message),
    }
}

/// Returns a status with its reason phrase.
pub(super) fn status_words(status: u16) -> String {
    let known = StatusCode::from_u16(status).ok();
    match known.and_then(|known| known.canonical_reason()) {
        Some(reason) => format!("{status} {reason}"),
        None => status.to_string(),
    }
}

/// Shortens a name. Two long names with the same beginning stay different.
pub(super) fn shortened_name(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        None => name.to_owned(),
        Some((end, _)) => {
            let digest = Sha256::digest(name);
            let distinct = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
            format!("{}… ({distinct:08x})", &name[..end])
        }
    }
}

/// The first step that failed for a cause. Messages about the cause name it, even once its task is deleted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FirstFailure {
    pub task: TaskId,
    pub key: Option<String>,
    pub workflow: Option<String>,
    pub step: StepName,
}

/// Returns the number of which webhooks are notified when `count` steps have failed and `announced` was the last
/// number, or `None`.
pub fn announcement(count: u64, announced: u64) -> Option<u64> {
    if count < FIRST_ANNOUNCED {
        return None;
    }
    let reached = 10_u64.pow(count.ilog10());
    (reached > announced).then_some(reached)
}

/// Returns the time after which steps are counted again: the more steps, the longer.
pub fn recount_after(count: u64) -> Duration {
    Duration::from_millis(count / COUNTED_PER_MILLISECOND).max(LEAST_RECOUNT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::time::Timestamp;

    fn cause(kind: FaultKind, status: Option<u16>, step: &str, message: &str) -> String {
        let fault = Fault {
            status,
            body: Some(message.to_owned()),
            ..Fault::new(kind, message, Timestamp::from_millis(1))
        };
        let words = words(&fault);
        let agent = AgentName::new("payments");
        AlertCause::at_agent(&agent, step, kind, status, words.as_deref()).text
    }

    #[test]
    fn steps_that_fail_with_one_status_and_equal_words_have_one_cause() {
        let first = cause(FaultKind::Permanent, Some(402), "charge", "card 1");
        assert_eq!(first, "agent payments: 402 Payment Required: card #");
        assert_ne!(
            cause(FaultKind::Permanent, Some(402), "charge", "no account"),
            first
        );
        assert_eq!(
            cause(FaultKind::Permanent, Some(402), "refund", "card 2"),
            first
        );
        let exhausted = cause(FaultKind::Exhausted, Some(503), "charge", "");
        assert_eq!(
            exhausted,
            "agent payments: 503 Service Unavailable, failures exhausted"
        );
        assert_ne!(cause(FaultKind::Exhausted, None, "charge", ""), exhausted);
        assert_eq!(
            cause(FaultKind::Permanent, Some(200), "charge", "not JSON"),
            "agent payments: 200 OK, response not usable"
        );
        assert_eq!(
            cause(FaultKind::Permanent, Some(499), "charge", ""),
            "agent payments: 499"
        );
    }

    #[test]
    fn steps_that_call_no_service_have_a_cause_by_workflow_and_name() {
        let cause = |workflow: Option<&str>, step, kind| {
            let workflow = workflow.map(WorkflowName::new);
            AlertCause::of_uncalled(workflow.as_ref(), step, false, kind)
        };
        let order = cause(Some("order"), "approval", FaultKind::Exhausted);
        assert_eq!(order.agent, None);
        assert_eq!(
            order.text,
            "workflow order, step approval: no signal came in time"
        );
        let repeated = AlertCause::of_uncalled(None, "poll", true, FaultKind::Exhausted);
        assert_eq!(
            repeated.text,
            "inline steps, step poll: `until` was not true after all iterations"
        );
        for other in [
            cause(None, "approval", FaultKind::Exhausted),
            cause(Some("order"), "payment", FaultKind::Exhausted),
            cause(Some("refund"), "approval", FaultKind::Exhausted),
            cause(Some("order"), "approval", FaultKind::Permanent),
        ] {
            assert_ne!(other, order);
        }
    }

    #[test]
    fn a_request_that_cannot_be_made_is_a_cause_of_its_step() {
        let charge = cause(
            FaultKind::Permanent,
            None,
            "charge",
            "no `input.card1` for 17",
        );
        assert_eq!(
            charge,
            "agent payments: step charge has no result: no `input.card1` for #"
        );
        for (step, message) in [
            ("ship", "no `input.card1` for 17"),
            ("charge", "no `input.card2` for 17"),
        ] {
            assert_ne!(cause(FaultKind::Permanent, None, step, message), charge);
        }
    }

    #[test]
    fn a_cause_is_short_however_long_the_names_are_and_tells_them_apart() {
        let of_step = |step: String| cause(FaultKind::Permanent, None, &step, "");
        let long = of_step("ü".repeat(10_000));
        assert!(long.chars().count() < 300);
        let words = "ü ".repeat(10_000);
        let worded = cause(FaultKind::Permanent, Some(422), "a", &words);
        assert!(worded.len() < 300, "{worded}");
        assert_ne!(of_step("ü".repeat(10_001)), long);
    }

    #[test]
    fn webhooks_know_of_a_hundred_steps_and_then_of_ten_times_as_many() {
        assert_eq!(announcement(99, 1), None);
        assert_eq!(announcement(100, 1), Some(100));
        assert_eq!(announcement(999, 100), None);
        assert_eq!(announcement(25_000, 100), Some(10_000));
        assert_eq!(
            announcement(12_000, 10_000),
            None,
            "it fell, and grew again"
        );
    }

    #[test]
    fn many_steps_are_counted_seldom() {
        assert_eq!(recount_after(1000), Duration::from_secs(10));
        assert_eq!(recount_after(1_000_000), Duration::from_secs(100));
    }
}

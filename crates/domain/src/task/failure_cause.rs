//! The cause of a failure that needs a person. One value makes all that names the cause: its fingerprint, its sentence,
//! the alert that its steps share, the field `cause` of the log and the commands that may end the failure.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{
    alert_cause::{AlertCause, shortened_name, status_words, words},
    alert_kind::AlertKind,
};
use crate::{
    task::aggregate::Task,
    values::{
        fault::{Fault, FaultKind},
        ids::{AgentName, StepIndex, WorkflowName},
        service_words,
    },
};

/// The cause of steps in error. It contains no numbers, ids or quotations from the data of tasks, so that equal failures
/// of different tasks have equal causes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailureCause {
    /// The kind of the alert.
    pub alert: String,
    /// `None`: the steps are those of tasks that were submitted without a workflow.
    pub workflow: Option<WorkflowName>,
    /// The name of the step, or of the list that it is an item of. In tasks without a workflow it is a pattern, with `#`
    /// for numbers and ids.
    pub step: String,
    /// `None`: the step calls no service.
    pub agent: Option<AgentName>,
    /// `None`: Provost itself failed while it decided on the step.
    pub kind: Option<FaultKind>,
    pub status: Option<u16>,
    /// The words of the service, or the reason why there is no usable request or response.
    pub words: Option<String>,
    /// The step is repeated until a condition is true, and calls no service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_repeated: bool,
}

/// Names a cause: equal causes have equal fingerprints, in all databases and all releases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CauseFingerprint(pub u64);

/// The number of characters of a fingerprint.
const FINGERPRINT_CHARACTERS: usize = 16;

impl CauseFingerprint {
    /// Reads 16 hexadecimal digits in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let is_written_so = text.len() == FINGERPRINT_CHARACTERS
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_written_so
            .then(|| u64::from_str_radix(text, 16).ok())
            .flatten()
            .map(Self)
    }
}

impl std::fmt::Display for CauseFingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for CauseFingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A command that may end failures of a cause, with a sentence that says when it is the right one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Remedy {
    /// The command for a task. For many tasks there is the same command, except for `resolve`.
    #[serde(rename = "do")]
    #[schema(example = "retry")]
    pub command: &'static str,
    #[schema(example = "Retry the tasks once the service responds again.")]
    pub when: &'static str,
}

impl FailureCause {
    /// Returns the cause of a step in error.
    pub fn of_step(task: &Task, index: StepIndex, fault: &Fault) -> Self {
        let definition = task.definition(index);
        let agent = definition.agent().cloned();
        let is_called = agent.is_some();
        Self {
            kind: Some(fault.kind),
            status: fault.status.filter(|_| is_called),
            words: is_called.then(|| words(fault)).flatten(),
            agent,
            is_repeated: !is_called && definition.repeat().is_some(),
            ..Self::of_place(task, index, alert_of(task, index))
        }
    }

    /// Returns the cause of a step on which Provost could not decide.
    pub fn of_service_fault(task: &Task, index: StepIndex) -> Self {
        Self::of_place(task, index, AlertKind::ServiceFault)
    }

    fn of_place(task: &Task, index: StepIndex, alert: AlertKind) -> Self {
        let workflow = task.details.workflow.as_ref();
        let workflow = workflow.map(|workflow| workflow.name.clone());
        let name = shortened_name(task.common_name(index).as_str());
        Self {
            alert: alert.as_str().to_owned(),
            step: match workflow {
                Some(_) => name,
                // Callers that submit steps without a workflow may give each of them another name.
                None => service_words::of_name(&name),
            },
            workflow,
            agent: None,
            kind: None,
            status: None,
            words: None,
            is_repeated: false,
        }
    }

    /// Returns the cause without the words of the service. Steps have it if too many causes differ in their words only.
    #[must_use]
    pub fn without_words(&self) -> Self {
        Self {
            words: None,
            ..self.clone()
        }
    }

    /// Returns the cause of the alert that these steps share with others. Provost's own faults have an alert for each step.
    pub fn alert_cause(&self) -> Option<AlertCause> {
        let kind = self.kind?;
        Some(match &self.agent {
            Some(agent) => {
                AlertCause::at_agent(agent, &self.step, kind, self.status, self.words.as_deref())
            }
            None => {
                let workflow = self.workflow.as_ref();
                AlertCause::of_uncalled(workflow, &self.step, self.is_repeated, kind)
            }
        })
    }

    /// Hashes each part with its length, so that no two causes are written alike.
    pub fn fingerprint(&self) -> CauseFingerprint {
        let status = self.status.map(|status| status.to_string());
        let parts = [
            Some(self.alert.as_str()),
            self.workflow.as_ref().map(WorkflowName::as_str),
            Some(self.step.as_str()),
            self.agent.as_ref().map(AgentName::as_str),
            self.kind.map(FaultKind::as_str),
            status.as_deref(),
            self.words.as_deref(),
        ];
        let mut hash = Sha256::new();
        for part in parts {
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            hash.update(length.to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        hash.update([u8::from(self.is_repeated)]);
        let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
        CauseFingerprint(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Says in one sentence what happened to the steps, without the number of tasks.
    pub fn sentence(&self) -> String {
        let step = match &self.workflow {
            Some(workflow) => format!(
                "Step {} of workflow {}",
                self.step,
                shortened_name(workflow.as_str())
            ),
            None => format!("Step {} of tasks without a workflow", self.step),
        };
        let what = self.what_happened();
        match &self.words {
            Some(words) => format!("{step} {what}: {words}"),
            None => format!("{step} {what}"),
        }
    }

    fn what_happened(&self) -> String {
        let agent = self
            .agent
            .as_ref()
            .map(|agent| shortened_name(agent.as_str()));
        let status = self.status.map(status_words);
        let is_success = self
            .status
            .is_some_and(|status| (200..300).contains(&status));
        match (self.kind, agent, status) {
            (None, ..) => "could not be decided, because Provost failed".to_owned(),
            (Some(FaultKind::Deadline), ..) => "was late".to_owned(),
            (Some(FaultKind::Exhausted), Some(agent), Some(status)) => {
                format!("failed too often: {agent} responded with {status}")
            }
            (Some(FaultKind::Exhausted), Some(agent), None) => {
                format!("failed too often: {agent} did not respond")
            }
            (_, Some(agent), Some(status)) if is_success => {
                format!("failed: {agent} responded with {status}, and the response is not usable")
            }
            (_, Some(agent), Some(status)) => {
                format!("failed: {agent} refused with {status}")
            }
            (_, Some(_), None) => "has no result".to_owned(),
            (Some(FaultKind::Exhausted), None, _) if self.is_repeated => {
                "was repeated as often as it may be, and `until` was not true".to_owned()
            }
            (Some(FaultKind::Exhausted), None, _) => "got no signal in time".to_owned(),
            (_, None, _) if self.is_repeated => "cannot be repeated".to_owned(),
            (_, None, _) => "has no result".to_owned(),
        }
    }

    /// Returns the commands that may end these failures, the most usual one first.
    pub fn remedies(&self) -> Vec<Remedy> {
        let remedy = |command, when| Remedy { command, when };
        let is_undo = self.alert == AlertKind::UndoFailed.as_str();
        let retry = match (self.kind, self.status) {
            (None, _) => "Retry the steps once the service that runs Provost has been updated.",
            (Some(FaultKind::Exhausted), _) if self.agent.is_some() => {
                "Retry the tasks once the service responds as it should."
            }
            (Some(FaultKind::Exhausted), _) => "Retry the tasks to wait once more.",
            (_, Some(401 | 403)) => "Retry the tasks once the service accepts the credentials.",
            (_, Some(status)) if (400..500).contains(&status) => {
                "Retry the tasks once the service accepts the request, or with another request."
            }
            _ => "Retry the tasks once the reason is removed, or with another request.",
        };
        let mut remedies = vec![remedy("retry", retry)];
        if is_undo {
            remedies.push(remedy(
                "resolve",
                "Resolve the undo if its effect was taken back by other means.",
            ));
            return remedies;
        }
        if self.workflow.is_some() && self.kind.is_some() {
            remedies.push(remedy(
                "migrate",
                "Move the tasks to another version if the definition of the workflow is wrong.",
            ));
        }
        remedies.push(remedy(
            "skip",
            "Skip the step if the tasks are right without it.",
        ));
        remedies.push(remedy(
            "undo",
            "Undo the tasks if they can no longer succeed.",
        ));
        remedies
    }
}

/// Returns the kind of the alert of a step in error.
pub fn alert_of(task: &Task, index: StepIndex) -> AlertKind {
    match task.definition(index).undoes {
        Some(_) => AlertKind::UndoFailed,
        None => AlertKind::TaskError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause() -> FailureCause {
        FailureCause {
            alert: "task.error".to_owned(),
            workflow: Some(WorkflowName::new("order")),
            step: "charge".to_owned(),
            agent: Some(AgentName::new("payments")),
            kind: Some(FaultKind::Permanent),
            status: Some(422),
            words: Some("currency is required".to_owned()),
            is_repeated: false,
        }
    }

    #[test]
    fn a_fingerprint_is_the_same_in_every_release() {
        assert_eq!(cause().fingerprint().to_string(), "4160990364998177");
        let read = CauseFingerprint::parse("00000000000000ff").unwrap();
        assert_eq!(read.to_string(), "00000000000000ff");
        for text in [
            "",
            "ff",
            "00000000000000FF",
            "+0000000000000ff",
            "00000000000000ff0",
        ] {
            assert_eq!(CauseFingerprint::parse(text), None, "{text}");
        }
    }

    #[test]
    fn causes_that_differ_in_one_part_have_different_fingerprints() {
        let variants = [
            cause(),
            FailureCause {
                alert: "task.undo_failed".to_owned(),
                ..cause()
            },
            FailureCause {
                workflow: None,
                ..cause()
            },
            FailureCause {
                workflow: Some(WorkflowName::new("refund")),
                ..cause()
            },
            FailureCause {
                step: "ship".to_owned(),
                ..cause()
            },
            FailureCause {
                agent: None,
                ..cause()
            },
            FailureCause {
                kind: Some(FaultKind::Exhausted),
                ..cause()
            },
            FailureCause {
                kind: None,
                ..cause()
            },
            FailureCause {
                status: Some(402),
                ..cause()
            },
            FailureCause {
                status: None,
                ..cause()
            },
            FailureCause {
                words: Some(String::new()),
                ..cause()
            },
            FailureCause {
                words: None,
                ..cause()
            },
            FailureCause {
                is_repeated: true,
                ..cause()
            },
            // The same letters, in other parts.
            FailureCause {
                workflow: Some(WorkflowName::new("orderc")),
                step: "harge".to_owned(),
                ..cause()
            },
        ];
        let fingerprints = variants.iter().map(FailureCause::fingerprint);
        let distinct: std::collections::BTreeSet<_> = fingerprints.collect();
        assert_eq!(distinct.len(), variants.len());
    }

    #[test]
    fn a_sentence_says_what_happened_to_the_step() {
        let sentence = |cause: FailureCause| cause.sentence();
        assert_eq!(
            sentence(cause()),
            "Step charge of workflow order failed: payments refused with 422 Unprocessable Entity: currency is required"
        );
        let exhausted = FailureCause {
            kind: Some(FaultKind::Exhausted),
            words: None,
            ..cause()
        };
        assert_eq!(
            sentence(FailureCause {
                status: Some(503),
                workflow: None,
                ..exhausted.clone()
            }),
            "Step charge of tasks without a workflow failed too often: payments responded with 503 Service Unavailable"
        );
        assert_eq!(
            sentence(FailureCause {
                status: None,
                ..exhausted.clone()
            }),
            "Step charge of workflow order failed too often: payments did not respond"
        );
        assert_eq!(
            sentence(FailureCause {
                agent: None,
                status: None,
                ..exhausted
            }),
            "Step charge of workflow order got no signal in time"
        );
        assert_eq!(
            sentence(FailureCause {
                status: Some(200),
                words: None,
                ..cause()
            }),
            "Step charge of workflow order failed: payments responded with 200 OK, and the response is not usable"
        );
        assert_eq!(
            sentence(FailureCause {
                kind: None,
                agent: None,
                status: None,
                words: None,
                ..cause()
            }),
            "Step charge of workflow order could not be decided, because Provost failed"
        );
    }

    #[test]
    fn every_cause_can_be_retried_and_an_undo_is_not_undone() {
        let commands = |cause: &FailureCause| -> Vec<_> {
            cause
                .remedies()
                .iter()
                .map(|remedy| remedy.command)
                .collect()
        };
        assert_eq!(commands(&cause()), ["retry", "migrate", "skip", "undo"]);
        let inline = FailureCause {
            workflow: None,
            ..cause()
        };
        assert_eq!(commands(&inline), ["retry", "skip", "undo"]);
        let undo = FailureCause {
            alert: "task.undo_failed".to_owned(),
            ..cause()
        };
        assert_eq!(commands(&undo), ["retry", "resolve"]);
    }

    #[test]
    fn the_alert_of_a_cause_has_its_words() {
        let alert = cause().alert_cause().unwrap();
        assert_eq!(
            alert.text,
            "agent payments: 422 Unprocessable Entity: currency is required"
        );
        let without = cause().without_words().alert_cause().unwrap();
        assert_eq!(alert.general, Some(without.text.clone()));
        assert_eq!(alert.without_words(), without);
    }
}

//! What a service sends without being asked: replies that come later, and heartbeats.

use super::Redactor;
use crate::{
    call::CallOutcome, command::Command, fault::Fault, open_reply::Progress, payload::Payload,
};

impl Redactor {
    /// The command without the secrets in what it brings from a service; `None` if there are none.
    pub fn hide_in_command(&self, command: &Command) -> Option<Command> {
        match command {
            Command::LaterReply {
                step,
                attempt,
                outcome,
                digest,
            } => Some(Command::LaterReply {
                step: *step,
                attempt: *attempt,
                outcome: self.hide_in_outcome(outcome)?,
                // By this a repeated reply is recognised, also where other secrets are known by then.
                digest: digest.clone(),
            }),
            Command::Heartbeat {
                step,
                attempt,
                progress,
            } => Some(Command::Heartbeat {
                step: *step,
                attempt: *attempt,
                progress: self.hide_in_progress(progress)?,
            }),
            // A signal is sent by a caller, and the others by Provost itself; what a call brought has been looked at.
            _ => None,
        }
    }

    fn hide_in_outcome(&self, outcome: &CallOutcome) -> Option<CallOutcome> {
        Some(match outcome {
            CallOutcome::Success(output) => CallOutcome::Success(self.hide_in_payload(output)?),
            CallOutcome::Failed(fault) => CallOutcome::Failed(self.hide_in_fault(fault)?),
            CallOutcome::Crashed(fault) => CallOutcome::Crashed(self.hide_in_fault(fault)?),
            CallOutcome::Transient { fault, wait } => CallOutcome::Transient {
                fault: self.hide_in_fault(fault)?,
                wait: *wait,
            },
            // Of calls.
            CallOutcome::Deferred
            | CallOutcome::PollAt { .. }
            | CallOutcome::Polled { .. }
            | CallOutcome::Probed { .. } => return None,
        })
    }

    fn hide_in_payload(&self, payload: &Payload) -> Option<Payload> {
        self.hide_json_text(payload.as_json()).map(Payload::new)
    }

    fn hide_in_fault(&self, fault: &Fault) -> Option<Fault> {
        self.finds(fault.message.as_bytes()).then(|| Fault {
            message: self.hide_in_text(fault.message.clone()),
            ..fault.clone()
        })
    }

    fn hide_in_progress(&self, progress: &Progress) -> Option<Progress> {
        let message = progress.message.as_ref();
        let hidden = message.filter(|message| self.finds(message.as_bytes()));
        let hidden = hidden.map(|message| self.hide_in_text(message.clone()));
        let details = progress.details.as_ref();
        let hidden_details = details.and_then(|details| self.hide_in_payload(details));
        if hidden.is_none() && hidden_details.is_none() {
            return None;
        }
        Some(Progress {
            fraction: progress.fraction,
            message: hidden.or_else(|| message.cloned()),
            details: hidden_details.or_else(|| details.cloned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fault::{Effect, FaultKind},
        ids::{Attempt, StepIndex},
        open_reply::ReplyDigest,
        retry_budget::RetryWait,
        time::Timestamp,
    };

    fn later(outcome: CallOutcome) -> Command {
        Command::LaterReply {
            step: StepIndex(3),
            attempt: Attempt(2),
            outcome,
            digest: ReplyDigest("of the original".to_owned()),
        }
    }

    fn fault(message: &str) -> Fault {
        Fault {
            kind: FaultKind::Permanent,
            message: message.to_owned(),
            status: None,
            body: None,
            at: Timestamp::from_millis(0),
            effect: Effect::Known,
            step: None,
            undo_on_resume: false,
        }
    }

    fn heartbeat(message: &str, details: &str) -> Command {
        Command::Heartbeat {
            step: StepIndex(3),
            attempt: Attempt(2),
            progress: Progress {
                fraction: Some(0.5),
                message: Some(message.to_owned()),
                details: Some(Payload::from_string(details)),
            },
        }
    }

    #[test]
    fn nothing_that_a_service_sends_later_has_a_secret() {
        let redactor = Redactor::of(["s3cret+one"]);
        let output = |text: &str| later(CallOutcome::Success(Payload::from_string(text)));
        let transient = |text: &str| {
            let (fault, wait) = (fault(text), RetryWait::default());
            later(CallOutcome::Transient { fault, wait })
        };
        let failed = |text: &str| later(CallOutcome::Failed(fault(text)));
        for (command, expected) in [
            (output("a s3cret%2bone"), output("a ***")),
            (failed("no s3cret\\u002Bone"), failed("no ***")),
            (transient("no s3cret&#43;one"), transient("no ***")),
            (heartbeat("at s3cret+one", "x"), heartbeat("at ***", "x")),
            (heartbeat("half", "s3cret%2Bone"), heartbeat("half", "***")),
        ] {
            let hidden = redactor.hide_in_command(&command);
            assert_eq!(format!("{hidden:?}"), format!("{:?}", Some(expected)));
        }
        for command in [output("a secret"), failed("no"), heartbeat("half", "x")] {
            assert!(redactor.hide_in_command(&command).is_none());
        }
    }
}

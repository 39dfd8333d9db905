//! Hides secrets in what a service sends by itself: later replies and heartbeats.

use super::Redactor;
use crate::{
    task::{call::CallOutcome, command::Command, open_reply::Progress},
    template::payload::Payload,
    values::fault::Fault,
};

impl Redactor {
    /// Returns the command without the secrets in the data of a service; `None` if it has none.
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
                // The digest identifies a repeated reply, also if other secrets are known by that time, so it stays.
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
            // A signal is sent by a caller, and the other commands by Provost itself; the results of calls have been
            // searched before.
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
            // These outcomes belong to calls.
            CallOutcome::Kept { .. }
            | CallOutcome::Deferred
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
        task::{open_reply::ReplyDigest, retry_budget::RetryWait},
        values::{
            ids::{Attempt, StepIndex},
            time::Timestamp,
        },
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
        Fault::permanent(message, Timestamp::from_millis(0))
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

//! The record of the attempts that a command ends. See [`AttemptRecord`].

use super::{Draft, Secrets, call};
use crate::{
    task::{
        attempt_record::{
            AttemptExchange, AttemptPurpose, AttemptRecord, AttemptResult, RecordedRequest,
        },
        command::{Command, Expiry, Release},
        open_reply::StepHolder,
        step::{StepState, StepStatus},
    },
    template::Budget,
    values::ids::{Attempt, InstanceId, StepIndex},
};

/// The most requests that are rendered again for the record of one command. A cancel may end the attempts of a thousand
/// items, and none of its time is for their record.
const MOST_RENDERED: usize = 20;

/// The attempt that a command names.
#[derive(Debug)]
pub(super) struct Ending {
    step: StepIndex,
    attempt: Attempt,
    purpose: AttemptPurpose,
    result: AttemptResult,
    /// False if the attempt is recorded only if its step ends in error.
    is_recorded: bool,
    exchange: Option<Box<AttemptExchange>>,
}

impl Draft {
    /// Notes which attempt the command names, before the command changes it.
    pub(super) fn begin_record(
        &mut self,
        command: &Command,
        exchange: Option<Box<AttemptExchange>>,
    ) {
        self.rendered = 0;
        self.ending = None;
        let (step, result) = match command {
            Command::Reply { step, outcome, .. } | Command::LaterReply { step, outcome, .. } => {
                (*step, AttemptResult::of(outcome))
            }
            Command::Release { step, .. } => (*step, AttemptResult::Released),
            Command::Expire { step, cause, .. } => match cause {
                Expiry::CompleteBy | Expiry::GivenUp => (*step, AttemptResult::Expired),
                Expiry::InstanceLost => (*step, AttemptResult::Lost),
            },
            Command::Claim { step, .. } => (*step, AttemptResult::Permanent),
            _ => return,
        };
        let is_recorded = match command {
            // Nothing was sent, and a full agent may hand steps back many times.
            Command::Release { why, .. } => !matches!(why, Release::NoSlot | Release::Undelivered),
            _ => result != AttemptResult::Succeeded || exchange.is_some(),
        };
        self.ending = Some(Ending {
            is_recorded,
            step,
            attempt: self.task.step(step).attempt,
            purpose: self.purpose_of(step),
            result,
            exchange,
        });
    }

    /// A poll that failed does not end its attempt, and is recorded all the same.
    pub(super) fn end_record(&mut self) {
        let Some(ending) = self.ending.take() else {
            return;
        };
        let is_poll = matches!(
            ending.purpose,
            AttemptPurpose::Poll | AttemptPurpose::Cancel
        );
        let (true, Some(exchange)) = (is_poll && ending.is_recorded, ending.exchange) else {
            return;
        };
        let step = self.task.step(ending.step);
        self.attempts.push(AttemptRecord {
            step: ending.step,
            attempt: ending.attempt,
            purpose: ending.purpose,
            result: ending.result,
            ended_at: self.now,
            reason: None,
            error: step.last_fault.clone(),
            next_at: self.task.due_at(ending.step),
            exchange: Some(exchange),
        });
    }

    /// Returns the record of the attempt that ends because its step changes to `state`. `None` if no attempt ends, or if
    /// it succeeded and its instance has not said what it sent.
    pub(super) fn record_of_ended(
        &mut self,
        index: StepIndex,
        kind: &str,
        state: &StepState,
        reason: Option<&str>,
    ) -> Option<AttemptRecord> {
        let from = self.task.step(index).status();
        let is_over = from == StepStatus::Processing
            && !matches!(state, StepState::Processing { .. })
            && !self.task.is_event(index);
        // The request of a claim could not be made.
        let is_of_claim = self
            .ending
            .as_ref()
            .is_some_and(|named| named.step == index);
        let was_claimed = from == StepStatus::Pending && kind == "step.error" && is_of_claim;
        let is_call = self.task.definition(index).is_call();
        if !is_call || !(is_over || was_claimed) {
            return None;
        }
        let named = self.ending.take_if(|ending| ending.step == index);
        let is_in_error = matches!(state, StepState::Error(_));
        if named.as_ref().is_some_and(|named| !named.is_recorded) && !is_in_error {
            return None;
        }
        let is_named = named.is_some();
        let (purpose, result, exchange) = match named {
            Some(ending) => (ending.purpose, ending.result, ending.exchange),
            None => (self.purpose_of(index), AttemptResult::Abandoned, None),
        };
        // A response that the step refuses is a success for the agent only.
        let result = match (result, state) {
            (AttemptResult::Succeeded, StepState::Error(_)) => AttemptResult::Permanent,
            (result, _) => result,
        };
        let exchange = match exchange {
            Some(mut exchange) => {
                if exchange.is_body_left_out {
                    let rendered = self.rendered_again(index, purpose);
                    exchange.request.body = rendered.and_then(|rendered| rendered.request.body);
                }
                exchange.instance = self.instance_of(index);
                Some(exchange)
            }
            // An attempt that was handed back has not failed: a restart hands back all that ran, perhaps on a full disk, and
            // writes a line for each.
            None if is_over
                && !matches!(result, AttemptResult::Succeeded | AttemptResult::Released) =>
            {
                self.rendered_again(index, purpose)
            }
            None => None,
        };
        let error = match state {
            StepState::Error(fault) => Some(fault.clone()),
            _ if is_named && result != AttemptResult::Released => {
                self.task.step(index).last_fault.clone()
            }
            _ => None,
        };
        Some(AttemptRecord {
            step: index,
            attempt: self.task.step(index).attempt,
            purpose,
            result,
            ended_at: self.now,
            reason: reason.map(str::to_owned),
            error: error.filter(|_| result != AttemptResult::Succeeded),
            next_at: match state {
                StepState::Pending { ready_at } => Some(*ready_at),
                _ => None,
            },
            exchange,
        })
    }

    fn purpose_of(&self, index: StepIndex) -> AttemptPurpose {
        let is_undo = self.task.definition(index).undoes.is_some();
        let is_polled = match &self.task.step(index).state {
            StepState::Processing { held_by, .. } => matches!(held_by, StepHolder::Poll(..)),
            _ => false,
        };
        if self.is_cancelling(index) {
            AttemptPurpose::Cancel
        } else if self.is_probing(index) {
            AttemptPurpose::Probe
        } else if is_polled {
            AttemptPurpose::Poll
        } else if is_undo {
            AttemptPurpose::Undo
        } else {
            AttemptPurpose::Work
        }
    }

    /// Renders the request of the current attempt from the record of the task, which is as it was when the attempt was
    /// claimed: a step is not run while a step before it is run again.
    fn rendered_again(
        &mut self,
        index: StepIndex,
        purpose: AttemptPurpose,
    ) -> Option<Box<AttemptExchange>> {
        let is_of_step = !matches!(purpose, AttemptPurpose::Poll | AttemptPurpose::Cancel);
        if !is_of_step || self.rendered >= MOST_RENDERED {
            return None;
        }
        self.rendered += 1;
        let budget = Budget::evaluation();
        let shown = Secrets::Hidden;
        let rendered = call(&self.task, index, self.now, self.now, &budget, shown);
        let request = RecordedRequest::of(&rendered.ok()?);
        Some(Box::new(AttemptExchange::rendered(
            request,
            self.instance_of(index),
        )))
    }

    fn instance_of(&self, index: StepIndex) -> Option<InstanceId> {
        match &self.task.step(index).state {
            StepState::Processing { held_by, .. } => held_by.instance().cloned(),
            _ => None,
        }
    }
}

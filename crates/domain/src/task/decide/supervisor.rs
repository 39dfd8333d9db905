//! Recovery, as the supervisor asks for it.

use std::time::Duration;

use super::Draft;
use crate::{
    definition::{Extend, Policy},
    task::{command::Refusal, open_reply::StepHolder, step::StepState, step_backoff::backoff},
    values::{
        fault::Fault,
        ids::{Attempt, StepIndex},
        time::{Span, Timestamp},
    },
};

impl Draft {
    /// An attempt's complete-by has passed.
    pub(super) fn expire(&mut self, index: StepIndex, attempt: Attempt) -> Result<(), Refusal> {
        self.check_fence(index, attempt)?;
        let (complete_by, ends_at) = match &self.task.step(index).state {
            StepState::Processing {
                held_by,
                complete_by,
            } => (*complete_by, held_by.ends_at(*complete_by)),
            _ => (self.now, self.now),
        };
        if ends_at > self.now {
            return Err(Refusal::NotDue {
                step: self.task.definition(index).name.clone(),
                at: ends_at,
            });
        }
        if self.task.is_event(index) {
            self.event_is_due(index);
            return Ok(());
        }
        if complete_by > self.now {
            let within = self.task.definition(index).heartbeat_within;
            let within = within.unwrap_or_default();
            let reason = format!("attempt {attempt} sent no heartbeat within {within}");
            self.unanswered(index, reason);
            return Ok(());
        }
        self.time_has_passed(index, complete_by);
        Ok(())
    }

    /// See [`Expiry::GivenUp`].
    ///
    /// [`Expiry::GivenUp`]: crate::task::command::Expiry::GivenUp
    pub(super) fn call_given_up(
        &mut self,
        index: StepIndex,
        attempt: Attempt,
    ) -> Result<(), Refusal> {
        self.check_holder(index, attempt)?;
        if let StepState::Processing { complete_by, .. } = self.task.step(index).state {
            self.time_has_passed(index, complete_by);
        }
        Ok(())
    }

    /// The running attempt has had the time until its complete-by, and its effect is unknown.
    fn time_has_passed(&mut self, index: StepIndex, complete_by: Timestamp) {
        self.drop_call(index);
        let attempt = self.task.step(index).attempt;
        let within = match self.is_probing(index) {
            true => self.time_to_complete(index),
            false => self.own_time(index),
        };
        let time = match self.task.limit() == Some(complete_by) {
            true => "the time of the task".to_owned(),
            false => within.to_string(),
        };
        let reason = match &self.task.step(index).last_fault {
            // A fault of this very attempt: it ended its tries one by one.
            Some(fault) if complete_by.since(fault.at) <= within.duration() => {
                let last = &fault.message;
                format!("it did not succeed within {time}; its last fault: {last}")
            }
            Some(fault) => {
                let last = &fault.message;
                format!("attempt {attempt} did not finish within {time}; its last fault: {last}")
            }
            None => format!("attempt {attempt} did not finish within {time}"),
        };
        self.unanswered(index, reason);
    }

    /// An attempt is over and its outcome unknown: that is a failure.
    pub(super) fn unanswered(&mut self, index: StepIndex, reason: String) {
        self.effect_is_unknown(index);
        if self.leave_behind(index, &reason) {
            return;
        }
        self.failed(index, reason, Span::default());
    }

    /// Counts a failure: the step is pending again after a wait that grows, and is no shorter than the service
    /// asked for; or it is what its policy says.
    pub(super) fn failed(&mut self, index: StepIndex, reason: String, least_wait: Span) {
        if self.task.is_withdrawn(index) {
            self.end_withdrawn(index, Some(reason));
            return;
        }
        let definition = self.task.definition(index).clone();
        let most = definition.max_failures;
        let step = self.task.step_mut(index);
        step.failure_count += 1;
        if self.has_used_up_attempts(index, &reason) {
            return;
        }
        let step = self.task.step_mut(index);
        if step.failure_count <= most {
            let rules = definition.attempts.as_ref();
            let own = rules.and_then(|rules| rules.waits());
            let wait = match own {
                Some(waits) => waits.backoff.wait(step.failure_count).into(),
                None => backoff(step.failure_count),
            };
            let wait = wait.max(least_wait);
            self.try_again(index, "step.expired", wait, reason);
            return;
        }
        let policy = &definition.on_exhausted;
        if let Some(Extend { wait, times }) = policy.extend
            && step.extensions_used < times
        {
            step.extensions_used += 1;
            let reason = format!(
                "{reason}; failed more than {most} times, extension {} of {times}",
                step.extensions_used
            );
            self.try_again(index, "step.extended", wait.max(least_wait), reason);
            return;
        }
        let message = match step.failure_count {
            1 => format!("failed once; {reason}"),
            count => format!("failed {count} times; {reason}"),
        };
        self.exhaust(index, message);
    }

    /// The instance that held the attempt is lost. It counts as a failure, and the step is
    /// pending again at once: its service did nothing wrong. Alone it never uses the attempts up, or
    /// machines that come and go would end healthy steps in error; what it would have been the last
    /// straw for waits as after any failure, in case the step is what kills its instances.
    pub(super) fn lose(&mut self, index: StepIndex, attempt: Attempt) -> Result<(), Refusal> {
        self.check_holder(index, attempt)?;
        let is_awaited = !self.task.is_to_be_dropped(index) || self.is_cancelling(index);
        if self.is_polled(index) && is_awaited {
            self.drop_call(index);
            self.poll_again(index, None, Duration::ZERO);
            return Ok(());
        }
        let reason = match &self.task.step(index).state {
            StepState::Processing {
                held_by: StepHolder::Instance(instance),
                ..
            } => {
                format!("instance {instance}, which held attempt {attempt}, was lost")
            }
            _ => format!("the instance that held attempt {attempt} was lost"),
        };
        self.drop_call(index);
        self.effect_is_unknown(index);
        if self.task.is_withdrawn(index) {
            self.end_withdrawn(index, Some(reason));
            return Ok(());
        }
        if self.leave_behind(index, &reason) || self.has_used_up_attempts(index, &reason) {
            return Ok(());
        }
        let most = self.task.definition(index).max_failures;
        let step = self.task.step_mut(index);
        let wait = if step.failure_count < most {
            step.failure_count += 1;
            Span::default()
        } else {
            backoff(most.saturating_add(1))
        };
        self.try_again(index, "step.expired", wait, reason);
        if wait == Span::default() {
            self.offer(index);
        }
        Ok(())
    }

    fn try_again(&mut self, index: StepIndex, kind: &'static str, wait: Span, reason: String) {
        let pending = StepState::Pending {
            ready_at: self.now + wait,
        };
        self.change(index, kind, pending, Some(reason));
        if wait > Span::default() {
            self.item_ended(index);
            self.settle(None);
        }
    }

    /// The task's own complete-by has passed: its policy has it undone, or what is live ends in error. Or the time has
    /// come at which it begins.
    pub(super) fn overdue(&mut self) -> Result<(), Refusal> {
        if self.task.waits_for_resume() {
            // An earlier version of Provost has recorded a time for it, which the supervisor would find again and again. A step
            // that is saved has the record of the task written as well, without that time.
            self.touch(StepIndex(0));
            return Ok(());
        }
        if self.task.start_at.is_some_and(|start| start <= self.now) {
            self.start(None);
            return Ok(());
        }
        if self.task.overdue_at().is_none_or(|limit| limit > self.now) {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "neither its `start_at` nor its complete-by has passed, or all of its steps have ended",
            });
        }
        let within = self.task.details.complete_within.unwrap_or_default();
        let message = format!("the task did not finish within {within}");
        let fault = Fault::deadline(message, self.now);
        let undo = self.task.details.definition.policies.on_deadline == Some(Policy::Undo);
        if undo && self.task.passed_pivot().is_none() {
            self.begin_undo(None, Some(fault));
            self.settle(None);
            return Ok(());
        }
        for index in self.task.indexes() {
            let step = self.task.step(index);
            if self.task.ends_at_limit(index) {
                let mut fault = fault.clone();
                if let StepState::Processing { .. } = step.state {
                    self.drop_call(index);
                    self.effect_is_unknown(index);
                    fault.effect = self.task.step(index).effect;
                }
                match self.task.is_lost(index) {
                    true => self.lose_with(index, fault),
                    false => self.fail(index, "step.error", fault),
                }
            }
        }
        self.settle(None);
        Ok(())
    }
}

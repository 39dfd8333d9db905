//! Attempts that are withdrawn while they are under way: an operator cancels the step, it has lost a race, the task is
//! stopped, enough items of its list have succeeded, or its `while` is not true any more. As for an undo, the instance that
//! makes the call first confirms that no try can follow, or the service is asked to cancel its work: what undoes the step
//! must not come before the call. Until then the step stays in its state, and what follows from its end waits for it.

use super::Draft;
use crate::{
    task::{
        aggregate::Task,
        open_reply::StepHolder,
        step::{StepState, StepStatus},
    },
    values::{fault::Fault, ids::StepIndex},
};

impl Task {
    /// Returns whether the running attempt of a step is withdrawn, and has yet to end.
    pub fn is_withdrawn(&self, index: StepIndex) -> bool {
        self.withdrawal(index).is_some()
    }

    /// Returns whether the attempt is withdrawn because the step is not needed any more, and not by an operator.
    pub(super) fn is_unwanted(&self, index: StepIndex) -> bool {
        self.withdrawal(index).is_some_and(|why| why.unwanted)
    }

    /// Returns why the running attempt of a step is withdrawn, if it is.
    pub(super) fn withdrawal(&self, index: StepIndex) -> Option<&Fault> {
        let step = self.step(index);
        let is_running = step.status() == StepStatus::Processing;
        { step.last_fault.as_ref() }.filter(|fault| is_running && fault.cancelled)
    }
}

impl Draft {
    /// Withdraws the attempt of a step that is under way; `why` is what the step's record says until it ends. Returns true if
    /// nothing is left of the attempt, so that the step can end now; otherwise [`Draft::end_withdrawn`] ends it.
    pub(super) fn withdraw(&mut self, index: StepIndex, why: Fault) -> bool {
        let StepState::Processing { held_by, .. } = &self.task.step(index).state else {
            return true;
        };
        match held_by {
            StepHolder::Instance(_) => self.have_dropped(index, true),
            // Nothing but a poll, or the request to cancel, is dropped.
            StepHolder::Poll(..) | StepHolder::Service(_) | StepHolder::Event => {
                self.drop_call(index);
                if self.asks_to_cancel(index) || !self.begin_cancel(index) {
                    return true;
                }
            }
        }
        let step = self.task.step_mut(index);
        step.last_fault = Some(Fault {
            cancelled: true,
            effect: step.effect,
            ..why
        });
        self.touch(index);
        false
    }

    /// Says in the history that the call of a withdrawn attempt is being dropped, or its service asked to cancel the work.
    pub(super) fn note_withdrawal(&mut self, index: StepIndex, reason: String) {
        let attempt = self.task.step(index).attempt;
        self.note_attempt(index, "step.dropping", attempt, reason);
    }

    /// Ends a step whose withdrawn attempt has ended without success. What it did is unknown.
    pub(super) fn end_withdrawn(&mut self, index: StepIndex, reason: Option<String>) {
        if let Some(why) = self.task.withdrawal(index).cloned() {
            self.end_for(index, why, reason);
        }
    }

    /// Ends a step whose attempt was withdrawn because of `why`.
    pub(super) fn end_for(&mut self, index: StepIndex, why: Fault, reason: Option<String>) {
        self.effect_is_unknown(index);
        if self.leave_behind(index, &why.message) {
            return;
        }
        if !why.unwanted {
            self.end_cancelled(index, reason);
            return;
        }
        match self.task.is_still_wanted(index, &self.budget) {
            Ok(true) => self.need_again(index),
            Ok(false) => self.skip_unwanted(index, why.message),
            Err(message) => self.skip_unwanted(index, message),
        }
        self.settle(None);
    }

    /// Before the attempt had ended, the task has moved to a version that needs the step, was rerun from before what ended the
    /// step, or its `while` has become true again.
    fn need_again(&mut self, index: StepIndex) {
        let reason = "it is needed again";
        if self.has_used_up_attempts(index, reason) {
            return;
        }
        let pending = StepState::Pending { ready_at: self.now };
        self.change(index, "step.released", pending, Some(reason.to_owned()));
        self.offer(index);
    }

    /// The promise of a reply that is not awaited any more.
    pub(super) fn withdraw_promise(&mut self, index: StepIndex) {
        if !self.begin_cancel(index) {
            self.end_withdrawn(index, None);
        }
    }
}

//! A task rerun from a step: the step and all that follow it, near or far, those that are
//! done among them, under the keys that they had before. What they did stands until they have done it
//! again, and is undone if the task is.

use super::Draft;
use crate::{
    task::{
        aggregate::Task,
        alert::AlertChange,
        command::Refusal,
        step::{StepState, StepStatus},
    },
    values::ids::{Attempt, StepIndex, StepName},
};

impl Draft {
    pub(super) fn retry_from_name(
        &mut self,
        name: StepName,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        match self.task.find(name.as_str()) {
            Some(step) => self.retry_from(step, reason),
            None => Err(Refusal::NoStepOfName(name)),
        }
    }

    pub(super) fn retry_from(
        &mut self,
        from: StepIndex,
        reason: Option<String>,
    ) -> Result<(), Refusal> {
        if self.task.undo.is_some() {
            return Err(Refusal::TaskState {
                status: self.task.status(),
                needed: "it is being undone: only its undo steps run",
            });
        }
        if self.task.definition(from).item.is_some() {
            return Err(self.refuse_step(
                from,
                "it is an item of a group: retry it alone, or rerun from its group",
            ));
        }
        let chosen = self.reruns(from);
        self.check_rerun(from, &chosen)?;
        let name = self.task.definition(from).name.clone();
        let again = match &reason {
            Some(reason) => format!("{reason} (rerun from {name})"),
            None => format!("rerun from {name}"),
        };
        let mut is_chosen = vec![false; self.task.steps.len()];
        for index in &chosen {
            is_chosen[index.at()] = true;
        }
        self.keep_sent_requests(chosen.iter().copied(), Task::undo_reads_request)?;
        self.renew_limit();
        self.ready.retain(|ready| !is_chosen[ready.at()]);
        for index in &chosen {
            self.reset(*index, &again);
        }
        self.open(from);
        // A race may be won by steps that do not run again.
        for index in chosen {
            self.open(index);
        }
        self.settle(reason);
        Ok(())
    }

    /// The step and all that follow it, in an order in which they could run, with the undos of losers that must be decided
    /// on again.
    fn reruns(&self, from: StepIndex) -> Vec<StepIndex> {
        let mut chosen = vec![false; self.task.steps.len()];
        chosen[from.at()] = true;
        self.choose_followers(&mut chosen);
        if self.task.stopped_by().is_some_and(|stop| chosen[stop.at()]) {
            // The end of the task is decided on again, and with it what it has cancelled.
            for index in self.task.order() {
                chosen[index.at()] |= self.was_cancelled_by_stop(*index);
            }
            self.choose_followers(&mut chosen);
        }
        for revert in self.open_reverts_of_races(&chosen) {
            chosen[revert.at()] = true;
        }
        let order = self.task.order().iter().copied();
        // A step that was undone because it had lost a race stays undone.
        let is_undone = |index: &StepIndex| {
            self.task.step(self.task.subject(*index)).status() == StepStatus::Undone
        };
        let chosen = order.filter(|index| chosen[index.at()] && !is_undone(index));
        chosen.collect()
    }

    fn choose_followers(&self, chosen: &mut [bool]) {
        for index in self.task.order() {
            let definition = self.task.definition(*index);
            let mut after = definition.after.iter();
            // The steps that run when all others have ended follow each of them.
            chosen[index.at()] |= definition.is_finally || after.any(|before| chosen[before.at()]);
        }
    }

    fn was_cancelled_by_stop(&self, index: StepIndex) -> bool {
        let is_own = self.task.definition(index).undoes.is_none();
        is_own
            && self.task.step(index).status() == StepStatus::Cancelled
            && !self.task.is_lost(index)
    }

    /// Returns the undos of losers that have not ended although their races are run again, because competitors are. A loser
    /// that has succeeded may win then, and what the winner did must not be undone.
    fn open_reverts_of_races(&self, is_chosen: &[bool]) -> Vec<StepIndex> {
        let is_run_again = |join: StepIndex| {
            let race = self.task.definition(join).race.as_ref();
            race.is_some_and(|race| race.of.iter().any(|step| is_chosen[step.at()]))
        };
        let is_open = |revert: &StepIndex| {
            let status = self.task.step(*revert).status();
            let lanes = &self.task.definition(self.task.subject(*revert)).lanes;
            matches!(
                status,
                StepStatus::Pending | StepStatus::Processing | StepStatus::Error
            ) && lanes.iter().any(|lane| is_run_again(lane.join))
        };
        let reverts = self
            .task
            .forward()
            .filter(|step| self.task.is_revert(*step));
        reverts.filter(is_open).collect()
    }

    fn check_rerun(&self, from: StepIndex, chosen: &[StepIndex]) -> Result<(), Refusal> {
        if self.task.step(from).status() == StepStatus::Waiting {
            return Err(self.refuse_step(
                from,
                "it has never become ready, so there is nothing to rerun",
            ));
        }
        if self.task.is_lost(from) {
            return Err(self.refuse_step(
                from,
                "it has lost a race that is over: rerun from a step before the race",
            ));
        }
        let stop = self.task.stopped_by();
        if stop.is_some_and(|stop| !chosen.contains(&stop)) {
            return Err(self.refuse_step(
                from,
                "another step has ended the task: rerun from that one, or from a step before it",
            ));
        }
        if self.task.step(from).status() == StepStatus::Undone || self.task.is_revert(from) {
            return Err(self.refuse_step(
                from,
                "it has lost a race and was undone, or undoes another step: rerun from a step before the race",
            ));
        }
        for index in chosen.iter().copied() {
            match self.task.step(index).status() {
                // A step that waits for an event waits for it again.
                StepStatus::Processing if self.task.waits_for_event(index) => {}
                StepStatus::Processing if self.task.waits_for_child(index) => {
                    return Err(self.refuse_step(
                        index,
                        "its task is running: cancel or undo that, or wait for its end, and retry then",
                    ));
                }
                StepStatus::Processing => {
                    return Err(self.refuse_step(
                        index,
                        "its call is in flight: wait until the call has ended, and retry then",
                    ));
                }
                // Run again it would count as not begun, and what it made final could be undone.
                StepStatus::Processed if self.task.definition(index).pivot => {
                    return Err(self.refuse_step(
                        index,
                        "it is a pivot, which runs only once: rerun from a step after it",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Back to where the step waits for those before it, with its failures forgotten and what it did
    /// remembered.
    fn reset(&mut self, index: StepIndex, reason: &str) {
        let definition = self.task.definition(index);
        let may_have_effect = definition.is_call() || definition.has_child();
        let has_address = definition.reads_reply;
        let step = self.task.step_mut(index);
        step.failure_count = 0;
        step.extensions_used = 0;
        step.last_fault = None;
        self.grant_attempts(index);
        let step = self.task.step_mut(index);
        if has_address && step.attempt > Attempt::default() {
            step.reply_log.close(step.attempt);
        }
        // It is asked for again, unless it has come and was never used.
        step.signal.take_if(|signal| signal.payload.is_none());
        if may_have_effect && step.is_done() && step.may_have_taken_effect() {
            step.previous_output = step.output().cloned();
        }
        match step.status() {
            StepStatus::Waiting => return,
            StepStatus::Error => self.alerts.push(AlertChange::Close { step: index }),
            _ => {}
        }
        let reason = Some(reason.to_owned());
        self.change(index, "step.retried", StepState::Waiting, reason);
    }
}

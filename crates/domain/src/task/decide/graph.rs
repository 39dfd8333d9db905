//! The order of steps: which become ready when another is done.

use std::sync::Arc;

use super::Draft;
use crate::{
    definition::Policy,
    task::step::StepState,
    values::{fault::Fault, ids::StepIndex},
};

impl Draft {
    /// Opens the steps that follow nothing.
    pub(super) fn open_ready_steps(&mut self) {
        for index in self.task.indexes() {
            if self.task.definition(index).after.is_empty() {
                self.open(index);
            }
        }
        self.settle(None);
    }

    /// Opens the steps that waited for this one alone.
    pub(super) fn open_followers(&mut self, done: StepIndex) {
        if self.task.definition(done).item.is_some() {
            self.item_ended(done);
            return;
        }
        for follower in &*self.next_of(done) {
            self.open(*follower);
        }
        for revert in self.end_race(done) {
            self.open(revert);
        }
    }

    /// The steps of the definition that follow one of them.
    fn next_of(&self, done: StepIndex) -> Arc<[StepIndex]> {
        let definition = &self.task.details.definition;
        definition.step(done).followers.clone()
    }

    /// Moves a step on from waiting if all it follows is done: to pending, or to skipped where its
    /// condition is false, which in turn opens its own followers.
    pub(super) fn open(&mut self, first: StepIndex) {
        let mut candidates = vec![first];
        while let Some(index) = candidates.pop() {
            let definition = self.task.definition(index);
            // The undos of items are opened one by one: nothing limits the number that run.
            if let (Some(item), None) = (definition.item, definition.undoes) {
                if self.run_items(item.group) {
                    candidates.extend(self.next_of(item.group).iter());
                }
                continue;
            }
            if self.task.step(index).state != StepState::Waiting {
                continue;
            }
            if !self.task.is_ready_to_begin(index) {
                if self.give_up_race(index) {
                    candidates.extend(self.end_race(index));
                    candidates.extend(self.next_of(index).iter());
                }
                continue;
            }
            candidates.extend(self.end_race(index));
            if self.task.is_revert(index) {
                if self.begin_revert(index) {
                    candidates.extend(self.next_of(index).iter());
                }
                continue;
            }
            let definition = self.task.definition(index);
            let wanted = match &definition.when {
                Some(condition) => condition
                    .truth(&self.task.scope(index, &self.budget))
                    .map_err(|error| format!("its condition could not be evaluated: {error}")),
                None => Ok(true),
            };
            let wanted = match wanted {
                Ok(true) => self.task.is_still_wanted(index, &self.budget),
                other => other,
            };
            match wanted {
                Ok(true) => {
                    self.change(
                        index,
                        "step.ready",
                        StepState::Pending { ready_at: self.now },
                        None,
                    );
                    if self.task.definition(index).is_call() {
                        self.offer(index);
                    } else if self.await_event(index) {
                        candidates.extend(self.next_of(index).iter());
                    }
                }
                Ok(false) => {
                    self.pass_over(index, "its condition is false".to_owned());
                    candidates.extend(self.next_of(index).iter());
                }
                Err(message) => {
                    let fault = Fault::permanent(message, self.now);
                    // Without its condition it can neither be run nor be passed over.
                    let policy = match self.task.definition(index).on_permanent {
                        Policy::Undo => Policy::Undo,
                        Policy::Error | Policy::Skip => Policy::Error,
                    };
                    self.give_up(index, policy, fault);
                }
            }
        }
    }

    /// Names a pending step as one that may be claimed at once, in the same transaction.
    pub(super) fn offer(&mut self, index: StepIndex) {
        if self.task.due_at(index).is_some() {
            self.ready_marks.add(&mut self.ready, index);
        }
    }
}

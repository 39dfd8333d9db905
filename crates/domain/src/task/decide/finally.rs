//! The steps that run when all others have ended: they begin before the task itself ends, and a task that is cancelled
//! waits for them as one that is undone does.

use super::Draft;
use crate::{
    task::{
        aggregate::{TaskState, Undo},
        step::StepState,
    },
    values::ids::StepIndex,
};

impl Draft {
    /// Begins the steps that run when all others have ended, if these have.
    pub(super) fn begin_finally(&mut self) {
        if self.task.is_ended() || !self.task.has_finally_ahead() || !self.task.may_begin_finally()
        {
            return;
        }
        let definition = self.task.details.definition.clone();
        let first = definition.finally.iter().copied();
        let first: Vec<StepIndex> = first
            .filter(|index| definition.step(*index).after.is_empty())
            .collect();
        for index in first {
            self.open(index);
        }
    }

    /// Has a cancelled task go on with the steps that run when all others have ended. Returns whether it has any that have
    /// not begun.
    pub(super) fn cancel_before_finally(&mut self, reason: Option<&str>) -> bool {
        if !self.task.has_finally_ahead() {
            return false;
        }
        let is_undone = self.task.undo.is_some();
        let undo = self.task.undo.get_or_insert_with(|| Undo {
            at: self.now,
            by: self.by.clone(),
            reason: reason.map(str::to_owned),
            error: None,
            cancels: true,
        });
        undo.cancels = true;
        self.touch_all();
        let before = self.task.status();
        self.task.state = TaskState::Undoing;
        if self.task.status() != before {
            self.record_task(before.as_str(), reason.map(str::to_owned));
        }
        if !is_undone {
            self.make_undos();
            self.cancel_undos();
        }
        self.settle(None);
        true
    }

    /// Ends the undos of a task that is cancelled. The history says nothing of those of items.
    fn cancel_undos(&mut self) {
        let first = self.task.steps.len();
        let undos = self.task.indexes().filter(|index| index.at() >= first);
        for undo in undos.collect::<Vec<_>>() {
            if self.task.definition(undo).item.is_none() {
                self.abandon(undo, "the task is cancelled");
                continue;
            }
            let cancelled = StepState::Cancelled { at: self.now };
            self.task.step_mut(undo).state = cancelled;
            self.touch(undo);
        }
    }

    /// Returns whether a cancellation or an undo leaves the step alone: it runs when all others have ended. In a task that has
    /// not begun there is nothing for it to do.
    pub(super) fn remains_at_the_end(&self, index: StepIndex) -> bool {
        self.task.is_finally(index) && !self.task.has_not_begun()
    }
}

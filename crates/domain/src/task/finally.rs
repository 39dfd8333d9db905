//! The steps that run when all others have ended: when they begin, and how the task ends after them.

use crate::{
    task::{
        aggregate::Task,
        status::TaskStatus,
        step::{Step, StepStatus},
    },
    values::ids::StepIndex,
};

impl Task {
    /// Returns whether the step is one of those that run when all others have ended.
    pub fn is_finally(&self, index: StepIndex) -> bool {
        self.definition(index).is_finally
    }

    fn finally(&self) -> impl Iterator<Item = &Step> {
        let steps = self.details.definition.finally.iter();
        steps.map(|index| self.step(*index))
    }

    /// Returns whether the task has steps that run when all others have ended, and none of them has begun.
    pub(crate) fn has_finally_ahead(&self) -> bool {
        !self.details.definition.finally.is_empty()
            && self
                .finally()
                .all(|step| step.status() == StepStatus::Waiting)
    }

    /// Returns whether the steps have begun that run when all others have ended: how the task ends is decided.
    pub(crate) fn has_begun_finally(&self) -> bool {
        let mut steps = self.finally();
        steps.any(|step| step.status() != StepStatus::Waiting)
    }

    /// Returns whether such steps run, or are in error.
    pub(crate) fn runs_finally(&self) -> bool {
        self.has_begun_finally() && !self.has_ended_finally()
    }

    /// Returns the steps that must end before those begin that run when all others have ended.
    pub(crate) fn open_before_finally(&self) -> Vec<StepIndex> {
        let open = self.indexes().filter(|index| {
            let step = self.step(*index);
            match self.is_finally(*index) {
                true => false,
                false if self.undo.is_none() => !step.has_ended_for_good(),
                false if index.at() < self.steps.len() => step.status() == StepStatus::Processing,
                false => !step.is_done() && step.status() != StepStatus::Cancelled,
            }
        });
        open.collect()
    }

    /// Returns whether the steps have ended that run when all others have.
    pub(crate) fn has_ended_finally(&self) -> bool {
        self.finally().all(Step::has_ended_for_good)
    }

    /// Returns whether everything has ended but the steps that run then: what was to be done is done, or undone.
    pub(crate) fn may_begin_finally(&self) -> bool {
        match &self.undo {
            None => {
                let open = self.finally().filter(|step| !step.has_ended_for_good());
                self.steps.open() == open.count()
            }
            Some(undo) => {
                let running = self.finally();
                let running = running.filter(|step| step.status() == StepStatus::Processing);
                (undo.cancels || self.undos.all_done())
                    && self.steps.processing() == running.count()
            }
        }
    }

    /// Returns the state in which the task ends, or will end as things are.
    pub(crate) fn end(&self) -> TaskStatus {
        match &self.undo {
            None => TaskStatus::Processed,
            Some(_) if self.is_cancelled() => TaskStatus::Cancelled,
            Some(_) => TaskStatus::Undone,
        }
    }

    /// Returns whether the task is cancelled, or will be as soon as the steps have ended that run when all others have.
    pub fn is_cancelled(&self) -> bool {
        self.status() == TaskStatus::Cancelled
            || self.undo.as_ref().is_some_and(|undo| undo.cancels)
    }
}

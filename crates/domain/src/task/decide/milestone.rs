//! Steps that run only as long as a condition is true.

use super::Draft;
use crate::{
    task::{
        aggregate::Task,
        alert::AlertChange,
        step::{StepState, StepStatus},
    },
    template::{Budget, Scope},
    values::{fault::Fault, ids::StepIndex},
};

impl Task {
    /// Returns whether the condition is true for as long as which a step runs.
    pub(super) fn is_still_wanted(
        &self,
        index: StepIndex,
        budget: &Budget,
    ) -> Result<bool, String> {
        let Some(rule) = &self.definition(index).while_rule else {
            return Ok(true);
        };
        let steps = rule.reads.iter();
        let steps = steps.map(|read| (&self.definition(*read).name, self.step(*read).output()));
        let scope = Scope {
            steps: steps.collect(),
            ..self.scope(index, budget)
        };
        let wanted = rule.condition.truth(&scope);
        wanted.map_err(|error| format!("its `while` could not be evaluated: {error}"))
    }
}

impl Draft {
    /// Ends the steps that have begun and are no longer wanted. The steps after them go on, and may end others.
    pub(super) fn end_unwanted(&mut self) {
        let definition = self.task.details.definition.clone();
        if definition.whiles.is_empty() || self.task.undo.is_some() || self.task.is_ended() {
            return;
        }
        // The end of a step may make another one unwanted, and so each round looks at all of them once, until one ends none.
        let mut has_ended = true;
        while std::mem::take(&mut has_ended) {
            for index in definition.whiles.iter().copied() {
                let Some(reason) = self.why_unwanted(index) else {
                    continue;
                };
                has_ended = true;
                self.end_step_unwanted(index, reason);
            }
        }
    }

    fn end_step_unwanted(&mut self, index: StepIndex, reason: String) {
        match self.task.step(index).status() {
            StepStatus::Error => self.alerts.push(AlertChange::Close { step: index }),
            StepStatus::Processing if self.task.definition(index).is_call() => {
                let why = Fault {
                    unwanted: true,
                    ..Fault::permanent(reason.clone(), self.now)
                };
                if !self.withdraw(index, why) {
                    self.note_withdrawal(index, reason);
                    return;
                }
                self.effect_is_unknown(index);
            }
            _ => {}
        }
        self.ready.retain(|ready| *ready != index);
        self.skip_unwanted(index, reason);
    }

    /// Skips a step that is not wanted any more. It has not failed, unless it was in error.
    pub(super) fn skip_unwanted(&mut self, index: StepIndex, reason: String) {
        let skipped = StepState::Skipped {
            output: None,
            at: self.now,
        };
        self.task.step_mut(index).last_fault = None;
        self.change(index, "step.skipped", skipped, Some(reason));
        self.open_followers(index);
    }

    /// Returns why a step that has begun is not wanted any more.
    fn why_unwanted(&self, index: StepIndex) -> Option<String> {
        let has_begun = matches!(
            self.task.step(index).status(),
            StepStatus::Pending | StepStatus::Processing | StepStatus::Error
        );
        if !has_begun || self.task.is_withdrawn(index) {
            return None;
        }
        match self.task.is_still_wanted(index, &self.budget) {
            Ok(true) => None,
            Ok(false) => Some("its `while` is not true any more".to_owned()),
            Err(message) => Some(message),
        }
    }
}

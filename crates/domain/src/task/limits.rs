//! The limits of a task's steps that its input may give.

use crate::{
    definition::{Enough, ForEachRule, StepWork},
    task::{aggregate::Task, step::StepStatus},
    template::{Budget, Scope},
    values::{ids::StepIndex, time::Span},
};

/// The most that one limit may cost, in the units of [`Budget`].
const COST: u64 = 1 << 18;

impl Task {
    /// Evaluates a limit. It reads nothing but what was submitted, so it has the same value each time.
    fn evaluate_limit<T>(
        &self,
        evaluate: impl FnOnce(&Scope<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let budget = Budget::new(COST);
        evaluate(&Scope {
            task_id: self.id(),
            key: self.details.key.as_deref(),
            labels: &self.details.labels,
            input: Some(&self.details.input),
            ..Scope::empty(&budget)
        })
    }

    /// Returns the time that an attempt of the step itself has. The error text is for an operator.
    pub(crate) fn time_of_attempt(&self, index: StepIndex) -> Result<Span, String> {
        let definition = self.definition(index);
        let rules = definition.attempts.as_ref();
        match rules.and_then(|rules| rules.complete_within.as_ref()) {
            Some(within) => self.evaluate_limit(|scope| within.span(scope)),
            None => Ok(definition.complete_within),
        }
    }

    /// Returns how long the step awaits its signal. The error text is for an operator.
    pub(crate) fn time_of_signal(&self, index: StepIndex) -> Result<Span, String> {
        let StepWork::Signal(rule) = &self.definition(index).work else {
            return Ok(Span::default());
        };
        match &rule.within_from {
            Some(within) => self.evaluate_limit(|scope| within.span(scope)),
            None => Ok(rule.within),
        }
    }

    /// Returns the largest number of items of a group that run at once. The error text is for an operator.
    pub(crate) fn check_max_parallel(&self, group: StepIndex) -> Result<u16, String> {
        let Some(rule) = self.definition(group).group_rule() else {
            return Ok(1);
        };
        match rule.for_each() {
            Some(ForEachRule {
                max_parallel_from: Some(from),
                ..
            }) => self.evaluate_limit(|scope| from.number(scope)),
            _ => Ok(rule.max_parallel()),
        }
    }

    /// Returns `check_max_parallel` of a group that has begun, and 1 for any other step. A group whose limit cannot
    /// be evaluated does not begin.
    pub fn max_parallel(&self, group: StepIndex) -> u16 {
        self.check_max_parallel(group).unwrap_or(1)
    }

    /// Returns how many items of a list must succeed, if not all of them must end. The error text is for an operator.
    pub(crate) fn enough(&self, group: StepIndex) -> Result<Option<u16>, String> {
        let rule = self.definition(group).group_rule();
        match rule.and_then(|rule| rule.for_each()?.enough.as_ref()) {
            None => Ok(None),
            Some(Enough::Fixed(enough)) => Ok(Some(*enough)),
            Some(Enough::FromInput(from)) => {
                let enough = self.evaluate_limit(|scope| from.number(scope));
                enough.map(Some)
            }
        }
    }

    /// Returns whether so many items of a list have succeeded that the others are not needed.
    pub(crate) fn has_enough(&self, group: StepIndex) -> bool {
        let (Ok(Some(enough)), Some(items)) = (self.enough(group), self.group(group)) else {
            return false;
        };
        let counts = self.steps.counts_of(&items.items);
        counts.count(StepStatus::Processed) >= enough.into()
    }

    /// Returns how many iterations a step may have each time that it is allowed more. The error text is for an operator.
    pub(crate) fn iterations_at_once(&self, group: StepIndex) -> Result<u16, String> {
        let Some(rule) = self.definition(group).repeat() else {
            return Ok(1);
        };
        match &rule.at_most_from {
            Some(from) => self.evaluate_limit(|scope| from.number(scope)),
            None => Ok(rule.at_most),
        }
    }
}

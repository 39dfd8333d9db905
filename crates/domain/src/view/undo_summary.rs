//! The undos of many tasks in one summary: for each step, how many tasks call its undo, and how many pass it over.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::undo_plan::{
    AvailableAfter, NotUndoneReason, PlannedCall, PlannedUndo, UndoPlan, UndoReason,
};
use crate::values::StepName;

/// The most steps that are counted by name.
const MOST_STEPS: usize = 1000;
/// The most steps in a summary.
const MOST_SHOWN: usize = 100;

/// The undos of tasks, by step.
#[derive(Default, Debug)]
pub struct UndoSummary {
    tasks: u64,
    steps: BTreeMap<StepName, StepUndos>,
    others: u64,
}

/// The plans of the tasks that would be undone, in one summary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct UndoSummaryView {
    /// The tasks that are summarised.
    #[schema(example = 409)]
    pub tasks: u64,
    /// The undo of each step, those with the most calls first; at most 100.
    #[schema(max_items = 100)]
    pub steps: Vec<UndoSummaryStep>,
    /// The calls of further steps.
    #[schema(example = 0)]
    pub other_calls: u64,
}

/// The undo of a step in many tasks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct UndoSummaryStep {
    #[schema(value_type = String, example = "charge")]
    pub step: StepName,
    #[serde(flatten)]
    pub undos: StepUndos,
}

/// The numbers of undos of a step.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, ToSchema)]
pub struct StepUndos {
    /// The calls that undo it, or the children that are undone.
    #[schema(example = 400)]
    pub calls: u64,
    /// The number of `calls` for which it is unknown whether the step took effect.
    #[schema(example = 2)]
    pub unknown: u64,
    /// The number of `calls` that would fail and need an operator, because their request cannot be made.
    #[schema(example = 0)]
    pub failing: u64,
    /// Its calls in flight.
    #[schema(example = 7)]
    pub running: u64,
    /// The tasks that pass it over, because there is nothing to undo or it has no undo.
    #[schema(example = 9)]
    pub passed_over: u64,
    /// The number of tasks of `passed_over` in which its effect remains.
    #[schema(example = 0)]
    pub effect_remains: u64,
}

impl UndoSummary {
    /// Adds the plan of a task.
    pub fn add(&mut self, plan: &UndoPlan) {
        self.tasks += 1;
        for undo in &plan.calls {
            let (is_unknown, fails) = (undo.because == UndoReason::Unknown, fails(undo));
            match self.step(&undo.undoes) {
                Some(step) => {
                    step.calls += 1;
                    step.unknown += u64::from(is_unknown);
                    step.failing += u64::from(fails);
                }
                None => self.others += 1,
            }
        }
        for running in &plan.running {
            if let Some(step) = self.step(&running.step) {
                step.running += 1;
            }
        }
        for passed in &plan.passed_over {
            if let Some(step) = self.step(&passed.step) {
                let remains = [NotUndoneReason::NoUndo, NotUndoneReason::UndoSkipped];
                step.passed_over += 1;
                step.effect_remains += u64::from(remains.contains(&passed.why));
            }
        }
        for more in &plan.more_items {
            if let Some(step) = self.step(&more.step) {
                step.calls += more.calls as u64;
                step.running += more.running as u64;
                step.passed_over += more.passed_over as u64;
            }
        }
    }

    fn step(&mut self, name: &StepName) -> Option<&mut StepUndos> {
        // The items of a list count as their step.
        let name = match name.as_str().split_once('[') {
            Some((group, _)) => StepName::new(group),
            None => name.clone(),
        };
        if self.steps.len() >= MOST_STEPS && !self.steps.contains_key(&name) {
            return None;
        }
        Some(self.steps.entry(name).or_default())
    }

    pub fn view(self) -> UndoSummaryView {
        let steps = self.steps.into_iter();
        let mut steps: Vec<_> = steps
            .map(|(step, undos)| UndoSummaryStep { step, undos })
            .collect();
        steps.sort_by_key(|step| std::cmp::Reverse(step.undos.calls));
        let others: u64 = steps
            .iter()
            .skip(MOST_SHOWN)
            .map(|step| step.undos.calls)
            .sum();
        steps.truncate(MOST_SHOWN);
        UndoSummaryView {
            tasks: self.tasks,
            steps,
            other_calls: self.others + others,
        }
    }
}

fn fails(undo: &PlannedUndo) -> bool {
    matches!(&undo.call, PlannedCall::CannotRender(reason) if reason.until == AvailableAfter::Never)
}

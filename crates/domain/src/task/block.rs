//! Blocks that have failed: steps in them failed and were skipped by their policies, and nothing came of the block.

use std::collections::HashSet;

use super::aggregate::Task;
use crate::{
    definition::StepKind,
    task::step::StepStatus,
    values::{fault::Fault, ids::StepIndex},
};

impl Task {
    /// Returns why a block has no success, if it has none because steps in it failed and were skipped: the last of their
    /// faults. A value or a wait is a success only where it follows such a step, as one that stands in for its output does.
    pub(crate) fn fault_of_block(&self, end: StepIndex) -> Option<&Fault> {
        let inside = self.definition(end).in_block.clone();
        let faults: Vec<(StepIndex, &Fault)> = { inside.iter() }
            .filter_map(|step| Some((*step, self.fault_that_was_skipped(*step)?)))
            .collect();
        let (_, last) = faults.iter().max_by_key(|(_, fault)| fault.at)?;
        let failed: Vec<StepIndex> = faults.iter().map(|(step, _)| *step).collect();
        let later = self.steps_after(&failed, &inside);
        let is_success = |step: &StepIndex| match self.definition(*step).work.kind() {
            StepKind::Set | StepKind::Wait => later.contains(step) && self.has_succeeded(*step),
            _ => self.has_succeeded(*step),
        };
        (!inside.iter().any(is_success)).then_some(*last)
    }

    /// Returns whether a step has ended with success. A list without an item that was not skipped has none.
    pub(crate) fn has_succeeded(&self, index: StepIndex) -> bool {
        self.step(index).status() == StepStatus::Processed && !self.are_all_items_skipped(index)
    }

    fn are_all_items_skipped(&self, group: StepIndex) -> bool {
        let Some(items) = self.group(group) else {
            return false;
        };
        let counts = self.steps.counts_of(&items.items);
        counts.total() > 0 && counts.count(StepStatus::Skipped) == counts.total()
    }

    /// Returns the fault of a step that was skipped because of it; of a list, all items of which were, that of the last.
    fn fault_that_was_skipped(&self, index: StepIndex) -> Option<&Fault> {
        let step = match self.group(index) {
            Some(group) if self.are_all_items_skipped(index) => {
                &self.steps[group.items.iter().next_back()?]
            }
            _ => self.step(index),
        };
        let is_skipped = step.status() == StepStatus::Skipped && step.output().is_none();
        step.error().filter(|_| is_skipped)
    }

    /// Returns those of the steps `among` that follow one of `first`.
    fn steps_after(&self, first: &[StepIndex], among: &[StepIndex]) -> HashSet<StepIndex> {
        let among: HashSet<_> = among.iter().copied().collect();
        let mut found = HashSet::new();
        let mut open = first.to_vec();
        while let Some(step) = open.pop() {
            for follower in &*self.definition(step).followers {
                if among.contains(follower) && found.insert(*follower) {
                    open.push(*follower);
                }
            }
        }
        found
    }
}

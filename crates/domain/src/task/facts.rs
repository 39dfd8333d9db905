//! The parts of a task's record that expressions read besides the input and the outputs.

use crate::{
    task::{
        aggregate::Task,
        step::{Step, StepState},
    },
    template::{ResponseFacts, StepFacts, TaskRecord},
    values::{fault::Fault, time::Timestamp},
};

impl Step {
    /// Returns the fault that ended the step: it is in error, or was skipped or undone without having succeeded.
    pub fn error(&self) -> Option<&Fault> {
        match &self.state {
            StepState::Error(fault) => Some(fault),
            StepState::Skipped { .. } | StepState::Undone { output: None, .. } => {
                self.last_fault.as_ref()
            }
            StepState::Waiting
            | StepState::Pending { .. }
            | StepState::Processing { .. }
            | StepState::Processed { .. }
            | StepState::Undone { .. }
            | StepState::Cancelled { .. } => None,
        }
    }

    fn facts(&self) -> StepFacts<'_> {
        StepFacts {
            state: self.status().as_str(),
            error: self.error(),
            attempts: self.attempt.0,
            output: self.output(),
            response: self.response.as_ref().map(|response| ResponseFacts {
                status: response.status,
                headers: &response.headers,
            }),
        }
    }
}

impl TaskRecord for Task {
    fn step(&self, name: &str) -> Option<StepFacts<'_>> {
        self.find(name).map(|index| self.step(index).facts())
    }

    fn items<'r>(&'r self, name: &str) -> Option<Box<dyn Iterator<Item = StepFacts<'r>> + 'r>> {
        let group = self.find(name)?;
        self.definition(group).group_rule()?;
        let items = self.group(group).into_iter();
        let items = items.flat_map(|group| group.items.iter());
        Some(Box::new(items.map(|at| self.steps[at].facts())))
    }

    fn winners(&self, name: &str) -> Option<Vec<&str>> {
        let join = self.find(name)?;
        self.definition(join).race.as_ref()?;
        let winners = self.winners(join).into_iter();
        let names = winners.map(|winner| self.definition(winner).name.as_str());
        Some(names.collect())
    }

    fn step_count(&self) -> usize {
        self.steps.len()
    }

    fn created_at(&self) -> Timestamp {
        self.created_at
    }

    fn started_at(&self) -> Option<Timestamp> {
        let begun = self.forward();
        begun.filter_map(|index| self.step(index).started_at).min()
    }

    fn undo_cause(&self) -> Option<&Fault> {
        self.undo.as_ref()?.error.as_ref()
    }
}

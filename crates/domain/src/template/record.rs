//! The record of a task as expressions read it besides the input and the outputs: how each step has ended, when the
//! task began, and why it is undone. Nothing of it is looked up before an expression reads it.

use std::collections::BTreeMap;

use crate::values::{fault::Fault, time::Timestamp};

use super::payload::Payload;

/// The record that the expressions of a task read.
pub trait TaskRecord {
    /// Returns what is on record about a step, or `None` if the task has no step of this name.
    fn step(&self, name: &str) -> Option<StepFacts<'_>>;

    /// Returns what is on record about each item of a step with `for_each`, or about each iteration of one with
    /// `repeat`. `None`: the step has no items.
    fn items<'r>(&'r self, name: &str) -> Option<Box<dyn Iterator<Item = StepFacts<'r>> + 'r>>;

    /// Returns the names of the steps that have won the race before a step, in the order in which they succeeded. `None`:
    /// there is no race before it.
    fn winners(&self, _: &str) -> Option<Vec<&str>> {
        None
    }

    /// Returns the number of steps, which is what it costs to find one.
    fn step_count(&self) -> usize;

    fn created_at(&self) -> Timestamp;

    /// Returns the time at which the first step began, if one has.
    fn started_at(&self) -> Option<Timestamp>;

    /// Returns the fault because of which the task is undone. An operator needs none.
    fn undo_cause(&self) -> Option<&Fault>;
}

/// The record of a step, as expressions read it.
#[derive(Clone, Copy, Debug)]
pub struct StepFacts<'r> {
    pub state: &'static str,
    /// The fault that ended the step.
    pub error: Option<&'r Fault>,
    pub attempts: u32,
    pub output: Option<&'r Payload>,
    /// The parts of its response that it keeps, if it keeps any.
    pub response: Option<ResponseFacts<'r>>,
}

/// The parts of a response that a step keeps.
#[derive(Clone, Copy, Debug)]
pub struct ResponseFacts<'r> {
    pub status: u16,
    /// The names are in lower case.
    pub headers: &'r BTreeMap<String, String>,
}

impl<'r> StepFacts<'r> {
    /// Returns what an expression sees of a step of which only the output is known.
    pub fn of_output(output: Option<&'r Payload>) -> Self {
        let (state, attempts) = match output {
            Some(_) => ("processed", 1),
            None => ("skipped", 0),
        };
        Self {
            state,
            error: None,
            attempts,
            output,
            response: None,
        }
    }
}

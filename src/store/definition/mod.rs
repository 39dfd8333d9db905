//! The records of workflows, which version of each is active, and compiled definitions in memory.

pub(super) mod activations;
pub(super) mod compiled;
pub(super) mod inline;
pub(super) mod meters;
pub(super) mod stored_workflow;

//! The records of agents: their controls, checks and unusable secrets, missing agents, and workers.

pub(super) mod checks;
pub(super) mod controls;
pub(super) mod counted_steps;
pub(super) mod missing;
pub(super) mod operations;
pub(super) mod unusable_secrets;
pub(super) mod workers;

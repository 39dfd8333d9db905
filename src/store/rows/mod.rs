//! Converts rows to aggregates and records, the same for every database.
//!
//! `columns` reads the values of one row. `loading` makes tasks of the rows that a backend has found: `task`
//! assembles one of its row and those of its steps, which `step` reads. `summary` and `records` are everything else
//! that a statement may return.

mod columns;
mod loading;
mod records;
mod step;
mod summary;
mod task;
#[cfg(test)]
mod tests;

pub use columns::{Columns, Row, json};
pub use loading::{Loaded, Loading};
pub use records::{
    AGENT, WORKFLOW, agent, change, circuit, count, ended_task, expired_step, held_step, known_key,
    next_message, queued_step, size, step_ref, workflow,
};
pub use summary::{at_risk, summary};
pub use task::{assemble, own_claim};

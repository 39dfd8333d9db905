//! Routes and shapes of definitions: workflows, their versions, and the check of payloads.

pub(crate) mod payload_check;
pub mod shapes;
pub mod workflows;

//! The periodic loop that makes predictions.

pub(crate) mod predictions;

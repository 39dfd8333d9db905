//! Reads for what people see: predictions, and counts for metrics.

pub(super) mod counts;
pub(super) mod predictions;

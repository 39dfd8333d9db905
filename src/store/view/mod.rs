//! Reads for what people see: predictions, counts for metrics, activity by hour, and the overview.

pub(super) mod activity;
pub(super) mod counts;
pub(super) mod overview;
pub(super) mod predictions;

//! The periodic loops that make predictions, and those of the record of activity.

pub(crate) mod activity;
pub(crate) mod predictions;

//! Responses that only show: the report of a dry run, diagrams, and the overview.

pub(crate) mod drawing;
pub mod dry_run;
pub(crate) mod overview;

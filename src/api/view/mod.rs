//! Responses that only show: the report of a dry run, and diagrams.

pub(crate) mod drawing;
pub mod dry_run;

//! Responses that only show: the report of a dry run, diagrams, the ledger, and the overview.

pub(crate) mod drawing;
pub mod dry_run;
pub(crate) mod ledger;
mod ledger_changes;
mod ledger_page;
mod ledger_query;
pub(crate) mod ledger_readers;
mod ledger_stream;
pub(crate) mod overview;

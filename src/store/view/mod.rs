//! Reads for what people see: predictions, counts for metrics, activity by hour, the ledger, and the overview.

pub(super) mod activity;
pub(super) mod counts;
pub(super) mod ledger;
pub(super) mod ledger_readers;
pub(super) mod ledger_records;
pub(super) mod ledger_retention;
pub(super) mod ledger_sql;
pub(super) mod ledger_watch;
pub(super) mod overview;
pub(super) mod predictions;
pub(super) mod workflow_usage;

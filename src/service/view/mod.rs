//! The periodic loops that make predictions, those of the record of activity, and that of the ledger.

pub(crate) mod activity;
pub(crate) mod ledger;
pub(crate) mod predictions;

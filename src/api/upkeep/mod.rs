//! Routes for operators of the service: readiness, metrics, instances, and the hold.

mod failure_gauges;
pub(crate) mod hold;
pub(crate) mod instances;
pub(crate) mod operations;

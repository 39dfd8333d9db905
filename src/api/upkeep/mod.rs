//! Routes for operators of the service: readiness, metrics, instances, settings, and the hold.

mod failure_gauges;
pub(crate) mod hold;
pub(crate) mod instances;
pub(crate) mod operations;
pub(crate) mod settings;

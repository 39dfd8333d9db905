//! Routes for operators of the service: readiness, metrics, instances, and the hold.

pub(crate) mod hold;
pub(crate) mod instances;
pub(crate) mod operations;

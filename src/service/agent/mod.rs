//! Periodic loops about agents: shared controls, checks of endpoints, secrets.

pub(crate) mod controls;
pub(crate) mod endpoint_checks;
pub(crate) mod secret_alerts;
pub(crate) mod secrets;

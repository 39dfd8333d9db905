//! The state machine that keeps calls from the endpoints of an agent, as one process has it.
//!
//! [`AgentGuard`] is the machine of an agent: its pause, the throttle that its service asked for, and an [`EndpointGuard`]
//! for each endpoint. The guard of an endpoint is in one phase (`phase.rs`):
//!
//! ```text
//!              too many calls failed, or were slow
//!    Closed ──────────────────────────────────────> Open
//!      │  ^                                         ^  │  the record gives the canaries to this instance
//!      │  └── enough canaries succeeded ──┐         │  v
//!      │                                  └─────── HalfOpen
//!      │  several calls in a row failed                (one canary failed: Open)
//!      └──────────────────────────────────────────> Out, and Closed again when the ejection is over
//!
//!    ForcedClosed: an operator closed the breaker.   Out: also if the endpoint is drained, or its checks fail.
//! ```
//!
//! Every instance has such a machine, and all of them share one record, the `AgentControl`. What a call shows holds at once
//! in its own instance: the machine changes its phase and returns a [`BreakerReport`]. From then on the phase follows the
//! record, which has decided about the report. All other arrows come from the record: an operator, a check, another instance.
//!
//! The machine reads no clock. It takes two times: the store's, which all instances share, and a [`Duration`] since this
//! process began to guard the agent, which never goes back.
//!
//! [`Duration`]: std::time::Duration

mod agent_guard;
mod agent_stop;
mod breaker_report;
mod call_limits;
mod endpoint_guard;
mod endpoint_set;
mod phase;
#[cfg(test)]
mod tests;
mod window_cache;

pub use agent_guard::{AgentCapacity, AgentGuard, GuardChanges, RecordSource};
pub use agent_stop::AgentStop;
pub use breaker_report::BreakerReport;
pub use endpoint_guard::{CallPermit, EndpointGuard, HealthSample};

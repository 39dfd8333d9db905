//! Agents: each wraps the calls to one remote service, with its error handling and retries. It receives a
//! [`Call`](crate::domain::task::Call) and returns a [`CallOutcome`](crate::domain::task::CallOutcome), or nothing if complete-by
//! passed first.
//!
//! This module contains the HTTP client, the interpretation of responses, waits, capacity and the choice of an
//! endpoint. Messages are sent by the same client and under the same policy ([`Post`]). It does not contain tasks,
//! steps and their states, or decisions about the next step of a task; nor the store, except for [`AgentRefresher`],
//! which reads the registered agents from it.
//!
//! `registry` has the agents of this instance. `call` makes an attempt at one of them, which `transport` sends:
//! `routing` chooses the endpoint that `guard` allows, `queue` has limited the calls before, `secret` adds the
//! credentials, `client` is HTTP. `check` and `health_check` call services for their own sake.

mod broker_call;
mod client;
mod queue;
mod secret;

mod call;
mod check;
mod guard;
mod health_check;
mod last_stop;
mod meters;
mod notes;
mod post;
mod registered;
mod registry;
mod retry;
mod routing;
mod settings;
#[cfg(test)]
mod tests;
mod transport;

pub use check::{CheckRequest, ShownExchange};
pub use client::address::{AddressPolicy, OwnAddresses};
pub use client::http::install_crypto;
pub use client::tls::certificate_faults;
pub use health_check::CheckResult;
pub use meters::{describe as describe_metrics, label as metrics_label};
pub use notes::CallReport;
pub use post::{Post, PostError, PostResponse};
pub use queue::capacity::CallSlot;
pub use queue::rate::RateAction;
pub use registered::AgentRefresher;
pub use registry::{Agent, Agents, check_tag};
pub use secret::reader::SecretReader;
pub use settings::{AgentSettings, QueueCalls};
pub use transport::Permission;

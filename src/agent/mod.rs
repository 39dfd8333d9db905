//! The room of the agents: each wraps the calls to one remote service, with its error handling and
//! retries. A [`Call`](crate::domain::Call) comes in; an
//! [`CallOutcome`](crate::domain::CallOutcome) goes out, or nothing when complete-by passed first.
//!
//! In here: the HTTP client, what its answers mean, waits, capacity, the choice of an endpoint.
//! Messages go out through the same client and under the same policy ([`Post`]).
//! Not in here: tasks, steps and their states, and any opinion on what happens next; nor the store, but
//! for [`Registered`], which reads from it which agents there are.

mod access;
mod address;
mod answer;
mod body;
mod call;
mod capacity;
mod check;
mod client_tls;
mod connections;
mod connector;
mod counted;
mod credentials;
mod exchange;
mod guard;
mod health_check;
mod http;
mod http2;
mod last_stop;
mod meters;
mod oauth;
mod post;
mod queue;
mod quota;
mod rate;
mod registered;
mod registry;
mod retry;
mod routing;
mod secret_file;
mod secrets;
mod settings;
mod slots;
#[cfg(test)]
mod tests;
mod transport;
mod used_secrets;

pub use address::{AddressPolicy, OwnAddresses};
pub use capacity::CallSlot;
pub use check::{CheckRequest, ShownExchange};
pub use client_tls::certificate_faults;
pub use guard::{BreakerReport, RecordSource, Stopped};
pub use health_check::CheckResult;
pub use http::install_crypto;
pub use meters::{describe as describe_metrics, label as metrics_label};
pub use post::{Post, PostError, PostResponse};
pub use rate::Want;
pub use registered::Registered;
pub use registry::{Agent, Agents, check_tag};
pub use secrets::SecretReader;
pub use settings::{AgentSettings, QueueCalls, ReplyAddress};
pub use transport::Permission;

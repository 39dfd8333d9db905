//! The web console: pages for the people who operate Provost.
//!
//! The console is a client of the API in the same process. It reads and commands through [`Service`], as a program
//! outside would with HTTP, so that filters, bounds, roles, refusals and counts are those of the API, and curl
//! gets everything that a page shows. It has no access to the store.
//!
//! A page is made in two steps. A handler collects responses of the API in a [`Visit`]; a pure function makes the page
//! of them: a template that the compiler checks. `shell.rs` is the frame around every page, `parts.rs` has the small
//! components, and `templates/` has one file for each page. Every page works without script.

#![allow(
    clippy::disallowed_methods,
    reason = "only sessions and pages use them: no task depends on either"
)]

mod assets;
mod compressed;
mod json;
mod params;
mod parts;
mod respond;
mod routes;
mod service;
mod session;
mod shell;
mod visible;
mod visit;

mod agents;
mod alerts;
mod asks;
mod bulk;
mod causes;
mod changed;
mod changes;
mod command_page;
mod confirmations;
mod console;
mod find;
mod fix;
mod form;
mod front;
mod home;
mod hours;
mod instances;
mod login;
mod messages;
mod overview;
mod schedules;
mod task;
mod tasks;
mod workflows;

pub use assets::{address as asset_address, hex, unhex};
pub use params::Params;
pub use parts::{Badge, Bar, Html, Icon, Spark, Time};
pub use respond::POLICY;
pub use routes::{is_page, prefers_html, router};
pub use service::{Call, Installation, Person, Refusal, Reply, Role, Service};
pub use session::{MemorySessions, Session, SessionId, SessionStore};
pub use shell::{Section, Shell};
pub use visible::visible;
pub use visit::Visit;

//! The page of one task, and the pages of its commands. `/console/tasks/{id}` and everything below it is here.
//!
//! `record.rs` has the responses of the API, `page.rs` makes the page of them, with `graph.rs` and `timeline.rs` for the
//! pictures. `command.rs` says which commands there are, `preview.rs` and `undo.rs` are their pages.

mod actions;
mod command;
mod compare;
mod excerpt;
mod follow;
mod graph;
mod handlers;
mod items;
mod note;
mod page;
pub(crate) mod picture;
mod preview;
pub(crate) mod record;
mod relations;
mod rows;
mod step;
mod timeline;
mod undo;
mod words;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{Router, routing::get};

use crate::{console::Console, visit};

/// The parameters of the page of a task.
const SHOWN: [&str; 10] = [
    "step", "attempt", "state", "history", "raw", "graph", "steps", "input", "body", "compare",
];

/// The parameters of the preview of a command.
const TYPED: [&str; 8] = [
    "step",
    "from",
    "rerun",
    "body",
    "input",
    "output",
    "to_version",
    "reason",
];

pub fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route(
            "/console/tasks/{id}",
            visit::page(&[&SHOWN], get(handlers::show)),
        )
        .route(
            "/console/tasks/{id}/events",
            visit::page(&[], get(follow::changes)),
        )
        .route(
            "/console/tasks/{id}/{command}",
            visit::page(&[&TYPED], get(handlers::preview).post(handlers::send)),
        )
}

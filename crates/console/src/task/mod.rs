//! The page of one task, and the pages of its commands. `/console/tasks/{id}` and everything below it is here.

use std::sync::Arc;

use axum::Router;

use crate::console::Console;

pub fn routes() -> Router<Arc<Console>> {
    Router::new()
}

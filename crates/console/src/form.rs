//! The body of a form.

use axum::body::{Body, to_bytes};

use crate::params::Params;

/// The longest form in bytes, for every page: that of a command with a body, and of a page of selected tasks.
pub const LONGEST_FORM: usize = 2 * 1024 * 1024;

/// Reads the fields of a form. `front.rs` has refused one that is too long or not complete, so that no handler sees a part.
pub async fn read_form(body: Body) -> Params {
    let body = to_bytes(body, LONGEST_FORM).await.unwrap_or_default();
    Params::read(&String::from_utf8_lossy(&body))
}

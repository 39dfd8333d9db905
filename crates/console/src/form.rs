//! The body of a form.

use axum::body::{Body, to_bytes};

use crate::params::Params;

/// The longest body of a form, in bytes. It has room for the ids of a page of tasks and for the data of a command.
const LONGEST_FORM: usize = 256 * 1024;

/// Reads the fields of a form. A body that is too long has none.
pub async fn read_form(body: Body) -> Params {
    let body = to_bytes(body, LONGEST_FORM).await.unwrap_or_default();
    Params::read(&String::from_utf8_lossy(&body))
}

//! The body of a form.

use axum::body::{Body, to_bytes};

use crate::{front::LONGEST_FORM, params::Params};

/// Reads the fields of a form. `front.rs` has refused one that is too long or not complete, so that no handler sees a part.
pub async fn read_form(body: Body) -> Params {
    let body = to_bytes(body, LONGEST_FORM).await.unwrap_or_default();
    Params::read(&String::from_utf8_lossy(&body))
}

//! The changes of a task as server-sent events: those of the API, for the script of the page, which has no token.

use axum::{extract::Path, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{params::encoded, visit::Visit};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Passes the events on that came after the one in the address.
pub async fn changes(visit: Visit, Path(id): Path<String>) -> Response {
    let mut headers = HeaderMap::new();
    let after = visit
        .query
        .get("after")
        .and_then(|after| HeaderValue::try_from(after).ok());
    headers.extend(after.map(|after| (LAST_EVENT_ID, after)));
    visit
        .pass_on(&format!("/v1/tasks/{}/events", encoded(&id)), headers)
        .await
}

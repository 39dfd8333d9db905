//! Responses: JSON bodies, and the pages of lists.

use std::fmt::Write;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{
    byte_budget::SMALL,
    cursor::Cursors,
    problem::{Problem, ProblemKind},
};
use crate::domain::values::ETag;

pub fn json<T: Serialize>(status: StatusCode, body: &T) -> Response {
    match serde_json::to_vec(body) {
        Ok(mut body) => {
            if body.len() > SMALL {
                // The budget counts the length of a body, so a body that waits to be sent may take no more memory
                // than that.
                body.shrink_to_fit();
            }
            let headers = [(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )];
            (status, headers, Body::from(body)).into_response()
        }
        // Every response type can be expressed in JSON; this is the fallback for one that could not.
        Err(error) => Problem::new(ProblemKind::Internal, error.to_string()).into_response(),
    }
}

/// Returns the ETag of a resource without a version: a hash of its bytes.
pub fn etag_of(bytes: &[u8]) -> HeaderValue {
    let digest = Sha256::digest(bytes);
    let mut etag = String::from("\"");
    for byte in &digest[..16] {
        // Writing to a String cannot fail.
        let _ = write!(etag, "{byte:02x}");
    }
    etag.push('"');
    // Quotes and digits are legal in a header.
    HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""))
}

pub fn tagged(mut response: Response, tag: &ETag) -> Response {
    // Quotes and digits are legal in a header.
    if let Ok(tag) = HeaderValue::try_from(tag.to_string()) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// One page of a list.
#[derive(Serialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Pass it as `cursor` to get the next page; null on the last page.
    #[schema(required, pattern = "^[A-Za-z0-9_-]+$")]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Builds a page from up to `limit + 1` items: the extra one shows that there is another page.
    pub fn new(
        mut items: Vec<T>,
        limit: usize,
        cursors: Cursors,
        item: impl Fn(&T) -> String,
    ) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let last = items.last().filter(|_| more);
        let next_cursor = last.map(|last| cursors.after(item(last)));
        Self { items, next_cursor }
    }

    /// Builds a page from all items, ordered by name.
    pub fn of_names(
        items: impl IntoIterator<Item = T>,
        after: Option<&str>,
        limit: usize,
        cursors: Cursors,
        name: impl Fn(&T) -> &str,
    ) -> Self {
        let rest = items
            .into_iter()
            .skip_while(|item| after.is_some_and(|after| name(item) <= after));
        Self::new(rest.take(limit + 1).collect(), limit, cursors, |item| {
            name(item).to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_join_into_the_whole_list() {
        let names = ["a", "b", "c", "d", "e"];
        for limit in 1..=6 {
            let mut seen = Vec::new();
            let mut cursor: Option<String> = None;
            let cursors = Cursors::of_parts(["names"]);
            loop {
                let after = cursor.map(|cursor| cursors.read(&cursor).unwrap());
                let page = Page::of_names(names, after.as_deref(), limit, cursors, |name| name);
                assert!(page.items.len() <= limit);
                seen.extend(page.items);
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(seen, names, "pages of {limit}");
        }
    }
}

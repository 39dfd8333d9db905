//! The id of a request: it appears in the response, in a problem and in the log. And the path under which the caller
//! reaches the service, which references to it begin with.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use tracing::{Instrument, error_span};
use uuid::Uuid;

use crate::chance;

pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const LONGEST: usize = 128;

/// The path of `public_url` without a slash at its end; empty where there is none.
pub type PublicPath = Arc<str>;

tokio::task_local! {
    static CURRENT: (HeaderValue, PublicPath);
}

/// Returns the id of the request that the current tokio task handles.
pub fn current() -> Option<String> {
    let id = CURRENT.try_with(|(id, _)| id.to_str().map(str::to_owned));
    id.ok().and_then(Result::ok)
}

/// Returns the path under which the caller of the current request reaches the service; empty outside of one.
pub fn public_path() -> PublicPath {
    CURRENT
        .try_with(|(_, path)| path.clone())
        .unwrap_or_default()
}

/// Handles the request with its id in scope, and returns the id in the response. The outermost middleware.
pub async fn attach(State(path): State<PublicPath>, request: Request, next: Next) -> Response {
    let id = of(request.headers());
    // Every log line of the request has this field.
    let span = error_span!("request", request_id = id.to_str().unwrap_or_default());
    let current = (id.clone(), path);
    let answered = CURRENT.scope(current, next.run(request).instrument(span));
    let mut response = answered.await;
    response.headers_mut().insert(HEADER, id);
    response
}

/// Returns the caller's own id if it is valid; otherwise a new one.
fn of(headers: &HeaderMap) -> HeaderValue {
    let mut given = headers.get_all(HEADER).iter();
    match (given.next(), given.next()) {
        (Some(id), None) if is_plain(id) => id.clone(),
        _ => new(),
    }
}

pub fn new() -> HeaderValue {
    let mut text = Uuid::encode_buffer();
    let text = chance::id().hyphenated().encode_lower(&mut text);
    // Digits and hyphens are legal in a header.
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("none"))
}

/// Returns whether the id is valid. It appears in log lines, in JSON and in terminals: no character may have a
/// special meaning there.
fn is_plain(id: &HeaderValue) -> bool {
    let harmless = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    (1..=LONGEST).contains(&id.len()) && id.as_bytes().iter().all(harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(given: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for id in given {
            headers.append(HEADER, HeaderValue::from_bytes(id.as_bytes()).unwrap());
        }
        let id = of(&headers).to_str().unwrap().to_owned();
        let is_new = Uuid::try_parse(&id).is_ok_and(|id| id.get_version_num() == 7);
        (!is_new).then_some(id)
    }

    #[test]
    fn an_id_that_is_short_and_plain_is_accepted() {
        let longest = "x".repeat(LONGEST);
        for id in ["1", "req-7/a.b:c_d+e=@", &longest] {
            assert_eq!(accepted(&[id]).as_deref(), Some(id));
        }
    }

    #[test]
    fn any_other_is_replaced() {
        let longer = "x".repeat(LONGEST + 1);
        for ids in [
            &[][..],
            &[""],
            &["a "],
            &["a\t"],
            &["a\""],
            &["a\\"],
            &["a{b}"],
            &["a,"],
            &["<b>"],
            &["\u{e4}"],
            &[&longer],
            &["a", ""],
        ] {
            assert_eq!(accepted(ids), None, "{ids:?}");
        }
    }

    #[tokio::test]
    async fn outside_of_a_request_there_is_none() {
        assert_eq!(current(), None);
    }
}

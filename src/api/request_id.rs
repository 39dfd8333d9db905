//! The id of a request: what the caller, an answer, a problem and the lines of the log name it by.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use tracing::{Instrument, error_span};
use uuid::Uuid;

pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const LONGEST: usize = 128;

tokio::task_local! {
    static CURRENT: HeaderValue;
}

/// The id of the request that this task carries out.
pub fn current() -> Option<String> {
    let id = CURRENT.try_with(|id| id.to_str().map(str::to_owned));
    id.ok().and_then(Result::ok)
}

/// Carries out everything under the request's id, and answers it. Outside of all else that may answer.
pub async fn attach(request: Request, next: Next) -> Response {
    let id = of(request.headers());
    // Whatever is logged at all is logged with it.
    let span = error_span!("request", request_id = id.to_str().unwrap_or_default());
    let answered = CURRENT.scope(id.clone(), next.run(request).instrument(span));
    let mut response = answered.await;
    response.headers_mut().insert(HEADER, id);
    response
}

/// The caller's own, where it is one; else a new one.
fn of(headers: &HeaderMap) -> HeaderValue {
    let mut given = headers.get_all(HEADER).iter();
    match (given.next(), given.next()) {
        (Some(id), None) if is_plain(id) => id.clone(),
        _ => new(),
    }
}

pub fn new() -> HeaderValue {
    let mut text = Uuid::encode_buffer();
    let text = Uuid::now_v7().hyphenated().encode_lower(&mut text);
    // Digits and hyphens are legal in a header.
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("none"))
}

/// It stands in lines of the log, in JSON and in terminals: nothing in it may mean anything there.
fn is_plain(id: &HeaderValue) -> bool {
    let harmless = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    (1..=LONGEST).contains(&id.len()) && id.as_bytes().iter().all(harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(given: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for id in given {
            headers.append(HEADER, HeaderValue::from_bytes(id.as_bytes()).unwrap());
        }
        let id = of(&headers).to_str().unwrap().to_owned();
        let is_new = Uuid::try_parse(&id).is_ok_and(|id| id.get_version_num() == 7);
        (!is_new).then_some(id)
    }

    #[test]
    fn an_id_that_is_short_and_plain_is_taken() {
        let longest = "x".repeat(LONGEST);
        for id in ["1", "req-7/a.b:c_d+e=@", &longest] {
            assert_eq!(taken(&[id]).as_deref(), Some(id));
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
            assert_eq!(taken(ids), None, "{ids:?}");
        }
    }

    #[tokio::test]
    async fn outside_of_a_request_there_is_none() {
        assert_eq!(current(), None);
    }
}

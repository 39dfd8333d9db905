//! JSON bodies: limited in size and time, validated once, kept as text.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::{FromRef, FromRequest, Request},
    http::{HeaderMap, header},
};
use futures::FutureExt;
use http_body_util::BodyExt;
use serde_json::value::RawValue;

use crate::{
    api::{
        byte_budget::refused_for_room,
        problem::{Problem, ProblemKind},
        state::App,
    },
    clock::{self, timeout_at},
    domain::values::{DEEPEST, is_json, too_deep},
};

/// A JSON document.
#[derive(Debug)]
pub struct JsonBody(pub Box<RawValue>);

/// A JSON document, or no body at all.
#[derive(Debug)]
pub struct OptionalJsonBody(pub Option<Box<RawValue>>);

/// The longest body that is read, and the time that its client may take to send it.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimit {
    /// In bytes.
    pub length: usize,
    pub whole: Duration,
    /// The longest pause between two parts.
    pub pause: Duration,
}

impl FromRef<Arc<App>> for BodyLimit {
    fn from_ref(app: &Arc<App>) -> Self {
        let config = &app.config;
        Self {
            length: config.limits.max_request.as_usize(),
            whole: config.listener.body_timeout.duration(),
            pause: config.listener.stall_timeout.duration(),
        }
    }
}

impl<S> FromRequest<S> for JsonBody
where
    BodyLimit: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        must_say_json(request.headers())?;
        let bytes = read(request, BodyLimit::from_ref(state)).await?;
        parse(bytes).map(Self)
    }
}

impl<S> FromRequest<S> for OptionalJsonBody
where
    BodyLimit: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let says_json = must_say_json(request.headers());
        let bytes = read(request, BodyLimit::from_ref(state)).await?;
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        says_json?;
        let json = parse(bytes)?;
        // The document says that null is no body.
        Ok(Self(Some(json).filter(|json| json.get() != "null")))
    }
}

fn must_say_json(headers: &HeaderMap) -> Result<(), Problem> {
    let found = headers.get(header::CONTENT_TYPE);
    if found.is_some_and(|value| value.to_str().is_ok_and(is_json)) {
        return Ok(());
    }
    let found = match found {
        Some(value) => format!("Content-Type is {value:?}"),
        None => "Content-Type is missing".to_owned(),
    };
    Err(Problem::new(
        ProblemKind::NotJson,
        format!("{found}: send JSON with `Content-Type: application/json`"),
    ))
}

/// Refuses the `content_encoding` of a message from a queue, unless it is none or names a character set: publishers
/// often confuse the two.
pub fn check_encoding(encoding: Option<&str>) -> Result<(), Problem> {
    let named = encoding.unwrap_or_default().to_ascii_lowercase();
    if ["", "identity", "utf-8", "utf8"].contains(&named.as_str()) {
        return Ok(());
    }
    let encoding = encoding.unwrap_or_default();
    Err(Problem::new(
        ProblemKind::EncodedBody,
        format!(
            "the content encoding of the message is {encoding:?}: send the body uncompressed, without this property"
        ),
    ))
}

pub(super) async fn read(request: Request, limit: BodyLimit) -> Result<Bytes, Problem> {
    // With Content-Length, a body that is too long is refused before a byte of it is read.
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit.length as u64) {
        return Err(limit.too_large());
    }
    if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(Problem::new(
            ProblemKind::EncodedBody,
            format!(
                "Content-Encoding is {encoding:?}: send the body uncompressed, without this header"
            ),
        ));
    }
    let mut body = request.into_body();
    let mut read = Pieces::default();
    let mut patience = None;
    loop {
        // Most bodies arrive together with their headers and need no timer.
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None => {
                let now = clock::instant();
                let end = *patience.get_or_insert_with(|| now + limit.whole);
                let until = end.min(now + limit.pause);
                let frame = timeout_at(until, body.frame()).await;
                frame.map_err(|_| limit.too_slow(read.length))?
            }
        };
        let frame = match frame {
            None => return Ok(read.whole()),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                if let Some(problem) = refused_for_room(&error) {
                    return Err(problem);
                }
                return Err(Problem::new(
                    ProblemKind::MalformedJson,
                    format!("the connection closed before the end of the body: {error}"),
                ));
            }
        };
        // Trailers have no meaning here.
        if let Ok(piece) = frame.into_data() {
            if piece.len() > limit.length - read.length {
                return Err(limit.too_large());
            }
            read.push(piece);
        }
    }
}

/// Returns the problem of a body that is longer than this many bytes.
pub fn too_large(limit: usize) -> Problem {
    let detail =
        format!("the body is longer than {limit} bytes: send less, or raise limits.max_request");
    Problem::new(ProblemKind::BodyTooLarge, detail).with("limit", limit)
}

impl BodyLimit {
    fn too_large(&self) -> Problem {
        too_large(self.length)
    }

    fn too_slow(&self, length: usize) -> Problem {
        Problem::new(
            ProblemKind::RequestTimeout,
            format!(
                "only {length} bytes of the body arrived: the limit is {:?} in total (listener.body_timeout) and {:?} between two parts (listener.stall_timeout)",
                self.whole, self.pause
            ),
        )
    }
}

/// The bytes of a body that have arrived. A body that arrives in one part is not copied.
#[derive(Default)]
struct Pieces {
    length: usize,
    first: Bytes,
    all: Vec<u8>,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        if self.length == 0 {
            self.length = piece.len();
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.first);
        }
        self.length += piece.len();
        self.all.extend_from_slice(&piece);
    }

    fn whole(self) -> Bytes {
        match self.all.is_empty() {
            true => self.first,
            false => self.all.into(),
        }
    }
}

pub fn parse(bytes: Bytes) -> Result<Box<RawValue>, Problem> {
    let text = match String::from_utf8(bytes.into()) {
        Ok(text) => text,
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            return Err(malformed_at("not UTF-8", &error.as_bytes()[..valid]));
        }
    };
    if text.trim_ascii().is_empty() {
        let detail = "the body is empty: send JSON";
        let problem = Problem::new(ProblemKind::MalformedJson, detail);
        return Err(problem.with("line", 1).with("column", 0));
    }
    if let Some(at) = too_deep(text.as_bytes()) {
        let why = format!("nested deeper than {DEEPEST} levels");
        return Err(malformed_at(&why, &text.as_bytes()[..at]));
    }
    RawValue::from_string(text).map_err(|error| {
        malformed(
            // The message ends in "at line 1 column 2", which is reported separately.
            error
                .to_string()
                .split(" at line ")
                .next()
                .unwrap_or_default(),
            error.line(),
            error.column(),
        )
    })
}

fn malformed_at(why: &str, before: &[u8]) -> Problem {
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    let column = 1 + before
        .iter()
        .rev()
        .take_while(|byte| **byte != b'\n')
        .count();
    malformed(why, line, column)
}

fn malformed(why: &str, line: usize, column: usize) -> Problem {
    Problem::new(
        ProblemKind::MalformedJson,
        format!("the body is not JSON: {why} at line {line}, column {column}"),
    )
    .with("line", line)
    .with("column", column)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::{Stream, StreamExt};

    use super::*;

    fn limit(length: usize) -> BodyLimit {
        BodyLimit {
            length,
            whole: Duration::from_secs(60),
            pause: Duration::from_secs(20),
        }
    }

    fn request(content_type: Option<&str>, body: impl Into<Body>) -> Request {
        let mut request = Request::builder();
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        request.body(body.into()).unwrap()
    }

    async fn read_json(
        content_type: Option<&str>,
        body: impl Into<Body>,
    ) -> Result<String, ProblemKind> {
        let read = JsonBody::from_request(request(content_type, body), &limit(1000)).await;
        read.map(|body| body.0.get().to_owned())
            .map_err(|problem| problem.kind())
    }

    #[tokio::test]
    async fn json_is_kept_as_it_was_sent() {
        for content_type in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/merge-patch+json",
        ] {
            let read = read_json(Some(content_type), " {\"b\": 1.50,\n\"a\":[]} ").await;
            assert_eq!(read.unwrap(), "{\"b\": 1.50,\n\"a\":[]}", "{content_type}");
        }
    }

    #[tokio::test]
    async fn what_is_not_sent_as_json_is_refused() {
        for content_type in [
            None,
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("json"),
        ] {
            let read = read_json(content_type, "{}").await;
            assert_eq!(read.unwrap_err(), ProblemKind::NotJson, "{content_type:?}");
        }
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_announced_or_not() {
        let long = format!("\"{}\"", "x".repeat(999));
        let read = read_json(Some("application/json"), long.clone()).await;
        assert_eq!(read.unwrap_err(), ProblemKind::BodyTooLarge);

        let mut announced = request(Some("application/json"), "{}");
        let headers = announced.headers_mut();
        headers.insert("content-length", "1001".parse().unwrap());
        let refused = JsonBody::from_request(announced, &limit(1000)).await;
        assert_eq!(refused.unwrap_err().kind(), ProblemKind::BodyTooLarge);

        let longest = &long[1..];
        let read = read_json(Some("application/json"), format!("\"{}", &longest[1..])).await;
        assert_eq!(read.unwrap().len(), 1000);
    }

    /// Returns the problem of a body that begins with `{` and continues with `rest`.
    async fn begun(
        rest: impl Stream<Item = &'static str> + Send + 'static,
        limit: BodyLimit,
    ) -> ProblemKind {
        let pieces = futures::stream::iter(["{"]).chain(rest);
        let body = Body::from_stream(pieces.map(Ok::<_, std::convert::Infallible>));
        let sent = request(Some("application/json"), body);
        let refused = JsonBody::from_request(sent, &limit).await.unwrap_err();
        refused.kind()
    }

    #[tokio::test]
    async fn a_body_may_neither_pause_nor_drip_for_long() {
        let limit = |whole, pause| BodyLimit {
            whole: Duration::from_secs(whole),
            pause: Duration::from_secs(pause),
            ..limit(1000)
        };
        let silence = futures::stream::pending();
        assert_eq!(
            begun(silence, limit(3600, 1)).await,
            ProblemKind::RequestTimeout
        );
        let drip = || async {
            clock::sleep(Duration::from_millis(5)).await;
            Some((" ", ()))
        };
        let drip = futures::stream::unfold((), move |()| drip());
        assert_eq!(
            begun(drip, limit(1, 3600)).await,
            ProblemKind::RequestTimeout
        );
    }

    #[tokio::test]
    async fn a_body_that_comes_in_pieces_is_put_together() {
        let pieces = ["{\"a\":", " [1,", "2]", "}"];
        let stream = futures::stream::iter(pieces).then(|piece| async move {
            tokio::task::yield_now().await;
            Ok::<_, std::convert::Infallible>(piece)
        });
        let read = read_json(Some("application/json"), Body::from_stream(stream)).await;
        assert_eq!(read.unwrap(), pieces.concat());
    }

    #[tokio::test]
    async fn broken_json_is_refused_with_its_place() {
        for (body, line, column) in [
            (&b"{\"a\": 1,\n \"b\": }"[..], 2, 7),
            (b"{} {}", 1, 4),
            (b"\"\xff\"", 1, 2),
            (b"", 1, 0),
        ] {
            let sent = request(Some("application/json"), body.to_vec());
            let problem = JsonBody::from_request(sent, &limit(1000))
                .await
                .unwrap_err();
            assert_eq!(problem.kind(), ProblemKind::MalformedJson);
            assert_eq!(problem.member("line"), Some(&line.into()), "{problem:?}");
            assert_eq!(
                problem.member("column"),
                Some(&column.into()),
                "{problem:?}"
            );
        }
    }

    #[tokio::test]
    async fn nesting_is_bounded_and_brackets_in_strings_do_not_count() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        let json = Some("application/json");
        assert!(read_json(json, nested(DEEPEST)).await.is_ok());
        let deeper = read_json(json, nested(DEEPEST + 1)).await;
        assert_eq!(deeper.unwrap_err(), ProblemKind::MalformedJson);
        let text = format!("[\"\\\"{}\"]", "[".repeat(200));
        assert!(read_json(json, text).await.is_ok());
    }

    #[tokio::test]
    async fn no_body_needs_no_content_type() {
        let none = OptionalJsonBody::from_request(request(None, ""), &limit(10)).await;
        assert!(none.unwrap().0.is_none());
        let null = request(Some("application/json"), " null ");
        let null = OptionalJsonBody::from_request(null, &limit(10)).await;
        assert!(null.unwrap().0.is_none());
        let some = request(Some("application/json"), "{}");
        let some = OptionalJsonBody::from_request(some, &limit(10)).await;
        assert_eq!(some.unwrap().0.unwrap().get(), "{}");
        let plain = OptionalJsonBody::from_request(request(None, "{}"), &limit(10)).await;
        assert_eq!(plain.unwrap_err().kind(), ProblemKind::NotJson);
    }
}

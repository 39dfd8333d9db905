//! The meaning of a service's response: from status, headers and bytes to a response class. Pure.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use serde_json::value::RawValue;

use crate::{
    agent::retry_wait::retry_after,
    definition::ReplyMode,
    template::payload::Payload,
    values::{
        depth::{DEEPEST, too_deep},
        fault::BODY_EXCERPT,
        media_type::is_json,
        time::Timestamp,
    },
};

/// The longest time, by which a service can delay the next poll.
pub const LONGEST_POLL_WAIT: Duration = Duration::from_secs(3600);

/// The encodings that a fault names. Another one may be any text.
const KNOWN_ENCODINGS: [&str; 6] = ["gzip", "x-gzip", "deflate", "br", "zstd", "compress"];
/// The first bytes of data that gzip has compressed.
const GZIP: &[u8] = b"\x1f\x8b";
/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The class of a response by its head, before any of its body is read.
#[derive(PartialEq, Debug)]
pub enum ResponseClass {
    /// The body is the step's output.
    Success,
    /// The service promises to reply later.
    Deferred,
    Transient {
        message: String,
        retry_after: Option<Duration>,
    },
    Permanent {
        message: String,
    },
}

pub fn classify(
    status: StatusCode,
    headers: &HeaderMap,
    mode: ReplyMode,
    now: Timestamp,
) -> ResponseClass {
    match status.as_u16() {
        202 if mode == ReplyMode::Callback || answers_later(headers) => ResponseClass::Deferred,
        200..=299 => ResponseClass::Success,
        300..=399 => ResponseClass::Permanent {
            message: redirect(status, headers),
        },
        code if is_transient(code) => ResponseClass::Transient {
            message: refused(status, headers),
            retry_after: retry_after(headers, now),
        },
        _ => ResponseClass::Permanent {
            message: refused(status, headers),
        },
    }
}

/// Returns whether a later attempt may get another status.
pub(crate) fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

/// Returns whether the service may have done the work although it responded with this status: the service, or a gateway
/// before it, failed during the work; or it did the work and only its response cannot be used, as with an unreadable
/// body, a promise to reply later, or a redirect to the result (302, 303). All other statuses mean that the work did
/// not begin.
pub fn leaves_effect_unknown(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200..=299 | 302 | 303 | 500 | 502 | 504..=599)
}

fn answers_later(headers: &HeaderMap) -> bool {
    headers
        .get("provost-async")
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}

fn answered(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("the service responded {} {reason}", status.as_u16()),
        None => format!("the service responded {}", status.as_u16()),
    }
}

/// Returns the message of a failure. Its status may be all that can be read.
fn refused(status: StatusCode, headers: &HeaderMap) -> String {
    let is_empty = headers
        .get(header::CONTENT_LENGTH)
        .is_some_and(|length| length == "0");
    match encoding(headers).filter(|_| !is_empty) {
        Some(encoding) => format!(
            "{}; what it says cannot be read, because it is encoded as {encoding}, although the request had `Accept-Encoding: identity`",
            answered(status)
        ),
        None => answered(status),
    }
}

fn redirect(status: StatusCode, headers: &HeaderMap) -> String {
    let to = match headers.get(header::LOCATION) {
        Some(location) => format!(" to {}", excerpt(location.as_bytes()).unwrap_or_default()),
        None => String::new(),
    };
    format!("{}{to}: Provost never follows redirects", answered(status))
}

/// Returns the encoding of a compressed body, in words. Requests ask for `identity`, and Provost decodes no other
/// encoding. The words are not those of the service, which may echo a secret.
pub fn encoding(headers: &HeaderMap) -> Option<&'static str> {
    let named = headers.get_all(header::CONTENT_ENCODING).iter();
    let named: Vec<_> = named
        .map(|named| String::from_utf8_lossy(named.as_bytes()))
        .collect();
    let mut encodings = named.iter().flat_map(|named| named.split(','));
    let is_one = |encoding: &&str| {
        let encoding = encoding.trim();
        !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity")
    };
    let first = encodings.find(is_one)?.trim();
    let mut known = KNOWN_ENCODINGS.into_iter();
    let known = known.find(|known| first.eq_ignore_ascii_case(known));
    Some(known.unwrap_or("something else than `identity`"))
}

/// Returns the output in the body of a success, or the reason why it is no output.
pub fn output(headers: &HeaderMap, body: &[u8]) -> Result<Payload, String> {
    if let Some(encoding) = encoding(headers) {
        return Err(format!(
            "the response is encoded as {encoding}, although the request had `Accept-Encoding: identity`: have the service, or the proxy before it, send it as it is"
        ));
    }
    // Some libraries begin JSON with a byte order mark.
    let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    if json.trim_ascii().is_empty() {
        return Ok(Payload::null());
    }
    // Parsing only validates the text, once, and builds nothing: the text itself is passed on.
    let error = match serde_json::from_slice::<&RawValue>(json) {
        Ok(_) if too_deep(json).is_some() => {
            return Err(format!(
                "the response is nested deeper than {DEEPEST} levels, so it cannot be an output: reduce the nesting, or send the inner part as text"
            ));
        }
        Ok(json) => return Ok(Payload::new(json.to_owned())),
        Err(error) => error,
    };
    if says_json(headers) {
        return Err(format!(
            "the response claims to be JSON but cannot be parsed: {error}"
        ));
    }
    match std::str::from_utf8(body) {
        Err(_) if body.starts_with(GZIP) => {
            Err("the response is compressed with gzip, although its headers do not say so, and the request had `Accept-Encoding: identity`: have the service, or the proxy before it, send it as it is".to_owned())
        }
        Ok(text) => Ok(Payload::from_string(text)),
        Err(_) => {
            Err("the response is neither JSON nor UTF-8 text, so it cannot be an output".to_owned())
        }
    }
}

fn says_json(headers: &HeaderMap) -> bool {
    let found = headers.get(header::CONTENT_TYPE);
    found.is_some_and(|value| value.to_str().is_ok_and(is_json))
}

/// Returns the start of a remote response, as text that any store and any terminal accepts. `None` if it is empty.
pub fn excerpt(body: &[u8]) -> Option<String> {
    let cut = &body[..body.len().min(BODY_EXCERPT)];
    // A character that the cut went through is left out; bytes that were invalid before stay visible as U+FFFD.
    let whole = match std::str::from_utf8(cut) {
        Err(error) if error.error_len().is_none() && body.len() >= BODY_EXCERPT => {
            &cut[..error.valid_up_to()]
        }
        _ => cut,
    };
    // PostgreSQL cannot hold a NUL in text.
    let text = String::from_utf8_lossy(whole).replace('\0', "\u{fffd}");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(0);

    fn headers(given: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = given.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    fn of(status: u16, given: &[(&'static str, &'static str)]) -> ResponseClass {
        of_mode(status, given, ReplyMode::Response)
    }

    fn of_mode(
        status: u16,
        given: &[(&'static str, &'static str)],
        mode: ReplyMode,
    ) -> ResponseClass {
        let status = StatusCode::from_u16(status).unwrap();
        classify(status, &headers(given), mode, NOW)
    }

    fn message(class: ResponseClass) -> String {
        match class {
            ResponseClass::Permanent { message } => message,
            other => panic!("not permanent: {other:?}"),
        }
    }

    #[test]
    fn any_2xx_is_a_success() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(of(status, &[]), ResponseClass::Success, "{status}");
        }
    }

    #[test]
    fn only_a_202_that_says_so_or_is_agreed_on_promises_a_later_reply() {
        let (later, now) = (ResponseClass::Deferred, ResponseClass::Success);
        assert_eq!(of(202, &[("provost-async", "True")]), later);
        assert_eq!(of(202, &[("provost-async", "false")]), now);
        assert_eq!(of(200, &[("provost-async", "true")]), now);
        assert_eq!(of_mode(202, &[], ReplyMode::Callback), later);
        assert_eq!(of_mode(200, &[], ReplyMode::Callback), now);
    }

    #[test]
    fn a_redirect_is_permanent_and_says_where_it_led() {
        for status in [300, 301, 302, 303, 304, 307, 308] {
            let refused = message(of(status, &[("location", "http://elsewhere/x")]));
            assert!(
                refused.contains("to http://elsewhere/x: Provost never follows redirects"),
                "{refused}"
            );
        }
    }

    #[test]
    fn what_may_pass_is_transient_and_keeps_what_the_service_asked_for() {
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            match of(status, &[("retry-after", "3")]) {
                ResponseClass::Transient { retry_after, .. } => {
                    assert_eq!(retry_after, Some(Duration::from_secs(3)), "{status}");
                }
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    #[test]
    fn every_other_status_is_permanent() {
        for status in [
            400, 401, 402, 403, 404, 405, 409, 410, 413, 422, 451, 499, 600, 999,
        ] {
            let refused = message(of(status, &[]));
            assert!(refused.contains(&status.to_string()), "{refused}");
        }
        assert_eq!(
            message(of(402, &[])),
            "the service responded 402 Payment Required"
        );
    }

    fn output_of(content_type: Option<&'static str>, body: &[u8]) -> Result<String, String> {
        let headers = match content_type {
            Some(content_type) => headers(&[("content-type", content_type)]),
            None => HeaderMap::new(),
        };
        output(&headers, body).map(|payload| payload.as_json().to_owned())
    }

    #[test]
    fn an_empty_body_is_null() {
        assert_eq!(
            output_of(Some("application/json"), b""),
            Ok("null".to_owned())
        );
    }

    #[test]
    fn a_body_of_blanks_is_null_and_a_byte_order_mark_is_not_read() {
        for content_type in [None, Some("application/json"), Some("text/plain")] {
            for body in [" ", "\r\n", "\t \n", "\u{feff}", "\u{feff} \n"] {
                let null = Ok("null".to_owned());
                assert_eq!(output_of(content_type, body.as_bytes()), null, "{body:?}");
            }
            let read = output_of(content_type, "\u{feff}{\"a\": 1}".as_bytes());
            assert_eq!(read, Ok("{\"a\": 1}".to_owned()));
        }
        let text = output_of(None, "\u{feff}text".as_bytes());
        assert_eq!(text, Ok("\"\u{feff}text\"".to_owned()));
    }

    #[test]
    fn a_body_that_is_compressed_is_no_output_and_the_error_names_the_encoding() {
        for (given, named) in [
            ("gzip", "gzip"),
            ("identity, br", "br"),
            ("x-own ,gzip", "something else than `identity`"),
            ("the-secret-of-the-agent", "something else than `identity`"),
        ] {
            let headers = headers(&[("content-encoding", given)]);
            let refused = output(&headers, b"{}").unwrap_err();
            assert!(
                refused.contains(&format!("encoded as {named}, although")),
                "{refused}"
            );
        }
        for given in ["identity", "", "Identity", " , "] {
            let headers = headers(&[("content-encoding", given)]);
            assert!(output(&headers, b"{}").is_ok(), "{given}");
        }
    }

    #[test]
    fn a_failure_that_is_compressed_says_that_it_cannot_be_read() {
        for status in [422, 503] {
            let said = |given: &[(&'static str, &'static str)]| match of(status, given) {
                ResponseClass::Permanent { message } | ResponseClass::Transient { message, .. } => {
                    message
                }
                other => panic!("not a failure: {other:?}"),
            };
            let plain = said(&[]);
            assert_eq!(said(&[("content-encoding", "identity")]), plain);
            let empty = [("content-encoding", "gzip"), ("content-length", "0")];
            assert_eq!(said(&empty), plain);
            let compressed = said(&[("content-encoding", "gzip")]);
            assert!(
                compressed.starts_with(&format!("{plain}; "))
                    && compressed.contains("encoded as gzip, although"),
                "{compressed}"
            );
            let secret = said(&[("content-encoding", "the-secret-of-the-agent")]);
            assert!(!secret.contains("secret"), "{secret}");
        }
    }

    #[test]
    fn json_is_kept_as_it_was_written() {
        let written = "{\"b\": 1.50,\n \"a\":[1e3]}";
        assert_eq!(output_of(None, written.as_bytes()), Ok(written.to_owned()));
        assert_eq!(output_of(Some("text/plain"), b" 7 "), Ok("7".to_owned()));
    }

    #[test]
    fn text_is_an_output_unless_it_claims_to_be_json() {
        assert_eq!(
            output_of(None, b"say \"hi\""),
            Ok(r#""say \"hi\"""#.to_owned())
        );
        for content_type in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/problem+json",
        ] {
            for body in [&b"{\"a\":"[..], b"say hi", b"{\"a\":\"\xff\"}"] {
                let refused = output_of(Some(content_type), body).unwrap_err();
                assert!(
                    refused.contains("claims to be JSON but cannot be parsed"),
                    "{refused}"
                );
            }
        }
    }

    #[test]
    fn an_answer_that_is_nested_too_deeply_is_no_output() {
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(output_of(None, nested(DEEPEST).as_bytes()).is_ok());
        for content_type in [None, Some("application/json")] {
            let refused = output_of(content_type, nested(DEEPEST + 1).as_bytes()).unwrap_err();
            assert!(refused.contains("deeper than 100 levels"), "{refused}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_no_output() {
        assert!(output_of(None, b"\xff\xfe").is_err());
    }

    #[test]
    fn an_excerpt_is_text_however_the_answer_was_cut() {
        assert_eq!(excerpt(b""), None);
        assert_eq!(
            excerpt(b"no\0pe\xff").as_deref(),
            Some("no\u{fffd}pe\u{fffd}")
        );
        let long = "\u{20ac}".repeat(BODY_EXCERPT);
        let kept = excerpt(long.as_bytes()).unwrap();
        assert!(kept.len() <= BODY_EXCERPT && kept.chars().all(|c| c == '\u{20ac}'));
    }

    #[test]
    fn a_compressed_response_is_named_even_if_its_headers_do_not_say_so() {
        let compressed = [0x1f, 0x8b, 0x08, 0x00, 0xff, 0xfe];
        let refused = output(&HeaderMap::new(), &compressed).unwrap_err();
        assert!(refused.contains("compressed with gzip"), "{refused}");
    }
}

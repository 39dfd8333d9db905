//! The headers that say under which conditions, and how, a request is to be carried out.

use std::{fmt::Write, time::Duration};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, Method, header, request::Parts},
};
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use super::query::LONGEST_WAIT;
use crate::{
    api::problem::{Kind, Problem},
    store::Idempotency,
};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Conditions {
    /// The version that the task must be at.
    pub if_match: Option<u64>,
    pub idempotency_key: Option<String>,
    /// How long the answer may wait for the task to settle.
    pub prefer_wait: Option<Duration>,
    /// The W3C trace that the caller is part of.
    pub trace_id: Option<u128>,
}

/// The same, for the documentation of an operation: `params(ConditionHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "its fields are read by the documentation only")]
pub struct ConditionHeaders {
    /// Any string of 1 to 255 visible ASCII characters, one for each intention. A repeat with the
    /// same key is answered like the first and changes nothing; with another request it is refused.
    #[param(
        rename = "Idempotency-Key",
        example = "order-1001-submit",
        min_length = 1,
        max_length = 255
    )]
    idempotency_key: Option<String>,
    /// `wait=10` lets the answer wait up to so many seconds for the task to settle.
    #[param(rename = "Prefer", example = "wait=10")]
    prefer: Option<String>,
    /// The ETag of the task as it was last seen: the request is refused if the task has changed since.
    #[param(rename = "If-Match", example = "\"7\"")]
    if_match: Option<String>,
}

/// Those of a command on one task: `params(CommandHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "its fields are read by the documentation only")]
pub struct CommandHeaders {
    /// The ETag that the task must still have.
    #[param(rename = "If-Match", example = "\"7\"")]
    if_match: Option<String>,
    /// Makes a repeat harmless.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const LONGEST_KEY: usize = 255;

impl<S: Send + Sync> FromRequestParts<S> for Conditions {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::read(&parts.headers)
    }
}

impl Conditions {
    fn read(headers: &HeaderMap) -> Result<Self, Problem> {
        Ok(Self {
            if_match: if_match(headers)?,
            idempotency_key: idempotency_key(headers)?,
            prefer_wait: prefer_wait(headers)?,
            trace_id: trace_id(headers),
        })
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let value = value.to_str().unwrap_or_default().trim();
    // Any version will do: the task itself must exist for everything that is asked of it.
    if value == "*" {
        return Ok(None);
    }
    let version = value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'))
        .and_then(|version| version.parse().ok());
    match version {
        Some(version) => Ok(Some(version)),
        None => Err(refused(
            "If-Match must be one ETag as the task was answered with, such as \"7\" in its quotes",
        )),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    let usable = (1..=LONGEST_KEY).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
    match value.to_str() {
        Ok(key) if usable && headers.get_all(IDEMPOTENCY_KEY).iter().count() == 1 => {
            Ok(Some(key.to_owned()))
        }
        _ => Err(refused(
            "Idempotency-Key must be one string of 1 to 255 visible ASCII characters, such as a UUID",
        )),
    }
}

/// RFC 7240. Preferences other than `wait` are not ours to judge.
fn prefer_wait(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    for value in headers.get_all(PREFER) {
        for preference in value.to_str().unwrap_or_default().split([',', ';']) {
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            if !name.trim().eq_ignore_ascii_case("wait") {
                continue;
            }
            let seconds: Option<u64> = value.trim().trim_matches('"').parse().ok();
            return match seconds {
                Some(seconds) => Ok(Some(
                    Duration::from_secs(seconds).min(LONGEST_WAIT.duration()),
                )),
                None => Err(refused(
                    "Prefer: wait must be a whole number of seconds, as in `Prefer: wait=10`",
                )),
            };
        }
    }
    Ok(None)
}

/// W3C trace context. One that cannot be read is passed over, as the specification asks.
fn trace_id(headers: &HeaderMap) -> Option<u128> {
    let value = headers.get(TRACEPARENT)?.to_str().ok()?;
    let mut parts = value.split('-');
    let (version, trace, parent) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(parent, 16) {
        return None;
    }
    u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)
}

fn refused(detail: &str) -> Problem {
    Problem::new(Kind::InvalidQuery, detail)
}

/// The caller's `Idempotency-Key`, with a fingerprint that tells a repeat from another request.
pub fn idempotency(
    conditions: &Conditions,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Option<Idempotency> {
    let key = conditions.idempotency_key.clone()?;
    let mut hash = Sha256::new();
    // Neither a method nor a path holds a line feed: no two requests give the same bytes.
    for part in [
        method.as_str().as_bytes(),
        b"\n",
        path.as_bytes(),
        b"\n",
        body,
    ] {
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut fingerprint = String::with_capacity(64);
    for byte in digest {
        // Writing to a String cannot fail.
        let _ = write!(fingerprint, "{byte:02x}");
    }
    Some(Idempotency { key, fingerprint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&'static str, &str)]) -> Result<Conditions, Kind> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        Conditions::read(&HeaderMap::from_iter(headers)).map_err(|problem| problem.kind())
    }

    #[test]
    fn without_headers_there_are_no_conditions() {
        assert_eq!(read(&[]), Ok(Conditions::default()));
    }

    #[test]
    fn an_etag_is_the_quoted_version() {
        assert_eq!(read(&[("if-match", "\"7\"")]).unwrap().if_match, Some(7));
        assert_eq!(read(&[("if-match", "*")]).unwrap().if_match, None);
        for etag in ["7", "W/\"7\"", "\"7\", \"8\"", "\"x\"", ""] {
            assert_eq!(
                read(&[("if-match", etag)]),
                Err(Kind::InvalidQuery),
                "{etag}"
            );
        }
    }

    #[test]
    fn an_idempotency_key_is_visible_and_bounded() {
        let longest = "k".repeat(255);
        for key in ["a", "order-1001/submit", &longest] {
            let conditions = read(&[("idempotency-key", key)]).unwrap();
            assert_eq!(conditions.idempotency_key.as_deref(), Some(key));
        }
        let longer = "k".repeat(256);
        for key in ["", "a b", &longer] {
            assert_eq!(
                read(&[("idempotency-key", key)]),
                Err(Kind::InvalidQuery),
                "{key}"
            );
        }
    }

    #[test]
    fn a_wait_is_found_among_other_preferences_and_bounded() {
        for (prefer, seconds) in [
            ("wait=10", Some(10)),
            ("respond-async, Wait = 5", Some(5)),
            ("return=minimal", None),
            ("wait=99999999", Some(LONGEST_WAIT.duration().as_secs())),
        ] {
            let wait = read(&[("prefer", prefer)]).unwrap().prefer_wait;
            assert_eq!(wait.map(|wait| wait.as_secs()), seconds, "{prefer}");
        }
        for prefer in ["wait", "wait=soon", "wait=-1", "wait=1.5", "wait=10s"] {
            assert_eq!(
                read(&[("prefer", prefer)]),
                Err(Kind::InvalidQuery),
                "{prefer}"
            );
        }
    }

    #[test]
    fn a_trace_is_taken_up_and_a_broken_one_passed_over() {
        let trace = |value| read(&[("traceparent", value)]).unwrap().trace_id;
        assert_eq!(
            trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            Some(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c)
        );
        for broken in [
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd-b7ad6b7169203331-01",
            "nonsense",
        ] {
            assert_eq!(trace(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_fingerprint_tells_requests_apart() {
        let conditions = read(&[("idempotency-key", "k")]).unwrap();
        let print = |method, path, body: &[u8]| {
            let made = idempotency(&conditions, &method, path, body).unwrap();
            assert_eq!((made.key.as_str(), made.fingerprint.len()), ("k", 64));
            made.fingerprint
        };
        let first = print(Method::POST, "/v1/tasks", b"{}");
        assert_eq!(first, print(Method::POST, "/v1/tasks", b"{}"));
        assert_ne!(first, print(Method::PUT, "/v1/tasks", b"{}"));
        assert_ne!(first, print(Method::POST, "/v1/task", b"s{}"));
        assert_ne!(first, print(Method::POST, "/v1/tasks", b"{ }"));
        assert!(idempotency(&Conditions::default(), &Method::POST, "/", b"").is_none());
    }
}

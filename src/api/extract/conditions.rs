//! The request headers that set conditions (If-Match, Idempotency-Key) and preferences (Prefer), and the trace
//! context.

use std::{fmt::Write, time::Duration};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, Method, header, request::Parts},
};
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use super::{Caller, query::LONGEST_WAIT};
use crate::{
    api::problem::{Problem, ProblemKind},
    domain::values::Trace,
    store::Idempotency,
};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Conditions {
    /// The version that the task must have.
    pub if_match: Option<u64>,
    pub idempotency_key: Option<String>,
    /// The longest time that the response may wait until the task has ended or needs an operator.
    pub prefer_wait: Option<Duration>,
    /// The trace that the caller is part of.
    pub trace: Option<Trace>,
}

/// The headers of a submission, for the OpenAPI document: `params(ConditionHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct ConditionHeaders {
    /// Any string of 1 to 255 visible ASCII characters, with or without quotes. Use one key for each intended
    /// operation. A repeated request with the same key gets the first response again, with `Idempotency-Replayed:
    /// true`, and changes nothing; with a different body it is refused. Keys are separate for each token and each
    /// path.
    #[param(
        rename = "Idempotency-Key",
        example = "order-1001-submit",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: Option<String>,
    /// With `wait=10` the response may wait up to 10 seconds (at most 60) until the task has ended or needs an
    /// operator; `Preference-Applied` returns the wait that was applied.
    #[param(rename = "Prefer", example = "wait=10")]
    prefer: Option<String>,
}

/// The header of a request that reads a task: `params(TaskMatch)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct TaskMatch {
    /// The ETag of the task as you last read it: the request is refused if the task has changed since.
    #[param(
        rename = "If-Match",
        pattern = r#"^(\*|"[0-9]{1,18}")$"#,
        example = "\"7\""
    )]
    if_match: Option<String>,
}

/// The headers of a trace: `params(TraceHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct TraceHeaders {
    /// W3C Trace Context: the task's calls join this trace. Each call has its own span and the sampling flag that
    /// is set here. An invalid or repeated header starts a new trace.
    #[param(example = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    traceparent: Option<String>,
    /// W3C Trace Context: stored with the task and sent with each of its calls, up to 512 characters and 32
    /// members. Ignored without `traceparent`.
    #[param(example = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")]
    tracestate: Option<String>,
}

/// The headers of a command on one task: `params(CommandHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct CommandHeaders {
    /// The ETag that the task must still have.
    #[param(
        rename = "If-Match",
        pattern = r#"^(\*|"[0-9]{1,18}")$"#,
        example = "\"7\""
    )]
    if_match: Option<String>,
    /// Makes it safe to repeat the request.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: Option<String>,
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const LONGEST_KEY: usize = 255;
/// The number of hexadecimal digits that are kept of a hash of caller and path: enough to avoid collisions.
const SCOPE: usize = 32;

const SUBMIT: &[u8] = b"/v1/tasks";

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
            trace: trace(headers),
        })
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let value = value.to_str().unwrap_or_default().trim();
    // `*` matches any version: a command fails in any case if the task does not exist.
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
            "If-Match must be one ETag as the API returned it, such as \"7\" including the quotes",
        )),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    match value.to_str().ok().and_then(unquoted) {
        Some(key) if headers.get_all(IDEMPOTENCY_KEY).iter().count() == 1 => Ok(Some(key)),
        _ => Err(refused(
            "Idempotency-Key must be one string of 1 to 255 visible ASCII characters, such as a UUID; surrounding quotes are ignored",
        )),
    }
}

/// Returns the key without quotes. `draft-ietf-httpapi-idempotency-key-header` puts it in quotes, as an RFC 8941
/// string; most clients send it without.
fn unquoted(value: &str) -> Option<String> {
    let mut key = String::with_capacity(value.len());
    match value.strip_prefix('"') {
        None => key.push_str(value),
        Some(rest) => {
            let mut inside = rest.strip_suffix('"')?.chars();
            while let Some(char) = inside.next() {
                key.push(match char {
                    '\\' => inside.next().filter(|char| matches!(char, '"' | '\\'))?,
                    '"' => return None,
                    plain => plain,
                });
            }
        }
    }
    let usable =
        (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    usable.then_some(key)
}

/// Returns the `wait` of the header Prefer (RFC 7240). Unknown preferences are ignored.
pub fn prefer_wait(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    for value in headers.get_all(PREFER) {
        for preference in value.to_str().unwrap_or_default().split([',', ';']) {
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            if !name.trim().eq_ignore_ascii_case("wait") {
                continue;
            }
            let value = value.trim().trim_matches('"');
            let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            // A number of any length is valid: it is capped at the longest wait.
            let seconds = is_number.then(|| value.parse().unwrap_or(u64::MAX));
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

fn trace(headers: &HeaderMap) -> Option<Trace> {
    let values = |name: HeaderName| {
        let values = headers.get_all(name).iter();
        // A value that is not text is passed on as an invalid one.
        let values = values.map(|value| value.to_str().unwrap_or("?"));
        values.collect::<Vec<_>>()
    };
    Trace::join(&values(TRACEPARENT), &values(TRACESTATE))
}

pub(super) fn refused(detail: &str) -> Problem {
    Problem::new(ProblemKind::InvalidQuery, detail)
}

/// Returns the caller's `Idempotency-Key`, kept apart from those of other callers and paths, with a hash of the
/// request that distinguishes a repeat from a different request.
pub fn idempotency(
    conditions: &Conditions,
    caller: &Caller,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Option<Idempotency> {
    let key = conditions.idempotency_key.as_deref()?;
    let (method, path) = (method.as_str().as_bytes(), path.as_bytes());
    // None of these contains a line feed, so different requests never hash the same bytes.
    let fingerprint = hash(&[method, b"\n", path, b"\n", body]);
    // A name from `Provost-Actor` is not authenticated and does not separate keys.
    let name: &[u8] = if caller.is_known {
        caller.name.as_bytes()
    } else if path == SUBMIT {
        // Earlier versions stored all keys in this form.
        let key = key.to_owned();
        return Some(Idempotency { key, fingerprint });
    } else {
        b""
    };
    let mut scope = hash(&[name, b"\n", method, b"\n", path]);
    scope.truncate(SCOPE);
    // A key contains no space.
    let key = format!("{key} {scope}");
    Some(Idempotency { key, fingerprint })
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::config::Role;

    fn read(headers: &[(&'static str, &str)]) -> Result<Conditions, ProblemKind> {
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
                Err(ProblemKind::InvalidQuery),
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
        for (quoted, key) in [("\"a\"", "a"), (r#""a\"b\\""#, r#"a"b\"#)] {
            let conditions = read(&[("idempotency-key", quoted)]).unwrap();
            assert_eq!(conditions.idempotency_key.as_deref(), Some(key));
        }
        let longer = "k".repeat(256);
        let odd = [
            "\"\"",
            "\"a",
            "\"a b\"",
            "\"a\"b\"",
            "\"a\\\"",
            "\"a\\c\"",
            "\"a\";b=1",
        ];
        for key in ["", "a b", &longer].into_iter().chain(odd) {
            assert_eq!(
                read(&[("idempotency-key", key)]),
                Err(ProblemKind::InvalidQuery),
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
            (
                "wait=99999999999999999999",
                Some(LONGEST_WAIT.duration().as_secs()),
            ),
        ] {
            let wait = read(&[("prefer", prefer)]).unwrap().prefer_wait;
            assert_eq!(wait.map(|wait| wait.as_secs()), seconds, "{prefer}");
        }
        for prefer in ["wait", "wait=soon", "wait=-1", "wait=1.5", "wait=10s"] {
            assert_eq!(
                read(&[("prefer", prefer)]),
                Err(ProblemKind::InvalidQuery),
                "{prefer}"
            );
        }
    }

    #[test]
    fn a_trace_is_used_where_exactly_one_is_named() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let state = HeaderValue::from_static("rojo=1");
        let mut headers = HeaderMap::new();
        headers.append(TRACESTATE, state.clone());
        assert_eq!(trace(&headers), None);
        headers.append(TRACEPARENT, HeaderValue::from_static(parent));
        let joined = trace(&headers).unwrap();
        assert_eq!((joined.flags, joined.state.as_deref()), (0, Some("rojo=1")));
        headers.append(TRACESTATE, HeaderValue::from_bytes(b"a=\xff").unwrap());
        assert_eq!(trace(&headers).unwrap().state, None);
        headers.append(TRACEPARENT, HeaderValue::from_static(parent));
        assert_eq!(trace(&headers), None);
    }

    fn caller(name: &str, is_known: bool) -> Caller {
        Caller {
            name: name.into(),
            role: Role::Submit,
            agents: [].into(),
            is_known,
            address: None,
        }
    }

    #[test]
    fn a_fingerprint_tells_requests_apart() {
        let conditions = read(&[("idempotency-key", "k")]).unwrap();
        let ada = caller("ada", true);
        let print = |method, path, body: &[u8]| {
            let made = idempotency(&conditions, &ada, &method, path, body).unwrap();
            assert_eq!(made.fingerprint.len(), 64);
            made.fingerprint
        };
        let first = print(Method::POST, "/v1/tasks", b"{}");
        assert_eq!(first, print(Method::POST, "/v1/tasks", b"{}"));
        assert_ne!(first, print(Method::PUT, "/v1/tasks", b"{}"));
        assert_ne!(first, print(Method::POST, "/v1/task", b"s{}"));
        assert_ne!(first, print(Method::POST, "/v1/tasks", b"{ }"));
        assert!(idempotency(&Conditions::default(), &ada, &Method::POST, "/", b"").is_none());
    }

    #[test]
    fn a_key_belongs_to_a_caller_and_a_path() {
        let conditions = read(&[("idempotency-key", "k")]).unwrap();
        let key = |caller: &Caller, path| {
            let made = idempotency(&conditions, caller, &Method::POST, path, b"{}");
            made.unwrap().key
        };
        let (ada, bob) = (caller("ada", true), caller("bob", true));
        assert_eq!(key(&ada, "/v1/tasks"), key(&ada, "/v1/tasks"));
        assert_ne!(key(&ada, "/v1/tasks"), key(&bob, "/v1/tasks"));
        assert_ne!(key(&ada, "/v1/tasks"), key(&ada, "/v1/tasks/1/cancel"));
        // Names that callers give themselves do not separate keys.
        let (eve, mal) = (caller("eve", false), caller("mal", false));
        assert_eq!(key(&eve, "/v1/tasks"), "k", "as it was stored once");
        assert_eq!(key(&eve, "/v1/tasks/1/undo"), key(&mal, "/v1/tasks/1/undo"));
        assert_ne!(key(&eve, "/v1/tasks/1/undo"), "k");
        assert_ne!(key(&eve, "/v1/tasks"), key(&ada, "/v1/tasks"));
    }
}

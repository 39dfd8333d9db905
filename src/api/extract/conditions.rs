//! The headers that say under which conditions, and how, a request is to be carried out.

use std::{fmt::Write, time::Duration};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, Method, header, request::Parts},
};
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use super::{Caller, query::LONGEST_WAIT};
use crate::{
    api::problem::{Kind, Problem},
    domain::Trace,
    store::Idempotency,
};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Conditions {
    /// The version that the task must be at.
    pub if_match: Option<u64>,
    pub idempotency_key: Option<String>,
    /// How long the answer may wait for the task to settle.
    pub prefer_wait: Option<Duration>,
    /// The trace that the caller is part of.
    pub trace: Option<Trace>,
}

/// Those of a submission, for its documentation: `params(ConditionHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "its fields are read by the documentation only")]
pub struct ConditionHeaders {
    /// Any string of 1 to 255 visible ASCII characters, bare or in quotes, one for each intention. A repeat with
    /// the same key is answered like the first, says `Idempotency-Replayed: true`, and changes nothing; with
    /// another body it is refused. Another caller's token, or another path, may use the same key for itself.
    #[param(
        rename = "Idempotency-Key",
        example = "order-1001-submit",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: Option<String>,
    /// `wait=10` lets the answer wait up to so many seconds for the task to settle, 60 at most;
    /// `Preference-Applied` says how many it were.
    #[param(rename = "Prefer", example = "wait=10")]
    prefer: Option<String>,
}

/// That of a request about a task which it does not change: `params(TaskMatch)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "its fields are read by the documentation only")]
pub struct TaskMatch {
    /// The ETag of the task as it was last seen: the request is refused if the task has changed since.
    #[param(
        rename = "If-Match",
        pattern = r#"^(\*|"[0-9]{1,18}")$"#,
        example = "\"7\""
    )]
    if_match: Option<String>,
}

/// Those of a trace: `params(TraceHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "its fields are read by the documentation only")]
pub struct TraceHeaders {
    /// W3C Trace Context: the task's calls join this trace, each with a span of its own and with the sampling flag
    /// that is set here. More than one, or one that cannot be read, begins a new trace.
    #[param(example = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    traceparent: Option<String>,
    /// W3C Trace Context: kept with the task and sent with each of its calls, up to 512 characters and 32 members.
    /// Nothing without `traceparent`.
    #[param(example = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")]
    tracestate: Option<String>,
}

/// Those of a command on one task: `params(CommandHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "its fields are read by the documentation only")]
pub struct CommandHeaders {
    /// The ETag that the task must still have.
    #[param(
        rename = "If-Match",
        pattern = r#"^(\*|"[0-9]{1,18}")$"#,
        example = "\"7\""
    )]
    if_match: Option<String>,
    /// Makes a repeat harmless.
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
/// Of a hash of caller and path, in hexadecimal digits: enough that no two of them are the same.
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
    match value.to_str().ok().and_then(unquoted) {
        Some(key) if headers.get_all(IDEMPOTENCY_KEY).iter().count() == 1 => Ok(Some(key)),
        _ => Err(refused(
            "Idempotency-Key must be one string of 1 to 255 visible ASCII characters, such as a UUID; quotes around it do not count",
        )),
    }
}

/// The key itself. `draft-ietf-httpapi-idempotency-key-header` has it in quotes, as a string of RFC 8941; most
/// send it bare.
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

/// RFC 7240. Preferences other than `wait` are not ours to judge.
fn prefer_wait(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    for value in headers.get_all(PREFER) {
        for preference in value.to_str().unwrap_or_default().split([',', ';']) {
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            if !name.trim().eq_ignore_ascii_case("wait") {
                continue;
            }
            let value = value.trim().trim_matches('"');
            let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            // However many digits it has, it is not below the longest wait.
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
        // What is no text is no valid value either.
        let values = values.map(|value| value.to_str().unwrap_or("?"));
        values.collect::<Vec<_>>()
    };
    Trace::join(&values(TRACEPARENT), &values(TRACESTATE))
}

pub(super) fn refused(detail: &str) -> Problem {
    Problem::new(Kind::InvalidQuery, detail)
}

/// The caller's `Idempotency-Key`, kept apart from those of other callers and for other paths, with a fingerprint
/// that tells a repeat from another request.
pub fn idempotency(
    conditions: &Conditions,
    caller: &Caller,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Option<Idempotency> {
    let key = conditions.idempotency_key.as_deref()?;
    let (method, path) = (method.as_str().as_bytes(), path.as_bytes());
    // None of these holds a line feed: no two requests give the same bytes.
    let fingerprint = hash(&[method, b"\n", path, b"\n", body]);
    // What callers say of themselves without a token keeps no keys apart.
    let name: &[u8] = if caller.is_known {
        caller.name.as_bytes()
    } else if path == SUBMIT {
        // As all keys were stored once.
        let key = key.to_owned();
        return Some(Idempotency { key, fingerprint });
    } else {
        b""
    };
    let mut scope = hash(&[name, b"\n", method, b"\n", path]);
    scope.truncate(SCOPE);
    // A key holds no blank.
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
                Err(Kind::InvalidQuery),
                "{prefer}"
            );
        }
    }

    #[test]
    fn a_trace_is_taken_up_where_exactly_one_is_named() {
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
            is_known,
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
        // What callers say of themselves keeps nothing apart.
        let (eve, mal) = (caller("eve", false), caller("mal", false));
        assert_eq!(key(&eve, "/v1/tasks"), "k", "as it was stored once");
        assert_eq!(key(&eve, "/v1/tasks/1/undo"), key(&mal, "/v1/tasks/1/undo"));
        assert_ne!(key(&eve, "/v1/tasks/1/undo"), "k");
        assert_ne!(key(&eve, "/v1/tasks"), key(&ada, "/v1/tasks"));
    }
}

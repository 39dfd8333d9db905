//! Makes the request of a call, and the connector that opens its connections.

use std::{fmt::Write as _, sync::LazyLock};

use ::http::{HeaderMap, HeaderName, HeaderValue, Request, header, uri::PathAndQuery};
use bytes::Bytes;
use hyper_rustls::ConfigBuilderExt;
use rustls::{ClientConfig, RootCertStore};
use url::{Position, Url};
use uuid::Uuid;

use super::connector::{CallConnector, RequestBody, root_cause};
use crate::agent::settings::AgentSettings;
use crate::domain::{
    definition::{Method, Target},
    task::{Call, CallBody, Purpose, ReplyAddresses},
    template::Payload,
    values::path_fault,
};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PROVOST_TASK: HeaderName = HeaderName::from_static("provost-task");
const PROVOST_TASK_KEY: HeaderName = HeaderName::from_static("provost-task-key");
const PROVOST_UNDOES: HeaderName = HeaderName::from_static("provost-undoes");
const PROVOST_PROBES: HeaderName = HeaderName::from_static("provost-probes");
const PROVOST_CANCELS: HeaderName = HeaderName::from_static("provost-cancels");
const PROVOST_STEP: HeaderName = HeaderName::from_static("provost-step");
const PROVOST_ATTEMPT: HeaderName = HeaderName::from_static("provost-attempt");
const PROVOST_COMPLETE_BY: HeaderName = HeaderName::from_static("provost-complete-by");
const PROVOST_REPLY_TO: HeaderName = HeaderName::from_static("provost-reply-to");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Requests ask for uncompressed bodies, because Provost decodes none.
pub(in crate::agent) const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(in crate::agent) const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("provost/", env!("CARGO_PKG_VERSION")));

/// Selects ring as the TLS provider of the whole process. It may be called several times; only the first call matters.
pub fn install_crypto() {
    // An error means that a provider is already installed, which is sufficient.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Returns a connector without proxy. No redirect is followed and no request is repeated by the client: every attempt
/// is made, counted and recorded by Provost.
pub(in crate::agent) fn connector(settings: &AgentSettings) -> CallConnector {
    install_crypto();
    CallConnector::new(
        tls(),
        settings.addresses.clone(),
        settings.connect_timeout,
        settings.max_connection_age,
    )
}

/// Returns the settings of TLS, with the certificates of the machine. They are read once, when the process first needs them.
fn tls() -> ClientConfig {
    static TLS: LazyLock<ClientConfig> = LazyLock::new(read_tls);
    TLS.clone()
}

fn read_tls() -> ClientConfig {
    match ClientConfig::builder().try_with_platform_verifier() {
        Ok(config) => config.with_no_client_auth(),
        // A minimal container has no certificates, which is no reason to refuse plain HTTP.
        Err(error) => {
            tracing::warn!(
                error = root_cause(&error),
                "agents can be called over http:// only: install CA certificates for https://"
            );
            ClientConfig::builder()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth()
        }
    }
}

/// The reason why a request cannot be made: the definition or the data of the step is wrong, not the service.
pub(in crate::agent) type Unmakeable = String;

/// Makes the request of a call. `base` is the URL of an endpoint, `host` the value of the `Host` header, `traceparent`
/// that of this attempt, `replies` the address for later replies.
pub(in crate::agent) fn request(
    base: &Url,
    host: &HeaderValue,
    call: &Call,
    body: Option<Bytes>,
    traceparent: &str,
    replies: Option<&ReplyAddresses>,
) -> Result<Request<RequestBody>, Unmakeable> {
    let url = url(base, call)?;
    let target = &url[Position::BeforePath..Position::AfterQuery];
    let target = PathAndQuery::try_from(target)
        .map_err(|error| format!("{target:?} is not a valid request target: {error}"))?;
    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(header::HOST, host.clone());
    headers.insert(header::ACCEPT, JSON);
    headers.insert(header::ACCEPT_ENCODING, IDENTITY);
    headers.insert(header::USER_AGENT, USER_AGENT);
    add_headers(&mut headers, call, traceparent)?;
    let may_be_deferred = matches!(call.purpose, Purpose::Work | Purpose::Undo(_));
    if let Some(replies) = replies.filter(|_| may_be_deferred) {
        add_reply_address(&mut headers, call, replies);
    }
    let body = match body {
        Some(body) => {
            headers.entry(header::CONTENT_TYPE).or_insert(JSON);
            body
        }
        None => Bytes::new(),
    };
    let mut request = Request::new(RequestBody::from(body));
    *request.method_mut() = method(call.method);
    *request.uri_mut() = target.into();
    *request.headers_mut() = headers;
    Ok(request)
}

/// Returns the bytes of a body, without a copy of it.
pub(in crate::agent) fn bytes(body: CallBody) -> Bytes {
    match body {
        CallBody::Rendered(json) => Bytes::from(json),
        CallBody::Whole(payload) => Bytes::from_owner(PayloadBytes(payload)),
    }
}

/// Makes the request of a health check.
pub(in crate::agent) fn check_request(
    base: &Url,
    host: &HeaderValue,
    path: &str,
) -> Result<Request<RequestBody>, Unmakeable> {
    let url = join(base, path)?;
    let target = &url[Position::BeforePath..Position::AfterQuery];
    let target = PathAndQuery::try_from(target)
        .map_err(|error| format!("{target:?} is not a valid request target: {error}"))?;
    let mut request = Request::new(RequestBody::from(Bytes::new()));
    *request.uri_mut() = target.into();
    let headers = request.headers_mut();
    headers.insert(header::HOST, host.clone());
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(header::ACCEPT_ENCODING, IDENTITY);
    headers.insert(header::USER_AGENT, USER_AGENT);
    Ok(request)
}

/// Returns the URL of a call.
pub(in crate::agent) fn url(base: &Url, call: &Call) -> Result<Url, Unmakeable> {
    match &call.target {
        Target::Agent(_) => join(base, &call.path),
        Target::Url { url, .. } | Target::Operation { url, .. } => {
            join(&own_base(base, url)?, &call.path)
        }
    }
}

/// The body of a request, sent from the payload without a copy.
struct PayloadBytes(Payload);

impl AsRef<[u8]> for PayloadBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_json().as_bytes()
    }
}

/// Returns the value of the `Host` header for requests to this URL.
pub(in crate::agent) fn host(url: &Url) -> Result<HeaderValue, Unmakeable> {
    let host = &url[Position::BeforeHost..Position::AfterPort];
    HeaderValue::from_str(host).map_err(|_| format!("{host:?} is not a valid host name"))
}

fn method(method: Method) -> ::http::Method {
    match method {
        Method::Get => ::http::Method::GET,
        Method::Post => ::http::Method::POST,
        Method::Put => ::http::Method::PUT,
        Method::Patch => ::http::Method::PATCH,
        Method::Delete => ::http::Method::DELETE,
    }
}

/// Returns `base`, followed by the path of the call. Only the path is parsed again.
fn join(base: &Url, path: &str) -> Result<Url, Unmakeable> {
    if path.is_empty() {
        return Ok(base.clone());
    }
    if !path.starts_with('/') {
        // With `@host` or `:port` after a host the URL would lead to another server.
        return Err(format!("the path {path:?} does not start with /"));
    }
    // The path comes from data, or from a service. An encoded `..` must not lead out of the base, no matter how the
    // URL parser of the service reads it.
    if let Some(fault) = path_fault(path) {
        return Err(format!("the path {path:?} cannot be called: {fault}"));
    }
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let prefix = base.path().trim_end_matches('/');
    let mut url = base.clone();
    if prefix.is_empty() {
        url.set_path(path);
    } else {
        url.set_path(&format!("{prefix}{path}"));
        // A `..`, plain or encoded, may come from data: it must not reach a path outside the service.
        let below = url.path().strip_prefix(prefix);
        if !below.is_some_and(|below| below.starts_with('/')) {
            return Err(format!(
                "the path {path:?} leads outside of the base path {prefix:?}"
            ));
        }
    }
    if query.is_some() {
        url.set_query(query);
    }
    Ok(url)
}

/// Returns the base for a step that names its URL. The URL must have the origin whose address was checked.
fn own_base(origin: &Url, url: &str) -> Result<Url, Unmakeable> {
    let parsed = Url::parse(url).map_err(|error| format!("{url:?} is not a URL: {error}"))?;
    if parsed.origin() == origin.origin() {
        Ok(parsed)
    } else {
        Err(format!(
            "{url:?} does not have the origin {:?}",
            origin.as_str()
        ))
    }
}

/// Returns the headers of a step that a worker fetches: those of a call, without those that only a connection needs.
pub(in crate::agent) fn worker_headers(
    call: &Call,
    replies: Option<&ReplyAddresses>,
) -> Result<HeaderMap, Unmakeable> {
    let mut headers = HeaderMap::with_capacity(16);
    add_headers(&mut headers, call, &call.trace.parent())?;
    if let Some(replies) = replies {
        add_reply_address(&mut headers, call, replies);
    }
    if call.body.is_some() {
        headers.entry(header::CONTENT_TYPE).or_insert(JSON);
    }
    Ok(headers)
}

fn add_reply_address(headers: &mut HeaderMap, call: &Call, replies: &ReplyAddresses) {
    let mut address = text_or_encoded(&replies.of(call.step, call.attempt));
    // The address is a credential.
    address.set_sensitive(true);
    headers.insert(PROVOST_REPLY_TO, address);
}

fn add_headers(headers: &mut HeaderMap, call: &Call, traceparent: &str) -> Result<(), Unmakeable> {
    match &call.purpose {
        Purpose::Work | Purpose::Poll => {}
        Purpose::Cancel(key) => {
            headers.insert(PROVOST_CANCELS, text_or_encoded(key));
        }
        Purpose::Undo(key) => {
            headers.insert(PROVOST_UNDOES, text_or_encoded(key));
        }
        Purpose::Probe(key) => {
            headers.insert(PROVOST_PROBES, text_or_encoded(key));
        }
    }
    // Requests for other purposes change nothing, so the service has nothing to deduplicate.
    let is_work = matches!(call.purpose, Purpose::Work | Purpose::Undo(_));
    if is_work {
        headers.insert(IDEMPOTENCY_KEY, text_or_encoded(&call.idempotency_key));
    }
    let mut task = Uuid::encode_buffer();
    let task = call.step.task.0.hyphenated().encode_lower(&mut task);
    headers.insert(PROVOST_TASK, plain(task));
    if let Some(key) = &call.task_key {
        headers.insert(PROVOST_TASK_KEY, text_or_encoded(key));
    }
    headers.insert(PROVOST_STEP, text_or_encoded(call.step_name.as_str()));
    headers.insert(PROVOST_ATTEMPT, HeaderValue::from(call.attempt.0));
    headers.insert(
        PROVOST_COMPLETE_BY,
        plain(&call.wall_complete_by.to_string()),
    );
    headers.insert(TRACEPARENT, plain(traceparent));
    if let Some(state) = &call.trace.state {
        headers.insert(TRACESTATE, text_or_encoded(state));
    }
    for (name, value) in &call.headers {
        let (name, value) = own_header(name, value)?;
        headers.insert(name, value);
    }
    Ok(())
}

fn own_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Unmakeable> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("{name:?} is not a valid header name"))?;
    if is_reserved(&parsed) {
        return Err(format!(
            "the header {name:?} is set by Provost and cannot be set by a step"
        ));
    }
    let value = HeaderValue::from_str(value).map_err(|_| {
        // The value may hold a secret, so it is not repeated.
        format!(
            "the value of the header {name:?} contains characters that are not allowed in a header"
        )
    })?;
    Ok((parsed, value))
}

/// True for headers that frame the message, where a wrong value would allow request smuggling, and for the names that
/// a remote service may trust to come from Provost.
fn is_reserved(name: &HeaderName) -> bool {
    const FRAMING: [HeaderName; 6] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    FRAMING.contains(name) || name.as_str().starts_with("provost-")
}

/// Returns the header value of a text that consists of letters, digits, `-`, `:` and `.` only.
fn plain(text: &str) -> HeaderValue {
    // A header can hold these characters.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Returns the text itself if a header can hold it; otherwise its UTF-8 bytes, percent-encoded.
pub(in crate::agent) fn text_or_encoded(text: &str) -> HeaderValue {
    let holds = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    // Blanks at the ends would be lost in transit.
    let kept = text.bytes().all(holds) && !text.starts_with(' ') && !text.ends_with(' ');
    let value = if kept {
        HeaderValue::from_str(text)
    } else {
        HeaderValue::try_from(percent_encoded(text))
    };
    // Only printable ASCII is left, which a header always holds.
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

//! Access tokens of OAuth 2.0 with client credentials. One call fetches a token for all calls when one is needed. It
//! is used until shortly before it expires, or until the service refuses it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::http::{HeaderValue, Method, Request, StatusCode, header, uri::PathAndQuery};
use arc_swap::ArcSwapOption;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use url::{Position, Url, form_urlencoded};

use super::credentials::Credentials;
use crate::agent::{
    client::{
        address::{self, AddressPolicy},
        body::{self, BodyError},
        connector::{CallConnector, RequestBody, root_cause},
        http, response,
    },
    routing::{EndpointTarget, endpoint_target},
};
use crate::{
    clock::{self, Instant},
    domain::agent::{ClientAuthMethod, OAuthSpec},
};

/// The limit for the whole exchange with the token endpoint.
const FETCH_WITHIN: Duration = Duration::from_secs(10);
/// After a failure the token endpoint gets no request for this time; calls fail with the reason of the failure.
const REST: Duration = Duration::from_secs(1);
/// The most bytes of a response of the token endpoint.
const LONGEST_RESPONSE: usize = 64 << 10;
/// The most characters of a response that an error shows.
const LONGEST_EXCERPT: usize = 200;
/// The life of a token if the response does not contain it (RFC 6749, section 5.1).
const USUAL_LIFE: Duration = Duration::from_secs(300);
const LONGEST_LIFE: Duration = Duration::from_secs(24 * 3600);
/// A token is replaced this long before it expires; one with a short life after four fifths of its life.
const MARGIN: Duration = Duration::from_secs(60);
/// If a token that replaced a refused one is itself refused within this time, the service refuses the call and not the
/// token.
const REFUSED_AGAIN_WITHIN: Duration = Duration::from_secs(30);

/// The token of one agent.
pub(in crate::agent) struct TokenCache {
    spec: OAuthSpec,
    /// The token endpoint, or the reason why it can never be called.
    way: Result<(Url, EndpointTarget), String>,
    connector: CallConnector,
    current: ArcSwapOption<CachedToken>,
    /// Locked by the task that fetches a token, so that the fetch continues if the call that needed it ends. Contains
    /// the last failure.
    fetch_lock: Arc<Mutex<Option<FetchFailure>>>,
    was_refused: AtomicBool,
}

struct CachedToken {
    /// The credentials without the token. They are replaced when a secret has changed.
    base: Arc<Credentials>,
    full: Arc<Credentials>,
    fetched_at: Instant,
    replace_at: Instant,
    /// True if the token was fetched because the service refused the previous one.
    after_refusal: bool,
}

struct FetchFailure {
    at: Instant,
    why: String,
}

impl TokenCache {
    pub fn new(spec: OAuthSpec, policy: &AddressPolicy, connector: CallConnector) -> Self {
        let url = Url::parse(&spec.token_url).map_err(|error| error.to_string());
        let way = url.and_then(|url| {
            let target = endpoint_target(&url.origin().ascii_serialization(), policy)?;
            Ok((url, target))
        });
        Self {
            spec,
            way,
            connector,
            current: ArcSwapOption::empty(),
            fetch_lock: Arc::default(),
            was_refused: AtomicBool::new(false),
        }
    }

    /// Returns the credentials with a token, which is fetched if none is known.
    pub async fn with_token(
        self: &Arc<Self>,
        base: Arc<Credentials>,
    ) -> Result<Arc<Credentials>, String> {
        let mut turn = Arc::clone(&self.fetch_lock).lock_owned().await;
        if let Some(full) = self.known(&base) {
            return Ok(full);
        }
        if let Some(failure) = turn.as_ref().filter(|failure| failure.at.elapsed() < REST) {
            return Err(failure.why.clone());
        }
        let cache = Arc::clone(self);
        let fetching = tokio::spawn(async move {
            let fetched = clock::timeout(FETCH_WITHIN, cache.fetch(&base)).await;
            let fetched = fetched
                .unwrap_or_else(|_| Err(format!("no response within {FETCH_WITHIN:?}")))
                .map_err(|why| {
                    let origin = cache.origin();
                    format!("no access token from {origin}: {why}")
                });
            match fetched {
                Ok(token) => {
                    let full = Arc::clone(&token.full);
                    cache.current.store(Some(Arc::new(token)));
                    *turn = None;
                    Ok(full)
                }
                Err(why) => {
                    tracing::warn!(reason = why, "an access token could not be fetched");
                    let at = clock::instant();
                    *turn = Some(FetchFailure {
                        at,
                        why: why.clone(),
                    });
                    Err(why)
                }
            }
        });
        let fetched = fetching.await;
        fetched.unwrap_or_else(|_| Err("the access token could not be fetched".to_owned()))
    }

    /// Returns the credentials with the token that is known, if it can still be used.
    pub fn known(&self, base: &Arc<Credentials>) -> Option<Arc<Credentials>> {
        let current = self.current.load();
        let current = current.as_ref()?;
        let is_usable = Arc::ptr_eq(&current.base, base) && clock::instant() < current.replace_at;
        is_usable.then(|| Arc::clone(&current.full))
    }

    /// Reports that the service responded 401 to a request with these credentials. Returns true if another token may
    /// help.
    pub fn refused(&self, full: &Credentials) -> bool {
        let current = self.current.load_full();
        let Some(current) = current.filter(|token| std::ptr::eq(&*token.full, full)) else {
            // The token was replaced in the meantime.
            return true;
        };
        if current.after_refusal && current.fetched_at.elapsed() < REFUSED_AGAIN_WITHIN {
            return false;
        }
        self.was_refused.store(true, Ordering::Relaxed);
        self.current.store(None);
        true
    }

    /// Returns the origin of the token endpoint, for errors. The path is omitted, because it may contain the name of a
    /// tenant.
    fn origin(&self) -> String {
        match &self.way {
            Ok((url, _)) => url.origin().ascii_serialization(),
            Err(_) => "the token endpoint".to_owned(),
        }
    }

    async fn fetch(&self, base: &Arc<Credentials>) -> Result<CachedToken, String> {
        let secret = base.client_secret().ok_or("the client secret is missing")?;
        let (url, way) = self.way.as_ref().map_err(Clone::clone)?;
        let request = self.request(url, way, secret)?;
        // The response may echo secrets, and parts of it are logged and recorded with the step.
        let redactor = base.redactor();
        let connector = base.token_connector.as_ref().unwrap_or(&self.connector);
        let sent = way.connections.send(connector, request).await;
        let mut response = sent.map_err(|error| match address::refusal_in(error.error()) {
            Some(refusal) => refusal.to_string(),
            None => format!(
                "could not connect, or the exchange broke off: {}",
                root_cause(error.error())
            ),
        })?;
        let status = response.head.status;
        let text = match body::whole(&mut response, LONGEST_RESPONSE).await {
            Ok(text) => text,
            Err(BodyError::TooLarge) => {
                return Err(format!(
                    "its response is longer than {LONGEST_RESPONSE} bytes"
                ));
            }
            Err(BodyError::Broken(error)) => {
                return Err(format!(
                    "its response broke off: {}",
                    root_cause(error.error())
                ));
            }
        };
        if status != StatusCode::OK {
            let shown = match response::encoding(&response.head.headers) {
                Some(encoding) => format!("what it says is encoded as {encoding}"),
                None => {
                    let text = redactor.hide_in_start(text, LONGEST_EXCERPT);
                    response::excerpt(&text).unwrap_or_default()
                }
            };
            return Err(format!("it responded {}: {shown}", status.as_u16()));
        }
        if let Some(encoding) = response::encoding(&response.head.headers) {
            return Err(format!("its response is encoded as {encoding}"));
        }
        let granted: TokenResponse = serde_json::from_slice(&text)
            .map_err(|_| "its response is not JSON with an access_token".to_owned())?;
        let life = granted.life();
        let margin = MARGIN.min(life / 5);
        if granted
            .token_type
            .is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer"))
        {
            return Err("its token is not of the type bearer".to_owned());
        }
        let full = base.with_bearer(&granted.access_token).ok_or_else(|| {
            "its token cannot be sent in a header, or is shorter than 8 characters".to_owned()
        })?;
        let now = clock::instant();
        Ok(CachedToken {
            base: Arc::clone(base),
            full: Arc::new(full),
            fetched_at: now,
            replace_at: now + (life - margin),
            after_refusal: self.was_refused.swap(false, Ordering::Relaxed),
        })
    }

    fn request(
        &self,
        url: &Url,
        way: &EndpointTarget,
        secret: &str,
    ) -> Result<Request<RequestBody>, String> {
        let spec = &self.spec;
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        for (name, value) in [("scope", &spec.scope), ("audience", &spec.audience)] {
            if let Some(value) = value {
                form.append_pair(name, value);
            }
        }
        let mut authorization = None;
        match spec.method {
            ClientAuthMethod::ClientSecretPost => {
                form.append_pair("client_id", &spec.client_id);
                form.append_pair("client_secret", secret);
            }
            ClientAuthMethod::ClientSecretBasic => {
                let pair = basic_pair(spec, secret);
                let value = HeaderValue::try_from(format!("Basic {pair}"));
                authorization = value.ok();
            }
        }
        let target = PathAndQuery::try_from(&url[Position::BeforePath..Position::AfterQuery])
            .map_err(|_| "its path is not a valid request target".to_owned())?;
        let mut request = Request::new(RequestBody::from(form.finish()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.into();
        let headers = request.headers_mut();
        headers.insert(header::HOST, way.host.clone());
        headers.insert(header::USER_AGENT, http::USER_AGENT);
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, http::IDENTITY);
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(header::CONTENT_TYPE, form);
        if let Some(mut value) = authorization {
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(request)
    }
}

/// Returns the credentials for HTTP Basic. Both parts are encoded as in a form (RFC 6749, section 2.3.1).
pub(in crate::agent) fn basic_pair(spec: &OAuthSpec, secret: &str) -> String {
    let encoded =
        |text: &str| -> String { form_urlencoded::byte_serialize(text.as_bytes()).collect() };
    STANDARD.encode(format!("{}:{}", encoded(&spec.client_id), encoded(secret)))
}

/// The response to a token request (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<Value>,
}

impl TokenResponse {
    /// Returns the life of the token. Some services send the number as text.
    fn life(&self) -> Duration {
        let seconds = self.expires_in.as_ref().and_then(|value| match value {
            Value::String(text) => text.parse::<f64>().ok(),
            value => value.as_f64(),
        });
        let life = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        life.unwrap_or(USUAL_LIFE).min(LONGEST_LIFE)
    }
}

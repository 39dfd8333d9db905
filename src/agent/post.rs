//! One request outside of any step: the delivery loop posts messages with it. The same policy of addresses
//! holds, and the same TLS; redirects are not followed, and of the answer only the beginning is read.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use ::http::{HeaderMap, Method, Request, StatusCode, header, uri::PathAndQuery};
use lru::LruCache;
use parking_lot::Mutex;
use url::{Position, Url};

use super::{
    address::{self, AddressPolicy},
    answer, body,
    connector::{CallConnector, RequestBody, Unanswered, root_cause},
    http,
    retry::retry_after,
    routing::{EndpointTarget, way},
    settings::AgentSettings,
};
use crate::domain::Timestamp;

/// To so many receivers connections are kept from one message to the next.
const RECEIVERS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Posts to addresses that policy allows.
#[derive(Clone)]
pub struct Post {
    connector: CallConnector,
    policy: AddressPolicy,
    timeout: Duration,
    /// By origin.
    ways: Arc<Mutex<LruCache<String, EndpointTarget>>>,
}

/// How a receiver answered.
#[derive(Debug)]
pub struct PostResponse {
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    /// The beginning of the answer, where it was no success.
    pub excerpt: Option<String>,
}

/// Why there was no answer.
#[derive(Debug)]
pub enum PostError {
    /// The address may not be called, or is none.
    Refused(String),
    /// Nobody took the connection, it broke off, or the answer did not come in time.
    Broken(String),
}

impl Post {
    /// `timeout` is that of a request until its answer begins.
    pub fn new(settings: &AgentSettings, timeout: Duration) -> Self {
        Self {
            connector: http::connector(settings),
            policy: settings.addresses.clone(),
            timeout,
            ways: Arc::new(Mutex::new(LruCache::new(RECEIVERS))),
        }
    }

    /// How long a message may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What can be said of an address before it is resolved.
    pub fn check(&self, url: &str) -> Result<(), String> {
        self.find(url).map(drop)
    }

    /// The URL may be a secret, and is not repeated.
    fn find(&self, url: &str) -> Result<(Url, EndpointTarget), String> {
        let url = Url::parse(url).map_err(|error| format!("is not a URL: {error}"))?;
        let origin = url.origin().ascii_serialization();
        let mut ways = self.ways.lock();
        if let Some(known) = ways.get(&origin) {
            return Ok((url, known.clone()));
        }
        let found = way(&origin, &self.policy)?;
        ways.put(origin, found.clone());
        Ok((url, found))
    }

    /// `now` is for answers that name a date to come back at.
    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: String,
        now: Timestamp,
    ) -> Result<PostResponse, PostError> {
        let (url, way) = self.find(url).map_err(PostError::Refused)?;
        let target = PathAndQuery::try_from(&url[Position::BeforePath..Position::AfterQuery]);
        let target = target.map_err(|error| {
            PostError::Refused(format!("its path is not a valid request target: {error}"))
        })?;
        let mut request = Request::new(RequestBody::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.into();
        *request.headers_mut() = headers;
        let own = request.headers_mut();
        own.insert(header::HOST, way.host.clone());
        own.insert(header::ACCEPT_ENCODING, http::IDENTITY);
        own.insert(header::USER_AGENT, http::USER_AGENT);
        let sent = way.connections.send(&self.connector, request);
        let answer = match tokio::time::timeout(self.timeout, sent).await {
            Ok(answered) => answered.map_err(|error| broken(&error))?,
            Err(_) => {
                let within = self.timeout;
                return Err(PostError::Broken(format!("no response within {within:?}")));
            }
        };
        let status = answer.head.status;
        let retry_after = retry_after(&answer.head.headers, now);
        let encoding = answer::encoding(&answer.head.headers);
        // Of a success too: read to its end, the connection can be used again.
        let start = body::start(answer).await;
        Ok(PostResponse {
            status,
            retry_after,
            excerpt: match encoding {
                _ if status.is_success() => None,
                Some(encoding) => Some(format!("what it says is encoded as {encoding}")),
                None => answer::excerpt(&start),
            },
        })
    }
}

fn broken(error: &Unanswered) -> PostError {
    if let Some(refusal) = address::refusal_in(error.error()) {
        return PostError::Refused(refusal.to_string());
    }
    let cause = root_cause(error.error());
    PostError::Broken(match error {
        Unanswered::Unconnected(_) => format!("could not connect: {cause}"),
        Unanswered::Unprocessed(_) | Unanswered::Broken(_) => {
            format!("the exchange broke off: {cause}")
        }
    })
}

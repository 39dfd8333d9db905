//! One request that belongs to no step; the delivery loop posts messages with it. The address policy and TLS are those
//! of calls. Redirects are not followed, and only the beginning of the response is read.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use ::http::{HeaderMap, Method, Request, StatusCode, header, uri::PathAndQuery};
use lru::LruCache;
use parking_lot::Mutex;
use url::{Position, Url};

use super::{
    client::{
        address::{self, AddressPolicy},
        body,
        connector::{CallConnector, RequestBody, Unanswered, root_cause},
        http, response,
    },
    retry::retry_after,
    routing::{EndpointTarget, endpoint_target},
    settings::AgentSettings,
};
use crate::{clock, domain::values::Timestamp};

/// Connections to this many receivers are kept from one message to the next.
const RECEIVERS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Posts to addresses that the policy allows.
#[derive(Clone)]
pub struct Post {
    connector: CallConnector,
    policy: AddressPolicy,
    timeout: Duration,
    /// The targets of recent posts, by origin.
    targets: Arc<Mutex<LruCache<String, EndpointTarget>>>,
}

/// The response of a receiver.
#[derive(Debug)]
pub struct PostResponse {
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    /// The beginning of the body, if the response was no success.
    pub excerpt: Option<String>,
}

/// The reason why there was no response.
#[derive(Debug)]
pub enum PostError {
    /// The text is not a URL, or its address may not be called.
    Refused(String),
    /// No connection was accepted, the connection broke, or the response did not come in time.
    Broken(String),
}

impl Post {
    /// `timeout` limits a request until its response begins.
    pub fn new(settings: &AgentSettings, timeout: Duration) -> Self {
        Self {
            connector: http::connector(settings),
            policy: settings.addresses.clone(),
            timeout,
            targets: Arc::new(Mutex::new(LruCache::new(RECEIVERS))),
        }
    }

    /// Returns the longest time that a message may take until its response begins.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Checks an address as far as that is possible before it is resolved.
    pub fn check(&self, url: &str) -> Result<(), String> {
        self.find(url).map(drop)
    }

    /// Returns the URL and its target. The URL may be a secret, so no error repeats it.
    fn find(&self, url: &str) -> Result<(Url, EndpointTarget), String> {
        let url = Url::parse(url).map_err(|error| format!("is not a URL: {error}"))?;
        let origin = url.origin().ascii_serialization();
        let mut ways = self.targets.lock();
        if let Some(known) = ways.get(&origin) {
            return Ok((url, known.clone()));
        }
        let found = endpoint_target(&origin, &self.policy)?;
        ways.put(origin, found.clone());
        Ok((url, found))
    }

    /// Posts the body. `now` converts a date in `Retry-After` to a duration.
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
        let answer = match clock::timeout(self.timeout, sent).await {
            Ok(answered) => answered.map_err(|error| broken(&error))?,
            Err(_) => {
                let within = self.timeout;
                return Err(PostError::Broken(format!("no response within {within:?}")));
            }
        };
        let status = answer.head.status;
        let retry_after = retry_after(&answer.head.headers, now);
        let encoding = response::encoding(&answer.head.headers);
        // The body of a success is read to its end too, so that the connection can be reused.
        let start = body::start(answer).await;
        Ok(PostResponse {
            status,
            retry_after,
            excerpt: match encoding {
                _ if status.is_success() => None,
                Some(encoding) => Some(format!("what it says is encoded as {encoding}")),
                None => response::excerpt(&start),
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

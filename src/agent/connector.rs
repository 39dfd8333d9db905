//! What connections to remote services begin with: streams to addresses that may be called, over TLS where the URL says
//! so.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::http::Uri;
use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, MaybeHttpsStream};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::time::Instant;
use tower::ServiceExt;

use super::{
    address::{self, AddressPolicy, GuardedResolver},
    counted::{BytesReceived, LimitedStream},
};

/// What the client offers by ALPN. HTTP/1.1 is among it, so that a server without HTTP/2 is known by its choice and not by a
/// handshake that fails.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];
pub(super) const HTTP_2: &[u8] = b"h2";

/// By which part of it the age of a connection is shorter at most.
const AGE_JITTER: f64 = 0.2;

/// The body of a request: small, and there as a whole.
pub(super) type RequestBody = Full<Bytes>;

pub(super) type AgentStream = MaybeHttpsStream<TokioIo<LimitedStream>>;

/// Why there is no answer, or no whole one.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Nothing was sent.
    Unconnected(Box<dyn Error + Send + Sync>),
    /// Something may have been sent, and the service has said that it did not process it.
    Unprocessed(Box<dyn Error + Send + Sync>),
    /// The service may have seen the request.
    Broken(Box<dyn Error + Send + Sync>),
}

impl Unanswered {
    pub fn error(&self) -> &(dyn Error + 'static) {
        match self {
            Unanswered::Unconnected(error)
            | Unanswered::Unprocessed(error)
            | Unanswered::Broken(error) => &**error,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub(super) struct TooSlow(pub Duration);

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens connections: to addresses that may be called, over TLS where the URL says so.
#[derive(Clone)]
pub(super) struct CallConnector {
    /// A connection is used again only by the connector that opened it: another one may trust other certificates.
    id: u64,
    tls: Arc<ClientConfig>,
    /// Instead of the host of the URL.
    server_name: Option<ServerName<'static>>,
    policy: AddressPolicy,
    timeout: Duration,
    max_age: Duration,
    is_http2: bool,
}

impl CallConnector {
    /// `timeout` is that of opening a connection, `max_age` how long a connection gets new calls.
    pub fn new(
        tls: ClientConfig,
        policy: AddressPolicy,
        timeout: Duration,
        max_age: Duration,
    ) -> Self {
        Self {
            id: next_id(),
            tls: Arc::new(tls),
            server_name: None,
            policy,
            timeout,
            max_age,
            is_http2: false,
        }
    }

    /// Speaks HTTP/2, and nothing else.
    pub fn with_http2(&self) -> Self {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Self {
            id: next_id(),
            tls: Arc::new(tls),
            is_http2: true,
            ..self.clone()
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When a connection that is opened now gets no further calls. `random` is from 0 to 1: connections that were opened at
    /// the same moment are not all replaced at the same moment.
    pub fn use_until(&self, now: Instant, random: f64) -> Instant {
        now + self.max_age.mul_f64(1.0 - AGE_JITTER * random)
    }

    /// Secured in another way.
    pub fn with_tls(
        &self,
        mut tls: ClientConfig,
        server_name: Option<ServerName<'static>>,
    ) -> Self {
        tls.alpn_protocols.clone_from(&self.tls.alpn_protocols);
        Self {
            id: next_id(),
            tls: Arc::new(tls),
            server_name,
            ..self.clone()
        }
    }

    pub fn policy(&self) -> &AddressPolicy {
        &self.policy
    }

    /// A stream to an address that may be called. That is decided for each connection, because it depends on host
    /// and port.
    pub async fn stream(
        &self,
        origin: &Uri,
        received: BytesReceived,
    ) -> Result<AgentStream, Box<dyn Error + Send + Sync>> {
        let host = origin.host().unwrap_or_default();
        let is_https = origin.scheme_str() == Some("https");
        let port = origin.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let gate = self.policy.gate(host, port).await;
        if let Some(address) = address::literal(host) {
            gate.check(address)?;
        }
        let mut http = HttpConnector::new_with_resolver(GuardedResolver(gate));
        http.enforce_http(false);
        http.set_nodelay(true);
        // Of each address that a name has got; the whole is limited below.
        http.set_connect_timeout(Some(self.timeout));
        let counted = http
            .map_response(|stream| TokioIo::new(LimitedStream::new(stream.into_inner(), received)));
        let https = match &self.server_name {
            None => HttpsConnector::from((counted, self.tls.clone())),
            Some(name) => {
                let fixed = Arc::new(FixedServerNameResolver::new(name.clone()));
                HttpsConnector::new(counted, self.tls.clone(), false, fixed)
            }
        };
        https.oneshot(origin.clone()).await
    }

    pub fn is_http2(&self) -> bool {
        self.is_http2
    }
}

/// The innermost cause. What wraps it names the whole URL, and a query may hold a secret.
pub(super) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| (**error).source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}

//! Opens connections to remote services: streams to addresses that may be called, over TLS if the URL is `https`.

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
use tower::ServiceExt;

use super::{
    address::{self, AddressPolicy, GuardedResolver},
    counted::{BytesReceived, LimitedStream},
};
use crate::clock::Instant;

/// The protocols that the client offers by ALPN. HTTP/1.1 is among them, so that a server without HTTP/2 is recognised
/// by the protocol that it selects, and not by a failed handshake.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];
pub(in crate::agent) const HTTP_2: &[u8] = b"h2";

/// The greatest part of its maximum age by which the age of a connection is shortened.
const AGE_JITTER: f64 = 0.2;

/// The body of a request. It is small and complete.
pub(in crate::agent) type RequestBody = Full<Bytes>;

pub(in crate::agent) type AgentStream = MaybeHttpsStream<TokioIo<LimitedStream>>;

/// The reason why there is no response, or no complete one.
#[derive(Debug)]
pub(in crate::agent) enum Unanswered {
    /// Nothing was sent: no connection could be opened.
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
pub(in crate::agent) struct TooSlow(pub Duration);

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens connections: to addresses that may be called, over TLS where the URL says so.
#[derive(Clone)]
pub(in crate::agent) struct CallConnector {
    /// The id of the connector. A connection is reused only by the connector that opened it, because another one may
    /// trust other certificates.
    id: u64,
    tls: Arc<ClientConfig>,
    /// The name to verify in the certificate of the server, if it is not the host of the URL.
    server_name: Option<ServerName<'static>>,
    policy: AddressPolicy,
    timeout: Duration,
    max_age: Duration,
    is_http2: bool,
}

impl CallConnector {
    /// `timeout` limits the opening of a connection; `max_age` is the age after which a connection gets no new calls.
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

    /// Returns a connector that speaks HTTP/2 and nothing else.
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

    /// Returns when a connection that is opened now stops getting new calls. `random` is from 0 to 1, so that
    /// connections which were opened at the same moment are not all replaced at the same moment.
    pub fn use_until(&self, now: Instant, random: f64) -> Instant {
        now + self.max_age.mul_f64(1.0 - AGE_JITTER * random)
    }

    /// Returns a connector with another TLS configuration.
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

    /// Opens a stream to an address that may be called. The check is made for each connection, because it depends on
    /// the host and the port.
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
            #[cfg(test)]
            if let Some(host) = crate::host::current() {
                let stream = host.surroundings.connect((address, port).into())?;
                let stream = LimitedStream::simulated(stream, received);
                return Ok(MaybeHttpsStream::Http(TokioIo::new(stream)));
            }
        }
        let mut http = HttpConnector::new_with_resolver(GuardedResolver {
            gate,
            opening: received.clone(),
        });
        http.enforce_http(false);
        http.set_nodelay(true);
        // This limits each address of a name; the timeout of the caller limits all of them together.
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

/// Returns the text of the innermost cause. The errors around it name the whole URL, whose query may hold a secret.
pub(in crate::agent) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| (**error).source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}

//! HTTP/2 to the endpoints of agents that ask for it: many calls share a connection, and each call is a stream of its
//! own. A task drives each connection, because no single call could. The code for HTTP/1.1 is independent of this
//! module.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use ::http::{
    HeaderValue, Request, Response, Uri, Version, header,
    uri::{Authority, Parts, Scheme},
};
use bytes::Bytes;
use h2::{Ping, PingPong, Reason, RecvStream, client};
use http_body_util::BodyExt;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use super::{
    connector::{AgentStream, CallConnector, HTTP_2, RequestBody, TooSlow, Unanswered, root_cause},
    counted::BytesReceived,
};
use crate::{
    chance,
    clock::{self, Instant, sleep, timeout},
    domain::agent::{Http2Flood, Http2Frames},
    http2_guard::Http2Guard,
};

/// The most streams of one connection, if the service allows as many. Further calls open another connection.
const MOST_STREAMS: usize = 100;
/// The most bytes of the names and values of a response's headers.
const LONGEST_HEADERS: u32 = 64 << 10;
/// The most interim responses (1xx) before the final response.
const MOST_INTERIM: usize = 100;
/// The bytes that a service may send before they are read: of one response, and of all responses of a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// A connection is pinged at this interval while calls wait for responses; `PING_WITHIN` limits the response to a
/// ping.
const PING_EVERY: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 10_000 });
const PING_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });
/// A connection without calls is closed after this time.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
/// The most connections that one call opens. One may not suffice, because a service may withdraw streams that it has
/// just allowed.
const MOST_OPENED: usize = 3;
/// A call is sent again on another connection this often if the service closes the connection in an orderly way.
const MOST_MOVES: u32 = 2;

type StreamSender = client::SendRequest<Bytes>;
type Http2Connection = client::Connection<Http2Guard<TokioIo<AgentStream>>, Bytes>;

#[derive(Debug, thiserror::Error)]
enum Http2Fault {
    #[error(
        "the service offers no HTTP/2 at this address (ALPN chose {0}): enable HTTP/2 there, or remove `http_version` from the agent"
    )]
    NotOffered(String),
    #[error(
        "the service does not speak HTTP/2 at this address ({0}): give one where it does, or remove `http_version` from the agent"
    )]
    NotSpoken(String),
    #[error(
        "the service sent thousands of HTTP/2 frames that carry nothing, so the connection was closed: look there for what sends so many, or remove `http_version` from the agent"
    )]
    Flooded,
    #[error(
        "the service wants a certificate of the client: give the agent `tls.certificate` and `tls.key`"
    )]
    NoCertificate,
    #[error("the service requires HTTP/1.1: remove `http_version` from the agent")]
    NotWanted,
    #[error("the service did not begin to process the call ({0})")]
    NotProcessed(String),
    #[error(
        "the service did not respond to a ping within {PING_WITHIN:?}, so the connection was closed"
    )]
    Dead,
    #[error(
        "the service sent more than {MOST_INTERIM} interim responses (1xx), but no final response"
    )]
    TooManyInterim,
    #[error("the service allows no streams on its connections (SETTINGS_MAX_CONCURRENT_STREAMS)")]
    NoStreams,
    #[error("another call could not connect: {0}")]
    NotConnected(String),
}

/// The connections to one origin.
#[derive(Default)]
pub(in crate::agent) struct Http2Pool {
    connections: Mutex<Vec<Arc<SharedConnection>>>,
    /// Locked while a connection is opened, so that calls that need one at the same moment share it. Contains the time
    /// and reason of the last failure.
    opening: tokio::sync::Mutex<Option<(Instant, String)>>,
}

struct SharedConnection {
    opened_by: u64,
    /// After this instant the connection gets no new calls, because the name of the service may lead to another
    /// address. Calls in flight continue.
    use_until: Instant,
    sender: StreamSender,
    streams: AtomicUsize,
    /// The reason why this side closed the connection.
    closed: OnceLock<CloseReason>,
}

#[derive(Clone, Copy)]
enum CloseReason {
    Dead,
    Ended,
}

/// One stream of a connection. If it is dropped before its end, the stream is reset, and the connection remains.
struct StreamLease(Arc<SharedConnection>);

impl Drop for StreamLease {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SharedConnection {
    /// Returns `None` if the connection is full, or accepts no more streams.
    fn lease(self: &Arc<Self>) -> Option<StreamLease> {
        let most = self.most_streams();
        let one_more = |streams: usize| (streams < most).then_some(streams + 1);
        let leased = self
            .streams
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        leased.ok().map(|_| StreamLease(Arc::clone(self)))
    }

    fn most_streams(&self) -> usize {
        self.sender.current_max_send_streams().min(MOST_STREAMS)
    }

    fn is_open(&self) -> bool {
        self.closed.get().is_none()
    }

    fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Acquire) == 0
    }

    /// Converts an error of one of the connection's streams to its meaning for the call.
    fn unanswered(&self, error: h2::Error, is_sent: bool) -> Unanswered {
        if let Some(CloseReason::Dead) = self.closed.get()
            && error.is_io()
        {
            return Unanswered::Broken(Http2Fault::Dead.into());
        }
        let reason = error.reason();
        if error.is_remote() && reason == Some(Reason::HTTP_1_1_REQUIRED) {
            return Unanswered::Unprocessed(Http2Fault::NotWanted.into());
        }
        // A remote GOAWAY is an error only for the streams after the last one that it names (RFC 9113, section 6.8).
        // The other streams continue, and fail only if the connection breaks.
        let is_refused = error.is_reset() && reason == Some(Reason::REFUSED_STREAM);
        if error.is_remote() && (error.is_go_away() || is_refused) {
            let said = match error.is_go_away() {
                true => "GOAWAY",
                false => "REFUSED_STREAM",
            };
            let code =
                reason.map_or_else(String::new, |reason| format!(", {}", reason.description()));
            return Unanswered::Unprocessed(
                Http2Fault::NotProcessed(format!("{said}{code}")).into(),
            );
        }
        match is_sent {
            true => Unanswered::Broken(error.into()),
            false => Unanswered::Unprocessed(error.into()),
        }
    }
}

impl Http2Pool {
    /// Sends a request. Returns the head of the response, after which the body can be read.
    pub async fn send(
        self: &Arc<Self>,
        origin: &Uri,
        connector: &CallConnector,
        request: Request<RequestBody>,
    ) -> Result<(::http::response::Parts, Http2Body), Unanswered> {
        let (head, body) = prepared(origin, request).await?;
        let mut moves = 0;
        loop {
            let lease = self.lease(origin, connector).await?;
            let exchanged = lease.exchange(head.clone(), body.clone()).await;
            match exchanged {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    let lease = Some(lease);
                    return Ok((head, Http2Body { body, lease }));
                }
                Err((unanswered, is_going_away)) => {
                    if is_going_away {
                        self.forget(&lease.0);
                    }
                    // The service processed no part of the call, and the orderly end of a connection says nothing
                    // about the health of the service.
                    if is_going_away && moves < MOST_MOVES {
                        moves += 1;
                        continue;
                    }
                    return Err(unanswered);
                }
            }
        }
    }

    /// Returns a stream on a connection with room, or on a new connection.
    async fn lease(
        self: &Arc<Self>,
        origin: &Uri,
        connector: &CallConnector,
    ) -> Result<StreamLease, Unanswered> {
        let since = clock::instant();
        for _ in 0..MOST_OPENED {
            if let Some(lease) = self.take(connector.id(), clock::instant()) {
                return Ok(lease);
            }
            let mut opening = self.opening.lock().await;
            if let Some(lease) = self.take(connector.id(), clock::instant()) {
                return Ok(lease);
            }
            // Another call has failed to open a connection while this one waited. A second attempt would probably take
            // as long, and the waiting calls would fail one after the other.
            if let Some((at, why)) = &*opening
                && *at > since
            {
                let fault = Http2Fault::NotConnected(why.clone());
                return Err(Unanswered::Unconnected(fault.into()));
            }
            match self.open(origin, connector).await {
                Ok(connection) => {
                    *opening = None;
                    self.connections.lock().push(connection);
                }
                Err(unanswered) => {
                    let why = root_cause(unanswered.error());
                    *opening = Some((clock::instant(), why));
                    return Err(unanswered);
                }
            }
        }
        self.take(connector.id(), clock::instant())
            .ok_or_else(|| Unanswered::Unconnected(Http2Fault::NoStreams.into()))
    }

    fn take(&self, connector: u64, now: Instant) -> Option<StreamLease> {
        let mut connections = self.connections.lock();
        // A connection that has reached its age limit closes when its last call has ended, because nothing else holds
        // it.
        connections.retain(|known| now < known.use_until);
        // The connections of another connector trust other certificates. They close when their calls have ended.
        connections.retain(|known| known.is_open() && known.opened_by == connector);
        connections.retain(|known| known.most_streams() > 0 || !known.is_idle());
        connections.iter().find_map(SharedConnection::lease)
    }

    fn forget(&self, connection: &Arc<SharedConnection>) {
        let mut connections = self.connections.lock();
        connections.retain(|known| !Arc::ptr_eq(known, connection));
    }

    async fn open(
        self: &Arc<Self>,
        origin: &Uri,
        connector: &CallConnector,
    ) -> Result<Arc<SharedConnection>, Unanswered> {
        let opened = timeout(connector.timeout(), opened(origin, connector)).await;
        let opened = opened.unwrap_or_else(|_| Err(TooSlow(connector.timeout()).into()));
        let (sender, connection, ping_pong) = opened.map_err(Unanswered::Unconnected)?;
        let shared = Arc::new(SharedConnection {
            opened_by: connector.id(),
            use_until: connector.use_until(clock::instant(), chance::random()),
            sender,
            streams: AtomicUsize::new(0),
            closed: OnceLock::new(),
        });
        let driver = drive(
            connection,
            ping_pong,
            Arc::downgrade(&shared),
            Arc::downgrade(self),
        );
        tokio::spawn(driver);
        Ok(shared)
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Opens a connection. The service has announced how many streams it allows, and has responded to a ping, so it speaks
/// HTTP/2.
async fn opened(
    origin: &Uri,
    connector: &CallConnector,
) -> Result<(StreamSender, Http2Connection, PingPong), BoxError> {
    let stream = connector.stream(origin, BytesReceived::default()).await?;
    if let MaybeHttpsStream::Https(tls) = &stream {
        let chosen = tls.inner().get_ref().1.alpn_protocol();
        if chosen != Some(HTTP_2) {
            let chosen = chosen.map(|name| String::from_utf8_lossy(name).into_owned());
            let chosen = chosen.unwrap_or_else(|| "nothing".to_owned());
            return Err(Http2Fault::NotOffered(chosen).into());
        }
    }
    let not_spoken = |error: &h2::Error| ended_at_once(root_cause(error));
    let handshake = client::Builder::new()
        .enable_push(false)
        .initial_max_send_streams(0)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(LONGEST_HEADERS)
        .handshake::<_, Bytes>(Http2Guard::new(
            TokioIo::new(stream),
            Http2Frames::of_server(),
        ));
    let (sender, mut connection) = handshake.await.map_err(|error| not_spoken(&error))?;
    let Some(mut ping_pong) = connection.ping_pong() else {
        return Err("the connection cannot be pinged".into());
    };
    // The settings of the service arrive before its response to a ping.
    tokio::select! {
        pong = ping_pong.ping(Ping::opaque()) => {
            pong.map_err(|error| not_spoken(&error))?;
        }
        ended = &mut connection => {
            let why = ended.err().map_or("it hung up".to_owned(), |error| root_cause(&error));
            return Err(ended_at_once(why));
        }
    }
    Ok((sender, connection, ping_pong))
}

/// Returns the reason why a connection ended before its first call. A TLS alert, such as a request for a certificate,
/// says nothing about HTTP/2 and is reported as it is.
fn ended_at_once(why: String) -> BoxError {
    // The h2 crate keeps only the text of an error of the stream.
    if why.contains(&Http2Flood.to_string()) {
        return Http2Fault::Flooded.into();
    }
    match why.contains("fatal alert") {
        true if why.contains("CertificateRequired") => Http2Fault::NoCertificate.into(),
        true => why.into(),
        false => Http2Fault::NotSpoken(why).into(),
    }
}

/// Reads and writes until the connection has ended, is dead, or has had no calls for [`LONGEST_IDLE`].
async fn drive(
    connection: Http2Connection,
    ping_pong: PingPong,
    shared: Weak<SharedConnection>,
    pool: Weak<Http2Pool>,
) {
    tokio::select! {
        _ = connection => {}
        () = watch(ping_pong, &shared) => {}
    }
    if let Some(shared) = shared.upgrade() {
        let _ = shared.closed.set(CloseReason::Ended);
        if let Some(pool) = pool.upgrade() {
            pool.forget(&shared);
        }
    }
}

/// Returns when the connection should be closed.
async fn watch(mut ping_pong: PingPong, weak: &Weak<SharedConnection>) {
    let mut idle_since = None;
    loop {
        sleep(PING_EVERY).await;
        let Some(shared) = weak.upgrade() else {
            // No call uses the connection, and the pool has removed it.
            return;
        };
        if shared.is_idle() {
            let since = *idle_since.get_or_insert_with(clock::instant);
            if since.elapsed() + PING_EVERY >= LONGEST_IDLE {
                return;
            }
            continue;
        }
        idle_since = None;
        drop(shared);
        match timeout(PING_WITHIN, ping_pong.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                // The reason is set before the streams see the end of the connection, because they report it.
                if let Some(shared) = weak.upgrade() {
                    let _ = shared.closed.set(CloseReason::Dead);
                }
                return;
            }
        }
    }
}

/// Returns the head of the request in the form of HTTP/2, and its body.
async fn prepared(
    origin: &Uri,
    request: Request<RequestBody>,
) -> Result<(Request<()>, Bytes), Unanswered> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await.map(|whole| whole.to_bytes());
    let body = body.unwrap_or_default();
    // These headers belong to HTTP/1.1 (RFC 9113, section 8.2.2). Other headers of a connection cannot get here.
    for name in ["keep-alive", "proxy-connection"] {
        parts.headers.remove(name);
    }
    let host = parts.headers.remove(header::HOST);
    let named = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut uri = Parts::default();
    uri.scheme = origin.scheme().cloned().or(Some(Scheme::HTTP));
    uri.authority = named.or_else(|| origin.authority().cloned());
    uri.path_and_query = parts.uri.path_and_query().cloned();
    let uri = Uri::from_parts(uri).map_err(|error| Unanswered::Unconnected(error.into()))?;
    parts.uri = uri;
    parts.version = Version::HTTP_2;
    if !body.is_empty() {
        parts
            .headers
            .insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    Ok((Request::from_parts(parts, ()), body))
}

impl StreamLease {
    /// Makes one exchange. The flag of the error is true if the connection accepts no more streams and no part of the
    /// call was processed.
    async fn exchange(
        &self,
        head: Request<()>,
        body: Bytes,
    ) -> Result<Response<RecvStream>, (Unanswered, bool)> {
        let connection = &self.0;
        let mut sender = connection.sender.clone();
        let failed = |error: h2::Error, is_sent: bool| {
            let is_going_away = !is_sent || (error.is_remote() && error.is_go_away());
            (connection.unanswered(error, is_sent), is_going_away)
        };
        let has_body = !body.is_empty();
        let sent = sender.send_request(head, !has_body);
        let (mut response, mut sending) = sent.map_err(|error| failed(error, false))?;
        if has_body {
            // The body is sent as the flow-control windows allow; it is in memory anyway. If the stream has ended, the
            // response contains the reason.
            let _ = sending.send_data(body, true);
        }
        let mut interim = 0;
        let response = poll_fn(|cx| {
            while let Poll::Ready(Some(Ok(_))) = response.poll_informational(cx) {
                interim += 1;
                if interim > MOST_INTERIM {
                    return Poll::Ready(Err(None));
                }
            }
            Pin::new(&mut response).poll(cx).map_err(Some)
        });
        response.await.map_err(|error| match error {
            Some(error) => failed(error, true),
            None => (Unanswered::Broken(Http2Fault::TooManyInterim.into()), false),
        })
    }
}

/// A body that is still to be read.
pub(in crate::agent) struct Http2Body {
    body: RecvStream,
    /// Gone when the body has been read.
    lease: Option<StreamLease>,
}

impl Http2Body {
    /// Returns the next piece, and `None` after the last. Trailers are ignored.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Unanswered> {
        let Some(lease) = &self.lease else {
            return Ok(None);
        };
        match self.body.data().await {
            Some(Ok(data)) => {
                // This lets the service send more. An error means that the stream has ended.
                let _ = self.body.flow_control().release_capacity(data.len());
                Ok(Some(data))
            }
            Some(Err(error)) => Err(match lease.0.closed.get() {
                Some(CloseReason::Dead) => Unanswered::Broken(Http2Fault::Dead.into()),
                _ => Unanswered::Broken(error.into()),
            }),
            None => {
                self.lease = None;
                Ok(None)
            }
        }
    }
}

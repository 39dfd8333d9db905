//! Connections to remote services, kept from one call to the next.
//!
//! A connection is driven by the call that uses it, and by no task while it is kept: a call runs from its first byte
//! to its last in one task. A client that drives each connection in a task of its own, as clients commonly do, pays
//! for every request with two wake-ups and the transfer between threads.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ::http::{HeaderName, Request, Response, Uri, header, response};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1,
};
use parking_lot::Mutex;

use super::{
    connector::{AgentStream, CallConnector, RequestBody, TooSlow, Unanswered},
    counted::BytesReceived,
    http2::{Http2Body, Http2Pool},
    times::ExchangeClock,
};
use crate::{
    chance,
    clock::{self, Instant},
    domain::agent::usable_idle_time,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Services often close idle connections after a minute. Provost closes them first, which avoids most races.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
/// Up to this number of idle connections to all services together, each is kept for [`LONGEST_IDLE`]. Beyond it, as
/// with a thousand services, each is kept for [`LONGEST_IDLE_IN_A_CROWD`], which is enough for the next call of a
/// burst.
const CROWD: usize = 256;
const LONGEST_IDLE_IN_A_CROWD: Duration = Duration::from_secs(5);
/// The limit for idle connections to all services together. Each is a file descriptor here, and one at the service.
const MOST_IDLE: usize = 1024;

/// The number of idle connections of this process.
static IDLE: AtomicUsize = AtomicUsize::new(0);

/// Returns how long a connection may stay idle if `all` connections are idle.
fn longest_idle(all: usize) -> Duration {
    match all > CROWD {
        true => LONGEST_IDLE_IN_A_CROWD,
        false => LONGEST_IDLE,
    }
}

/// Counts one idle connection until it is dropped.
struct IdleCount(&'static AtomicUsize);

impl IdleCount {
    /// Returns `None` if [`MOST_IDLE`] connections are idle.
    fn one_more(all: &'static AtomicUsize) -> Option<Self> {
        let is_more = |count: usize| (count < MOST_IDLE).then_some(count + 1);
        let counted = all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_more);
        // The value is made only if it was counted, because its drop decrements the count.
        counted.is_ok().then(|| Self(all))
    }
}

impl Drop for IdleCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The most bytes that are read at once, which is also the limit for the head of a response.
const LONGEST_READ: usize = 64 << 10;

/// One connection: HTTP/1.1, one request at a time.
struct AgentConnection {
    opened_by: u64,
    /// After this instant the connection gets no further calls, because the name of the service may lead to another
    /// address.
    use_until: Instant,
    /// The time for which the service keeps the connection without calls, if it has announced one.
    longest_idle: Duration,
    sender: http1::SendRequest<RequestBody>,
    /// Reads and writes the connection. `None` when the connection has ended.
    driver: Option<Box<http1::Connection<AgentStream, RequestBody>>>,
    received: BytesReceived,
}

impl AgentConnection {
    async fn open(
        connector: &CallConnector,
        origin: &Uri,
        received: BytesReceived,
    ) -> Result<Self, Unanswered> {
        let opened = async {
            let stream = connector.stream(origin, received.clone()).await?;
            let handshake = http1::Builder::new()
                .max_buf_size(LONGEST_READ)
                .handshake(stream);
            let (sender, driver) = handshake.await?;
            let driver = Some(Box::new(driver));
            Ok(Self {
                opened_by: connector.id(),
                use_until: connector.use_until(clock::instant(), chance::random()),
                longest_idle: LONGEST_IDLE,
                sender,
                driver,
                received,
            })
        };
        let in_time = clock::timeout(connector.timeout(), opened).await;
        in_time
            .unwrap_or_else(|_| Err(TooSlow(connector.timeout()).into()))
            .map_err(Unanswered::Unconnected)
    }

    /// Waits for `wanted` while the connection does its work.
    async fn drive<T>(&mut self, wanted: impl Future<Output = T>) -> T {
        let mut wanted = pin!(wanted);
        let driver = &mut self.driver;
        poll_fn(|cx| {
            // The driver is polled first, because `wanted` waits for its progress. Its error reaches `wanted` through
            // the connection.
            if let Some(driving) = driver
                && Pin::new(driving).poll(cx).is_ready()
            {
                *driver = None;
            }
            wanted.as_mut().poll(cx)
        })
        .await
    }

    /// True if another request can be sent on the connection, as far as this side knows: the service may have closed
    /// it.
    async fn is_usable(&mut self) -> bool {
        self.drive(async {}).await;
        self.driver.is_some() && self.sender.is_ready()
    }
}

/// Says whether a request may use a connection that was kept. The service may close such a connection at the same
/// moment, and then this side cannot know whether the service has seen the request. On HTTP/2 the service says which
/// requests it has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::agent) enum Reuse {
    Allowed,
    None,
}

/// The connections to one origin.
pub(in crate::agent) struct OriginPool {
    origin: Uri,
    http2: OnceLock<Arc<Http2Pool>>,
    kept: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// The most recently used connection is used first, so that connections beyond the need become old.
    idle: Vec<Idle>,
    /// True while the task [`sweep`] runs, which drops old connections.
    swept: bool,
}

struct Idle {
    since: Instant,
    connection: AgentConnection,
    _counting: IdleCount,
}

impl Idle {
    fn is_fresh(&self, now: Instant, longest_idle: Duration) -> bool {
        let connection = &self.connection;
        let longest_idle = longest_idle.min(connection.longest_idle);
        now < connection.use_until && now.duration_since(self.since) < longest_idle
    }
}

impl OriginPool {
    pub fn to(origin: Uri) -> Arc<Self> {
        Arc::new(Self {
            origin,
            http2: OnceLock::new(),
            kept: Mutex::default(),
        })
    }

    /// Sends a request. Returns the head of the response, after which the body can be read.
    pub async fn send(
        self: &Arc<Self>,
        connector: &CallConnector,
        request: Request<RequestBody>,
    ) -> Result<ResponseStream, Unanswered> {
        self.send_over(connector, request, Reuse::Allowed, None)
            .await
    }

    /// Does the same as [`OriginPool::send`]; `reuse` says whether a connection that was kept may be used. The times are
    /// noted in `clock`.
    pub async fn send_over(
        self: &Arc<Self>,
        connector: &CallConnector,
        mut request: Request<RequestBody>,
        reuse: Reuse,
        clock: Option<&ExchangeClock>,
    ) -> Result<ResponseStream, Unanswered> {
        if connector.is_http2() {
            // The future is boxed, so that the future of a call over HTTP/1.1 does not reserve room for it.
            let sent = Box::pin(self.http2().send(&self.origin, connector, request)).await;
            if let (Ok(_), Some(clock)) = (&sent, clock) {
                clock.responded();
            }
            return sent.map(|(head, body)| ResponseStream {
                head,
                body: BodySource::Http2(body),
            });
        }
        loop {
            let kept = match reuse {
                Reuse::Allowed => self.take(clock::instant()),
                Reuse::None => None,
            };
            let was_kept = kept.is_some();
            let mut connection = match kept {
                Some(kept) => kept,
                // The future is boxed, so that the future of a call over a kept connection does not reserve room for
                // it.
                None => Box::pin(self.open(connector, clock)).await?,
            };
            let is_ours = connection.opened_by == connector.id();
            if was_kept && !(is_ours && connection.is_usable().await) {
                continue;
            }
            let sent = connection.sender.try_send_request(request);
            connection.received.expect_head();
            let _sending = clock.map(|clock| clock.sending(&connection.received));
            match connection.drive(sent).await {
                Ok(response) => {
                    connection.received.expect_body();
                    if let Some(clock) = clock {
                        clock.responded();
                    }
                    return Ok(ResponseStream::new(response, connection, self));
                }
                Err(mut error) => match error.take_message() {
                    // The service closed the connection while it was idle, and nothing was sent.
                    Some(unsent) if was_kept => request = unsent,
                    _ if connection.received.has_sent_nothing() => {
                        return Err(Unanswered::Unprocessed(error.into_error().into()));
                    }
                    // The service or a proxy has closed the connection, and the service may have read the request
                    // before.
                    _ => return Err(Unanswered::Broken(error.into_error().into())),
                },
            }
        }
    }

    /// Sends a request on a new connection, and closes the connection after the time `after`, even if no response has
    /// come.
    pub async fn send_and_close(
        &self,
        connector: &CallConnector,
        request: Request<RequestBody>,
        after: Duration,
    ) -> Result<(), Unanswered> {
        if connector.is_http2() {
            // On HTTP/2 the stream is reset, which the service cannot distinguish from the end of a connection.
            let pool = Arc::new(Http2Pool::default());
            let sent = pool.send(&self.origin, connector, request);
            return match clock::timeout(after, sent).await {
                Ok(Err(unanswered @ Unanswered::Unconnected(_))) => Err(unanswered),
                _ => Ok(()),
            };
        }
        let mut connection = Box::pin(self.open(connector, None)).await?;
        let sent = connection.sender.try_send_request(request);
        connection.received.expect_head();
        let _ = clock::timeout(after, connection.drive(sent)).await;
        Ok(())
    }

    async fn open(
        &self,
        connector: &CallConnector,
        clock: Option<&ExchangeClock>,
    ) -> Result<AgentConnection, Unanswered> {
        let received = BytesReceived::default();
        let opened = AgentConnection::open(connector, &self.origin, received.clone()).await;
        if let Some(clock) = clock {
            clock.opened(&received, opened.is_ok());
        }
        opened
    }

    fn http2(&self) -> &Arc<Http2Pool> {
        self.http2.get_or_init(Arc::default)
    }

    fn take(&self, now: Instant) -> Option<AgentConnection> {
        let mut kept = self.kept.lock();
        while let Some(idle) = kept.idle.pop() {
            if idle.is_fresh(now, LONGEST_IDLE) {
                return Some(idle.connection);
            }
        }
        None
    }

    fn keep(self: &Arc<Self>, connection: AgentConnection) {
        if clock::instant() >= connection.use_until || connection.longest_idle.is_zero() {
            return;
        }
        let Some(counting) = IdleCount::one_more(&IDLE) else {
            return;
        };
        let mut kept = self.kept.lock();
        kept.idle.push(Idle {
            since: clock::instant(),
            connection,
            _counting: counting,
        });
        if !kept.swept {
            kept.swept = true;
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }
}

/// Drops connections that have been idle for too long. Ends when no idle connection is left.
async fn sweep(connections: Weak<OriginPool>) {
    loop {
        clock::sleep(LONGEST_IDLE_IN_A_CROWD).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        let now = clock::instant();
        let mut kept = connections.kept.lock();
        let longest = longest_idle(IDLE.load(Ordering::Relaxed));
        kept.idle.retain(|idle| idle.is_fresh(now, longest));
        if kept.idle.is_empty() {
            kept.swept = false;
            return;
        }
    }
}

/// A response whose body is still to be read. If it is dropped before the end of the body, its connection is closed,
/// or its stream reset, because the rest of the body may be long.
pub(in crate::agent) struct ResponseStream {
    pub head: response::Parts,
    body: BodySource,
}

enum BodySource {
    Http1 {
        body: Incoming,
        /// Gone when the body has been read.
        connection: Option<AgentConnection>,
        home: Arc<OriginPool>,
    },
    Http2(Http2Body),
}

impl ResponseStream {
    fn new(
        response: Response<Incoming>,
        mut connection: AgentConnection,
        home: &Arc<OriginPool>,
    ) -> Self {
        let (head, body) = response.into_parts();
        if let Some(keep_alive) = head.headers.get(KEEP_ALIVE)
            && let Some(idle) = keep_alive.to_str().ok().and_then(usable_idle_time)
        {
            connection.longest_idle = idle;
        }
        Self {
            head,
            body: BodySource::Http1 {
                body,
                connection: Some(connection),
                home: home.clone(),
            },
        }
    }

    /// Returns the length of the body if the head of the response contains it.
    pub fn content_length(&self) -> Option<u64> {
        match &self.body {
            BodySource::Http1 { body, .. } => body.size_hint().exact(),
            BodySource::Http2(_) => {
                let length = self.head.headers.get(header::CONTENT_LENGTH)?;
                length.to_str().ok()?.parse().ok()
            }
        }
    }

    /// The next piece of the body; `None` after the last.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Unanswered> {
        let (body, kept, home) = match &mut self.body {
            BodySource::Http1 {
                body,
                connection,
                home,
            } => (body, connection, home),
            BodySource::Http2(body) => return body.chunk().await,
        };
        let Some(connection) = kept else {
            return Ok(None);
        };
        while let Some(frame) = connection.drive(body.frame()).await {
            // Trailers are ignored.
            if let Ok(data) = frame
                .map_err(|error| Unanswered::Broken(error.into()))?
                .into_data()
            {
                return Ok(Some(data));
            }
        }
        if let Some(mut connection) = kept.take()
            && connection.is_usable().await
        {
            home.keep(connection);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        sync::mpsc,
    };

    use rustls::ClientConfig;

    use super::*;
    use crate::agent::AddressPolicy;

    const AMPLE: Duration = Duration::from_secs(30);
    const MAX_AGE: Duration = Duration::from_secs(300);

    /// A server that answers requests without bodies. It closes each connection after a given number of requests, and
    /// reports for each request the number of its connection, counted from 1.
    struct Server {
        connections: Arc<OriginPool>,
        connector: CallConnector,
        came_on: mpsc::UnboundedReceiver<usize>,
    }

    impl Server {
        async fn start(requests_each: usize) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let origin = format!("http://{}", listener.local_addr().unwrap());
            let (tell, came_on) = mpsc::unbounded_channel();
            tokio::spawn(async move {
                for number in 1.. {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(stream, number, requests_each, tell.clone()));
                }
            });
            Self {
                connections: OriginPool::to(origin.parse().unwrap()),
                connector: connector(),
                came_on,
            }
        }

        async fn send(&self) -> ResponseStream {
            let mut request = Request::new(RequestBody::default());
            let headers = request.headers_mut();
            headers.insert("host", "localhost".parse().unwrap());
            let sent = self.connections.send(&self.connector, request).await;
            sent.unwrap()
        }

        /// Makes one exchange, to the end of the response. Returns the number of the connection that was used.
        async fn exchange(&mut self) -> usize {
            let mut answer = self.send().await;
            assert_eq!(answer.chunk().await.unwrap().unwrap(), "{}");
            assert!(answer.chunk().await.unwrap().is_none());
            self.came_on.recv().await.unwrap()
        }
    }

    async fn serve(
        mut stream: TcpStream,
        number: usize,
        requests: usize,
        tell: mpsc::UnboundedSender<usize>,
    ) {
        let mut came = Vec::new();
        for _ in 0..requests {
            while !came.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut came).await.unwrap() == 0 {
                    return;
                }
            }
            came.clear();
            let _ = tell.send(number);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer).await.unwrap();
        }
    }

    fn connector() -> CallConnector {
        crate::agent::install_crypto();
        let tls = ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        CallConnector::new(tls, AddressPolicy::private_too(), AMPLE, MAX_AGE)
    }

    #[tokio::test]
    async fn a_connection_serves_one_exchange_after_another() {
        let mut server = Server::start(usize::MAX).await;
        for _ in 0..3 {
            assert_eq!(server.exchange().await, 1);
        }
    }

    #[tokio::test]
    async fn a_connection_is_not_used_by_a_connector_that_did_not_open_it() {
        let mut server = Server::start(usize::MAX).await;
        assert_eq!(server.exchange().await, 1);
        server.connector = connector();
        assert_eq!(server.exchange().await, 2);
    }

    #[tokio::test]
    async fn a_connection_that_the_service_has_closed_is_passed_over() {
        let mut server = Server::start(2).await;
        assert_eq!(server.exchange().await, 1);
        assert_eq!(server.exchange().await, 1);
        // If the close has already arrived, the connection was not even kept.
        if let Some(mut kept) = server.connections.take(clock::instant()) {
            let closed = async {
                while kept.is_usable().await {
                    tokio::task::yield_now().await;
                }
            };
            clock::timeout(AMPLE, closed).await.unwrap();
            server.connections.keep(kept);
        }
        assert_eq!(server.exchange().await, 2);
    }

    #[tokio::test]
    async fn a_connection_that_was_idle_for_long_is_not_used_again() {
        let mut server = Server::start(usize::MAX).await;
        server.exchange().await;
        let later = clock::instant() + LONGEST_IDLE;
        assert!(server.connections.take(later).is_none());
    }

    #[tokio::test]
    async fn a_connection_beyond_its_age_is_neither_used_again_nor_kept() {
        let mut server = Server::start(usize::MAX).await;
        assert_eq!(server.exchange().await, 1);
        let mut kept = server.connections.take(clock::instant()).unwrap();
        kept.use_until = clock::instant();
        server.connections.keep(kept);
        assert!(server.connections.kept.lock().idle.is_empty());
        assert_eq!(server.exchange().await, 2);
        // A connection whose age limit is reached while it is kept is passed over, and a younger one is found.
        let mut answers = [server.send().await, server.send().await];
        for answer in &mut answers {
            while answer.chunk().await.unwrap().is_some() {}
        }
        let younger = {
            let mut kept = server.connections.kept.lock();
            assert_eq!(kept.idle.len(), 2);
            kept.idle[1].connection.use_until = clock::instant();
            kept.idle[0].connection.use_until
        };
        let taken = server.connections.take(clock::instant()).unwrap();
        assert_eq!(taken.use_until, younger);
        assert!(server.connections.kept.lock().idle.is_empty());
    }

    #[test]
    fn the_age_of_a_connection_is_the_setting_or_up_to_a_fifth_less() {
        let (connector, now) = (connector(), clock::instant());
        let age = |random| connector.use_until(now, random).duration_since(now);
        assert_eq!(age(0.0), MAX_AGE);
        assert_eq!(age(1.0), MAX_AGE.mul_f64(0.8));
    }

    #[test]
    fn all_idle_connections_together_are_bounded_and_many_of_them_stay_for_less() {
        static ALL: AtomicUsize = AtomicUsize::new(0);
        let mut kept: Vec<_> = std::iter::from_fn(|| IdleCount::one_more(&ALL)).collect();
        assert_eq!(kept.len(), MOST_IDLE);
        // A refusal does not decrement the count.
        assert!((0..10).all(|_| IdleCount::one_more(&ALL).is_none()));
        assert_eq!(
            longest_idle(ALL.load(Ordering::Relaxed)),
            LONGEST_IDLE_IN_A_CROWD
        );
        kept.truncate(CROWD);
        assert_eq!(longest_idle(ALL.load(Ordering::Relaxed)), LONGEST_IDLE);
        assert!(IdleCount::one_more(&ALL).is_some());
        drop(kept);
        assert_eq!(ALL.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_counts_as_idle_while_it_is_kept() {
        let mut server = Server::start(usize::MAX).await;
        server.exchange().await;
        assert_eq!(server.connections.kept.lock().idle.len(), 1);
        // Other tests of this process may have idle connections too.
        assert!(IDLE.load(Ordering::Relaxed) >= 1);
        let taken = server.connections.take(clock::instant());
        assert!(taken.is_some() && server.connections.kept.lock().idle.is_empty());
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_to_its_end_takes_its_connection_with_it() {
        let mut server = Server::start(usize::MAX).await;
        drop(server.send().await);
        assert_eq!(server.came_on.recv().await, Some(1));
        assert_eq!(server.exchange().await, 2);
    }
}

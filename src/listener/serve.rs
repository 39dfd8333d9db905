//! Serves one connection, from the first byte to the last.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Poll, Waker},
};

use axum::http::Version;
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tower::ServiceExt;
use tracing::{debug, trace};

use super::{
    Routes,
    connection::{CloseOrder, Connection},
    connections::Ticket,
    exchange::Exchange,
    refusal::{RefusalStream, Refuse},
    socket::{Channel, MeteredStream, PeerAddress},
    tls::Tls,
};
use crate::{domain::agent::Http2Frames, http2_guard::Http2Guard};

/// The longest head of a request on HTTP/1.1, and the most bytes that are read ahead on a connection.
const LONGEST_HEAD: usize = 64 << 10;
/// The longest head on HTTP/2, by the definition of HTTP/2.
const LONGEST_HEADERS: u32 = 64 << 10;
/// The most concurrent requests on one connection.
const MOST_STREAMS: u32 = 200;

/// The HTTP settings, which are the same on every connection.
pub struct Http {
    protocol: auto::Builder<TokioExecutor>,
    routes: Arc<Routes>,
    refuse: Refuse,
    tls: Option<Arc<Tls>>,
}

impl Http {
    /// Uses no timers of hyper: the sweep times every wait, including those that hyper does not time, such as the one
    /// for the byte that decides between the HTTP versions.
    pub fn new(routes: Arc<Routes>, refuse: Refuse, tls: Option<Arc<Tls>>) -> Self {
        let mut protocol = auto::Builder::new(TokioExecutor::new());
        protocol
            .http1()
            .max_buf_size(LONGEST_HEAD)
            .header_read_timeout(None)
            .http2()
            .max_concurrent_streams(MOST_STREAMS)
            .max_header_list_size(LONGEST_HEADERS);
        Self {
            protocol,
            routes,
            refuse,
            tls,
        }
    }

    pub async fn serve(self: Arc<Self>, stream: MeteredStream, ticket: Ticket) {
        let connection = &ticket.connection;
        // Nothing is allocated before the first byte, so that a silent connection is cheap.
        let Some(Ok(())) = unless_closed(connection, stream.readable()).await else {
            return;
        };
        let peer = stream.peer();
        let Some(tls) = &self.tls else {
            return self.speak(Channel::Plain(stream), peer, connection).await;
        };
        match unless_closed(connection, tls.acceptor().accept(stream)).await {
            Some(Ok(stream)) => {
                let channel = Channel::Tls(Box::new(stream));
                self.speak(channel, peer, connection).await;
            }
            Some(Err(error)) => debug!(%error, "a TLS handshake failed"),
            None => {}
        }
    }

    async fn speak(
        &self,
        stream: Channel,
        peer: Option<PeerAddress>,
        connection: &Arc<Connection>,
    ) {
        let service = service_fn(|mut request: Request<Incoming>| {
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            let mut exchange = Exchange::begin(connection, request.version() == Version::HTTP_2);
            let router = self.routes.current();
            async move {
                let response = router.oneshot(exchange.request(request)).await?;
                Ok::<_, Infallible>(exchange.respond(response))
            }
        });
        let stream = Http2Guard::new(stream, Http2Frames::of_client());
        let http = self.protocol.serve_connection(
            TokioIo::new(RefusalStream::new(stream, self.refuse)),
            service,
        );
        let mut http = Box::pin(http);
        let mut known = None;
        let mut draining = false;
        let served = poll_fn(|context| {
            connection.wake_me(context, &mut known);
            // HTTP is polled first, so that a request which has just come keeps the connection open.
            if let Poll::Ready(served) = http.as_mut().poll(context) {
                return Poll::Ready(served);
            }
            match connection.order() {
                CloseOrder::Go => Poll::Pending,
                CloseOrder::Release if connection.is_quiet() => Poll::Ready(Ok(())),
                CloseOrder::Release => {
                    connection.keep();
                    Poll::Pending
                }
                CloseOrder::Drain if draining => Poll::Pending,
                // A connection without a running request needs no goodbye, except on HTTP/2.
                CloseOrder::Drain if connection.is_quiet() && !connection.is_http2() => {
                    Poll::Ready(Ok(()))
                }
                CloseOrder::Drain => {
                    draining = true;
                    http.as_mut().graceful_shutdown();
                    http.as_mut().poll(context)
                }
                CloseOrder::Abort => Poll::Ready(Ok(())),
            }
        });
        if let Err(error) = served.await {
            trace!(%error, "a connection ended");
        }
    }
}

/// Runs the work before the first request, unless the connection must close.
async fn unless_closed<F: Future>(connection: &Connection, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut known: Option<Waker> = None;
    poll_fn(|context| {
        connection.wake_me(context, &mut known);
        match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if connection.order() != CloseOrder::Go => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

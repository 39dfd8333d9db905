//! One connection, from the first byte to the last.

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
    refusal::{Refuse, Refusing},
    socket::{Channel, Metered},
    tls::Tls,
};
use crate::{domain::Http2Frames, http2_guard::Http2Guard};

/// The longest head of a request on HTTP/1.1, and the most that is read ahead on a connection.
const LONGEST_HEAD: usize = 64 << 10;
/// The longest head on HTTP/2, by its own count.
const LONGEST_HEADERS: u32 = 64 << 10;
/// The most requests at once on one connection.
const MOST_STREAMS: u32 = 200;

/// How HTTP is spoken, the same on every connection.
pub struct Http {
    protocol: auto::Builder<TokioExecutor>,
    routes: Arc<Routes>,
    refuse: Refuse,
    tls: Option<Arc<Tls>>,
}

impl Http {
    /// Without timers of hyper's: the sweep has the time of every wait, also of those that hyper does not
    /// time, such as the one for the byte that decides between the versions.
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

    pub async fn serve(self: Arc<Self>, stream: Metered, ticket: Ticket) {
        let connection = &ticket.connection;
        // Before there is a byte nothing is set up for it: silence is cheap.
        let Some(Ok(())) = unless_closed(connection, stream.readable()).await else {
            return;
        };
        let Some(tls) = &self.tls else {
            return self.speak(Channel::Plain(stream), connection).await;
        };
        match unless_closed(connection, tls.acceptor().accept(stream)).await {
            Some(Ok(stream)) => self.speak(Channel::Tls(Box::new(stream)), connection).await,
            Some(Err(error)) => debug!(%error, "a TLS handshake failed"),
            None => {}
        }
    }

    async fn speak(&self, stream: Channel, connection: &Arc<Connection>) {
        let service = service_fn(|request: Request<Incoming>| {
            let mut exchange = Exchange::begin(connection, request.version() == Version::HTTP_2);
            let router = self.routes.current();
            async move {
                let response = router.oneshot(exchange.request(request)).await?;
                Ok::<_, Infallible>(exchange.answer(response))
            }
        });
        let stream = Http2Guard::new(stream, Http2Frames::of_client());
        let http = self
            .protocol
            .serve_connection(TokioIo::new(Refusing::new(stream, self.refuse)), service);
        let mut http = Box::pin(http);
        let mut known = None;
        let mut draining = false;
        let served = poll_fn(|context| {
            connection.wake_me(context, &mut known);
            // First of all: a request that has come in keeps the connection open.
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
                // A connection without a running request needs no goodbye, but on HTTP/2 there is one.
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

/// Does what comes before any request, unless the connection is to be closed.
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

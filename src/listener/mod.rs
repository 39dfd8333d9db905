//! Accepts connections and speaks HTTP on them, so that no client can exhaust them. Every connection counts against a
//! limit, every wait for a client has an end, and when the limit is reached idle connections are closed in favour of
//! new ones.
//!
//! This module contains accepting, limits, timers and TLS. It does not contain the responses, which a [`Router`]
//! makes.

mod connection;
mod connections;
mod exchange;
mod limits;
mod refusal;
mod serve;
mod socket;
mod tls;
mod unix;

use std::{
    io::{self, ErrorKind},
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::Router;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{info, warn};

use self::{
    connections::Connections,
    serve::Http,
    socket::{MeteredStream, Socket},
};
pub use self::{
    limits::ListenerLimits,
    refusal::Refuse,
    socket::PeerAddress,
    tls::{Files, Tls, TlsError, certificates_of},
};
use crate::{
    clock::{interval, sleep, timeout},
    config::{Listen, UnixMode},
};

/// The pause after a connection could not be accepted, as when no file descriptor is free.
const REST: Duration = Duration::from_millis(50);
/// The log repeats at this interval that connections cannot be accepted.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// A bound socket that does not accept yet.
pub struct Listener {
    socket: Socket,
    limits: ListenerLimits,
}

impl Listener {
    pub fn bind(listen: &Listen, mode: UnixMode, limits: ListenerLimits) -> io::Result<Self> {
        let socket = Socket::bind(listen, mode)?;
        Ok(Self { socket, limits })
    }

    /// Returns the address. If the configuration gave port 0, it contains the port that the system has chosen.
    pub fn address(&self) -> io::Result<Listen> {
        self.socket.address()
    }

    /// Accepts connections. `first` responds until [`Server::switch`], and `refuse` responds to input that is not a
    /// request. With `tls`, only TLS is spoken.
    pub fn serve(self, first: Router, refuse: Refuse, tls: Option<Arc<Tls>>) -> Server {
        let max_connections = self.limits.max_connections;
        info!(max_connections, "accepting connections");
        let connections = Arc::new(Connections::new(self.limits));
        let routes = Arc::new(Routes {
            first,
            then: OnceLock::new(),
        });
        let stop = CancellationToken::new();
        let watching = tls.clone().map(|tls| {
            let watching = async move { tls.watch().await };
            AbortOnDropHandle::new(tokio::spawn(watching))
        });
        let http = Arc::new(Http::new(routes.clone(), refuse, tls));
        let accepting = accept(self.socket, connections.clone(), http);
        let accepting = stop.clone().run_until_cancelled_owned(accepting);
        let accepting = tokio::spawn(async move {
            accepting.await;
        });
        let sweeping = AbortOnDropHandle::new(tokio::spawn(sweep(connections.clone())));
        Server {
            routes,
            connections,
            stop,
            accepting: AbortOnDropHandle::new(accepting),
            _sweeping: sweeping,
            _watching: watching,
        }
    }
}

/// The routers: the first one responds that the service is starting, the second one is the API.
struct Routes {
    first: Router,
    then: OnceLock<Router>,
}

impl Routes {
    fn current(&self) -> Router {
        self.then.get().unwrap_or(&self.first).clone()
    }
}

/// A listener that accepts connections. It stops accepting when it is dropped.
pub struct Server {
    routes: Arc<Routes>,
    connections: Arc<Connections>,
    stop: CancellationToken,
    accepting: AbortOnDropHandle<()>,
    _sweeping: AbortOnDropHandle<()>,
    _watching: Option<AbortOnDropHandle<()>>,
}

impl Server {
    /// Returns how many requests may wait for an event while others can still be processed.
    pub fn most_waiting(&self) -> usize {
        let most = self.connections.limits().max_connections;
        (most - most.div_ceil(4)).max(1)
    }

    /// Sends every further request to `router`, also on open connections.
    pub fn switch(&self, router: Router) {
        // A second call would change nothing, and does not happen.
        let _ = self.routes.then.set(router);
    }

    /// Serves until `goodbye`. Then it closes idle connections at once, and those with a running request after the
    /// response, or after `grace` at the latest.
    pub async fn run(mut self, goodbye: CancellationToken, grace: Duration) {
        tokio::select! {
            () = goodbye.cancelled() => {}
            // Accepting ends only by a panic.
            _ = &mut self.accepting => return,
        }
        self.stop.cancel();
        let _ = (&mut self.accepting).await;
        self.connections.drain();
        if timeout(grace, self.connections.emptied()).await.is_err() {
            // A client that neither reads nor closes the connection must not keep the process running.
            let open = self.connections.abort();
            warn!(
                open,
                "closed connections whose requests did not end in time"
            );
            let _ = timeout(grace, self.connections.emptied()).await;
        }
    }
}

async fn accept(socket: Socket, connections: Arc<Connections>, http: Arc<Http>) {
    let mut said = None;
    loop {
        match socket.accept().await {
            Ok(stream) => {
                let ticket = connections.admit().await;
                let stream = MeteredStream::new(stream, ticket.connection.clone());
                tokio::spawn(http.clone().serve(stream, ticket));
            }
            // The client closed the connection before it was accepted. The next one is not affected.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // The usual reason is that every file descriptor is in use. Idle connections hold some of them.
                let closing = connections.make_way();
                connections::at_most_every(&mut said, LOG_AGAIN, || {
                    warn!(%error, closing, "cannot accept connections; closing idle ones");
                });
                sleep(REST).await;
            }
        }
    }
}

/// Updates the clock of the connections, and closes those that are overdue.
async fn sweep(connections: Arc<Connections>) {
    let mut ticks = interval(connections.limits().tick());
    loop {
        ticks.tick().await;
        if !connections.sweep() {
            connections.admitted().await;
            ticks.reset();
        }
    }
}

//! Where connections come in: sockets, and HTTP on them, so that nobody outside can use them up. Every
//! connection counts against a limit, every wait for a client has an end, and when there is no room the
//! idle connections are closed in favour of new ones.
//!
//! In here: accepting, limits, timers, TLS. Not in here: what is answered; that is a [`Router`].

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
use tokio::time::{interval, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{info, warn};

use self::{
    connections::Connections,
    serve::Http,
    socket::{Metered, Socket},
};
pub use self::{
    limits::ListenerLimits,
    refusal::Refuse,
    tls::{Files, Tls, TlsError},
};
use crate::config::{Listen, UnixMode};

/// How long no connection is accepted after one could not be, as when no file descriptor is free.
const REST: Duration = Duration::from_millis(50);
/// How often the log repeats that connections cannot be accepted.
const SAY_AGAIN: Duration = Duration::from_secs(10);

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

    /// With the port that was free, where the configuration names none.
    pub fn address(&self) -> io::Result<Listen> {
        self.socket.address()
    }

    /// Accepts, and answers with `first` until [`Server::switch`], and with `refuse` what is no request. With `tls`,
    /// speaks nothing else.
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

/// What is answered: first that the service is starting, then the API.
struct Routes {
    first: Router,
    then: OnceLock<Router>,
}

impl Routes {
    fn current(&self) -> Router {
        self.then.get().unwrap_or(&self.first).clone()
    }
}

/// A listener that accepts. Dropped, it accepts no more.
pub struct Server {
    routes: Arc<Routes>,
    connections: Arc<Connections>,
    stop: CancellationToken,
    accepting: AbortOnDropHandle<()>,
    _sweeping: AbortOnDropHandle<()>,
    _watching: Option<AbortOnDropHandle<()>>,
}

impl Server {
    /// How many requests may wait for something to happen while others still come through.
    pub fn most_waiting(&self) -> usize {
        let most = self.connections.limits().max_connections;
        (most - most.div_ceil(4)).max(1)
    }

    /// Every request from now on meets `router`, on open connections too.
    pub fn switch(&self, router: Router) {
        // A second call would change nothing; there is none.
        let _ = self.routes.then.set(router);
    }

    /// Serves until `goodbye`. Then it closes idle connections at once, and those with a running request after the
    /// response, or after `grace` at the latest.
    pub async fn run(mut self, goodbye: CancellationToken, grace: Duration) {
        tokio::select! {
            () = goodbye.cancelled() => {}
            // It ends only by a panic.
            _ = &mut self.accepting => return,
        }
        self.stop.cancel();
        let _ = (&mut self.accepting).await;
        self.connections.drain();
        if timeout(grace, self.connections.emptied()).await.is_err() {
            // A client that neither reads nor hangs up must not keep the process.
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
                let stream = Metered::new(stream, ticket.connection.clone());
                tokio::spawn(http.clone().serve(stream, ticket));
            }
            // The client was gone before the connection was accepted: the next one is fine.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Most often every file descriptor is in use. Idle connections hold some of them.
                let closing = connections.make_way();
                connections::sometimes(&mut said, SAY_AGAIN, || {
                    warn!(%error, closing, "cannot accept connections; closing idle ones");
                });
                sleep(REST).await;
            }
        }
    }
}

/// Keeps the clock of the connections, and closes those that are overdue.
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

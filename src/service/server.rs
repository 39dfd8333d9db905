//! The HTTP server: one listener, which answers from the start that the service is alive, and hands over
//! to the API when there is a database.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    serve::{Listener, ListenerExt},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::sleep,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use super::StartError;
use crate::{api, store::Health};

/// How long no connection is accepted after one could not be, as when no file descriptor is free.
const REST: Duration = Duration::from_millis(500);

/// Where connections come in: for two servers, one after the other. It never closes in between, so nobody
/// is refused.
#[derive(Clone)]
pub(super) struct Door(Arc<TcpListener>);

impl Door {
    pub async fn open(address: SocketAddr) -> Result<Self, StartError> {
        let unusable = |error: io::Error| StartError::Listen {
            address,
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(address).await.map_err(unusable)?;
        Ok(Self(Arc::new(listener)))
    }

    /// With the port that was free, where `asked` names none.
    pub fn address(&self, asked: SocketAddr) -> Result<SocketAddr, StartError> {
        let address = self.0.local_addr();
        address.map_err(|error| StartError::Listen {
            address: asked,
            reason: error.to_string(),
        })
    }

    /// Answers that the service is starting. Ends with what it gives.
    pub fn starting(&self, health: Health) -> Starting {
        let stop = CancellationToken::new();
        let (accepts, accepting) = oneshot::channel();
        let entrance = Entrance {
            door: self.clone(),
            _accepts: accepts,
        };
        tokio::spawn(serve(entrance, api::starting(health), stop.clone()));
        Starting {
            stop: stop.drop_guard(),
            accepting,
        }
    }

    /// Serves until `goodbye`, and then until open exchanges have ended.
    pub async fn serve(self, router: Router, goodbye: CancellationToken) {
        let listener = self.tap_io(|stream| {
            // Answers are small and awaited.
            let _ = stream.set_nodelay(true);
        });
        serve(listener, router, goodbye).await;
    }
}

async fn serve<L>(listener: L, router: Router, goodbye: CancellationToken)
where
    L: Listener<Addr = SocketAddr>,
{
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(goodbye.cancelled_owned())
        .await;
    if let Err(error) = served {
        warn!(%error, "the HTTP server ended");
    }
}

impl Listener for Door {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                // It was gone before it was taken: the next may be well.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    warn!(%error, again_in = ?REST, "no connection can be accepted");
                    sleep(REST).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// The server that answers while the service starts. Dropped, it ends at some later time.
pub(super) struct Starting {
    stop: DropGuard,
    accepting: oneshot::Receiver<()>,
}

impl Starting {
    /// Comes back when the door is free: whoever connects from then on meets the next server.
    pub async fn end(self) {
        drop(self.stop);
        // An error, when the other end was dropped.
        let _ = self.accepting.await;
    }
}

/// The door, as long as this server accepts; it drops it when it stops to.
struct Entrance {
    door: Door,
    _accepts: oneshot::Sender<()>,
}

impl Listener for Entrance {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        self.door.accept().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.door.local_addr()
    }
}

//! The listening socket, and the streams that it accepts.

#[cfg(test)]
use std::future::poll_fn;
use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

#[cfg(test)]
use parking_lot::Mutex;
use rustix::net::sockopt;
#[cfg(test)]
use tokio::{io::DuplexStream, sync::mpsc};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream},
};
use tokio_rustls::server::TlsStream;

use super::{connection::Connection, unix::SocketFile};
use crate::config::{Listen, UnixMode};
#[cfg(test)]
use crate::host;

/// The most connections that wait to be accepted. The system has a limit of its own (somaxconn).
const BACKLOG: u32 = 4096;
/// A client that has disappeared silently is noticed after about this time. A machine that lost its power sends
/// nothing, and its connection would stay forever.
const GONE: Duration = Duration::from_secs(60);
const PROBE: Duration = Duration::from_secs(10);

pub enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
    #[cfg(test)]
    Simulated(SocketAddr, Mutex<mpsc::UnboundedReceiver<DuplexStream>>),
}

impl Socket {
    pub fn bind(listen: &Listen, mode: UnixMode) -> io::Result<Self> {
        let address = match listen {
            #[cfg(test)]
            Listen::Tcp(address) if host::current().is_some() => {
                return Ok(Self::simulated(*address));
            }
            Listen::Tcp(address) => *address,
            Listen::Unix(path) => {
                let (listener, file) = SocketFile::bind(path, mode.0, BACKLOG)?;
                return Ok(Self::Unix(listener, file));
            }
        };
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Without this the port would stay in use for a minute after every restart.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self::Tcp(socket.listen(BACKLOG)?))
    }

    #[cfg(test)]
    fn simulated(address: SocketAddr) -> Self {
        let host = host::current().expect("a simulation runs");
        Self::Simulated(address, Mutex::new(host.surroundings.listen(address)))
    }

    pub fn address(&self) -> io::Result<Listen> {
        match self {
            #[cfg(test)]
            Self::Simulated(address, _) => Ok(Listen::Tcp(*address)),
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(_, file) => Ok(Listen::Unix(file.path().to_owned())),
        }
    }

    pub async fn accept(&self) -> io::Result<Stream> {
        let listener = match self {
            #[cfg(test)]
            Self::Simulated(_, accepted) => {
                let stream = poll_fn(|context| accepted.lock().poll_recv(context)).await;
                return stream
                    .map(Stream::Simulated)
                    .ok_or_else(|| io::ErrorKind::ConnectionAborted.into());
            }
            Self::Tcp(listener) => listener,
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                return Ok(Stream::Unix(stream));
            }
        };
        let (stream, _) = listener.accept().await?;
        // None of these calls can fail on an open connection, and on a closed one none matters.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, GONE - 3 * PROBE);
        let _ = sockopt::set_tcp_keepintvl(&stream, PROBE);
        let _ = sockopt::set_tcp_keepcnt(&stream, 3);
        Ok(Stream::Tcp(stream))
    }
}

/// A stream of either kind.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(test)]
    Simulated(DuplexStream),
}

/// The address of the client of a connection, or of the proxy before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAddress(pub IpAddr);

impl PeerAddress {
    /// Returns the address of the other end. A Unix socket has none.
    fn of(stream: &Stream) -> Option<Self> {
        match stream {
            Stream::Tcp(stream) => stream.peer_addr().ok(),
            Stream::Unix(_) => None,
            #[cfg(test)]
            Stream::Simulated(_) => None,
        }
        .map(|address| Self(address.ip().to_canonical()))
    }
}

/// Does the same with a stream of either kind.
macro_rules! either {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self {
            Stream::Tcp($stream) => $do,
            Stream::Unix($stream) => $do,
            #[cfg(test)]
            Stream::Simulated($stream) => $do,
        }
    };
}

/// A stream that reports to its connection whether bytes come in and go out.
pub struct MeteredStream {
    stream: Stream,
    connection: Arc<Connection>,
}

impl MeteredStream {
    pub fn new(stream: Stream, connection: Arc<Connection>) -> Self {
        Self { stream, connection }
    }

    pub fn peer(&self) -> Option<PeerAddress> {
        PeerAddress::of(&self.stream)
    }

    /// Waits for the first byte, or until the client closes the connection.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(stream) => stream.readable().await,
            Stream::Unix(stream) => stream.readable().await,
            // HTTP waits for the byte.
            #[cfg(test)]
            Stream::Simulated(_) => Ok(()),
        }
    }

    fn note<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Pending => self.connection.is_blocked(),
            Poll::Ready(_) => self.connection.has_written(),
        }
        written
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = either!(&mut self.stream, stream => Pin::new(stream).poll_read(context, buffer));
        if buffer.filled().len() > before {
            self.connection.has_read();
        }
        read
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written =
            either!(&mut self.stream, stream => Pin::new(stream).poll_write(context, bytes));
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = either!(&mut self.stream, stream => {
            Pin::new(stream).poll_write_vectored(context, slices)
        });
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        either!(&self.stream, stream => stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.stream, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.stream, stream => Pin::new(stream).poll_shutdown(context))
    }
}

/// The channel of HTTP: the stream itself, or TLS on it.
pub enum Channel {
    Plain(MeteredStream),
    Tls(Box<TlsStream<MeteredStream>>),
}

/// Does the same with a channel of either kind.
macro_rules! channel {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self {
            Channel::Plain($stream) => $do,
            Channel::Tls($stream) => $do,
        }
    };
}

impl AsyncRead for Channel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        channel!(&mut *self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        channel!(&mut *self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        channel!(&mut *self, stream => Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        channel!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        channel!(&mut *self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        channel!(&mut *self, stream => Pin::new(stream).poll_shutdown(context))
    }
}

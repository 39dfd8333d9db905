//! The connection to a broker that the client library uses. It is opened and encrypted here, with the TLS of the rest
//! of Provost, filtered ([`FrameFilter`]), and reliably ended when it is no longer needed.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_rs::{
    Tokio,
    traits::{Executor, Reactor, RuntimeKit},
    util::Task,
};
use futures::{
    Stream,
    io::{AsyncRead, AsyncWrite},
};
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{frames::FrameFilter, tls};
use crate::{clock::timeout, config::BrokerUrl};

/// The most bytes of one read.
const READ: usize = 16 << 10;

pub struct BrokerStream {
    inner: BrokerSocket,
    /// Ends the connection: the client library has a thread for each one, which ends only with it.
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    filter: FrameFilter,
    filtered: Vec<u8>,
    /// The number of bytes of `filtered` that were read.
    read: usize,
    buffer: Box<[u8]>,
}

enum BrokerSocket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl BrokerStream {
    /// Tries each address of the host within `limit`, and fails once `end` is cancelled.
    pub async fn connect(
        url: &BrokerUrl,
        limit: Duration,
        end: CancellationToken,
    ) -> io::Result<Self> {
        let too_slow = || {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection within {limit:?}"),
            )
        };
        let host = url.host.trim_start_matches('[').trim_end_matches(']');
        let stream = timeout(limit, TcpStream::connect((host, url.port)));
        let stream = stream.await.map_err(|_| too_slow())??;
        stream.set_nodelay(true)?;
        let inner = match url.tls {
            false => BrokerSocket::Plain(stream),
            true => {
                let stream = timeout(limit, tls::handshake(host, stream));
                BrokerSocket::Tls(Box::new(stream.await.map_err(|_| too_slow())??))
            }
        };
        Ok(Self {
            inner,
            ended: Box::pin(end.cancelled_owned()),
            filter: FrameFilter::default(),
            filtered: Vec::new(),
            read: 0,
            buffer: vec![0; READ].into(),
        })
    }
}

fn aborted() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the connection is no longer wanted",
    )
}

impl AsyncRead for BrokerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(aborted()));
        }
        while this.read == this.filtered.len() {
            this.filtered.clear();
            this.read = 0;
            let mut buffer = ReadBuf::new(&mut this.buffer);
            ready!(match &mut this.inner {
                BrokerSocket::Plain(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
                BrokerSocket::Tls(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            })?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(0));
            }
            this.filter.feed(buffer.filled(), &mut this.filtered);
        }
        let left = &this.filtered[this.read..];
        let count = left.len().min(into.len());
        into[..count].copy_from_slice(&left[..count]);
        this.read += count;
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for BrokerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(aborted()));
        }
        match &mut this.inner {
            BrokerSocket::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            BrokerSocket::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            BrokerSocket::Plain(stream) => Pin::new(stream).poll_flush(cx),
            BrokerSocket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            BrokerSocket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            BrokerSocket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The runtime of the client library: tokio, with [`BrokerStream`] for its connections.
#[derive(Clone, Debug)]
pub struct BrokerRuntime(pub Tokio);

impl RuntimeKit for BrokerRuntime {}

impl Executor for BrokerRuntime {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for BrokerRuntime {
    type TcpStream = BrokerStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    /// Connections are opened by [`BrokerStream::connect`].
    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let unused = io::Error::from(io::ErrorKind::Unsupported);
        std::future::ready(Err(unused))
    }
}

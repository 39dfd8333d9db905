//! A connection that counts the bytes received, for limits on the data that a service may send.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::clock::{self, Instant};

/// The most bytes that are read before the head of a response is complete. Most of them would be interim responses
/// (1xx), of which a service may send any number. It is several times the size of one read, because the driver of a
/// connection continues to read into the body before the call knows that the head is complete.
const LONGEST_HEAD: usize = 256 << 10;

/// The moment from which the times of writes are counted.
static START: LazyLock<Instant> = LazyLock::new(clock::instant);

#[derive(Debug, thiserror::Error)]
#[error(
    "the service sent more than {} KiB of interim responses (1xx) and headers, but no final response",
    LONGEST_HEAD >> 10
)]
struct HeadTooLong;

/// The bytes received and sent on a connection. The stream and its users share them.
#[derive(Clone, Default)]
pub(in crate::agent) struct BytesReceived(Arc<ByteCounts>);

struct ByteCounts {
    bytes: AtomicUsize,
    /// No more is read when `bytes` exceeds this value.
    most: AtomicUsize,
    sent: AtomicUsize,
    /// The value of `sent` before the current request was sent.
    sent_before: AtomicUsize,
    /// The nanoseconds from `START` to the last write.
    sent_at: AtomicU64,
    resolved: OnceLock<Instant>,
    connected: OnceLock<Instant>,
}

impl Default for ByteCounts {
    fn default() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            sent: AtomicUsize::new(0),
            sent_before: AtomicUsize::new(0),
            sent_at: AtomicU64::new(0),
            resolved: OnceLock::new(),
            connected: OnceLock::new(),
        }
    }
}

impl BytesReceived {
    /// Begins to expect the head of a response: the connection breaks when [`LONGEST_HEAD`] more bytes have come in.
    pub fn expect_head(&self) {
        let most = self
            .0
            .bytes
            .load(Ordering::Relaxed)
            .saturating_add(LONGEST_HEAD);
        self.0.most.store(most, Ordering::Relaxed);
        let sent = self.0.sent.load(Ordering::Relaxed);
        self.0.sent_before.store(sent, Ordering::Relaxed);
    }

    /// True if the system has taken no byte of the current request, so that the service cannot have seen any of it.
    pub fn has_sent_nothing(&self) -> bool {
        self.0.sent.load(Ordering::Relaxed) == self.0.sent_before.load(Ordering::Relaxed)
    }

    /// Returns when the last part of the current request was handed to the system.
    pub fn sent_at(&self) -> Option<Instant> {
        // `START` is that of the first host of the process, and the clock of another one knows nothing of it.
        #[cfg(test)]
        if crate::host::current().is_some() {
            return None;
        }
        let nanos = self.0.sent_at.load(Ordering::Relaxed);
        (nanos > 0).then(|| *START + Duration::from_nanos(nanos))
    }

    pub fn note_resolved(&self) {
        let _ = self.0.resolved.set(clock::instant());
    }

    /// Returns when the name of the host was resolved. `None` if the URL has an address.
    pub fn resolved(&self) -> Option<Instant> {
        self.0.resolved.get().copied()
    }

    /// Returns when the connection was open, before TLS.
    pub fn connected(&self) -> Option<Instant> {
        self.0.connected.get().copied()
    }

    /// Ends the limit, because the head is complete. Other code limits the size of the body.
    pub fn expect_body(&self) {
        self.0.most.store(usize::MAX, Ordering::Relaxed);
    }
}

/// A stream to a service.
enum ServiceStream {
    Tcp(TcpStream),
    #[cfg(test)]
    Simulated(tokio::io::DuplexStream),
}

/// Does the same with a stream of either kind.
macro_rules! either {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self {
            ServiceStream::Tcp($stream) => $do,
            #[cfg(test)]
            ServiceStream::Simulated($stream) => $do,
        }
    };
}

pub(in crate::agent) struct LimitedStream {
    stream: ServiceStream,
    received: BytesReceived,
}

impl LimitedStream {
    pub fn new(stream: TcpStream, received: BytesReceived) -> Self {
        Self::on(ServiceStream::Tcp(stream), received)
    }

    #[cfg(test)]
    pub fn simulated(stream: tokio::io::DuplexStream, received: BytesReceived) -> Self {
        Self::on(ServiceStream::Simulated(stream), received)
    }

    fn on(stream: ServiceStream, received: BytesReceived) -> Self {
        let _ = received.0.connected.set(clock::instant());
        Self { stream, received }
    }

    fn note_sent(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(sent)) = &polled {
            self.received.0.sent.fetch_add(*sent, Ordering::Relaxed);
            let nanos = u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.received.0.sent_at.store(nanos, Ordering::Relaxed);
        }
        polled
    }
}

impl Connection for LimitedStream {
    fn connected(&self) -> Connected {
        match &self.stream {
            ServiceStream::Tcp(stream) => stream.connected(),
            #[cfg(test)]
            ServiceStream::Simulated(_) => Connected::new(),
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let counts = &self.received.0;
        // The limit is checked before the read, because the bytes that arrive with the end of the head belong to the
        // body.
        if counts.bytes.load(Ordering::Relaxed) > counts.most.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::Error::other(HeadTooLong)));
        }
        let before = buffer.filled().len();
        let polled = either!(&mut self.stream, stream => Pin::new(stream).poll_read(cx, buffer));
        let read = buffer.filled().len() - before;
        self.received.0.bytes.fetch_add(read, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = either!(&mut self.stream, stream => Pin::new(stream).poll_write(cx, bytes));
        self.note_sent(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.stream, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.stream, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        either!(&self.stream, stream => stream.is_write_vectored())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled =
            either!(&mut self.stream, stream => Pin::new(stream).poll_write_vectored(cx, pieces));
        self.note_sent(polled)
    }
}

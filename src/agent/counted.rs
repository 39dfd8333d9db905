//! A connection that counts what comes in, for limits on what a service may send.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// The most that is read before the head of an answer is there: of interim answers (1xx) above all, of which a
/// service may send any number. Several times what is read at once, because the driver of a connection reads on
/// into the body before it is known here that the head is there.
const LONGEST_HEAD: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
#[error(
    "the service sent more than {} KiB of interim responses (1xx) and headers, but no final response",
    LONGEST_HEAD >> 10
)]
struct HeadTooLong;

/// What has come in on a connection, shared with whom it matters to.
#[derive(Clone, Default)]
pub(super) struct BytesReceived(Arc<ByteCounts>);

struct ByteCounts {
    bytes: AtomicUsize,
    /// Nothing is read beyond.
    most: AtomicUsize,
    sent: AtomicUsize,
    /// What was sent before the request that a response is expected to.
    sent_before: AtomicUsize,
}

impl Default for ByteCounts {
    fn default() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            sent: AtomicUsize::new(0),
            sent_before: AtomicUsize::new(0),
        }
    }
}

impl BytesReceived {
    /// From now on the connection breaks when [`LONGEST_HEAD`] has come in.
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

    /// Whether the system has taken no byte since a head is expected: nobody can have seen anything of the request.
    pub fn has_sent_nothing(&self) -> bool {
        self.0.sent.load(Ordering::Relaxed) == self.0.sent_before.load(Ordering::Relaxed)
    }

    /// The head is there. How much of a body is read is for others to say.
    pub fn expect_body(&self) {
        self.0.most.store(usize::MAX, Ordering::Relaxed);
    }
}

pub(super) struct LimitedStream {
    stream: TcpStream,
    received: BytesReceived,
}

impl LimitedStream {
    pub fn new(stream: TcpStream, received: BytesReceived) -> Self {
        Self { stream, received }
    }

    fn note_sent(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(sent)) = &polled {
            self.received.0.sent.fetch_add(*sent, Ordering::Relaxed);
        }
        polled
    }
}

impl Connection for LimitedStream {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let counts = &self.received.0;
        // Looked at before the read: what comes along with the head's last bytes is of the body.
        if counts.bytes.load(Ordering::Relaxed) > counts.most.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::Error::other(HeadTooLong)));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
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
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_sent(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.note_sent(polled)
    }
}

//! A stream that ends when its peer floods an HTTP/2 connection with frames that have no content. The libraries
//! process each of them, and do not count them.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    clock::{self, Instant},
    domain::agent::Http2Frames,
};

pub struct Http2Guard<S> {
    stream: S,
    frames: Http2Frames,
    began: Instant,
}

impl<S> Http2Guard<S> {
    pub fn new(stream: S, frames: Http2Frames) -> Self {
        Self {
            stream,
            frames,
            began: clock::instant(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Http2Guard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        let read = this
            .frames
            .read(&buffer.filled()[before..], this.began.elapsed());
        Poll::Ready(read.map_err(|flood| io::Error::new(ErrorKind::InvalidData, flood)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Http2Guard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
        this.frames.sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, slices))?;
        this.frames.sent(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

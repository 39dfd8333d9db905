//! Completes the responses to input that is not a request. hyper responds to it alone, before the service sees a
//! request, with a status and an empty body. That response is recognised by its form, and replaced. This is done on
//! HTTP/1 only; on HTTP/2 such a stream ends with hyper's own 431.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::http::{Response, StatusCode};
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Returns the response in place of hyper's, or `None` to keep hyper's.
pub type Refuse = fn(StatusCode) -> Option<Response<String>>;

/// The most bytes that are read and discarded after such a response. A client that still sends would otherwise find
/// the connection reset, and might never see the response.
const MOST_DISCARDED: usize = 1 << 20;
/// The number of bytes that suffice to recognise the request line.
const BEGINNING: usize = 24;

/// A channel that replaces hyper's bare refusals.
pub struct RefusalStream<S> {
    channel: S,
    refuse: Refuse,
    line: HeadLine,
    /// The rest of such a response that is still to be sent.
    unsent: Option<Bytes>,
    discarded: usize,
}

/// The beginning of the last line of a head that has come, as far as it has come.
#[derive(Default)]
struct HeadLine {
    beginning: Vec<u8>,
}

impl HeadLine {
    fn read(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            self.beginning.clear();
            bytes = &bytes[end + 1..];
        }
        let room = BEGINNING - self.beginning.len();
        self.beginning.extend(&bytes[..room.min(bytes.len())]);
    }

    /// True for `GET /…`, and false for `name: value`.
    fn names_a_target(&self) -> bool {
        let mut words = self.beginning.splitn(2, |byte| *byte == b' ');
        let method = words.next().unwrap_or_default();
        let is_method = !method.is_empty() && method.iter().all(u8::is_ascii_uppercase);
        is_method && words.next().is_some()
    }
}

impl<S> RefusalStream<S> {
    pub fn new(channel: S, refuse: Refuse) -> Self {
        Self {
            channel,
            refuse,
            line: HeadLine::default(),
            unsent: None,
            discarded: 0,
        }
    }

    /// Returns the response in place of these bytes, if they are a bare refusal.
    fn whole(&self, bytes: &[u8]) -> Option<Bytes> {
        let status = bare_refusal(bytes)?;
        // If the last line is a request line, the target has filled the buffer for the head and is too long.
        let status = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE if self.line.names_a_target() => {
                StatusCode::URI_TOO_LONG
            }
            status => status,
        };
        (self.refuse)(status).map(|answer| written(&answer))
    }
}

/// Returns the status of a response without a body. The API's own error responses always have a body.
fn bare_refusal(bytes: &[u8]) -> Option<StatusCode> {
    let rest = bytes.strip_prefix(b"HTTP/1.")?.get(2..)?;
    let status = StatusCode::from_bytes(rest.get(..3)?).ok()?;
    if !status.is_client_error() {
        return None;
    }
    let head = str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n").skip(1);
    let is_bare = lines.clone().any(|line| line == "content-length: 0");
    (is_bare && lines.any(|line| line == "connection: close")).then_some(status)
}

fn written(answer: &Response<String>) -> Bytes {
    let (status, body) = (answer.status(), answer.body());
    let mut text = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    for (name, value) in answer.headers() {
        let value = value.to_str().unwrap_or_default();
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    Bytes::from(text)
}

impl<S: AsyncRead + Unpin> AsyncRead for RefusalStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.channel).poll_read(context, buffer);
        self.line.read(&buffer.filled()[before..]);
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RefusalStream<S> {
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.unsent.as_mut().filter(|rest| !rest.is_empty()) {
            let sent = ready!(Pin::new(&mut self.channel).poll_write(context, rest))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            rest.advance(sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads until the client closes the connection, or has sent enough. The sweep limits the time, as with any other
    /// wait for a client.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = [0; 4096];
        while self.discarded < MOST_DISCARDED {
            let mut buffer = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut self.channel).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                break;
            }
            self.discarded += buffer.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for RefusalStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(answer) = self.whole(bytes) {
            self.unsent = Some(answer);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.channel).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [bytes] = slices
            && let Some(answer) = self.whole(bytes)
        {
            self.unsent = Some(answer);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.channel).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.channel.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_answer(context))?;
        Pin::new(&mut self.channel).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_answer(context))?;
        ready!(Pin::new(&mut self.channel).poll_shutdown(context))?;
        match self.unsent {
            Some(_) => self.poll_discard(context),
            None => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_without_anything_is_taken_for_bare() {
        let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(
            bare_refusal(bare.as_bytes()).map(|status| status.as_u16()),
            Some(431)
        );
        for other in [
            "",
            "HTTP/1.1 4",
            "HTTP/1.1 204 No Content\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 10\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\ncontent-length: 0\r\n",
        ] {
            assert_eq!(bare_refusal(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_line_that_fills_the_head_is_known_however_it_comes_in() {
        for (pieces, is_target) in [
            (&["GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"][..], true),
            (&["GE", "T ", "/aaa", "aaa"], true),
            (&["GET / HTTP/1.1\r\nhost: x\r", "\nx-long: aaaaaa"], false),
            (&["GET / HTTP/1.1\r\n", "x"], false),
            (&["POST / HTTP/1.1\r\n\r\nbody\n", "PUT /a"], true),
            (&[""], false),
        ] {
            let mut line = HeadLine::default();
            for piece in pieces {
                line.read(piece.as_bytes());
            }
            assert_eq!(line.names_a_target(), is_target, "{pieces:?}");
        }
    }
}

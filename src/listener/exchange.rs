//! A request and its answer, as the connection counts them: from the head of the request until the answer
//! has been handed over or given up.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use super::connection::Connection;

/// The largest piece of an answer that is handed over at once on HTTP/2. A client that makes no room for
/// the rest shows then: what was handed over whole would wait out of sight.
const PIECE: usize = 64 << 10;

/// An exchange under way. It ends when it is dropped.
pub struct Exchange {
    connection: Arc<Connection>,
    number: u32,
}

impl Exchange {
    pub fn begin(connection: &Arc<Connection>, is_http2: bool) -> Self {
        Self {
            number: connection.begin(is_http2),
            connection: connection.clone(),
        }
    }

    /// The body of the request, which the connection counts as long as it has not come in whole.
    pub fn request(&self, body: Incoming) -> Body {
        if body.is_end_stream() {
            return Body::new(body);
        }
        self.connection.body_begins();
        Body::new(Arriving {
            body,
            connection: Some(self.connection.clone()),
        })
    }

    /// The body of the answer, with which the exchange ends.
    pub fn answer(self, body: Body) -> Answer {
        self.connection.offered(self.number);
        Answer {
            body,
            rest: Bytes::new(),
            exchange: self,
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.connection.end(self.number);
    }
}

struct Arriving {
    body: Incoming,
    /// `None` once the body has come in whole.
    connection: Option<Arc<Connection>>,
}

impl Arriving {
    fn end(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.body_ends();
        }
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.end();
    }
}

pub struct Answer {
    body: Body,
    /// Of the last piece of `body`, what has not been handed over.
    rest: Bytes,
    exchange: Exchange,
}

impl Answer {
    fn next_piece(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PIECE);
        Frame::data(self.rest.split_to(length))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let number = self.exchange.number;
        // On HTTP/2 it is polled only when the client has made room.
        self.exchange.connection.taken(number);
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if self.exchange.connection.is_http2() => self.rest = data,
                    Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        self.exchange.connection.offered(number);
        Poll::Ready(Some(Ok(self.next_piece())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

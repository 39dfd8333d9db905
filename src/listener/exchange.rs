//! A request and its response, as the connection counts them: from the head of the request until the response has been
//! handed over or given up.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
};
use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
};
use parking_lot::Mutex;

use super::connection::Connection;

/// The largest piece of a response that is handed over at once on HTTP/2. Pieces show when a client makes no room for
/// the rest; a response that was handed over whole would wait unseen.
const PIECE: usize = 64 << 10;

/// The most bytes of an unwanted body that are read. A client that still sends would otherwise find the connection
/// reset, and never see the response with the reason, because many clients read it only after they have sent
/// everything. `listener.body_timeout` bounds the time.
const MOST_DISCARDED: u64 = 256 << 20;
/// If at most this rest of an unwanted body is left, the connection can take another request.
const KEPT_OPEN: u64 = 64 << 10;

/// A running exchange. It ends when it is dropped.
pub struct Exchange {
    connection: Arc<Connection>,
    number: u32,
    /// True if the client may wait for a request to send the body (`Expect`).
    expects: bool,
    unread: UnreadBody,
}

/// The body of a request that was not read to its end, on HTTP/1. There no other request can follow before the rest of
/// the body has come.
#[derive(Clone, Default)]
struct UnreadBody(Arc<Mutex<Option<Incoming>>>);

impl UnreadBody {
    fn put(&self, body: Incoming) {
        *self.0.lock() = Some(body);
    }

    fn take(&self) -> Option<Incoming> {
        self.0.lock().take()
    }
}

impl Exchange {
    pub fn begin(connection: &Arc<Connection>, is_http2: bool) -> Self {
        Self {
            number: connection.begin(is_http2),
            connection: connection.clone(),
            expects: false,
            unread: UnreadBody::default(),
        }
    }

    /// Returns the request with a body that the connection counts until it is complete.
    pub fn request(&mut self, request: Request<Incoming>) -> Request<Body> {
        if request.body().is_end_stream() {
            return request.map(Body::new);
        }
        self.expects = request.headers().contains_key(header::EXPECT);
        self.connection.body_begins();
        request.map(|body| {
            Body::new(RequestBodyStream {
                body: Some(body),
                connection: self.connection.clone(),
                unread: self.unread.clone(),
            })
        })
    }

    /// Returns the response with a body whose end is the end of the exchange.
    pub fn respond(self, mut response: Response<Body>) -> Response<ResponseBody> {
        self.connection.offered(self.number);
        if let Some(body) = self.unread.take()
            && (!discard(body, response.status(), &self.connection) || self.expects)
        {
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| ResponseBody {
            body,
            rest: Bytes::new(),
            exchange: self,
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.connection.end(self.number);
    }
}

struct RequestBodyStream {
    /// The body; `None` once it is complete.
    body: Option<Incoming>,
    connection: Arc<Connection>,
    unread: UnreadBody,
}

impl HttpBody for RequestBodyStream {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        let is_whole = !matches!(frame, Some(Ok(_))) || body.is_end_stream();
        if is_whole {
            self.body = None;
            self.connection.body_ends();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for RequestBodyStream {
    fn drop(&mut self) {
        let Some(body) = self.body.take() else {
            return;
        };
        self.connection.body_ends();
        // On HTTP/2 the stream is reset, and the connection continues.
        if !self.connection.is_http2() {
            self.unread.put(body);
        }
    }
}

/// Reads the rest of an unwanted body, up to a bound. Returns whether another request may follow it.
fn discard(mut body: Incoming, answer: StatusCode, connection: &Arc<Connection>) -> bool {
    if answer == StatusCode::REQUEST_TIMEOUT {
        return false;
    }
    let is_short = body
        .size_hint()
        .upper()
        .is_some_and(|rest| rest <= KEPT_OPEN);
    connection.discard_begins();
    let connection = connection.clone();
    tokio::spawn(async move {
        let mut discarded = 0;
        while discarded < MOST_DISCARDED
            && let Some(Ok(frame)) = body.frame().await
        {
            let length = frame.data_ref().map_or(0, Buf::remaining);
            discarded += length as u64;
        }
        connection.discard_ends();
    });
    is_short
}

pub struct ResponseBody {
    body: Body,
    /// The part of the last piece of `body` that has not been handed over.
    rest: Bytes,
    exchange: Exchange,
}

impl ResponseBody {
    fn next_piece(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PIECE);
        Frame::data(self.rest.split_to(length))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let number = self.exchange.number;
        // On HTTP/2 this is polled only when the client has made room.
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

//! A budget in bytes for the memory that callers make the service use: tasks that were read for them, responses that
//! they have not read yet, and request bodies that are being received or handled. Beyond it a request is refused with
//! 503 `busy`.
//!
//! Up to [`SMALL`] bytes of a request or a response are not counted: the number of connections bounds them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use thiserror::Error;

use super::problem::{Problem, ProblemKind};

/// The most bytes of a body that is not counted.
pub const SMALL: usize = 16 << 10;

/// Names the fields of a task that are left out of the response to a command, because there is no room for them.
const LEFT_OUT: HeaderName = HeaderName::from_static("provost-left-out");

tokio::task_local! {
    /// The reservation for the task that the running request has read last.
    static HELD: Mutex<Option<Reservation>>;
}

#[derive(Debug, Error)]
#[error("{0}")]
pub struct OverBudget(String);

impl From<OverBudget> for Problem {
    fn from(error: OverBudget) -> Self {
        Problem::new(ProblemKind::Busy, error.to_string())
    }
}

/// The bytes that are in use, and the most that may be.
#[derive(Debug)]
pub struct ByteBudget {
    most: usize,
    used: AtomicUsize,
    /// The name of what is counted. It and the name of the setting are for messages.
    subject: &'static str,
    setting: &'static str,
}

/// A part of a budget. It returns to the budget when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl ByteBudget {
    pub fn of_responses(most: usize) -> Arc<Self> {
        Self::new(
            most,
            "responses that clients have not read yet",
            "listener.max_response_bytes",
        )
    }

    pub fn of_requests(most: usize) -> Arc<Self> {
        Self::new(
            most,
            "request bodies that are being received or handled",
            "listener.max_request_bytes",
        )
    }

    fn new(most: usize, subject: &'static str, setting: &'static str) -> Arc<Self> {
        Arc::new(Self {
            most,
            used: AtomicUsize::new(0),
            subject,
            setting,
        })
    }

    /// Begins a reservation without bytes.
    fn begin(self: &Arc<Self>) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }

    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, OverBudget> {
        let mut reservation = self.begin();
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// Reserves room for a body of this many bytes. Returns `None` if a body of that length is not counted.
    pub fn reserve_large(
        self: &Arc<Self>,
        bytes: usize,
    ) -> Result<Option<Reservation>, OverBudget> {
        match bytes <= SMALL {
            true => Ok(None),
            false => self.reserve(bytes).map(Some),
        }
    }

    /// Holds this many bytes until the running request has its response, instead of the bytes that were held for it
    /// before.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Result<(), OverBudget> {
        let hold = |held: &Mutex<Option<Reservation>>| {
            let mut held = held.lock();
            *held = None;
            *held = self.reserve_large(bytes)?;
            Ok(())
        };
        HELD.try_with(hold).unwrap_or(Ok(()))
    }

    /// Returns the response with room reserved for its body, or without that body. It must be a response that this
    /// budget has not decided on before. `method` is that of its request.
    pub fn admit(self: &Arc<Self>, method: &Method, mut response: Response) -> Response {
        let Some(length) = response.body().size_hint().exact() else {
            let budget = self.clone();
            // Each large part has a reservation of its own.
            let check = move |frame: Frame<Bytes>| {
                let length = frame.data_ref().map_or(0, Bytes::len);
                Ok(match budget.reserve_large(length)? {
                    None => frame,
                    Some(room) => reserved(frame, &Arc::new(room)),
                })
            };
            return response.map(|body| CheckedBody::of(body, check));
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let room = match self.reserve_large(length) {
            Ok(None) => return response,
            Ok(Some(room)) => room,
            Err(error) if method.is_safe() => return Problem::from(error).into_response(),
            // A command that was carried out must not look as if it had not been: the caller would repeat it.
            Err(_) => match response.extensions_mut().remove::<ShortForm>() {
                Some(short) => return short.instead_of(response),
                None => self.reserve_over_budget(length),
            },
        };
        // The bytes of the body hold the room until they are sent or dropped.
        let room = Arc::new(room);
        response.map(|body| CheckedBody::of(body, move |frame| Ok(reserved(frame, &room))))
    }

    /// Reserves this many bytes, also beyond the budget.
    fn reserve_over_budget(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.used.fetch_add(bytes, Ordering::AcqRel);
        Reservation {
            budget: self.clone(),
            bytes,
        }
    }

    /// Returns a body of a request that is counted as it arrives, until the reservation is dropped.
    pub fn count(self: &Arc<Self>, body: Body) -> (Body, Option<RequestRoom>) {
        if body
            .size_hint()
            .upper()
            .is_some_and(|length| length <= SMALL as u64)
        {
            return (body, None);
        }
        let room = RequestRoom(Arc::new(Mutex::new(self.begin())));
        let (held, mut length) = (room.clone(), 0);
        let counted = CheckedBody::of(body, move |frame: Frame<Bytes>| {
            length += frame.data_ref().map_or(0, Bytes::len);
            if length > SMALL {
                let mut room = held.0.lock();
                let more = length - room.bytes;
                room.grow(more)?;
            }
            Ok(frame)
        });
        (counted, Some(room))
    }
}

impl Reservation {
    /// Adds bytes to the reservation. If nothing else is reserved, any number of bytes fits.
    fn grow(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let ByteBudget {
            most,
            used,
            subject,
            setting,
        } = &*self.budget;
        let own = self.bytes;
        let added = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            let sum = used.saturating_add(bytes);
            (sum <= *most || used == own).then_some(sum)
        });
        if added.is_err() {
            return Err(OverBudget(format!(
                "{subject} have room for {most} bytes together (the setting {setting}), and are too many now: retry after Retry-After"
            )));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A short response to a command, for when there is no room for the whole one.
#[derive(Clone)]
pub struct ShortForm {
    pub body: Bytes,
    pub left_out: String,
}

impl ShortForm {
    fn instead_of(self, response: Response) -> Response {
        let (mut parts, _) = response.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        if let Ok(left_out) = HeaderValue::try_from(self.left_out) {
            parts.headers.insert(LEFT_OUT, left_out);
        }
        debug_assert_ne!(parts.status, StatusCode::NO_CONTENT);
        Response::from_parts(parts, Body::from(self.body))
    }
}

/// Runs a request. Room that [`ByteBudget::hold`] holds is held until the request ends.
pub async fn with_reservations<F: Future>(request: F) -> F::Output {
    HELD.scope(Mutex::default(), request).await
}

/// Returns the problem if the body of a request could not be read for want of room.
pub fn refused_for_room(error: &axum::Error) -> Option<Problem> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<OverBudget>() {
            return Some(Problem::new(ProblemKind::Busy, error.to_string()));
        }
        source = error.source();
    }
    None
}

/// Holds the room of a request's body until it is dropped.
#[derive(Clone)]
pub struct RequestRoom(Arc<Mutex<Reservation>>);

/// Bytes that return their room when the last part of them has been sent or dropped.
struct ReservedBytes {
    bytes: Bytes,
    _reserved: Arc<Reservation>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn reserved(frame: Frame<Bytes>, reserved: &Arc<Reservation>) -> Frame<Bytes> {
    frame.map_data(|bytes| {
        Bytes::from_owner(ReservedBytes {
            bytes,
            _reserved: reserved.clone(),
        })
    })
}

/// A body whose parts each go through a function, which changes no length. If the function refuses a part, the body
/// ends with an error. The combinators of http-body-util would lose the length of the whole.
struct CheckedBody<F> {
    body: Body,
    check: F,
}

impl<F> CheckedBody<F>
where
    F: FnMut(Frame<Bytes>) -> Result<Frame<Bytes>, OverBudget> + Send + Unpin + 'static,
{
    fn of(body: Body, check: F) -> Body {
        Body::new(Self { body, check })
    }
}

impl<F> HttpBody for CheckedBody<F>
where
    F: FnMut(Frame<Bytes>) -> Result<Frame<Bytes>, OverBudget> + Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        Poll::Ready(Some((self.check)(frame).map_err(axum::Error::new)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const MOST: usize = 100_000;

    fn budget() -> Arc<ByteBudget> {
        ByteBudget::of_responses(MOST)
    }

    fn used(budget: &ByteBudget) -> usize {
        budget.used.load(Ordering::Acquire)
    }

    fn response(length: usize) -> Response {
        Response::new(Body::from(vec![b'x'; length]))
    }

    #[tokio::test]
    async fn a_response_holds_its_room_until_its_last_byte_is_gone() {
        let budget = budget();
        let sent = budget.admit(&Method::GET, response(60_000));
        assert_eq!(sent.body().size_hint().exact(), Some(60_000));
        let refused = budget.admit(&Method::GET, response(60_000));
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        let small = budget.admit(&Method::GET, response(SMALL));
        assert_eq!(small.status(), StatusCode::OK);
        let mut body = sent.into_body();
        let mut bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        let part = bytes.split_to(10);
        drop(bytes);
        assert_eq!(used(&budget), 60_000, "a part waits to be sent");
        drop(part);
        assert_eq!(used(&budget), 0);
        drop(budget.admit(&Method::GET, response(60_000)));
        assert_eq!(used(&budget), 0, "the connection was closed");
    }

    #[test]
    fn a_large_response_that_is_alone_always_fits() {
        let budget = budget();
        let sent = budget.admit(&Method::GET, response(2 * MOST));
        assert_eq!(sent.status(), StatusCode::OK);
        assert!(budget.reserve(1).is_err());
    }

    #[test]
    fn the_response_to_a_command_is_shortened_or_sent_and_never_says_that_nothing_was_done() {
        let budget = budget();
        let _others = budget.reserve(MOST).unwrap();
        let mut long = response(50_000);
        long.extensions_mut().insert(ShortForm {
            body: Bytes::from_static(b"{}"),
            left_out: "steps".to_owned(),
        });
        let short = budget.admit(&Method::POST, long);
        assert_eq!(short.status(), StatusCode::OK);
        assert_eq!(short.body().size_hint().exact(), Some(2));
        assert_eq!(short.headers()[LEFT_OUT], "steps");
        let whole = budget.admit(&Method::POST, response(50_000));
        assert_eq!(whole.status(), StatusCode::OK);
        assert_eq!(used(&budget), MOST + 50_000);
    }

    #[tokio::test]
    async fn a_stream_ends_where_there_is_no_room_for_its_next_part() {
        let budget = budget();
        let parts = [1_000, 50_000, 60_000].map(|length| Bytes::from(vec![b'x'; length]));
        let parts = futures::stream::iter(parts.map(Ok::<_, std::convert::Infallible>));
        let streamed = Response::new(Body::from_stream(parts));
        let mut body = budget.admit(&Method::GET, streamed).into_body();
        let _small = body.frame().await.unwrap().unwrap();
        let _large = body.frame().await.unwrap().unwrap();
        assert_eq!(used(&budget), 50_000);
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn a_request_is_counted_as_it_arrives_until_it_is_handled() {
        let budget = budget();
        let large = || {
            let parts = [40_000; 2].map(|length| Bytes::from(vec![b'x'; length]));
            Body::from_stream(futures::stream::iter(
                parts.map(Ok::<_, std::convert::Infallible>),
            ))
        };
        let (mut first, room) = budget.count(large());
        let (mut second, other) = budget.count(large());
        first.frame().await.unwrap().unwrap();
        second.frame().await.unwrap().unwrap();
        assert_eq!(used(&budget), 80_000);
        assert!(first.frame().await.unwrap().is_err());
        drop((first, room));
        second.frame().await.unwrap().unwrap();
        assert_eq!(used(&budget), 80_000);
        drop(second);
        assert_eq!(used(&budget), 80_000, "it is being handled");
        drop(other);
        assert_eq!(used(&budget), 0);
        let (_, none) = budget.count(Body::from(vec![b'x'; SMALL]));
        assert!(none.is_none());
    }
}

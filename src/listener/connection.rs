//! One open connection from the listener's point of view: its phase, the time of that phase, and the order to close
//! it.
//!
//! The task of the connection records its events with a few stores and no lock; the sweep and the accept loop read
//! them from outside. These values may be outdated for a moment, so an idle connection is only *asked* to close: its
//! own task checks again, and a request that has just arrived keeps it open.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Waker},
};

use parking_lot::Mutex;
/// The state that all connections share.
#[derive(Debug, Default)]
pub struct ListenerState {
    /// The time in milliseconds since the listener was opened; never 0. The sweep updates it, so that a read costs
    /// nothing.
    now: AtomicU64,
    /// The number of connections that have not sent the head of any request.
    pub without_request: AtomicUsize,
}

impl ListenerState {
    pub fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    pub fn set_now(&self, now: u64) {
        self.now.store(now.max(1), Relaxed);
    }
}

/// The order to a connection. A later variant includes the earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum CloseOrder {
    Go = 0,
    /// Close, unless a request is being handled.
    Release = 1,
    /// Take no more requests, and close after the last response.
    Drain = 2,
    /// Close now.
    Abort = 3,
}

/// The state of a connection's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionPhase {
    /// No request has come yet: silence, a TLS handshake, or part of a first head.
    NoRequest,
    /// Part of the head of a further request has come.
    PartialHead,
    /// The connection is kept alive without a request.
    Idle,
    /// The body of the request is not complete.
    Receiving,
    /// The client has its response, and still sends a body that the service does not need.
    Discarding,
    /// The client does not read the response.
    Unread,
    /// A request is being processed, or its response is being sent.
    Busy,
}

#[derive(Debug)]
pub struct Connection {
    shared: Arc<ListenerState>,
    has_asked: AtomicBool,
    is_http2: AtomicBool,
    exchanges: AtomicU32,
    /// The number of exchanges whose request body is not complete.
    bodies: AtomicU32,
    is_discarding: AtomicBool,
    /// The time when the connection was accepted, the last exchange began, or the last one ended, whichever is latest.
    since: AtomicU64,
    /// The time when the first byte after the last exchange came; 0 if none has come.
    head_since: AtomicU64,
    /// The time since which the socket accepts no more bytes; 0 while it accepts them.
    blocked_since: AtomicU64,
    /// For HTTP/2 only: the responses whose next piece the client has no room for, each with the time since then. The
    /// socket does not show this state on HTTP/2.
    unread: Mutex<BTreeMap<u32, u64>>,
    next_exchange: AtomicU32,
    order: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

impl Connection {
    pub fn new(shared: Arc<ListenerState>) -> Self {
        shared.without_request.fetch_add(1, Relaxed);
        Self {
            has_asked: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            exchanges: AtomicU32::new(0),
            bodies: AtomicU32::new(0),
            is_discarding: AtomicBool::new(false),
            since: AtomicU64::new(shared.now()),
            head_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(0),
            unread: Mutex::default(),
            next_exchange: AtomicU32::new(0),
            order: AtomicU8::new(CloseOrder::Go as u8),
            waker: Mutex::new(None),
            shared,
        }
    }

    /// Returns the phase, and the time since which it lasts.
    pub fn phase(&self) -> (ConnectionPhase, u64) {
        let since = self.since.load(Relaxed);
        if !self.has_asked.load(Relaxed) {
            return (ConnectionPhase::NoRequest, since);
        }
        if let Some(since) = self.unread_since() {
            return (ConnectionPhase::Unread, since);
        }
        let exchanges = self.exchanges.load(Relaxed);
        if exchanges == 0 {
            if self.is_discarding.load(Relaxed) {
                return (ConnectionPhase::Discarding, since);
            }
            let head_since = self.head_since.load(Relaxed);
            // On HTTP/2 a byte need not begin a head: a ping must not look like one.
            if head_since != 0 && !self.is_http2() {
                return (ConnectionPhase::PartialHead, head_since);
            }
            return (ConnectionPhase::Idle, since);
        }
        if self.bodies.load(Relaxed) >= exchanges {
            return (ConnectionPhase::Receiving, since);
        }
        (ConnectionPhase::Busy, since)
    }

    fn unread_since(&self) -> Option<u64> {
        let blocked = self.blocked_since.load(Relaxed);
        if blocked != 0 {
            return Some(blocked);
        }
        if !self.is_http2() {
            return None;
        }
        self.unread.lock().values().min().copied()
    }

    pub fn is_http2(&self) -> bool {
        self.is_http2.load(Relaxed)
    }

    /// True if the connection may be closed without breaking an exchange. The value is exact in the connection's task.
    pub fn is_quiet(&self) -> bool {
        self.exchanges.load(Relaxed) == 0 && self.blocked_since.load(Relaxed) == 0
    }

    // The following functions are called by the socket.

    pub fn has_read(&self) {
        if self.head_since.load(Relaxed) == 0 && self.exchanges.load(Relaxed) == 0 {
            self.head_since.store(self.shared.now(), Relaxed);
        }
    }

    pub fn has_written(&self) {
        if self.blocked_since.load(Relaxed) != 0 {
            self.blocked_since.store(0, Relaxed);
        }
    }

    pub fn is_blocked(&self) {
        if self.blocked_since.load(Relaxed) == 0 {
            self.blocked_since.store(self.shared.now(), Relaxed);
        }
    }

    // The following functions are called by an exchange.

    /// Begins an exchange. Returns its number.
    pub fn begin(&self, is_http2: bool) -> u32 {
        if !self.has_asked.load(Relaxed) && !self.has_asked.swap(true, Relaxed) {
            self.is_http2.store(is_http2, Relaxed);
            self.shared.without_request.fetch_sub(1, Relaxed);
        }
        self.exchanges.fetch_add(1, Relaxed);
        self.since.store(self.shared.now(), Relaxed);
        self.head_since.store(0, Relaxed);
        self.next_exchange.fetch_add(1, Relaxed)
    }

    pub fn end(&self, exchange: u32) {
        self.taken(exchange);
        self.since.store(self.shared.now(), Relaxed);
        self.exchanges.fetch_sub(1, Relaxed);
    }

    pub fn body_begins(&self) {
        self.bodies.fetch_add(1, Relaxed);
    }

    pub fn body_ends(&self) {
        self.bodies.fetch_sub(1, Relaxed);
    }

    /// Notes that the rest of a body is read and discarded. This happens on HTTP/1 only, so the body is that of the
    /// last exchange.
    pub fn discard_begins(&self) {
        self.is_discarding.store(true, Relaxed);
    }

    pub fn discard_ends(&self) {
        // The bytes until now belonged to the body, and not to a head.
        self.head_since.store(0, Relaxed);
        self.is_discarding.store(false, Relaxed);
    }

    /// Notes that a piece of a response is ready, and that the client must make room for it.
    pub fn offered(&self, exchange: u32) {
        if self.is_http2() {
            self.unread.lock().insert(exchange, self.shared.now());
        }
    }

    /// Notes that the client has made room for the piece.
    pub fn taken(&self, exchange: u32) {
        if self.is_http2() {
            self.unread.lock().remove(&exchange);
        }
    }

    // The following functions are about the order to close.

    pub fn order(&self) -> CloseOrder {
        match self.order.load(Relaxed) {
            0 => CloseOrder::Go,
            1 => CloseOrder::Release,
            2 => CloseOrder::Drain,
            _ => CloseOrder::Abort,
        }
    }

    /// Gives an order to the task of the connection. A stronger earlier order stays.
    pub fn ask(&self, order: CloseOrder) {
        self.order.fetch_max(order as u8, Relaxed);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// Withdraws a release that the task could not carry out, because a request had arrived.
    pub fn keep(&self) {
        let (release, go) = (CloseOrder::Release as u8, CloseOrder::Go as u8);
        let _ = self.order.compare_exchange(release, go, Relaxed, Relaxed);
    }

    /// Lets [`Connection::ask`] wake the task that polls with `context`. The task keeps `known` between two calls, so
    /// that every call but the first costs one comparison.
    pub fn wake_me(&self, context: &Context<'_>, known: &mut Option<Waker>) {
        let waker = context.waker();
        if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return;
        }
        *known = Some(waker.clone());
        *self.waker.lock() = Some(waker.clone());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !*self.has_asked.get_mut() {
            self.shared.without_request.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> (Arc<ListenerState>, Connection) {
        let shared = Arc::new(ListenerState::default());
        shared.set_now(10);
        (shared.clone(), Connection::new(shared))
    }

    #[test]
    fn a_connection_goes_through_its_phases() {
        let (shared, connection) = connection();
        assert_eq!(connection.phase(), (ConnectionPhase::NoRequest, 10));
        shared.set_now(20);
        connection.has_read();
        assert_eq!(connection.phase(), (ConnectionPhase::NoRequest, 10));
        assert_eq!(shared.without_request.load(Relaxed), 1);
        let exchange = connection.begin(false);
        connection.body_begins();
        assert_eq!(shared.without_request.load(Relaxed), 0);
        assert_eq!(connection.phase(), (ConnectionPhase::Receiving, 20));
        connection.body_ends();
        assert_eq!(connection.phase(), (ConnectionPhase::Busy, 20));
        shared.set_now(30);
        connection.is_blocked();
        assert_eq!(connection.phase(), (ConnectionPhase::Unread, 30));
        connection.has_written();
        connection.end(exchange);
        assert_eq!(connection.phase(), (ConnectionPhase::Idle, 30));
        shared.set_now(40);
        connection.has_read();
        assert_eq!(connection.phase(), (ConnectionPhase::PartialHead, 40));
    }

    #[test]
    fn the_rest_of_a_body_that_nobody_wants_is_no_head() {
        let (shared, connection) = connection();
        let exchange = connection.begin(false);
        connection.body_begins();
        connection.body_ends();
        connection.discard_begins();
        assert_eq!(connection.phase(), (ConnectionPhase::Busy, 10));
        shared.set_now(20);
        connection.end(exchange);
        shared.set_now(30);
        connection.has_read();
        assert_eq!(connection.phase(), (ConnectionPhase::Discarding, 20));
        assert!(connection.is_quiet());
        connection.discard_ends();
        assert_eq!(connection.phase(), (ConnectionPhase::Idle, 20));
        connection.has_read();
        assert_eq!(connection.phase(), (ConnectionPhase::PartialHead, 30));
    }

    #[test]
    fn an_answer_over_http2_that_nobody_makes_room_for_is_unread_and_pings_are_no_heads() {
        let (shared, connection) = connection();
        let exchange = connection.begin(true);
        connection.offered(exchange);
        shared.set_now(50);
        let other = connection.begin(true);
        assert_eq!(connection.phase(), (ConnectionPhase::Unread, 10));
        connection.end(exchange);
        connection.end(other);
        connection.has_read();
        assert_eq!(connection.phase(), (ConnectionPhase::Idle, 50));
    }

    #[test]
    fn what_is_asked_grows_and_is_taken_back_only_where_it_was_a_release() {
        let (_, connection) = connection();
        connection.ask(CloseOrder::Release);
        connection.keep();
        assert_eq!(connection.order(), CloseOrder::Go);
        connection.ask(CloseOrder::Abort);
        connection.ask(CloseOrder::Drain);
        connection.keep();
        assert_eq!(connection.order(), CloseOrder::Abort);
    }

    #[test]
    fn a_connection_that_ends_without_a_request_is_no_longer_counted() {
        let (shared, connection) = connection();
        drop(connection);
        assert_eq!(shared.without_request.load(Relaxed), 0);
    }
}

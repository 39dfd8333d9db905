//! The times of one exchange with a service. Noting them costs little, and they are read only if the attempt is recorded.

use parking_lot::Mutex;

use super::counted::BytesReceived;
use crate::clock::{self, Instant};

/// Notes when the parts of an exchange are done.
#[derive(Default)]
pub(in crate::agent) struct ExchangeClock(Mutex<NotedTimes>);

/// The times that were noted.
#[derive(Clone, Copy, Default)]
pub(in crate::agent) struct NotedTimes {
    /// The instance began to send.
    pub began: Option<Instant>,
    /// The name of the host was resolved, for a new connection.
    pub resolved: Option<Instant>,
    /// A new connection was open, before TLS.
    pub connected: Option<Instant>,
    /// A new connection could be used.
    pub ready: Option<Instant>,
    /// The last byte of the request was handed to the system.
    pub sent: Option<Instant>,
    /// The head of the response had come.
    pub responded: Option<Instant>,
}

impl ExchangeClock {
    pub fn begin(&self) {
        self.0.lock().began = Some(clock::instant());
    }

    /// A new connection can be used, or could not be opened.
    pub fn opened(&self, opening: &BytesReceived, is_ready: bool) {
        let mut noted = self.0.lock();
        noted.resolved = opening.resolved();
        noted.connected = opening.connected();
        noted.ready = is_ready.then(clock::instant);
    }

    /// The head of the response has come.
    pub fn responded(&self) {
        self.0.lock().responded = Some(clock::instant());
    }

    /// Notes when the request was sent once the guard is dropped, with or without a response.
    pub fn sending<'a>(&'a self, received: &BytesReceived) -> SendingNote<'a> {
        SendingNote {
            clock: self,
            received: received.clone(),
        }
    }

    pub fn noted(&self) -> NotedTimes {
        *self.0.lock()
    }
}

/// See [`ExchangeClock::sending`].
pub(in crate::agent) struct SendingNote<'a> {
    clock: &'a ExchangeClock,
    received: BytesReceived,
}

impl Drop for SendingNote<'_> {
    fn drop(&mut self) {
        // The last write on a connection that was kept may belong to an earlier request.
        let is_sent = !self.received.has_sent_nothing();
        self.clock.0.lock().sent = self.received.sent_at().filter(|_| is_sent);
    }
}

//! All open connections: their limits, the choice of those that make way for new ones, and of those that are overdue.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::warn;

use super::{
    ListenerLimits,
    connection::{CloseOrder, Connection, ConnectionPhase, ListenerState},
};
use crate::clock::{self, Instant, timeout};

/// The share of the limit that makes way at once, as a divisor: one pass over all connections must make room for more
/// than one newcomer.
const BATCH: usize = 64;
/// A client that has caused a wait of less than this time, in milliseconds, counts as about to send or to read. Clients
/// that stall for longer make way before it.
const PROMPT: u64 = 1000;
/// The wait of a newcomer before all connections are checked again, if none could make way.
const CHECK_AGAIN: Duration = Duration::from_millis(100);
/// The log repeats at this interval that connections make way.
const LOG_AGAIN: Duration = Duration::from_secs(10);

pub struct Connections {
    limits: ListenerLimits,
    shared: Arc<ListenerState>,
    opened: Instant,
    /// The open connections, in the order in which they were accepted.
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// Notified when a connection has closed.
    freed: Notify,
    /// Notified when a connection was opened.
    admitted: Notify,
    said: Mutex<Option<Instant>>,
}

/// The entry of one connection in the list. It is dropped with the connection.
pub struct Ticket {
    pub connection: Arc<Connection>,
    number: u64,
    connections: Arc<Connections>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.number);
        self.connections.freed.notify_one();
    }
}

impl Connections {
    pub fn new(limits: ListenerLimits) -> Self {
        metrics::describe_gauge!(
            "provost_http_connections",
            "Open connections to the API, by whether they have sent a request"
        );
        metrics::describe_counter!(
            "provost_http_connections_closed_total",
            "Connections to the API that the service closed, by reason"
        );
        let shared = Arc::new(ListenerState::default());
        shared.set_now(1);
        Self {
            limits,
            shared,
            opened: clock::instant(),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            freed: Notify::new(),
            admitted: Notify::new(),
            said: Mutex::default(),
        }
    }

    pub fn limits(&self) -> &ListenerLimits {
        &self.limits
    }

    /// Admits a connection. If the limit is reached, others make way; while none can, the new one waits.
    pub async fn admit(self: &Arc<Self>) -> Ticket {
        while self.open.lock().len() >= self.limits.max_connections {
            let closing = self.make_way();
            self.say("listener.max_connections", closing);
            // A connection that closed in the meantime is not missed, because it left a permit in `freed`.
            let _ = timeout(CHECK_AGAIN, self.freed.notified()).await;
        }
        if self.shared.without_request.load(Relaxed) >= self.limits.max_without_request {
            let most = 1 + self.limits.max_without_request / BATCH;
            let closing = self.close_without_request(most);
            self.say("listener.max_without_request", closing);
        }
        let number = self.next.fetch_add(1, Relaxed);
        let mut open = self.open.lock();
        if open.is_empty() {
            // The clock stands still while there is no connection.
            self.shared.set_now(self.elapsed());
            self.admitted.notify_one();
        }
        let connection = Arc::new(Connection::new(self.shared.clone()));
        open.insert(number, connection.clone());
        drop(open);
        Ticket {
            connection,
            number,
            connections: self.clone(),
        }
    }

    /// Closes some of the least useful connections: first the oldest without a request, then those that wait for a
    /// next request, then those whose clients neither send nor read. Returns how many are being closed.
    pub fn make_way(&self) -> usize {
        let most = 1 + self.limits.max_connections / BATCH;
        let now = self.shared.now();
        let mut candidates: Vec<_> = self
            .open
            .lock()
            .values()
            .filter(|connection| connection.order() == CloseOrder::Go)
            .filter_map(|connection| {
                let (phase, since) = connection.phase();
                Some((
                    rank(phase, now.saturating_sub(since))?,
                    since,
                    connection.clone(),
                ))
            })
            .collect();
        // The sort is stable: connections of one tick stay in the order in which they came.
        candidates.sort_by_key(|(rank, since, _)| (*rank, *since));
        let first = candidates.first().map(|(rank, ..)| *rank);
        let chosen = candidates.into_iter().take(most);
        let mut closing = 0;
        for (_, _, connection) in chosen.take_while(|(rank, ..)| Some(*rank) == first) {
            let (order, reason) = match connection.phase().0 {
                ConnectionPhase::NoRequest => (CloseOrder::Release, "no_room_without_request"),
                ConnectionPhase::Receiving | ConnectionPhase::Unread => {
                    (CloseOrder::Abort, "no_room_stalled")
                }
                _ => (CloseOrder::Release, "no_room_idle"),
            };
            close(&connection, order, reason);
            closing += 1;
        }
        closing
    }

    fn close_without_request(&self, most: usize) -> usize {
        let mut closing = 0;
        let open = self.open.lock();
        let silent = open.values().filter(|connection| {
            connection.order() == CloseOrder::Go
                && connection.phase().0 == ConnectionPhase::NoRequest
        });
        for connection in silent.take(most) {
            close(connection, CloseOrder::Release, "no_room_without_request");
            closing += 1;
        }
        closing
    }

    /// Updates the clock, and closes the connections that are overdue. Returns whether connections are open.
    pub fn sweep(&self) -> bool {
        let now = self.elapsed();
        self.shared.set_now(now);
        let open = self.open.lock();
        for connection in open.values() {
            self.close_if_overdue(connection, now);
        }
        let without_request = self.shared.without_request.load(Relaxed);
        let asked = open.len().saturating_sub(without_request);
        gauge!("provost_http_connections", "request" => "none").set(without_request as f64);
        gauge!("provost_http_connections", "request" => "some").set(asked as f64);
        !open.is_empty()
    }

    /// Waits until a connection has been opened.
    pub async fn admitted(&self) {
        self.admitted.notified().await;
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn close_if_overdue(&self, connection: &Connection, now: u64) {
        let (phase, since) = connection.phase();
        let waited = Duration::from_millis(now.saturating_sub(since));
        let of = &self.limits;
        // An HTTP/2 client that was asked to leave has had one tick of time.
        if connection.order() == CloseOrder::Drain
            && phase == ConnectionPhase::Idle
            && waited > of.tick()
        {
            return connection.ask(CloseOrder::Abort);
        }
        if connection.order() == CloseOrder::Abort {
            return;
        }
        let idle = match connection.is_http2() {
            true => CloseOrder::Drain,
            false => CloseOrder::Release,
        };
        let (longest, order, reason) = match phase {
            ConnectionPhase::NoRequest => (of.head_timeout, CloseOrder::Release, "no_request"),
            ConnectionPhase::PartialHead => (of.head_timeout, CloseOrder::Release, "slow_head"),
            ConnectionPhase::Idle => (of.idle_timeout, idle, "idle"),
            ConnectionPhase::Discarding => (of.body_timeout, CloseOrder::Release, "slow_body"),
            ConnectionPhase::Unread => (of.stall_timeout, CloseOrder::Abort, "unread"),
            // The code that reads the body ends these phases in time.
            ConnectionPhase::Receiving | ConnectionPhase::Busy => return,
        };
        if waited >= longest && connection.order() < order {
            close(connection, order, reason);
        }
    }

    /// Makes every connection refuse further requests. Idle connections close, and those whose clients stall.
    pub fn drain(&self) {
        let now = self.shared.now();
        for connection in self.open.lock().values() {
            let (phase, since) = connection.phase();
            let stalls = now.saturating_sub(since) >= PROMPT;
            connection.ask(match phase {
                ConnectionPhase::Receiving | ConnectionPhase::Unread if stalls => CloseOrder::Abort,
                _ => CloseOrder::Drain,
            });
        }
    }

    /// Closes all connections. Returns how many there were.
    pub fn abort(&self) -> usize {
        let open = self.open.lock();
        for connection in open.values() {
            connection.ask(CloseOrder::Abort);
        }
        open.len()
    }

    /// Waits until the last connection has closed.
    pub async fn emptied(&self) {
        while !self.open.lock().is_empty() {
            let _ = timeout(CHECK_AGAIN, self.freed.notified()).await;
        }
    }

    fn say(&self, limit: &'static str, closing: usize) {
        let mut said = self.said.lock();
        at_most_every(&mut said, LOG_AGAIN, || {
            warn!(
                limit,
                closing, "too many connections: closing idle ones to make room"
            );
        });
    }
}

/// Returns the rank of a connection that can make way; the lowest rank is first. `None` if it cannot.
fn rank(phase: ConnectionPhase, waited: u64) -> Option<u8> {
    let stalls = waited >= PROMPT;
    match phase {
        ConnectionPhase::NoRequest if stalls => Some(0),
        ConnectionPhase::PartialHead | ConnectionPhase::Idle | ConnectionPhase::Discarding => {
            Some(1)
        }
        ConnectionPhase::Receiving if stalls => Some(2),
        ConnectionPhase::Unread if stalls => Some(3),
        // In a flood all connections are new; the oldest of them make way.
        ConnectionPhase::NoRequest | ConnectionPhase::Receiving => Some(4),
        ConnectionPhase::Unread | ConnectionPhase::Busy => None,
    }
}

fn close(connection: &Connection, order: CloseOrder, reason: &'static str) {
    connection.ask(order);
    counter!("provost_http_connections_closed_total", "reason" => reason).increment(1);
}

/// Calls `say`, but at most once in the time `every`.
pub fn at_most_every(said: &mut Option<Instant>, every: Duration, say: impl FnOnce()) {
    if said.is_none_or(|said| said.elapsed() >= every) {
        *said = Some(clock::instant());
        say();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_stall_make_way_before_those_who_have_just_come() {
        let order = [
            (ConnectionPhase::NoRequest, PROMPT),
            (ConnectionPhase::Idle, 0),
            (ConnectionPhase::Receiving, PROMPT),
            (ConnectionPhase::Unread, PROMPT),
            (ConnectionPhase::NoRequest, 0),
        ];
        let ranks = order.map(|(phase, waited)| rank(phase, waited));
        assert!(
            ranks.is_sorted() && ranks.iter().all(Option::is_some),
            "{ranks:?}"
        );
        assert_eq!(
            rank(ConnectionPhase::Receiving, 0),
            rank(ConnectionPhase::NoRequest, 0)
        );
        assert_eq!(rank(ConnectionPhase::Busy, PROMPT), None);
    }
}

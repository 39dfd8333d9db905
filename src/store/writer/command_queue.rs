//! The queue of requests from which the committers take their batches.
//!
//! While one committer waits for the database, another decides and sends the next batch, so that neither this process
//! nor the database is idle. The commands on one task stay in order: while a committer saves a task, the next command
//! on that task waits, and every later one waits after it. So no committer decides on a task that another is about to
//! change.

use std::{collections::HashSet, ops::Range, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc};

use super::request::{Apply, LeaseCall, Request};
use crate::{
    clock::{self, Instant, sleep_until},
    domain::values::TaskId,
    store::Peers,
};

/// The fewest requests that a committer takes while another is saving a batch.
const BESIDE: usize = 24;
/// Batches of these sizes wait for more requests under load, see [`LastBatch`].
const SMALL: Range<usize> = 3..40;

/// The most requests that wait for a committer. Further ones wait in the channel, and then before it.
const WAITING: usize = 4096;

pub(super) struct CommandQueue {
    arrivals: AsyncMutex<Arrivals>,
    /// Requests that a committer took and did not decide. They come first.
    returned: Mutex<Vec<Request>>,
    committers: usize,
    in_flight: Mutex<BatchesInFlight>,
    peers: Peers,
    /// Notified when a committer has saved its batch.
    saved: Notify,
}

struct Arrivals {
    requests: mpsc::Receiver<Request>,
    /// Requests for leases come before all others, because a lease may expire. `None` if they use another connection.
    leases: Option<mpsc::Receiver<LeaseCall>>,
    /// Requests that wait for a committer, in the order of their arrival.
    waiting: Vec<Request>,
}

/// The batches that the committers are saving.
#[derive(Default)]
struct BatchesInFlight {
    keys: HashSet<ConflictKey>,
    requests: usize,
    last_batch: Option<LastBatch>,
}

/// The size and the duration of the batch that was saved last.
///
/// If several instances load one database, each has small batches, and the fixed cost of every batch is what keeps all
/// of them busy. So right after a small batch a committer waits for as many requests again, but no longer than the last
/// batch took, or half of that if no other instance is busy. A batch of one or two requests, and one that ended longer
/// ago than it took, is no sign of load.
#[derive(Clone, Copy, Debug)]
struct LastBatch {
    requests: usize,
    took: Duration,
    ended: Instant,
}

impl LastBatch {
    fn until(self, now: Instant, peers_are_busy: bool) -> Instant {
        let is_load = SMALL.contains(&self.requests) && now < self.ended + self.took;
        match (is_load, peers_are_busy) {
            (false, _) => now,
            (true, false) => now + self.took / 2,
            (true, true) => now + self.took,
        }
    }
}

/// Two committers must not decide at the same time on requests that share a key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum ConflictKey {
    Task(TaskId),
    Key(String),
}

/// Marks a batch as in flight until it is dropped.
pub(super) struct BatchGuard<'i> {
    command_queue: &'i CommandQueue,
    keys: Vec<ConflictKey>,
    requests: usize,
    since: Instant,
}

impl CommandQueue {
    pub fn new(
        requests: mpsc::Receiver<Request>,
        leases: Option<mpsc::Receiver<LeaseCall>>,
        committers: usize,
        peers: Peers,
    ) -> Self {
        Self {
            arrivals: AsyncMutex::new(Arrivals {
                requests,
                leases,
                waiting: Vec::new(),
            }),
            returned: Mutex::default(),
            committers,
            in_flight: Mutex::default(),
            peers,
            saved: Notify::new(),
        }
    }

    /// Returns up to `most` requests, in the order of their arrival. Returns `None` when no more will come.
    ///
    /// A single command waits for no other: it is a batch of one. While another batch is being saved, a committer
    /// gathers until there is half as much to do, because all would take longer with a commit for each late request.
    pub async fn next(&self, most: usize, batch: &mut Vec<Request>) -> Option<BatchGuard<'_>> {
        let mut arrivals = self.arrivals.lock().await;
        if self.committers == 1 {
            batch.append(&mut self.returned.lock());
            if batch.is_empty() {
                arrivals.receive(most, batch).await?;
            } else {
                arrivals.receive_at_once(most, batch);
            }
            return Some(self.take(batch));
        }
        let mut is_open = true;
        let mut until = None;
        loop {
            self.pick(&mut arrivals.waiting, most, batch);
            let is_all = !is_open && arrivals.waiting.is_empty();
            if is_all {
                return (!batch.is_empty()).then(|| self.take(batch));
            }
            if self.is_enough(batch.len(), most) {
                let now = clock::instant();
                let last_batch = self.last_batch();
                let until = *until.get_or_insert_with(|| self.until(now));
                if now >= until
                    || last_batch.is_none_or(|last_batch| batch.len() >= last_batch.requests)
                {
                    return Some(self.take(batch));
                }
            }
            let mut arrived = Vec::new();
            let has_room = arrivals.waiting.len() < WAITING;
            tokio::select! {
                received = arrivals.receive(most, &mut arrived), if is_open && has_room => {
                    is_open = received.is_some();
                }
                () = self.saved.notified() => {}
                () = sleep_until(until.unwrap_or_else(clock::instant)), if until.is_some() => {}
            }
            arrivals.waiting.append(&mut arrived);
        }
    }

    /// Takes back requests that were taken and not decided, while they still count as taken.
    pub fn put_back(&self, requests: &mut Vec<Request>) {
        let put_back = requests.drain(..).filter_map(Request::put_back);
        let mut put_back: Vec<_> = put_back.collect();
        self.returned.lock().append(&mut put_back);
    }

    /// Moves the requests whose keys no committer is saving to the batch.
    fn pick(&self, waiting: &mut Vec<Request>, most: usize, batch: &mut Vec<Request>) {
        waiting.splice(0..0, self.returned.lock().drain(..));
        let in_flight = self.in_flight.lock();
        let mut room = most.saturating_sub(batch.len());
        let mut passed_over = HashSet::new();
        let is_ready = |request: &mut Request| {
            let is_busy =
                |key: &ConflictKey| in_flight.keys.contains(key) || passed_over.contains(key);
            if room > 0 && !request.keys().any(|key| is_busy(&key)) {
                room -= 1;
                return true;
            }
            passed_over.extend(request.keys());
            false
        };
        batch.extend(waiting.extract_if(.., is_ready));
    }

    fn is_enough(&self, count: usize, most: usize) -> bool {
        let least = match self.in_flight.lock().requests {
            0 => 1,
            beside => BESIDE.max(beside / 2).min(most),
        };
        count >= least
    }

    fn last_batch(&self) -> Option<LastBatch> {
        self.in_flight.lock().last_batch
    }

    /// Returns the time until which a committer with enough requests waits for more.
    fn until(&self, now: Instant) -> Instant {
        self.last_batch().map_or(now, |last_batch| {
            last_batch.until(now, self.peers.are_busy(now))
        })
    }

    fn take(&self, batch: &[Request]) -> BatchGuard<'_> {
        let keys: Vec<_> = match self.committers {
            1 => Vec::new(),
            _ => batch.iter().flat_map(Request::keys).collect(),
        };
        let mut in_flight = self.in_flight.lock();
        in_flight.keys.extend(keys.iter().cloned());
        in_flight.requests += batch.len();
        BatchGuard {
            command_queue: self,
            keys,
            requests: batch.len(),
            since: clock::instant(),
        }
    }
}

impl BatchGuard<'_> {
    /// Takes one more task for this batch, unless another committer is saving it.
    pub fn take_task(&mut self, task: TaskId) -> bool {
        if self.command_queue.committers == 1 {
            return true;
        }
        let key = ConflictKey::Task(task);
        if self.command_queue.in_flight.lock().keys.insert(key.clone()) {
            self.keys.push(key);
            return true;
        }
        self.keys.contains(&key)
    }
}

impl Arrivals {
    /// Waits for at least one request, and takes all that have arrived with it. Returns `None` when no more will come.
    async fn receive(&mut self, most: usize, into: &mut Vec<Request>) -> Option<()> {
        let Self {
            requests, leases, ..
        } = self;
        let lease = async {
            match leases {
                Some(leases) => leases.recv().await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            Some(lease) = lease => into.push(Request::Leases(lease)),
            received = requests.recv_many(into, most) => {
                if received == 0 {
                    return None;
                }
            }
        }
        // Yields once to every future that is ready to run now. Under load their commands join this batch, and a single
        // command waits for no other.
        tokio::task::yield_now().await;
        self.receive_at_once(most, into);
        Some(())
    }

    /// Takes all requests that have arrived, up to `most`.
    fn receive_at_once(&mut self, most: usize, into: &mut Vec<Request>) {
        while let Some(leases) = &mut self.leases
            && let Ok(lease) = leases.try_recv()
        {
            into.push(Request::Leases(lease));
        }
        while into.len() < most
            && let Ok(request) = self.requests.try_recv()
        {
            into.push(request);
        }
    }
}

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.command_queue.in_flight.lock();
        for key in &self.keys {
            in_flight.keys.remove(key);
        }
        in_flight.requests -= self.requests;
        in_flight.last_batch = Some(LastBatch {
            requests: self.requests,
            took: self.since.elapsed(),
            ended: clock::instant(),
        });
        drop(in_flight);
        self.command_queue.saved.notify_one();
    }
}

impl Request {
    fn keys(&self) -> impl Iterator<Item = ConflictKey> + use<> {
        let (task, idempotency) = match self {
            Request::Submit {
                details,
                idempotency,
                ..
            } => (Some(details.id), idempotency.as_ref()),
            Request::Apply {
                apply: Apply {
                    task, idempotency, ..
                },
                ..
            } => (Some(*task), idempotency.as_ref()),
            Request::ClaimQueued { .. } | Request::Write(_) | Request::Leases(_) => (None, None),
        };
        let key = idempotency.map(|idempotency| ConflictKey::Key(idempotency.key.clone()));
        task.map(ConflictKey::Task).into_iter().chain(key)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;
    use tokio::sync::oneshot;
    use uuid::Uuid;

    use super::*;
    use crate::{
        domain::{
            task::{Actor, Command},
            values::{Holder, Incarnation, InstanceId},
        },
        store::{Idempotency, writer::request::LeaseRequest},
    };

    fn command_queue(committers: usize) -> (mpsc::Sender<Request>, CommandQueue) {
        let (requests, receiver) = mpsc::channel(64);
        (
            requests,
            CommandQueue::new(receiver, None, committers, Peers::default()),
        )
    }

    /// `mark` distinguishes the commands on one task.
    fn command(task: u128, mark: u64, key: Option<&str>) -> Request {
        Request::Apply {
            apply: Apply::new(
                TaskId(Uuid::from_u128(task)),
                Command::Resume { reason: None },
                Actor::operator("ann"),
            )
            .at_version(Some(mark))
            .under_key(key.map(|key| Idempotency {
                key: key.to_owned(),
                fingerprint: String::new(),
            })),
            answer: oneshot::channel().0.into(),
        }
    }

    fn marks(batch: &[Request]) -> Vec<u64> {
        let mark = |request: &Request| match request {
            Request::Apply { apply, .. } => apply.if_version,
            _ => None,
        };
        batch.iter().filter_map(mark).collect()
    }

    /// Returns the result of the future if it comes within many turns, or `None` if the future still waits.
    async fn settle<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        for _ in 0..50 {
            if let Poll::Ready(done) = poll!(&mut future) {
                return Some(done);
            }
            tokio::task::yield_now().await;
        }
        None
    }

    #[tokio::test]
    async fn a_lone_command_waits_for_nobody() {
        for committers in [1, 2] {
            let (requests, command_queue) = command_queue(committers);
            requests.send(command(1, 1, None)).await.unwrap();
            let mut batch = Vec::new();
            assert!(settle(command_queue.next(8, &mut batch)).await.is_some());
            assert_eq!(marks(&batch), [1]);
        }
    }

    #[tokio::test]
    async fn what_becomes_of_a_task_stays_in_order() {
        let (requests, command_queue) = command_queue(2);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        requests.send(command(1, 1, None)).await.unwrap();
        let taken = command_queue.next(8, &mut one).await;
        for (task, mark) in [(1, 2), (2, 3), (1, 4), (3, 5)] {
            requests.send(command(task, mark, None)).await.unwrap();
        }
        let beside = command_queue.next(2, &mut other).await;
        assert_eq!(marks(&other), [3, 5], "the first task is being saved");
        one.clear();
        assert!(settle(command_queue.next(8, &mut one)).await.is_none());
        drop((taken, beside));
        assert!(settle(command_queue.next(8, &mut one)).await.is_some());
        assert_eq!(marks(&one), [2, 4]);
    }

    #[tokio::test]
    async fn what_has_no_room_in_a_batch_keeps_its_place() {
        let (requests, command_queue) = command_queue(2);
        for (task, mark) in [(1, 1), (2, 2), (3, 3), (2, 4), (1, 5)] {
            requests.send(command(task, mark, None)).await.unwrap();
        }
        let mut batch = Vec::new();
        let mut seen = Vec::new();
        while seen.len() < 5 {
            let _taken = command_queue.next(2, &mut batch).await.unwrap();
            seen.extend(marks(&batch));
            batch.clear();
        }
        assert_eq!(seen, [1, 2, 3, 4, 5]);
    }

    #[tokio::test]
    async fn what_was_put_back_comes_first_and_leases_pass_all() {
        for committers in [1, 2] {
            let (requests, mut command_queue) = command_queue(committers);
            let (leases, asked) = mpsc::channel(8);
            if committers == 1 {
                command_queue.arrivals.get_mut().leases = Some(asked);
            }
            send(&requests, 0..3).await;
            let mut batch = Vec::new();
            let taken = command_queue.next(8, &mut batch).await;
            assert_eq!(marks(&batch), [0, 1, 2]);
            let mut rest = batch.split_off(1);
            batch.clear();
            requests.send(command(1, 7, None)).await.unwrap();
            command_queue.put_back(&mut rest);
            drop(taken);
            if committers == 1 {
                let lease = LeaseCall {
                    asked: LeaseRequest::GiveUp(Holder {
                        instance: InstanceId::new("a"),
                        incarnation: Incarnation(Uuid::from_u128(1)),
                    }),
                    answer: oneshot::channel().0.into(),
                };
                leases.send(lease).await.unwrap();
            }
            let _taken = command_queue.next(8, &mut batch).await;
            assert!(
                marks(&batch).starts_with(&[1, 2]),
                "with {committers} committers"
            );
            let has_lease = batch
                .iter()
                .any(|request| matches!(request, Request::Leases(_)));
            assert_eq!(has_lease, committers == 1);
        }
    }

    #[tokio::test]
    async fn two_requests_under_one_key_are_not_decided_on_side_by_side() {
        let (requests, command_queue) = command_queue(2);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        requests.send(command(1, 1, Some("k"))).await.unwrap();
        let taken = command_queue.next(8, &mut one).await;
        requests.send(command(2, 2, Some("k"))).await.unwrap();
        assert!(settle(command_queue.next(8, &mut other)).await.is_none());
        drop(taken);
        assert!(settle(command_queue.next(8, &mut other)).await.is_some());
        assert_eq!(marks(&other), [2]);
    }

    async fn send(requests: &mpsc::Sender<Request>, tasks: Range<u64>) {
        for task in tasks {
            let sent = requests.send(command(task.into(), task, None)).await;
            assert!(sent.is_ok());
        }
    }

    #[tokio::test]
    async fn beside_a_batch_a_lane_gathers_and_no_longer_than_that_lasts() {
        let (requests, command_queue) = command_queue(2);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        send(&requests, 0..60).await;
        let taken = command_queue.next(100, &mut one).await;
        assert_eq!(one.len(), 60);
        send(&requests, 60..89).await;
        {
            let mut next = std::pin::pin!(command_queue.next(100, &mut other));
            assert!(settle(&mut next).await.is_none(), "29 are less than half");
            send(&requests, 89..90).await;
            let beside = settle(&mut next).await;
            drop(beside.expect("30 are half of 60"));
        }
        assert_eq!(other.len(), 30);
        other.clear();
        send(&requests, 90..91).await;
        {
            let mut next = std::pin::pin!(command_queue.next(100, &mut other));
            assert!(settle(&mut next).await.is_none());
            drop(taken);
            assert!(settle(&mut next).await.is_some(), "nothing is under way");
        }
        assert_eq!(marks(&other), [90]);
    }

    #[test]
    fn right_after_a_small_batch_a_lane_waits_but_not_for_long() {
        let ended = clock::instant();
        let took = Duration::from_millis(10);
        let waits = |requests, later, peers_are_busy| {
            let now = ended + Duration::from_millis(later);
            let last_batch = LastBatch {
                requests,
                took,
                ended,
            };
            last_batch.until(now, peers_are_busy) - now
        };
        assert_eq!(waits(8, 0, false), took / 2);
        assert_eq!(waits(8, 9, false), took / 2);
        assert_eq!(waits(8, 9, true), took);
        for peers_are_busy in [false, true] {
            for (requests, later) in [(8, 10), (1, 0), (2, 0), (40, 0), (200, 0)] {
                let wait = waits(requests, later, peers_are_busy);
                assert_eq!(wait, Duration::ZERO, "{requests}, {later}");
            }
        }
    }

    #[test]
    fn an_instance_beside_others_waits_for_longer_only_while_they_are_busy() {
        let (_requests, command_queue) = command_queue(2);
        let now = clock::instant();
        assert_eq!(command_queue.until(now), now, "nothing was saved yet");
        let took = Duration::from_secs(10);
        command_queue.in_flight.lock().last_batch = Some(LastBatch {
            requests: 8,
            took,
            ended: now,
        });
        assert_eq!(command_queue.until(now), now + took / 2);
        command_queue.peers.heard();
        assert_eq!(command_queue.until(now), now + took);
        let later = clock::instant() + Duration::from_secs(1);
        assert_eq!(command_queue.until(later), later + took / 2);
    }

    #[tokio::test]
    async fn what_was_sent_before_the_end_is_still_handed_out() {
        let (requests, command_queue) = command_queue(2);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        requests.send(command(1, 1, None)).await.unwrap();
        let taken = command_queue.next(8, &mut one).await;
        requests.send(command(1, 2, None)).await.unwrap();
        drop(requests);
        {
            let mut next = std::pin::pin!(command_queue.next(8, &mut other));
            assert!(settle(&mut next).await.is_none());
            drop(taken);
            assert!(settle(&mut next).await.unwrap().is_some());
        }
        assert_eq!(marks(&other), [2]);
        assert!(command_queue.next(8, &mut Vec::new()).await.is_none());
    }
}

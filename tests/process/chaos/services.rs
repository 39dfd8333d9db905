//! The remote services of the operated chaos, on one socket. They are correct: they do the work of a key once, remember
//! undos, and respond to a probe with the truth. They are overloaded, refuse, hang, break connections and are slow as
//! the seed decides, and record every call and every effect. Services whose path begins with `/later` reply later,
//! those at `/polled` are polled, for those at `/fetched` workers do the work, and those at `/queued` get their
//! requests from a queue.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    super::{
        audit::{At, Call, Deed, Effect, Fetched, Found, Kind, Ledger, Promised, subject},
        harness::{Act, Api, Hook, Remote, Seen},
    },
    promises::{Outbox, Promise, promised_by},
};

#[derive(Clone)]
pub struct Services {
    remote: Remote,
    desk: Arc<Desk>,
}

struct Desk {
    seed: u64,
    faults: BTreeSet<ServiceFault>,
    books: Mutex<Books>,
    outbox: Outbox,
}

#[derive(Default)]
struct Books {
    /// The state of each work by its key.
    entries: HashMap<String, Entry>,
    /// The number of calls of a kind under a key.
    counts: HashMap<(String, Kind), u32>,
    /// The operations that are polled and have failed.
    failed: HashSet<String>,
    /// The attempts from the queue that have a reply or will have one. The broker may deliver their requests again.
    replied: HashSet<Promised>,
    ledger: Ledger,
    /// True once there are no more faults.
    well: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Entry {
    Absent,
    /// The work is being done or undone. Other calls are asked to retry.
    UnderWay(Found),
    Done,
    Undone,
    Withdrawn,
}

/// A kind of fault that services have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ServiceFault {
    /// A service does not do the work, and says so.
    Overload,
    /// A service refuses the work permanently.
    Refusal,
    /// A connection breaks before or after the work.
    Cut,
    /// A response comes late, or never.
    Silence,
    /// A response is not what its head says.
    Garbling,
    /// The bytes of a response come one by one.
    SlowBytes,
    /// A request arrives again later.
    Double,
    /// A worker dies after it has fetched a step, or a service after it has taken a request from its queue.
    DeadWorker,
    /// A promised reply is not sent.
    SilentPromise,
    /// The work that was promised is lost.
    ForgottenPromise,
    /// The work that was promised fails.
    FailedPromise,
}

impl ServiceFault {
    pub const ALL: [Self; 11] = [
        Self::Overload,
        Self::Refusal,
        Self::Cut,
        Self::Silence,
        Self::Garbling,
        Self::SlowBytes,
        Self::Double,
        Self::DeadWorker,
        Self::SilentPromise,
        Self::ForgottenPromise,
        Self::FailedPromise,
    ];
}

/// The fault that a call meets, if any.
enum Luck {
    Well,
    Overloaded,
    Refused,
    Hangs {
        works: bool,
    },
    Breaks {
        works: bool,
    },
    Garbled,
    Takes(Duration),
    /// The bytes of the response come one by one, each after this time.
    Drips(Duration),
    /// The request arrives again after this time.
    Doubles(Duration),
}

/// The end of a promise to reply later.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Kept,
    /// The work is done, and no reply is sent.
    Silent,
    /// The work is lost.
    Forgotten,
    Fails {
        permanent: bool,
    },
}

impl Services {
    /// Starts services that have these kinds of faults until all is well.
    pub async fn start(seed: u64, faults: BTreeSet<ServiceFault>) -> Self {
        let desk = Arc::new(Desk {
            seed,
            faults,
            books: Mutex::default(),
            outbox: Outbox::default(),
        });
        let serving = Arc::clone(&desk);
        let remote = Remote::with(move |seen| serving.serve(seen)).await;
        Self { remote, desk }
    }

    pub fn url(&self) -> String {
        self.remote.url()
    }

    /// Sets the instances to which later replies are sent.
    pub fn reply_to(&self, apis: Arc<Vec<Api>>) {
        self.desk.outbox.reaches(apis);
    }

    /// Does a step that a worker has fetched, and sends the reply if there is one.
    pub fn fetched(&self, seen: &Seen, fetched: Fetched) {
        self.desk.books().ledger.fetched.push(fetched);
        self.desk.serve(seen);
    }

    /// Does a request that came from a queue, and sends the reply if there is one.
    pub fn requested(&self, seen: &Seen) {
        self.desk.serve(seen);
    }

    /// Sets the broker for replies that are sent through a queue.
    pub fn reply_through(&self, broker: &str) {
        self.desk.outbox.reaches_broker(broker);
    }

    pub fn be_well(&self) {
        self.desk.books().well = true;
    }

    /// Returns whether any work is running.
    pub fn are_busy(&self) -> bool {
        let books = self.desk.books();
        let mut entries = books.entries.values();
        self.desk.outbox.is_busy() || entries.any(|entry| matches!(entry, Entry::UnderWay(_)))
    }

    pub fn ledger(&self) -> Ledger {
        Ledger {
            replies: self.desk.outbox.replies(),
            queued_replies: self.desk.outbox.queued_replies(),
            heartbeats: self.desk.outbox.heartbeats(),
            ..self.desk.books().ledger.clone()
        }
    }
}

impl Desk {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    fn serve(self: &Arc<Self>, seen: &Seen) -> Act {
        let header = |name: &str| seen.headers.get(name).cloned();
        let operation = seen.path.split_once("/operations/");
        let (kind, key, undoes) = if let Some(key) = header("provost-cancels") {
            (Kind::Cancel, key, None)
        } else if let Some((_, key)) = operation {
            (Kind::Poll, key.to_owned(), None)
        } else if let Some(key) = header("provost-probes") {
            (Kind::Probe, key, None)
        } else {
            match header("provost-undoes") {
                Some(undoes) => (Kind::Undo, seen.key().to_owned(), Some(undoes)),
                None => (Kind::Work, seen.key().to_owned(), None),
            }
        };
        let work = undoes.clone().unwrap_or_else(|| key.clone());
        let mut books = self.books();
        let entry = *books.entries.entry(work.clone()).or_insert(Entry::Absent);
        let is_queued = seen.path.starts_with("/queued");
        let call = Call {
            at: At::now(),
            kind,
            task: seen.header("provost-task").to_owned(),
            step: seen.header("provost-step").to_owned(),
            attempt: seen.attempt() as usize,
            key,
            undoes,
            found: entry.found(),
            made_by: seen.body["made_by"].as_u64().unwrap_or(0),
            waited_until: is_queued.then(|| At::of(seen.header("provost-complete-by"))),
        };
        let place = format!(
            "{}/{}",
            seen.header("provost-task-key"),
            subject(&call.step)
        );
        let call_step = call.step.clone();
        books.ledger.calls.push(call);
        let count = books.counts.entry((place.clone(), kind)).or_default();
        *count += 1;
        let mut random = self.random(&place, kind, *count);
        // A probe before an undo that says "not done" says so for good: a request that was dropped may still be on its way.
        let is_before_undo = call_step.ends_with(".undo") || call_step.ends_with(".revert");
        if kind == Kind::Probe && entry == Entry::Absent && is_before_undo {
            books.entries.insert(work.clone(), Entry::Withdrawn);
        }
        // Such a request has no connection for a response.
        let only_replies = is_queued || seen.path.starts_with("/fetched");
        let luck = match books.well {
            true => Luck::Well,
            false => luck(&mut random, kind, entry),
        };
        let luck = match luck.fault(only_replies) {
            Some(fault) if !self.faults.contains(&fault) => Luck::Well,
            _ => luck,
        };
        let works = |books: &mut Books| match kind {
            Kind::Work => books.work(&work),
            Kind::Undo => books.undo(&work),
            Kind::Probe => probed(entry),
            Kind::Poll => books.polled(&work, entry),
            Kind::Cancel => books.cancel(&work, entry),
        };
        let promises = match kind {
            Kind::Work | Kind::Undo if only_replies => true,
            Kind::Work => seen.path.starts_with("/later") || seen.path.starts_with("/polled"),
            Kind::Undo => seen.path.starts_with("/later"),
            _ => false,
        };
        if is_queued && !books.replied.insert(promised_by(seen)) {
            return Act::Close;
        }
        if let Entry::UnderWay(_) = entry
            && !matches!(kind, Kind::Poll | Kind::Cancel)
        {
            if promises && kind == Kind::Work && random.random_ratio(1, 2) {
                return self.promise(kind, &work, None, Fate::Kept, seen, &mut random);
            }
            if only_replies {
                let reply = match kind {
                    Kind::Probe => json!({ "output": { "state": "in_progress" } }),
                    _ => json!({ "error": { "message": "it is under way" } }),
                };
                drop(books);
                return self.tell(seen, &mut random, reply);
            }
            // The result is not known yet.
            return match (kind, seen.path.ends_with("/state")) {
                (Kind::Probe, true) => answer(200, &json!({ "state": "in_progress" })),
                _ => busy(random.random_range(0..2)),
            };
        }
        match luck {
            Luck::Well | Luck::Takes(_) | Luck::Drips(_) | Luck::Doubles(_) if promises => {
                let fate = match books.well {
                    true => Fate::Kept,
                    false => fate(&mut random, kind, entry),
                };
                let fate = match fate.fault() {
                    Some(fault) if !self.faults.contains(&fault) => Fate::Kept,
                    _ => fate,
                };
                let begins = match (kind, entry, fate) {
                    (_, _, Fate::Forgotten) => false,
                    (Kind::Work, Entry::Absent, _) => true,
                    (kind, ..) => kind == Kind::Undo,
                };
                if begins {
                    let under_way = Entry::UnderWay(entry.found());
                    books.entries.insert(work.clone(), under_way);
                }
                drop(books);
                self.promise(
                    kind,
                    &work,
                    begins.then_some(entry),
                    fate,
                    seen,
                    &mut random,
                )
            }
            luck if only_replies => {
                let reply = match luck {
                    Luck::Overloaded => json!({ "error": { "message": "too much to do" } }),
                    Luck::Refused => json!({ "error": { "message": "no", "permanent": true } }),
                    Luck::Hangs { works: does } | Luck::Breaks { works: does } => {
                        // The worker is dead, or the service that had the request, and another may get it. But a
                        // service that has done the work does not report for the same attempt that it was not done.
                        if does {
                            works(&mut books);
                        } else {
                            books.replied.remove(&promised_by(seen));
                        }
                        return Act::Close;
                    }
                    Luck::Garbled => {
                        works(&mut books);
                        json!({ "output": { "receipt": 7 } })
                    }
                    Luck::Well | Luck::Takes(_) | Luck::Drips(_) | Luck::Doubles(_) => {
                        let is_done = entry == Entry::Done;
                        let state = if is_done { "done" } else { "not_done" };
                        json!({ "output": { "state": state, "receipt": { "receipt": 7 } } })
                    }
                };
                drop(books);
                self.tell(seen, &mut random, reply)
            }
            Luck::Well => works(&mut books),
            Luck::Overloaded => {
                let status = [503, 503, 500, 429][random.random_range(0..4)];
                overloaded(status, one_in(&mut random))
            }
            Luck::Refused => Act::status(402),
            Luck::Hangs { works: does } => {
                if does {
                    works(&mut books);
                }
                Act::Hang
            }
            Luck::Breaks { works: does } => {
                if does {
                    works(&mut books);
                }
                Act::Close
            }
            Luck::Garbled => {
                works(&mut books);
                let json = [("content-type", "application/json")];
                Act::answer(200, &json, "{\"receipt\":")
            }
            Luck::Takes(time) => self.later(&mut books, kind, &work, entry, time),
            Luck::Drips(pause) => Act::Slowly(pause, Box::new(works(&mut books))),
            Luck::Doubles(time) => {
                let act = works(&mut books);
                self.again(kind, work.clone(), time);
                act
            }
        }
    }

    /// Has a request arrive again later. Its sender does not wait for a response.
    fn again(self: &Arc<Self>, kind: Kind, work: String, time: Duration) {
        let desk = Arc::clone(self);
        self.outbox.opened();
        tokio::spawn(async move {
            sleep(time).await;
            match kind {
                Kind::Work => desk.books().work(&work),
                _ => desk.books().undo(&work),
            };
            desk.outbox.closed();
        });
    }

    /// Does the work after a while, even if the caller does not wait for it any more.
    fn later(
        self: &Arc<Self>,
        books: &mut Books,
        kind: Kind,
        work: &str,
        entry: Entry,
        time: Duration,
    ) -> Act {
        let nothing: Hook = Arc::new(|| {});
        if !matches!(kind, Kind::Work | Kind::Undo) || kind == Kind::Work && entry != Entry::Absent
        {
            let (happens, act) = match kind {
                Kind::Probe => (nothing, probed(entry)),
                Kind::Poll => (nothing, books.polled(work, entry)),
                Kind::Cancel => self.cancel_later(work, entry),
                _ => (nothing, books.work(work)),
            };
            return Act::Then(time, happens, Box::new(act));
        }
        books
            .entries
            .insert(work.to_owned(), Entry::UnderWay(entry.found()));
        // The result is known in advance, because no other call can change the entry meanwhile.
        let act = match (kind, entry) {
            (Kind::Work, _) => done(),
            (_, Entry::Done | Entry::Undone) => Act::status(204),
            _ => Act::status(404),
        };
        let (desk, work) = (Arc::clone(self), work.to_owned());
        let happens: Hook = Arc::new(move || {
            let mut books = desk.books();
            books.entries.insert(work.clone(), entry);
            match kind {
                Kind::Work => books.work(&work),
                _ => books.undo(&work),
            };
        });
        Act::Then(time, happens, Box::new(act))
    }

    /// Returns the cancellation of work for later, and the response that says it is accepted.
    fn cancel_later(self: &Arc<Self>, work: &str, entry: Entry) -> (Hook, Act) {
        let act = match entry {
            Entry::Absent => Act::status(404),
            _ => Act::status(202),
        };
        let (desk, work) = (Arc::clone(self), work.to_owned());
        let happens = move || {
            let mut books = desk.books();
            let entry = books.entries[&work];
            books.cancel(&work, entry);
        };
        (Arc::new(happens), act)
    }

    /// Sends the reply to a step that was fetched, or that came from a queue.
    fn tell(self: &Arc<Self>, seen: &Seen, random: &mut StdRng, reply: Value) -> Act {
        let promise = Promise::of(seen, random.random());
        self.outbox.opened();
        let desk = Arc::clone(self);
        tokio::spawn(async move {
            desk.outbox.reply(&promise, &reply).await;
            desk.outbox.closed();
        });
        Act::Close
    }

    /// Promises the work. `before` is the entry before the work, if this call begins it; otherwise another call does
    /// the work.
    fn promise(
        self: &Arc<Self>,
        kind: Kind,
        work: &str,
        before: Option<Entry>,
        fate: Fate,
        seen: &Seen,
        random: &mut StdRng,
    ) -> Act {
        let time = Duration::from_millis(random.random_range(10..2_500));
        let is_polled = seen.path.starts_with("/polled");
        let job = Job {
            desk: Arc::clone(self),
            kind,
            work: work.to_owned(),
            before,
            fate,
            ends_at: Instant::now() + time,
            beats: random.random_ratio(1, 2),
            promise: (!is_polled).then(|| Promise::of(seen, random.random())),
        };
        self.outbox.opened();
        tokio::spawn(job.run());
        let location = format!("{}/operations/{work}", seen.path);
        let promise = match is_polled {
            true => Act::answer(202, &[("operation-location", &location)], ""),
            false => Act::answer(202, &[("provost-async", "true")], ""),
        };
        let nothing: Hook = Arc::new(|| {});
        match random.random_range(0..20) {
            // The promise does not arrive.
            0 => Act::Close,
            // The reply may arrive before the promise.
            1..8 if time < Duration::from_millis(800) => {
                Act::Then(time + time / 2, nothing, Box::new(promise))
            }
            _ => promise,
        }
    }

    /// Returns the random numbers for a call. The same call of the same order gets the same ones in every run of a
    /// seed.
    fn random(&self, place: &str, kind: Kind, count: u32) -> StdRng {
        let mut hasher = DefaultHasher::new();
        (self.seed, place, kind, count).hash(&mut hasher);
        StdRng::seed_from_u64(hasher.finish())
    }
}

/// Work that was promised.
struct Job {
    desk: Arc<Desk>,
    kind: Kind,
    work: String,
    before: Option<Entry>,
    fate: Fate,
    ends_at: Instant,
    beats: bool,
    /// The address for the reply. `None`: the service is polled.
    promise: Option<Promise>,
}

impl Job {
    async fn run(self) {
        const BEAT: Duration = Duration::from_millis(250);
        let outbox = &self.desk.outbox;
        let mut beaten = 0.0;
        while timeout(BEAT, tokio::time::sleep_until(self.ends_at))
            .await
            .is_err()
        {
            if let Some(promise) = self.promise.as_ref().filter(|_| self.beats) {
                beaten += 0.01;
                outbox.beat(promise, beaten).await;
            }
        }
        let reply = loop {
            match self.end() {
                // An earlier attempt is still doing the work.
                None => sleep(Duration::from_millis(50)).await,
                Some(reply) => break reply,
            }
        };
        if let (Some(promise), Some(reply)) = (&self.promise, reply) {
            outbox.reply(promise, &reply).await;
        }
        outbox.closed();
    }

    /// Returns the reply, if one is sent. The outer `None`: the work has not ended yet.
    fn end(&self) -> Option<Option<Value>> {
        let mut books = self.desk.books();
        if self.fate == Fate::Forgotten {
            return Some(None);
        }
        // The work may have been cancelled.
        if let (Entry::UnderWay(found), Some(before)) = (books.entries[&self.work], self.before)
            && found == before.found()
        {
            books.entries.insert(self.work.clone(), before);
            match (self.fate, self.kind) {
                (Fate::Fails { permanent }, _) => {
                    if self.kind == Kind::Work {
                        books.failed.insert(self.work.clone());
                    }
                    let message = "no paper";
                    return Some(Some(
                        json!({ "error": { "message": message, "permanent": permanent } }),
                    ));
                }
                (_, Kind::Work) => books.work(&self.work),
                _ => books.undo(&self.work),
            };
        }
        let reply = match (books.entries[&self.work], self.kind) {
            (Entry::UnderWay(_), _) => return None,
            (Entry::Done, Kind::Work) => json!({ "output": { "receipt": 7 } }),
            (Entry::Absent, Kind::Work) => json!({ "error": { "message": "not done" } }),
            (_, Kind::Work) => json!({ "error": { "message": "withdrawn", "permanent": true } }),
            _ => json!({ "output": null }),
        };
        Some((self.fate == Fate::Kept).then_some(reply))
    }
}

impl Luck {
    fn fault(&self, only_replies: bool) -> Option<ServiceFault> {
        Some(match self {
            Luck::Well => return None,
            Luck::Overloaded => ServiceFault::Overload,
            Luck::Refused => ServiceFault::Refusal,
            Luck::Hangs { .. } | Luck::Breaks { .. } if only_replies => ServiceFault::DeadWorker,
            Luck::Hangs { .. } | Luck::Takes(_) => ServiceFault::Silence,
            Luck::Breaks { .. } => ServiceFault::Cut,
            Luck::Garbled => ServiceFault::Garbling,
            Luck::Drips(_) => ServiceFault::SlowBytes,
            Luck::Doubles(_) => ServiceFault::Double,
        })
    }
}

impl Fate {
    fn fault(self) -> Option<ServiceFault> {
        match self {
            Fate::Kept => None,
            Fate::Silent => Some(ServiceFault::SilentPromise),
            Fate::Forgotten => Some(ServiceFault::ForgottenPromise),
            Fate::Fails { .. } => Some(ServiceFault::FailedPromise),
        }
    }
}

fn fate(random: &mut StdRng, kind: Kind, entry: Entry) -> Fate {
    match random.random_range(0..100) {
        0..6 => Fate::Silent,
        6..12 if kind == Kind::Undo || entry == Entry::Absent => Fate::Forgotten,
        12..24 if kind == Kind::Work && entry == Entry::Absent => Fate::Fails {
            permanent: random.random_ratio(1, 3),
        },
        12..18 if kind == Kind::Undo && entry == Entry::Done => Fate::Fails {
            permanent: random.random_ratio(1, 3),
        },
        _ => Fate::Kept,
    }
}

fn luck(random: &mut StdRng, kind: Kind, entry: Entry) -> Luck {
    let millis =
        |random: &mut StdRng, from, to| Duration::from_millis(random.random_range(from..to));
    match (kind, random.random_range(0..100)) {
        (Kind::Work, 0..30) => Luck::Overloaded,
        // A service that knows the key responds as the first time, so it does not refuse.
        (Kind::Work, 30..36) if entry == Entry::Absent => Luck::Refused,
        (Kind::Work, 36..39) => Luck::Hangs { works: false },
        (Kind::Work, 39..42) => Luck::Hangs { works: true },
        (Kind::Work, 42..48) => Luck::Breaks { works: true },
        (Kind::Work, 48..50) => Luck::Breaks { works: false },
        (Kind::Work, 50..70) => Luck::Takes(millis(random, 10, 400)),
        (Kind::Work, 70..74) => Luck::Takes(millis(random, 400, 2_500)),
        (Kind::Work, 74..76) if matches!(entry, Entry::Absent | Entry::Done) => Luck::Garbled,
        (Kind::Work, 76..80) => Luck::Drips(millis(random, 1, 200)),
        (Kind::Work, 80..84) => Luck::Doubles(millis(random, 5, 4_000)),
        (Kind::Undo, 0..12) => Luck::Overloaded,
        (Kind::Undo, 12..16) if entry == Entry::Done => Luck::Refused,
        (Kind::Undo, 16..19) => Luck::Hangs { works: true },
        (Kind::Undo, 19..24) => Luck::Breaks { works: true },
        (Kind::Undo, 24..60) => Luck::Takes(millis(random, 5, 300)),
        (Kind::Undo, 60..66) => Luck::Doubles(millis(random, 5, 4_000)),
        // Most undos have to be done sooner.
        (Kind::Undo, 66..73) => Luck::Takes(millis(random, 300, 5_000)),
        (Kind::Undo, 73..75) => Luck::Hangs { works: false },
        (Kind::Undo, 75..77) => Luck::Breaks { works: false },
        (Kind::Undo, 77..80) => Luck::Drips(millis(random, 1, 200)),
        (Kind::Probe, 30..36) => Luck::Drips(millis(random, 1, 200)),
        (Kind::Probe, 0..8) => Luck::Overloaded,
        (Kind::Probe, 8..11) => Luck::Hangs { works: false },
        (Kind::Probe, 11..14) => Luck::Breaks { works: false },
        (Kind::Probe | Kind::Poll | Kind::Cancel, 14..30) => Luck::Takes(millis(random, 5, 200)),
        (Kind::Cancel, 30..36) => Luck::Refused,
        (Kind::Cancel, 36..40) => Luck::Hangs { works: true },
        (Kind::Cancel, 40..44) => Luck::Breaks { works: false },
        (Kind::Cancel, 44..60) => Luck::Takes(millis(random, 200, 5_000)),
        (Kind::Poll | Kind::Cancel, 0..5) => Luck::Overloaded,
        (Kind::Poll | Kind::Cancel, 5..7) => Luck::Hangs { works: false },
        (Kind::Poll | Kind::Cancel, 7..11) => Luck::Breaks { works: true },
        _ => Luck::Well,
    }
}

/// Returns the seconds after which the caller may retry.
fn one_in(random: &mut StdRng) -> u32 {
    match random.random_range(0..6) {
        0..2 => 0,
        2..5 => 1,
        _ => 2,
    }
}

fn busy(seconds: u32) -> Act {
    overloaded(503, seconds)
}

fn overloaded(status: u16, seconds: u32) -> Act {
    Act::answer(status, &[("retry-after", &seconds.to_string())], "")
}

fn answer(status: u16, body: &Value) -> Act {
    let json = [("content-type", "application/json")];
    Act::answer(status, &json, &body.to_string())
}

fn done() -> Act {
    answer(201, &json!({ "receipt": 7 }))
}

/// Returns the response to a probe, which is the truth.
fn probed(entry: Entry) -> Act {
    match entry {
        Entry::Done => answer(
            200,
            &json!({ "state": "done", "receipt": { "receipt": 7 } }),
        ),
        Entry::UnderWay(_) => busy(0),
        Entry::Absent => answer(404, &json!({})),
        Entry::Undone | Entry::Withdrawn => answer(410, &json!({})),
    }
}

impl Entry {
    fn found(self) -> Found {
        match self {
            Entry::Absent => Found::Nothing,
            Entry::UnderWay(Found::Nothing) => Found::UnderWay,
            // The work is being undone.
            Entry::UnderWay(found) => found,
            Entry::Done => Found::Done,
            Entry::Undone => Found::Undone,
            Entry::Withdrawn => Found::Withdrawn,
        }
    }
}

impl Books {
    fn happened(&mut self, work: &str, entry: Entry, deed: Deed) {
        self.entries.insert(work.to_owned(), entry);
        self.ledger.effects.push(Effect {
            at: At::now(),
            key: work.to_owned(),
            deed,
        });
    }

    fn work(&mut self, work: &str) -> Act {
        match self.entries[work] {
            Entry::Absent => {
                self.happened(work, Entry::Done, Deed::Done);
                done()
            }
            Entry::Done => done(),
            Entry::UnderWay(_) => busy(0),
            Entry::Undone | Entry::Withdrawn => answer(410, &json!({ "error": "withdrawn" })),
        }
    }

    /// Returns the state of an operation.
    fn polled(&self, work: &str, entry: Entry) -> Act {
        match entry {
            Entry::UnderWay(_) => answer(200, &json!({ "state": "running" })),
            Entry::Done => answer(
                200,
                &json!({ "state": "done", "receipt": { "receipt": 7 } }),
            ),
            Entry::Absent if !self.failed.contains(work) => Act::status(404),
            _ => answer(200, &json!({ "state": "failed" })),
        }
    }

    /// Cancels work, so that it will never be done if it has not been done yet.
    fn cancel(&mut self, work: &str, entry: Entry) -> Act {
        match entry {
            Entry::UnderWay(Found::Nothing) => {
                self.happened(work, Entry::Withdrawn, Deed::Withdrawn);
                Act::status(204)
            }
            Entry::UnderWay(_) => Act::status(409),
            Entry::Absent => Act::status(404),
            _ => Act::status(204),
        }
    }

    fn undo(&mut self, work: &str) -> Act {
        match self.entries[work] {
            Entry::Absent => {
                self.happened(work, Entry::Withdrawn, Deed::Withdrawn);
                Act::status(404)
            }
            Entry::Done => {
                self.happened(work, Entry::Undone, Deed::Undone);
                Act::status(204)
            }
            Entry::Undone => Act::status(204),
            Entry::UnderWay(_) => busy(0),
            Entry::Withdrawn => Act::status(404),
        }
    }
}

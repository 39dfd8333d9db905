//! The remote services of the operated chaos, on one socket: good services, which do once what carries a key,
//! remember what was undone, and tell the truth to a probe. They are overloaded, refuse, hang, break
//! connections and take their time as the seed has it, and write down every call and every effect.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    audit::{At, Call, Deed, Effect, Found, Kind, Ledger, subject},
    harness::{Act, Hook, Remote, Seen},
};

#[derive(Clone)]
pub struct Services {
    remote: Remote,
    desk: Arc<Desk>,
}

struct Desk {
    seed: u64,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// By the key of the work.
    entries: HashMap<String, Entry>,
    /// How many calls of a kind were made under a key.
    counts: HashMap<(String, Kind), u32>,
    ledger: Ledger,
    /// From now on nothing goes wrong.
    well: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Entry {
    Absent,
    /// Being done, or undone: whoever asks meanwhile is asked to come back.
    UnderWay(Found),
    Done,
    Undone,
    Withdrawn,
}

/// What a call meets besides what it asks for.
enum Luck {
    Well,
    Overloaded,
    Refused,
    Hangs { works: bool },
    Breaks { works: bool },
    Garbled,
    Takes(Duration),
}

impl Services {
    pub async fn start(seed: u64) -> Self {
        let desk = Arc::new(Desk {
            seed,
            books: Mutex::default(),
        });
        let serving = Arc::clone(&desk);
        let remote = Remote::with(move |seen| Desk::serve(&serving, seen)).await;
        Self { remote, desk }
    }

    pub fn url(&self) -> String {
        self.remote.url()
    }

    pub fn be_well(&self) {
        self.desk.books().well = true;
    }

    /// Whether anything is still being done.
    pub fn are_busy(&self) -> bool {
        let books = self.desk.books();
        books
            .entries
            .values()
            .any(|entry| matches!(entry, Entry::UnderWay(_)))
    }

    pub fn ledger(&self) -> Ledger {
        self.desk.books().ledger.clone()
    }
}

impl Desk {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    fn serve(self: &Arc<Self>, seen: &Seen) -> Act {
        let header = |name: &str| seen.headers.get(name).cloned();
        let (kind, key, undoes) = match (header("provost-probes"), header("provost-undoes")) {
            (Some(asked), _) => (Kind::Probe, asked, None),
            (None, Some(undoes)) => (Kind::Undo, seen.key().to_owned(), Some(undoes)),
            (None, None) => (Kind::Work, seen.key().to_owned(), None),
        };
        let work = undoes.clone().unwrap_or_else(|| key.clone());
        let mut books = self.books();
        let entry = *books.entries.entry(work.clone()).or_insert(Entry::Absent);
        let call = Call {
            at: At::now(),
            kind,
            task: seen.header("provost-task").to_owned(),
            step: seen.header("provost-step").to_owned(),
            attempt: seen.attempt() as usize,
            key,
            undoes,
            found: entry.found(),
        };
        let place = format!(
            "{}/{}",
            seen.header("provost-task-key"),
            subject(&call.step)
        );
        books.ledger.calls.push(call);
        let count = books.counts.entry((place.clone(), kind)).or_default();
        *count += 1;
        let mut random = self.random(&place, kind, *count);
        let luck = match books.well {
            true => Luck::Well,
            false => luck(&mut random, kind, entry),
        };
        let works = |books: &mut Books| match kind {
            Kind::Work => books.work(&work),
            Kind::Undo => books.undo(&work),
            Kind::Probe => probed(entry),
        };
        if let Entry::UnderWay(_) = entry {
            // It cannot say yet what will have become of it.
            return match (kind, seen.path.ends_with("/state")) {
                (Kind::Probe, true) => answer(200, &json!({ "state": "in_progress" })),
                _ => busy(random.random_range(0..2)),
            };
        }
        match luck {
            Luck::Well => works(&mut books),
            Luck::Overloaded => busy(one_in(&mut random)),
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
        }
    }

    /// Does it after a while, whether the caller still waits for it or not.
    fn later(
        self: &Arc<Self>,
        books: &mut Books,
        kind: Kind,
        work: &str,
        entry: Entry,
        time: Duration,
    ) -> Act {
        let nothing: Hook = Arc::new(|| {});
        if kind == Kind::Probe || kind == Kind::Work && entry != Entry::Absent {
            let act = match kind {
                Kind::Probe => probed(entry),
                _ => books.work(work),
            };
            return Act::Then(time, nothing, Box::new(act));
        }
        books
            .entries
            .insert(work.to_owned(), Entry::UnderWay(entry.found()));
        // What it will come to is known: nobody else can touch it meanwhile.
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

    /// The same call of the same order meets the same in every run of a seed.
    fn random(&self, place: &str, kind: Kind, count: u32) -> StdRng {
        let mut hasher = DefaultHasher::new();
        (self.seed, place, kind, count).hash(&mut hasher);
        StdRng::seed_from_u64(hasher.finish())
    }
}

fn luck(random: &mut StdRng, kind: Kind, entry: Entry) -> Luck {
    let millis =
        |random: &mut StdRng, from, to| Duration::from_millis(random.random_range(from..to));
    match (kind, random.random_range(0..100)) {
        (Kind::Work, 0..30) => Luck::Overloaded,
        // Who knows the key answers as the first time.
        (Kind::Work, 30..36) if entry == Entry::Absent => Luck::Refused,
        (Kind::Work, 36..39) => Luck::Hangs { works: false },
        (Kind::Work, 39..42) => Luck::Hangs { works: true },
        (Kind::Work, 42..48) => Luck::Breaks { works: true },
        (Kind::Work, 48..50) => Luck::Breaks { works: false },
        (Kind::Work, 50..70) => Luck::Takes(millis(random, 10, 400)),
        (Kind::Work, 70..74) => Luck::Takes(millis(random, 400, 2_500)),
        (Kind::Work, 74..76) if matches!(entry, Entry::Absent | Entry::Done) => Luck::Garbled,
        (Kind::Undo, 0..12) => Luck::Overloaded,
        (Kind::Undo, 12..16) if entry == Entry::Done => Luck::Refused,
        (Kind::Undo, 16..19) => Luck::Hangs { works: true },
        (Kind::Undo, 19..24) => Luck::Breaks { works: true },
        (Kind::Undo, 24..60) => Luck::Takes(millis(random, 5, 300)),
        (Kind::Probe, 0..8) => Luck::Overloaded,
        (Kind::Probe, 8..11) => Luck::Hangs { works: false },
        (Kind::Probe, 11..14) => Luck::Breaks { works: false },
        (Kind::Probe, 14..30) => Luck::Takes(millis(random, 5, 200)),
        _ => Luck::Well,
    }
}

/// After how many seconds the caller may come back.
fn one_in(random: &mut StdRng) -> u32 {
    match random.random_range(0..6) {
        0..2 => 0,
        2..5 => 1,
        _ => 2,
    }
}

fn busy(seconds: u32) -> Act {
    Act::answer(503, &[("retry-after", &seconds.to_string())], "")
}

fn answer(status: u16, body: &Value) -> Act {
    let json = [("content-type", "application/json")];
    Act::answer(status, &json, &body.to_string())
}

fn done() -> Act {
    answer(201, &json!({ "receipt": 7 }))
}

/// What is answered to a probe: the truth.
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
            Entry::UnderWay(_) => Found::UnderWay,
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

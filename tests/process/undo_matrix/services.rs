//! The remote services of the matrix, on one socket. They keep a ledger, do what they are asked once for each key, and
//! fail exactly where a case says so.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::graph::{self, Probe};
use crate::harness::{Act, Gate, Hook, PATIENCE, Remote, Seen};

/// The purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    Work,
    Undo,
    Probe,
}

/// The fault that a call meets instead of a response.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    /// The response has this status, and nothing is done.
    Refuse(u16),
    /// There is no response until the caller closes the connection.
    Hang(Effect),
    /// The connection is closed without a response.
    Drop(Effect),
    /// The call takes effect, and its response cannot be read.
    Garble,
    /// There is no response until the test releases the call, and then this happens.
    Hold(Then),
    /// There is no response, and the test kills the caller during the call.
    Kill(Effect),
}

/// Decides whether the call takes effect all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Never,
    Done,
    /// The call takes effect when the service next looks at it.
    Late,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    Answer,
    Refuse,
    /// The call takes effect, and the connection is closed.
    Drop,
}

/// Faults that the calls of one kind to one step meet one after another, or the last one until it is fixed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub at: (Kind, &'static str),
    pub faults: VecDeque<Fault>,
    pub for_ever: bool,
}

/// The state of one step of one task at its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Entry {
    #[default]
    Absent,
    UnderWay,
    /// The step is done, with the number of its receipt.
    Done(u64),
    Undone,
    /// The undo came first, so the step will never be done.
    Withdrawn,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    pub kind: Kind,
    pub step: &'static str,
    pub attempt: u32,
    /// False if the call came, true if its response was sent.
    pub answered: bool,
    /// The state in the ledger when the call came.
    pub found: Entry,
}

/// The ledger of the services for one case.
#[derive(Clone, Default)]
pub struct Book {
    pub entries: BTreeMap<&'static str, Entry>,
    pub log: Vec<Line>,
    /// Faults of the calls, such as a wrong key.
    pub complaints: Vec<String>,
    plans: Vec<Plan>,
    held: Vec<&'static str>,
    /// The prefix of all keys of its task, as its first call has shown.
    prefix: Option<String>,
}

#[derive(Clone)]
pub struct Services {
    remote: Remote,
    desk: Arc<Desk>,
}

struct Desk {
    books: Mutex<HashMap<String, Book>>,
    gates: Mutex<HashMap<(String, &'static str), Gate>>,
    /// The number of calls that were held.
    held: watch::Sender<usize>,
}

impl Services {
    pub async fn start() -> Self {
        let desk = Arc::new(Desk {
            books: Mutex::default(),
            gates: Mutex::default(),
            held: watch::Sender::new(0),
        });
        let serving = Arc::clone(&desk);
        let remote = Remote::with(move |seen| Desk::serve(&serving, seen)).await;
        Self { remote, desk }
    }

    pub fn url(&self) -> String {
        self.remote.url()
    }

    pub fn expect(&self, case: &str, plans: &[Plan]) {
        let book = Book {
            plans: plans.to_vec(),
            ..Book::default()
        };
        let other = self.desk.books().insert(case.to_owned(), book);
        assert!(other.is_none(), "two cases are named {case}");
    }

    pub fn book(&self, case: &str) -> Book {
        self.desk.books()[case].clone()
    }

    /// Waits until `count` calls of the case were held, or are ready for the kill. Returns their steps.
    pub async fn held(&self, case: &str, count: usize) -> Vec<&'static str> {
        let mut counted = self.desk.held.subscribe();
        loop {
            let held = self.book(case).held;
            if held.len() >= count {
                return held;
            }
            let more = timeout(PATIENCE, counted.changed()).await;
            assert!(more.is_ok(), "{case}: {held:?} of {count} calls were held");
        }
    }

    /// Removes all faults of a case from now on.
    pub fn repair(&self, case: &str) {
        let mut books = self.desk.books();
        books.get_mut(case).unwrap().plans.clear();
    }

    /// Releases a held call.
    pub fn release(&self, case: &str, step: &'static str) {
        self.desk.gate(case, step).open();
    }
}

impl Desk {
    fn books(&self) -> MutexGuard<'_, HashMap<String, Book>> {
        self.books.lock().unwrap()
    }

    fn gate(&self, case: &str, step: &'static str) -> Gate {
        let mut gates = self.gates.lock().unwrap();
        let gate = gates.entry((case.to_owned(), step));
        gate.or_insert_with(Gate::closed).clone()
    }

    fn serve(self: &Arc<Self>, seen: &Seen) -> Act {
        let case = seen.header("provost-task-key").to_owned();
        let kind = match seen {
            _ if seen.headers.contains_key("provost-probes") => Kind::Probe,
            _ if seen.headers.contains_key("provost-undoes") => Kind::Undo,
            _ => Kind::Work,
        };
        let named = seen.header("provost-step");
        let step = graph::find(named.strip_suffix(".undo").unwrap_or(named)).name;
        let mut books = self.books();
        let book = books.get_mut(&case).unwrap();
        let complaint = complaint(seen, kind, step, &mut book.prefix);
        book.complaints.extend(complaint);
        let entry = book.entries.entry(step).or_default();
        let found = *entry;
        if let (Kind::Undo, Entry::Done(receipt)) = (kind, found) {
            book.complaints.extend(wrong_undo(seen, step, receipt));
        }
        let attempt = seen.attempt();
        book.log.push(Line {
            kind,
            step,
            attempt,
            answered: false,
            found,
        });
        let fault = book.next_fault(kind, step);
        let hold = |book: &mut Book| {
            book.held.push(step);
            self.held.send_modify(|held| *held += 1);
        };
        match fault {
            None => {
                let answer = book.act(kind, step);
                self.answered(case, kind, (step, attempt), answer)
            }
            Some(Fault::Refuse(status)) => {
                self.answered(case, kind, (step, attempt), Act::status(status))
            }
            Some(Fault::Hang(effect)) => {
                book.happen(kind, step, effect);
                Act::Hang
            }
            Some(Fault::Drop(effect)) => {
                book.happen(kind, step, effect);
                Act::Close
            }
            Some(Fault::Garble) => {
                book.happen(kind, step, Effect::Done);
                let json = [("content-type", "application/json")];
                let answer = Act::answer(200, &json, "{\"id\":");
                self.answered(case, kind, (step, attempt), answer)
            }
            Some(Fault::Kill(effect)) => {
                book.happen(kind, step, effect);
                hold(book);
                Act::Hang
            }
            Some(Fault::Hold(then)) => {
                hold(book);
                let act = match then {
                    Then::Answer => Act::Ok(json!({ "id": receipt_of(step) })),
                    Then::Refuse => Act::status(402),
                    Then::Drop => Act::Close,
                };
                let effect = match then {
                    Then::Answer | Then::Drop => Effect::Done,
                    Then::Refuse => Effect::Never,
                };
                let (desk, of_case) = (Arc::clone(self), case.clone());
                let happens: Hook = Arc::new(move || {
                    let mut books = desk.books();
                    let book = books.get_mut(&of_case).unwrap();
                    book.happen(kind, step, effect);
                    book.answered(kind, (step, attempt), found);
                });
                let gate = self.gate(&case, step);
                Act::Gated(
                    gate,
                    Box::new(Act::Then(Duration::ZERO, happens, Box::new(act))),
                )
            }
        }
    }

    /// Notes that the response is sent, just before it is. The response to an undo takes a moment, so that a caller
    /// that does not wait for it is detected.
    fn answered(
        self: &Arc<Self>,
        case: String,
        kind: Kind,
        (step, attempt): (&'static str, u32),
        act: Act,
    ) -> Act {
        let desk = Arc::clone(self);
        let hook: Hook = Arc::new(move || {
            let mut books = desk.books();
            let book = books.get_mut(&case).unwrap();
            let found = book.entry(step);
            book.answered(kind, (step, attempt), found);
        });
        let wait = match kind {
            Kind::Undo => Duration::from_millis(4),
            Kind::Work | Kind::Probe => Duration::ZERO,
        };
        Act::Then(wait, hook, Box::new(act))
    }
}

fn receipt_of(step: &str) -> u64 {
    1000 + graph::all().position(|name| name == step).unwrap() as u64
}

/// Returns the fault of a call's headers.
fn complaint(seen: &Seen, kind: Kind, step: &str, prefix: &mut Option<String>) -> Option<String> {
    let header = |name: &str| seen.headers.get(name).map(String::as_str);
    let own = match kind {
        Kind::Work => "idempotency-key",
        Kind::Undo => "provost-undoes",
        Kind::Probe => "provost-probes",
    };
    let Some((first, _)) = header(own).and_then(|key| key.split_once(':')) else {
        return Some(format!("{kind:?} of {step} came without a key"));
    };
    let key = format!("{}:{step}", prefix.get_or_insert_with(|| first.to_owned()));
    let undo = format!("{key}.undo");
    let expected = match kind {
        Kind::Work => [Some(key.as_str()), None, None],
        Kind::Undo => [Some(undo.as_str()), Some(key.as_str()), None],
        Kind::Probe => [None, None, Some(key.as_str())],
    };
    let names = ["idempotency-key", "provost-undoes", "provost-probes"];
    let found = names.map(header);
    (found != expected).then(|| format!("{kind:?} of {step} came with {found:?}"))
}

/// Returns the fault of an undo of a step that was done.
fn wrong_undo(seen: &Seen, step: &str, receipt: u64) -> Option<String> {
    let right = match graph::find(step).probe {
        Probe::None if step == "invoice" => seen.body == json!({ "amount": 30 }),
        Probe::None => seen.path == format!("/{step}"),
        Probe::Status | Probe::Expression => seen.path == format!("/{step}/{receipt}"),
    };
    (!right).then(|| format!("{step} was undone by {} {}", seen.path, seen.body))
}

impl Book {
    pub fn entry(&self, step: &str) -> Entry {
        self.entries.get(step).copied().unwrap_or_default()
    }

    fn next_fault(&mut self, kind: Kind, step: &str) -> Option<Fault> {
        let mut plans = self.plans.iter_mut();
        let plan = plans.find(|plan| plan.at.0 == kind && plan.at.1 == step)?;
        match plan.for_ever && plan.faults.len() == 1 {
            true => plan.faults.front().copied(),
            false => plan.faults.pop_front(),
        }
    }

    /// Does the work of a call, as far as it takes effect.
    fn happen(&mut self, kind: Kind, step: &'static str, effect: Effect) {
        let entry = self.entries.entry(step).or_default();
        let done = match graph::find(step).effect {
            true => Entry::Done(receipt_of(step)),
            false => Entry::Absent,
        };
        *entry = match (kind, effect, *entry) {
            (Kind::Work, Effect::Done, Entry::Absent | Entry::UnderWay) => done,
            (Kind::Work, Effect::Late, Entry::Absent) => Entry::UnderWay,
            (Kind::Undo, Effect::Done, Entry::Done(_)) => Entry::Undone,
            (Kind::Undo, Effect::Done, Entry::Absent | Entry::UnderWay) => Entry::Withdrawn,
            (_, _, entry) => entry,
        };
    }

    /// Does the work of a call without a fault, and responds.
    fn act(&mut self, kind: Kind, step: &'static str) -> Act {
        let before = self.entry(step);
        if kind != Kind::Probe {
            self.happen(kind, step, Effect::Done);
        }
        let receipt = json!({ "id": receipt_of(step) });
        let json = |status: u16, body: Value| {
            let json = [("content-type", "application/json")];
            Act::answer(status, &json, &body.to_string())
        };
        match kind {
            Kind::Work if matches!(before, Entry::Undone | Entry::Withdrawn) => {
                json(409, json!({ "error": "withdrawn" }))
            }
            Kind::Work => json(201, receipt),
            Kind::Undo => match self.entry(step) {
                Entry::Undone => Act::status(204),
                _ => json(404, json!({ "error": "nothing to undo" })),
            },
            Kind::Probe => {
                let tells = graph::find(step).probe == Probe::Expression;
                match before {
                    Entry::Done(_) if tells => {
                        json(200, json!({ "state": "done", "receipt": receipt }))
                    }
                    Entry::Done(_) => json(200, receipt),
                    Entry::UnderWay => {
                        self.happen(Kind::Work, step, Effect::Done);
                        match tells {
                            true => json(200, json!({ "state": "in_progress" })),
                            false => Act::status(503),
                        }
                    }
                    Entry::Absent => json(404, json!({})),
                    Entry::Undone | Entry::Withdrawn => json(410, json!({})),
                }
            }
        }
    }

    fn answered(&mut self, kind: Kind, (step, attempt): (&'static str, u32), found: Entry) {
        self.log.push(Line {
            kind,
            step,
            attempt,
            answered: true,
            found,
        });
    }
}

//! The services, on one socket. They do what they are asked once for each key, and fail where a case says so.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::watch, time::timeout};

use crate::harness::{Act, Gate, Hook, PATIENCE, Remote, Seen};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Work,
    Undo,
}

/// The fault that a call meets instead of a response. With `true` the call takes effect all the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    Refuse,
    /// The call takes effect, and its response cannot be read.
    Garble,
    /// No response comes until the caller closes the connection.
    Hang(bool),
    /// The connection is closed without a response.
    Drop(bool),
    /// There is no response until the test releases the call.
    Hold,
    /// There is no response, and the test kills the caller during the call.
    Kill(bool),
}

/// The faults that calls meet at a step or an item.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kind: Kind,
    pub place: String,
    pub fault: Fault,
    /// True if the fault lasts until an operator acts. Otherwise only the first call meets it.
    pub lasts: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Entry {
    #[default]
    Absent,
    Done,
    Undone,
    /// The undo came before the work.
    Withdrawn,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    pub kind: Kind,
    pub place: String,
    pub answered: bool,
}

/// The ledger of the services for one case. The effect of a child of an item has an entry of its own.
#[derive(Clone, Default)]
pub struct Book {
    pub entries: BTreeMap<(String, String), Entry>,
    pub log: Vec<Line>,
    pub complaints: Vec<String>,
    plans: Vec<Plan>,
    held: bool,
}

#[derive(Clone)]
pub struct Services {
    remote: Remote,
    desk: Arc<Desk>,
}

struct Desk {
    books: Mutex<HashMap<String, Book>>,
    gates: Mutex<HashMap<String, Gate>>,
    held: watch::Sender<()>,
}

impl Services {
    pub async fn start() -> Self {
        let desk = Arc::new(Desk {
            books: Mutex::default(),
            gates: Mutex::default(),
            held: watch::Sender::new(()),
        });
        let serving = desk.clone();
        let remote = Remote::with(move |seen| serving.serve(seen)).await;
        Self { remote, desk }
    }

    pub fn url(&self) -> String {
        self.remote.url()
    }

    pub fn expect(&self, case: &str, plans: Vec<Plan>) {
        let book = Book {
            plans,
            ..Book::default()
        };
        let other = self.desk.books.lock().insert(case.to_owned(), book);
        assert!(other.is_none(), "two cases are named {case}");
    }

    pub fn book(&self, case: &str) -> Book {
        self.desk.books.lock()[case].clone()
    }

    /// Waits until a call of the case was held, or is ready for the kill.
    pub async fn held(&self, case: &str) {
        let mut held = self.desk.held.subscribe();
        while !self.book(case).held {
            let more = timeout(PATIENCE * 2, held.changed()).await;
            assert!(more.is_ok(), "{case}: {:?}", self.book(case).log);
        }
    }

    pub fn release(&self, case: &str) {
        self.desk.gate(case).open();
    }

    /// Removes all faults of a case from now on.
    pub fn repair(&self, case: &str) {
        let mut books = self.desk.books.lock();
        books.get_mut(case).unwrap().plans.clear();
    }
}

impl Desk {
    fn gate(&self, case: &str) -> Gate {
        let mut gates = self.gates.lock();
        let gate = gates.entry(case.to_owned());
        gate.or_insert_with(Gate::closed).clone()
    }

    fn serve(self: &Arc<Self>, seen: &Seen) -> Act {
        let key = seen.header("provost-task-key");
        let step = seen.header("provost-step");
        let kind = match seen.headers.contains_key("provost-undoes") {
            true => Kind::Undo,
            false => Kind::Work,
        };
        // The child of an item has the name of the case and the number of the item.
        let (case, place) = match key.split_once('#') {
            Some((case, item)) => (case, format!("ship[{item}]")),
            None => (key, step.strip_suffix(".undo").unwrap_or(step).to_owned()),
        };
        let mut books = self.books.lock();
        let book = books.get_mut(case).unwrap();
        book.log.push(Line {
            kind,
            place: place.clone(),
            answered: false,
        });
        let task = seen.header("provost-task").to_owned();
        let fault = book.next_fault(kind, &place);
        let has_effect = match fault {
            None | Some(Fault::Garble | Fault::Hold) => true,
            Some(Fault::Refuse) => false,
            Some(Fault::Hang(done) | Fault::Drop(done) | Fault::Kill(done)) => done,
        };
        if has_effect && !book.happen(kind, (&place, &task)) {
            return Act::status(409);
        }
        let (desk, of_case) = (self.clone(), case.to_owned());
        let line = Line {
            kind,
            place,
            answered: true,
        };
        let answered: Hook = Arc::new(move || {
            let mut books = desk.books.lock();
            books.get_mut(&of_case).unwrap().log.push(line.clone());
        });
        let told = |act: Act| Act::Then(std::time::Duration::ZERO, answered, Box::new(act));
        let ok = Act::Ok(json!({ "id": seen.path }));
        if let Some(Fault::Hold | Fault::Kill(_)) = fault {
            book.held = true;
            self.held.send_replace(());
        }
        match fault {
            None => told(ok),
            Some(Fault::Refuse) => told(Act::status(402)),
            Some(Fault::Garble) => {
                let json = [("content-type", "application/json")];
                told(Act::answer(200, &json, "{\"id\":"))
            }
            Some(Fault::Hang(_) | Fault::Kill(_)) => Act::Hang,
            Some(Fault::Drop(_)) => Act::Close,
            Some(Fault::Hold) => Act::Gated(self.gate(case), Box::new(told(ok))),
        }
    }
}

impl Book {
    fn next_fault(&mut self, kind: Kind, place: &str) -> Option<Fault> {
        let mut plans = self.plans.iter();
        let at = plans.position(|plan| plan.kind == kind && plan.place == place)?;
        let fault = self.plans[at].fault;
        if !self.plans[at].lasts {
            self.plans.remove(at);
        }
        Some(fault)
    }

    /// Applies an effect. Returns false if the work was undone, because it is then not done again.
    fn happen(&mut self, kind: Kind, (place, task): (&str, &str)) -> bool {
        let entry = self.entries.entry((place.to_owned(), task.to_owned()));
        let entry = entry.or_default();
        *entry = match (kind, *entry) {
            (Kind::Work, Entry::Absent | Entry::Done) => Entry::Done,
            (Kind::Work, _) => {
                let complaint = format!("{place} was called after its undo");
                self.complaints.push(complaint);
                return false;
            }
            (Kind::Undo, Entry::Done | Entry::Undone) => Entry::Undone,
            (Kind::Undo, Entry::Absent | Entry::Withdrawn) => Entry::Withdrawn,
        };
        true
    }
}

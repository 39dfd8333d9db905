//! The services and the receiver. The services are correct: they do the work of a key once, remember undos, and respond to
//! a probe with the truth. Their networks and their load are as the seed decides. Every call and every effect is in the
//! ledger.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::Response;
use parking_lot::Mutex;
use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    audit::{Call, Deed, Delivery, Effect, Found, Kind},
    network::{self, RECEIVER, Received, SERVICES, Served},
    plan::{Hazard, one_of},
    world::{Entry, SimulatedWorld},
};
/// The fault that a call meets, if any.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Luck {
    Well,
    Overloaded(u16),
    Refused,
    Silent { works: bool },
    Cut { works: bool },
    Slow(Duration),
    SlowBytes(Duration),
    Doubled(Duration),
}

/// The generator of a server, which all its requests share.
#[derive(Clone)]
struct ServiceRandom(Arc<Mutex<StdRng>>);

impl ServiceRandom {
    fn new(random: StdRng) -> Self {
        Self(Arc::new(Mutex::new(random)))
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock())
    }
}

/// Starts the services and the receiver in the runtime of the world.
pub fn start(world: &Arc<SimulatedWorld>) {
    let random = ServiceRandom::new(world.random(1));
    let serving = {
        let world = world.clone();
        move |received| serve(world.clone(), random.clone(), received)
    };
    tokio::spawn(network::serve(
        world.surroundings.clone(),
        SERVICES,
        serving,
    ));
    let random = ServiceRandom::new(world.random(2));
    let receiving = {
        let world = world.clone();
        move |received| receive(world.clone(), random.clone(), received)
    };
    tokio::spawn(network::serve(
        world.surroundings.clone(),
        RECEIVER,
        receiving,
    ));
}

/// One request to a service.
struct Asked {
    kind: Kind,
    /// The key of the work that the request is about.
    work: String,
}

async fn serve(world: Arc<SimulatedWorld>, random: ServiceRandom, received: Received) -> Served {
    let header = |name: &str| received.header(name).unwrap_or_default().to_owned();
    let asked = match (
        received.header("provost-probes"),
        received.header("provost-undoes"),
    ) {
        (Some(key), _) => Asked {
            kind: Kind::Probe,
            work: key.to_owned(),
        },
        (None, Some(key)) => Asked {
            kind: Kind::Undo,
            work: key.to_owned(),
        },
        (None, None) => Asked {
            kind: Kind::Work,
            work: header("idempotency-key"),
        },
    };
    let entry = world.entry(&asked.work);
    let call = Call {
        at: world.at(),
        kind: asked.kind,
        task: header("provost-task"),
        step: header("provost-step"),
        attempt: header("provost-attempt").parse().unwrap_or_default(),
        key: match asked.kind {
            Kind::Probe => asked.work.clone(),
            _ => header("idempotency-key"),
        },
        undoes: (asked.kind == Kind::Undo).then(|| asked.work.clone()),
        found: entry.found(),
        waited_until: None,
        made_by: 0,
    };
    let luck = random.draw(|random| luck(&world, random, asked.kind, entry));
    world.note(format_args!(
        "{:?} {} {} {} finds {:?}: {luck:?}",
        call.kind, call.task, call.step, call.attempt, call.found
    ));
    world.books.lock().ledger.calls.push(call);
    if let Entry::UnderWay(_) = entry {
        return busy(503, 0);
    }
    match luck {
        Luck::Well => world.carry_out(&asked),
        Luck::Overloaded(status) => busy(status, random.draw(|random| random.random_range(0..2))),
        Luck::Refused => answer(402, json!({ "error": "no" })),
        Luck::Silent { works } => {
            if works {
                world.carry_out(&asked);
            }
            sleep(Duration::from_secs(120)).await;
            Served::Cut
        }
        Luck::Cut { works } => {
            if works {
                world.carry_out(&asked);
            }
            Served::Cut
        }
        Luck::Slow(time) => {
            // The work is done in a task of its own, because the service does it even if its client is gone.
            if asked.kind != Kind::Probe {
                world.set(&asked.work, Entry::UnderWay(entry.found()));
            }
            let done = tokio::spawn(async move {
                sleep(time).await;
                if asked.kind != Kind::Probe {
                    world.set(&asked.work, entry);
                }
                world.carry_out(&asked)
            });
            done.await.unwrap()
        }
        Luck::SlowBytes(time) => match world.carry_out(&asked) {
            Served::Response(response) => dripping(response, time).await,
            Served::Cut => Served::Cut,
        },
        Luck::Doubled(later) => {
            let served = world.carry_out(&asked);
            tokio::spawn(async move {
                sleep(later).await;
                world.note(format_args!(
                    "{:?} of {} comes again",
                    asked.kind, asked.work
                ));
                // While the work is under way, the second request is asked to come later, and its sender does not.
                if !matches!(world.entry(&asked.work), Entry::UnderWay(_)) {
                    world.carry_out(&asked);
                }
            });
            served
        }
    }
}

/// Draws the fault of a call, of the kinds that the plan has.
fn luck(world: &SimulatedWorld, random: &mut StdRng, kind: Kind, entry: Entry) -> Luck {
    let chance = random.random_range(0..100);
    let time = Duration::from_millis(random.random_range(5..4_000));
    let works = random.random_ratio(2, 3);
    let status = *one_of(random, &[503, 503, 500, 429]);
    let has = |fault| !world.is_well() && world.plan.has(fault);
    match chance {
        0..15 if has(Hazard::Overload) => Luck::Overloaded(status),
        // A service that knows the key responds as the first time, so it does not refuse.
        15..20 if has(Hazard::Refusal) && kind == Kind::Work && entry == Entry::Absent => {
            Luck::Refused
        }
        20..28 if has(Hazard::Cut) => Luck::Cut { works },
        28..33 if has(Hazard::Silence) => Luck::Silent { works },
        33..48 if has(Hazard::Silence) => Luck::Slow(time),
        48..60 if has(Hazard::SlowBytes) => Luck::SlowBytes(time / 20),
        60..68 if has(Hazard::Double) && kind != Kind::Probe => Luck::Doubled(time),
        _ => Luck::Well,
    }
}

impl Entry {
    fn found(self) -> Found {
        match self {
            Entry::Absent => Found::Nothing,
            Entry::UnderWay(found) => found,
            Entry::Done => Found::Done,
            Entry::Undone => Found::Undone,
            Entry::Withdrawn => Found::Withdrawn,
        }
    }
}

impl SimulatedWorld {
    fn entry(&self, work: &str) -> Entry {
        let books = self.books.lock();
        books.entries.get(work).copied().unwrap_or(Entry::Absent)
    }

    fn set(&self, work: &str, entry: Entry) {
        self.books.lock().entries.insert(work.to_owned(), entry);
    }

    /// Does what the request asks for, once for each key.
    fn carry_out(&self, asked: &Asked) -> Served {
        let entry = self.entry(&asked.work);
        match (asked.kind, entry) {
            (Kind::Work, Entry::Absent) => {
                self.happened(&asked.work, Entry::Done, Deed::Done);
                answer(200, json!({ "receipt": asked.work }))
            }
            (Kind::Work | Kind::Probe, Entry::Done) => {
                answer(200, json!({ "receipt": asked.work }))
            }
            (Kind::Work, Entry::Undone | Entry::Withdrawn) => {
                answer(410, json!({ "error": "withdrawn" }))
            }
            (Kind::Undo, Entry::Absent) => {
                self.happened(&asked.work, Entry::Withdrawn, Deed::Withdrawn);
                answer(404, json!({}))
            }
            (Kind::Undo, Entry::Done) => {
                self.happened(&asked.work, Entry::Undone, Deed::Undone);
                answer(204, Value::Null)
            }
            (Kind::Undo, Entry::Undone) => answer(204, Value::Null),
            (_, Entry::UnderWay(_)) => busy(503, 0),
            _ => answer(404, json!({})),
        }
    }

    fn happened(&self, work: &str, entry: Entry, deed: Deed) {
        self.set(work, entry);
        self.note(format_args!("{work} is {deed:?}"));
        let (at, key) = (self.at(), work.to_owned());
        self.books
            .lock()
            .ledger
            .effects
            .push(Effect { at, key, deed });
    }
}

fn answer(status: u16, body: Value) -> Served {
    let body = match body {
        Value::Null => Body::empty(),
        body => Body::from(body.to_string()),
    };
    let response = Response::builder().status(status);
    let response = response.header("content-type", "application/json");
    Served::Response(response.body(body).unwrap())
}

fn busy(status: u16, seconds: u32) -> Served {
    let response = Response::builder().status(status);
    let response = response.header("retry-after", seconds);
    Served::Response(response.body(Body::empty()).unwrap())
}

/// Has the body of the response come byte by byte.
async fn dripping(response: Response<Body>, pause: Duration) -> Served {
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let drip = stream::unfold(body, move |mut left: Bytes| async move {
        if left.is_empty() {
            return None;
        }
        sleep(pause).await;
        let next = left.split_to(1);
        Some((Ok::<_, std::io::Error>(next), left))
    });
    Served::Response(Response::from_parts(head, Body::from_stream(drip)))
}

async fn receive(world: Arc<SimulatedWorld>, random: ServiceRandom, received: Received) -> Served {
    let chance = random.draw(|random| random.random_range(0..100));
    let is_overloaded = chance < 8 && !world.is_well() && world.plan.has(Hazard::Overload);
    let is_cut = (8..16).contains(&chance) && !world.is_well() && world.plan.has(Hazard::Cut);
    let body: Value = serde_json::from_slice(&received.body).unwrap_or(Value::Null);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let data = &body["data"];
    let delivery = Delivery {
        at: world.at(),
        id: received.header("webhook-id").unwrap_or_default().to_owned(),
        task: text(&body["subject"]),
        kind: text(&body["type"]),
        step: data["step"].as_str().map(str::to_owned),
        version: data["task"]["version"].as_u64().unwrap_or_default(),
        body: String::from_utf8_lossy(&received.body).into_owned(),
        taken: !is_overloaded && !is_cut,
    };
    world.note(format_args!(
        "message {} of {} version {}, taken: {}",
        delivery.kind, delivery.task, delivery.version, delivery.taken
    ));
    world.books.lock().deliveries.push(delivery);
    match (is_overloaded, is_cut) {
        (true, _) => busy(503, 1),
        (_, true) => Served::Cut,
        _ => answer(200, Value::Null),
    }
}

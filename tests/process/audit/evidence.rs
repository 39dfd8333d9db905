//! What the auditor looks at.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::harness::Seen;

/// Microseconds since 1970, by the clock of the machine that everything runs on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct At(pub i64);

impl At {
    pub fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self(i64::try_from(now.as_micros()).unwrap())
    }

    /// Of a text in RFC 3339.
    pub fn of(text: &str) -> Self {
        let at: jiff::Timestamp = text.parse().expect("a time");
        Self(at.as_microsecond())
    }

    pub fn plus(self, time: Duration) -> Self {
        Self(self.0 + i64::try_from(time.as_micros()).unwrap())
    }

    /// How long after `earlier` this is, in milliseconds.
    pub fn after(self, earlier: At) -> i64 {
        (self.0 - earlier.0) / 1000
    }
}

/// The time of day in UTC: what the logs of the instances have, too.
impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(at) => write!(f, "{}", at.strftime("%H:%M:%S%.6f")),
            Err(_) => write!(f, "{} us", self.0),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    Work,
    Undo,
    Probe,
    /// Whether the reply that was promised is there.
    Poll,
    /// The reply is no longer awaited.
    Cancel,
}

/// What a service had for a key when a call came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Nothing,
    UnderWay,
    Done,
    Undone,
    /// Its undo came first: it will never be done.
    Withdrawn,
}

/// One call as its service received it.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: At,
    pub kind: Kind,
    /// The task's id.
    pub task: String,
    /// As the call names it: `charge`, or `charge.undo`.
    pub step: String,
    pub attempt: usize,
    /// The key that it carries; of a probe, a poll or a cancellation the one that it is about.
    pub key: String,
    /// Of an undo: the key of the work.
    pub undoes: Option<String>,
    pub found: Found,
    /// Of a request from a queue: the complete-by of its attempt. Until then it may wait there, whatever becomes of the
    /// attempt.
    pub waited_until: Option<At>,
    /// The version of the workflow that has made the request what it is, if any has.
    pub made_by: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    Done,
    Undone,
    Withdrawn,
}

/// What happened at a service, under the key of the work.
#[derive(Clone, Debug)]
pub struct Effect {
    pub at: At,
    pub key: String,
    pub deed: Deed,
}

/// The attempt to which a service promised a reply.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Promised {
    pub task: String,
    pub step: String,
    pub attempt: usize,
}

impl Promised {
    /// The attempt of a request.
    pub fn by(seen: &Seen) -> Self {
        Self {
            task: seen.header("provost-task").to_owned(),
            step: seen.header("provost-step").to_owned(),
            attempt: seen.attempt() as usize,
        }
    }
}

/// A step as a worker got it.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub of: Promised,
    pub worker: String,
}

/// A reply that was promised, as its service sent it until there was a response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub of: Promised,
    /// When it was taken or refused for the first time.
    pub answered: At,
    pub status: u16,
    /// What the same reply got when it was sent again.
    pub again: Vec<u16>,
}

/// A reply that was published to the queue for replies.
#[derive(Clone, Debug)]
pub struct QueuedReply {
    pub of: Promised,
    /// When the broker had it for certain.
    pub confirmed: At,
}

/// A heartbeat to which there was a response.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub of: Promised,
    pub sent: At,
    pub answered: At,
    pub status: u16,
}

/// All that the services wrote down: calls and effects in the order of time.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    pub calls: Vec<Call>,
    pub effects: Vec<Effect>,
    pub fetched: Vec<Fetched>,
    pub replies: Vec<Reply>,
    pub queued_replies: Vec<QueuedReply>,
    pub heartbeats: Vec<Heartbeat>,
}

/// What was asked for, of a step.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PlannedStep {
    pub name: String,
    /// It waits for a time, for a signal, for its items or for its task.
    pub uncalled: bool,
    /// Of a step that asks people.
    pub ask: Option<PlannedAsk>,
    /// The workflow of its task.
    pub child: Option<String>,
    /// Of an item: its group.
    pub of: Option<String>,
    /// Of a group.
    pub items: Option<PlannedItems>,
    pub after: Vec<String>,
    pub undo: bool,
    pub probe: bool,
    pub pivot: bool,
    pub cancel: bool,
    pub heartbeat_within: Option<Duration>,
    /// The version that has made its request what it is, if any has.
    pub made_by: u64,
}

/// Who is asked, and how many of them must approve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedAsk {
    pub of: Vec<String>,
    pub approvals: usize,
}

impl PlannedAsk {
    fn of(ask: &Value) -> Option<Self> {
        let of = ask["of"].as_array()?.iter();
        Some(Self {
            of: of.map(|of| of.as_str().unwrap().to_owned()).collect(),
            approvals: ask["approvals"].as_u64().unwrap_or(1) as usize,
        })
    }
}

/// The items of a group: how many there are, and how many run at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedItems {
    pub count: usize,
    pub at_once: usize,
    /// Of a step that is repeated: how many iterations make it done. `count` is more than there can be then.
    pub iterations: Option<usize>,
}

/// What was asked for, of a task.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Plan {
    pub steps: Vec<PlannedStep>,
    /// The events that its receiver wants; empty: it has none.
    pub events: Vec<String>,
    /// Nothing is to begin before.
    pub start_at: Option<At>,
}

/// A task that was accepted.
#[derive(Clone, Default, Debug)]
pub struct Accepted {
    pub id: String,
    /// The caller's own id.
    pub key: String,
    pub plan: Plan,
    /// What the versions asked for that it has moved from, and until when.
    pub earlier: Vec<(At, Plan)>,
}

/// One entry of a history.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// When it was committed.
    pub at: At,
    pub version: u64,
    pub kind: String,
    pub step: Option<String>,
    pub attempt: usize,
    pub from: Option<String>,
    pub to: String,
    pub by: String,
    pub reason: String,
    /// The step may have taken effect without its outcome being known.
    pub unknown: bool,
    /// Of a move: from which version to which.
    pub versions: Option<(u32, u32)>,
}

/// What a person sent by a link, and the response.
#[derive(Clone, Debug)]
pub struct Decision {
    pub task: String,
    pub step: String,
    pub person: String,
    pub choice: String,
    pub sent: At,
    pub answered: At,
    /// 0: there was none.
    pub status: u16,
}

/// A schedule, and what it has made of its times.
#[derive(Clone, Default, Debug)]
pub struct Scheduled {
    pub name: String,
    /// It fires at each multiple of this.
    pub every: Duration,
    /// No task of it is to run while another does.
    pub is_alone: bool,
    /// It fired between these.
    pub from: At,
    pub to: At,
    /// The numbers of the runs that operators were told of.
    pub triggered: Vec<u64>,
    /// Triggers that may have been carried out without an answer.
    pub unclear: usize,
    pub runs: Vec<Run>,
}

/// One or more times of a schedule, as the record has them.
#[derive(Clone, Debug)]
pub struct Run {
    pub number: u64,
    pub first: At,
    pub last: At,
    pub is_triggered: bool,
    pub state: String,
    pub task: Option<String>,
}

/// The step that a task is done for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parent {
    pub task: String,
    pub step: String,
    pub attempt: usize,
}

/// A task as the record has it.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub state: String,
    pub key: String,
    pub version: u64,
    /// The workflow and its version.
    pub workflow: Option<(String, u32)>,
    pub parent: Option<Parent>,
    /// The schedule that has submitted it.
    pub schedule: Option<String>,
    pub steps: BTreeMap<String, String>,
    pub history: Vec<Entry>,
    /// The steps that have an open alert.
    pub alerts: Vec<String>,
}

/// A message as its receiver got it.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub at: At,
    /// `webhook-id`.
    pub id: String,
    pub task: String,
    pub kind: String,
    pub step: Option<String>,
    /// The version of the task that it tells of.
    pub version: u64,
    pub body: String,
    /// Whether the receiver answered that it has it.
    pub taken: bool,
}

/// An instance that ended by itself.
#[derive(Clone, Debug)]
pub struct Exit {
    pub at: At,
    pub instance: usize,
    /// How it ended, and the last that it said.
    pub said: String,
}

/// An instance that was stopped, and went on.
#[derive(Clone, Debug)]
pub struct Suspension {
    /// The name of the instance where it has a lasting one; else it may have been any.
    pub instance: Option<String>,
    pub from: At,
    pub to: At,
}

/// Something was done to an instance, to the broker, or to a network.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    pub from: At,
    pub to: At,
}

/// How late this process was when it wanted to do something: the machine was busy for so long.
#[derive(Clone, Default, Debug)]
pub struct Stalls(pub Vec<(At, Duration)>);

impl Stalls {
    /// Between a check of the record and the arrival of what was sent upon it, on a machine that is not busy.
    const USUALLY: Duration = Duration::from_millis(400);
    /// Back from a moment, how long a stall may have had to do with it.
    const AROUND: Duration = Duration::from_secs(3);

    /// How much later than it was sent a call may have been received at this moment. Other processes
    /// stall as this one does, one after the other.
    pub fn allowance(&self, at: At) -> Duration {
        let around = self.0.iter().filter(|(stalled, _)| {
            stalled.plus(Self::AROUND) >= at && *stalled <= at.plus(Self::AROUND)
        });
        let longest = around.map(|(_, time)| *time).max().unwrap_or_default();
        Self::USUALLY + longest * 3
    }
}

#[derive(Clone, Default, Debug)]
pub struct Evidence {
    pub accepted: Vec<Accepted>,
    /// By id: of each accepted task, and of every other one that the record lists.
    pub records: BTreeMap<String, Record>,
    pub ledger: Ledger,
    pub deliveries: Vec<Delivery>,
    pub exits: Vec<Exit>,
    /// Lines in which a process says that it panicked.
    pub panics: Vec<String>,
    pub suspensions: Vec<Suspension>,
    pub troubles: Vec<Trouble>,
    pub stalls: Stalls,
    /// Answers of the API that no caller should get.
    pub answers: Vec<String>,
    /// Open alerts that do not count the steps that are part of them.
    pub miscounts: Vec<String>,
    pub schedules: Vec<Scheduled>,
    pub decisions: Vec<Decision>,
}

/// With all that operators grant when they are used up.
const MOST_ITERATIONS: usize = 16;

/// One attempt of a step by its history.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    pub claimed: At,
    pub by: String,
    pub ended: Option<At>,
}

impl PlannedStep {
    /// The step, or the group and its items.
    fn with_items(self, definition: &Value) -> Vec<Self> {
        let items = match &definition["for_each"] {
            Value::Array(list) => PlannedItems {
                count: list.len(),
                at_once: definition["max_parallel"].as_u64().unwrap() as usize,
                iterations: None,
            },
            _ => match definition["repeat"]["until"].as_str() {
                Some(until) => PlannedItems {
                    count: MOST_ITERATIONS,
                    at_once: 1,
                    iterations: until
                        .strip_prefix("index >= ")
                        .and_then(|last| last.parse::<usize>().ok())
                        .map(|last| last + 1),
                },
                None => return vec![self],
            },
        };
        let group = Self {
            name: self.name.clone(),
            uncalled: true,
            after: self.after.clone(),
            items: Some(items),
            ..Self::default()
        };
        let name = |at: usize| format!("{}[{at}]", self.name);
        let item = |at: usize| {
            let mut after = self.after.clone();
            // Each iteration follows the one before it.
            after.extend((items.iterations.is_some() && at > 0).then(|| name(at - 1)));
            Self {
                name: name(at),
                of: Some(self.name.clone()),
                after,
                ..self.clone()
            }
        };
        let items = (0..items.count).map(item);
        std::iter::once(group).chain(items).collect()
    }
}

impl Plan {
    /// What a submission asks for.
    pub fn of(submission: &Value) -> Self {
        let list = |value: &Value| -> Vec<String> {
            let names = value.as_array().into_iter().flatten();
            names
                .map(|name| name.as_str().unwrap().to_owned())
                .collect()
        };
        let steps = submission["steps"].as_array().unwrap().iter();
        let steps = steps.map(|step| PlannedStep {
            name: step["name"].as_str().unwrap().to_owned(),
            uncalled: step["request"].is_null(),
            ask: PlannedAsk::of(&step["signal"]["ask"]),
            child: step["task"]["workflow"].as_str().map(str::to_owned),
            of: None,
            items: None,
            after: list(&step["after"]),
            undo: step["undo"].is_object(),
            probe: step["probe"].is_object(),
            pivot: step["pivot"] == true,
            cancel: step["cancel"].is_object(),
            made_by: step["request"]["body"]["made_by"].as_u64().unwrap_or(0),
            heartbeat_within: step["heartbeat_within"].as_str().map(|within| {
                let seconds = within.strip_suffix('s').expect("whole seconds");
                Duration::from_secs(seconds.parse().expect("whole seconds"))
            }),
        });
        let steps = steps.zip(submission["steps"].as_array().unwrap());
        let steps = steps.flat_map(|(planned, step)| planned.with_items(step));
        Self {
            steps: steps.collect(),
            events: list(&submission["reply_to"]["events"]),
            start_at: submission["start_at"].as_str().map(At::of),
        }
    }

    pub fn step(&self, name: &str) -> Option<&PlannedStep> {
        self.steps.iter().find(|step| step.name == name)
    }

    /// The steps that follow one, near or far.
    pub fn followers(&self, name: &str) -> Vec<&PlannedStep> {
        let mut found: Vec<&PlannedStep> = Vec::new();
        let group = self.step(name).and_then(|step| step.of.as_deref());
        let mut path: Vec<&str> = std::iter::once(name).chain(group).collect();
        while let Some(before) = path.pop() {
            for step in &self.steps {
                let follows = step.after.iter().any(|after| after == before);
                if follows && !found.contains(&step) {
                    found.push(step);
                    path.push(&step.name);
                }
            }
        }
        found
    }
}

/// The step that a name is about: `charge` of `charge.undo`.
pub fn subject(step: &str) -> &str {
    step.strip_suffix(".undo").unwrap_or(step)
}

impl Record {
    pub fn of_step<'a>(&'a self, step: &'a str) -> impl Iterator<Item = &'a Entry> {
        let entries = self.history.iter();
        entries.filter(move |entry| entry.step.as_deref() == Some(step))
    }

    /// The attempts of a step: the first is number 1.
    pub fn attempts(&self, step: &str) -> Vec<Attempt> {
        let mut attempts: Vec<Attempt> = Vec::new();
        for entry in self.of_step(step) {
            if entry.kind == "step.claimed" {
                attempts.push(Attempt {
                    claimed: entry.at,
                    by: entry.by.clone(),
                    ended: None,
                });
            } else if entry.from.as_deref() == Some("processing")
                && entry.to != "processing"
                && let Some(attempt) = attempts.last_mut()
            {
                attempt.ended.get_or_insert(entry.at);
            }
        }
        attempts
    }

    /// Whether a step that is not called ever began.
    pub fn began(&self, step: &str) -> bool {
        self.of_step(step).any(|entry| entry.kind == "step.began")
    }

    /// When a step was first processed.
    pub fn was_processed(&self, step: &str) -> Option<At> {
        let mut entries = self.of_step(step);
        let entry = entries.find(|entry| entry.kind == "step.processed");
        entry.map(|entry| entry.at)
    }

    /// When an operator, or a policy, first said that the step is to be passed over or was done by hand.
    pub fn set_aside(&self, step: &str) -> Option<At> {
        let mut said = self.of_step(step).filter(|entry| {
            let by_operator = entry.by.starts_with("operator:");
            let by_policy = entry.reason.starts_with("its policy is skip");
            entry.kind == "step.resolved"
                || entry.kind == "step.skipped" && (by_operator || by_policy)
        });
        said.next().map(|entry| entry.at)
    }
}

/// The effects of a ledger by key.
#[derive(Default, Debug)]
pub struct Happened {
    pub done: Vec<At>,
    pub undone: Option<At>,
    pub withdrawn: Option<At>,
}

impl Happened {
    /// Whether it was done, and not undone, at this moment.
    pub fn stood(&self, at: At) -> bool {
        self.done.iter().any(|done| *done < at) && self.undone.is_none_or(|undone| undone > at)
    }

    pub fn stands(&self) -> bool {
        !self.done.is_empty() && self.undone.is_none()
    }
}

impl Ledger {
    /// What happened to each step: by the task's id and the step's name.
    pub fn happened(&self) -> HashMap<(&str, &str), Happened> {
        let mut owners = HashMap::new();
        for call in &self.calls {
            let of_work = match call.kind {
                Kind::Undo => call.undoes.as_deref(),
                _ => Some(call.key.as_str()),
            };
            let owner = (call.task.as_str(), subject(&call.step));
            if let Some(key) = of_work {
                owners.entry(key).or_insert(owner);
            }
        }
        let mut happened: HashMap<_, Happened> = HashMap::new();
        for effect in &self.effects {
            let Some(owner) = owners.get(effect.key.as_str()) else {
                continue;
            };
            let step = happened.entry(*owner).or_default();
            match effect.deed {
                Deed::Done => step.done.push(effect.at),
                Deed::Undone => step.undone = step.undone.or(Some(effect.at)),
                Deed::Withdrawn => step.withdrawn = step.withdrawn.or(Some(effect.at)),
            }
        }
        happened
    }
}

//! The evidence that the auditor examines.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use serde_json::Value;

/// Microseconds since 1970, by the clock of the machine that everything runs on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct At(pub i64);

impl At {
    pub fn now() -> Self {
        let now = super::super::harness::since_epoch();
        Self(i64::try_from(now.as_micros()).unwrap())
    }

    /// Parses a time in RFC 3339.
    pub fn of(text: &str) -> Self {
        let at: jiff::Timestamp = text.parse().expect("a time");
        Self(at.as_microsecond())
    }

    pub fn to_rfc3339(self) -> String {
        let at = jiff::Timestamp::from_microsecond(self.0);
        at.expect("a time that can be shown").to_string()
    }

    pub fn plus(self, time: Duration) -> Self {
        Self(self.0 + i64::try_from(time.as_micros()).unwrap())
    }

    /// Returns the time from `earlier` to this, in milliseconds.
    pub fn after(self, earlier: At) -> i64 {
        (self.0 - earlier.0) / 1000
    }
}

/// Shows the time of day in UTC, as the logs of the instances do.
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
    /// A poll, which asks for the promised reply.
    Poll,
    /// A cancellation: the reply is no longer awaited.
    Cancel,
}

/// The state of a key at its service when a call came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Nothing,
    UnderWay,
    Done,
    Undone,
    /// The undo came first, so the work will never be done.
    Withdrawn,
}

/// One call as its service received it.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: At,
    pub kind: Kind,
    /// The task's id.
    pub task: String,
    /// The step as the call names it: `charge`, or `charge.undo`.
    pub step: String,
    pub attempt: usize,
    /// The key that the call carries. A probe, a poll and a cancellation carry the key that they are about.
    pub key: String,
    /// The key of the work that an undo undoes.
    pub undoes: Option<String>,
    pub found: Found,
    /// The complete-by of the attempt, if the request came from a queue. The request may wait there until that time,
    /// even if its attempt has ended.
    pub waited_until: Option<At>,
    /// The version of the workflow that has defined the request, if the version shows in the request.
    pub made_by: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    Done,
    Undone,
    Withdrawn,
}

/// An effect at a service, under the key of the work.
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

/// A step that a worker has fetched.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub of: Promised,
    pub worker: String,
}

/// A promised reply, which its service sent until there was a response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub of: Promised,
    /// The time of the first response, which accepted or refused the reply.
    pub answered: At,
    pub status: u16,
    /// The statuses of the responses when the same reply was sent again.
    pub again: Vec<u16>,
}

/// A reply that was published to the queue for replies.
#[derive(Clone, Debug)]
pub struct QueuedReply {
    pub of: Promised,
    /// The time at which the broker had confirmed the message.
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

/// Everything that the services recorded. Calls and effects are in the order of time.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    pub calls: Vec<Call>,
    pub effects: Vec<Effect>,
    pub fetched: Vec<Fetched>,
    pub replies: Vec<Reply>,
    pub queued_replies: Vec<QueuedReply>,
    pub heartbeats: Vec<Heartbeat>,
}

/// A step as the submission defines it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PlannedStep {
    pub name: String,
    /// True if the step calls no service: it waits for a time, for a signal, for its items or for its child.
    pub uncalled: bool,
    /// The ask of a step that asks people.
    pub ask: Option<PlannedAsk>,
    /// The workflow of the child.
    pub child: Option<String>,
    /// The group of an item.
    pub of: Option<String>,
    /// The items of a group.
    pub items: Option<PlannedItems>,
    pub after: Vec<String>,
    /// The step needs only some of those that it follows.
    pub race: Option<PlannedRace>,
    pub undo: bool,
    pub probe: bool,
    pub pivot: bool,
    pub cancel: bool,
    pub heartbeat_within: Option<Duration>,
    /// The version of the workflow that has defined the request, if the version shows in the request.
    pub made_by: u64,
}

/// The race before a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedRace {
    /// The number of steps that must succeed.
    pub any: usize,
}

impl PlannedRace {
    fn of(after: &Value) -> Option<Self> {
        Some(Self {
            any: after["any"].as_u64()? as usize,
        })
    }
}

/// The people who are asked, and the number of them who must approve.
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

/// The items of a group: their number, and the number that run at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedItems {
    pub count: usize,
    pub at_once: usize,
    /// The number of iterations that make a step with `repeat` done. `count` is then larger than their number can be.
    pub iterations: Option<usize>,
}

/// A task as its submission defines it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Plan {
    pub steps: Vec<PlannedStep>,
    /// The events that the receiver gets. Empty: there is no receiver.
    pub events: Vec<String>,
    /// The time before which nothing may begin.
    pub start_at: Option<At>,
}

/// A task that was accepted.
#[derive(Clone, Default, Debug)]
pub struct Accepted {
    pub id: String,
    /// The caller's own id.
    pub key: String,
    pub plan: Plan,
    /// The plans of the versions from which the task has moved, each with the time until which it applied.
    pub earlier: Vec<(At, Plan)>,
}

/// One entry of a history.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The time of the commit.
    pub at: At,
    pub version: u64,
    pub kind: String,
    pub step: Option<String>,
    pub attempt: usize,
    pub from: Option<String>,
    pub to: String,
    pub by: String,
    pub reason: String,
    /// The step may have taken effect, but its effect is not known.
    pub unknown: bool,
    /// The versions from and to which the task moved.
    pub versions: Option<(u32, u32)>,
}

/// A decision that a person sent by a link, and the response.
#[derive(Clone, Debug)]
pub struct Decision {
    pub task: String,
    pub step: String,
    pub person: String,
    pub choice: String,
    pub sent: At,
    pub answered: At,
    /// The status of the response. 0: there was none.
    pub status: u16,
}

/// A schedule, and the runs of its fire times.
#[derive(Clone, Default, Debug)]
pub struct Scheduled {
    pub name: String,
    /// The schedule fires at each multiple of this.
    pub every: Duration,
    /// True if no task of the schedule may run while another does.
    pub is_alone: bool,
    /// The time between which the schedule fired.
    pub from: At,
    pub to: At,
    /// The numbers of the runs that the responses to operators named.
    pub triggered: Vec<u64>,
    /// The number of triggers without a response, each of which may have been carried out.
    pub unclear: usize,
    pub runs: Vec<Run>,
}

/// One or more fire times of a schedule, as the record has them.
#[derive(Clone, Debug)]
pub struct Run {
    pub number: u64,
    pub first: At,
    pub last: At,
    pub is_triggered: bool,
    pub state: String,
    pub task: Option<String>,
}

/// The step that has this task as its child.
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
    /// The name of the workflow and its version.
    pub workflow: Option<(String, u32)>,
    pub parent: Option<Parent>,
    /// The schedule that has submitted the task.
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
    /// The header `webhook-id`.
    pub id: String,
    pub task: String,
    pub kind: String,
    pub step: Option<String>,
    /// The version of the task that the message reports.
    pub version: u64,
    pub body: String,
    /// True if the receiver has confirmed the message.
    pub taken: bool,
}

/// An instance that ended by itself.
#[derive(Clone, Debug)]
pub struct Exit {
    pub at: At,
    pub instance: usize,
    /// The way in which it ended, and the last lines of its log.
    pub said: String,
}

/// An instance that was suspended and continued.
#[derive(Clone, Debug)]
pub struct Suspension {
    /// The name of the instance if it keeps its name after a restart. `None`: it may have been any instance.
    pub instance: Option<String>,
    pub from: At,
    pub to: At,
}

/// A time in which an instance, the broker or a network was in trouble.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    pub from: At,
    pub to: At,
}

/// The delays of this process when it wanted to do something: the time for which the machine was too busy.
#[derive(Clone, Default, Debug)]
pub struct Stalls(pub Vec<(At, Duration)>);

impl Stalls {
    /// The usual time from a check of the record to the arrival of the call that was allowed by it, on a machine that
    /// is not busy.
    const USUALLY: Duration = Duration::from_millis(400);
    /// The time for which a stall may have effects after it, and before it.
    const AROUND: Duration = Duration::from_secs(3);

    /// Returns how long after it was sent a call may have been received at this moment. Other processes stall as this
    /// one does, one after the other.
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
    /// The records of each accepted task and of every other task that the API lists, by id.
    pub records: BTreeMap<String, Record>,
    pub ledger: Ledger,
    pub deliveries: Vec<Delivery>,
    pub exits: Vec<Exit>,
    /// Lines of a log in which a process reports a panic.
    pub panics: Vec<String>,
    pub suspensions: Vec<Suspension>,
    pub troubles: Vec<Trouble>,
    pub stalls: Stalls,
    /// Responses of the API that no caller should get.
    pub answers: Vec<String>,
    /// Open alerts whose count differs from the number of their steps.
    pub miscounts: Vec<String>,
    pub schedules: Vec<Scheduled>,
    pub decisions: Vec<Decision>,
    /// The most that the clocks of services and records part: nothing where all is on one machine.
    pub skew: Duration,
}

/// The largest number of iterations, with all that operators allow when they are used up.
const MOST_ITERATIONS: usize = 16;

/// One attempt of a step by its history.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    pub claimed: At,
    pub by: String,
    pub ended: Option<At>,
}

impl PlannedStep {
    /// Returns the step, or the group and its items.
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
            race: self.race,
            items: Some(items),
            ..Self::default()
        };
        let name = |at: usize| format!("{}[{at}]", self.name);
        let item = |at: usize| {
            let mut after = self.after.clone();
            // Each iteration follows the one before it, which began after a race, if there was one.
            let before = (items.iterations.is_some() && at > 0).then(|| name(at - 1));
            let race = self.race.filter(|_| before.is_none());
            if self.race.is_some() && before.is_some() {
                after.clear();
            }
            after.extend(before);
            Self {
                race,
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
    /// Returns the plan of a submission.
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
            after: match &step["after"] {
                Value::Object(race) => list(&race["of"]),
                after => list(after),
            },
            race: PlannedRace::of(&step["after"]),
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

    /// Returns the steps that follow a step, directly or not.
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

/// Returns the step that a name is about: `charge` for `charge.undo`, and for `charge.revert`, which undoes it where it has
/// lost a race.
pub fn subject(step: &str) -> &str {
    let undone = step.strip_suffix(".undo");
    undone.or(step.strip_suffix(".revert")).unwrap_or(step)
}

/// Returns whether the step undoes one that has lost a race.
pub fn is_revert(step: &str) -> bool {
    step.ends_with(".revert")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Entry {
    fn read(entry: &Value, committed: &impl Fn(u64) -> Option<At>) -> Self {
        let seq = text(&entry["seq"]);
        let version = seq.split('.').next().unwrap().parse().unwrap();
        let optional = |name: &str| entry[name].as_str().map(str::to_owned);
        Self {
            at: committed(version).unwrap_or_else(|| At::of(&text(&entry["at"]))),
            version,
            kind: text(&entry["type"]),
            step: optional("step"),
            attempt: entry["attempt"].as_u64().unwrap_or(0) as usize,
            from: optional("from"),
            to: text(&entry["to"]),
            by: text(&entry["by"]),
            reason: optional("reason").unwrap_or_default(),
            unknown: entry["outcome"] == "unknown",
            versions: entry["versions"].is_object().then(|| {
                let version = |end: &str| {
                    let version = entry["versions"][end].as_u64().unwrap();
                    u32::try_from(version).unwrap()
                };
                (version("from"), version("to"))
            }),
        }
    }
}

impl Record {
    /// Reads what the API shows of a task. `committed` returns when a version was committed, if that is known; otherwise
    /// the time of the decision counts.
    pub fn read(
        task: &Value,
        history: &[Value],
        steps: &[Value],
        alerts: Vec<String>,
        committed: impl Fn(u64) -> Option<At>,
    ) -> Self {
        let entries = history.iter().map(|entry| Entry::read(entry, &committed));
        Self {
            state: text(&task["state"]),
            key: text(&task["key"]),
            version: task["version"].as_u64().unwrap(),
            workflow: task["workflow"].as_str().map(|name| {
                let version = task["workflow_version"].as_u64().unwrap();
                (name.to_owned(), u32::try_from(version).unwrap())
            }),
            schedule: task["labels"]["schedule"].as_str().map(str::to_owned),
            parent: task["parent"].is_object().then(|| Parent {
                task: text(&task["parent"]["task"]),
                step: text(&task["parent"]["step"]),
                attempt: task["parent"]["attempt"].as_u64().unwrap() as usize,
            }),
            steps: steps
                .iter()
                .map(|step| (text(&step["name"]), text(&step["state"])))
                .collect(),
            history: entries.collect(),
            alerts,
        }
    }

    pub fn of_step<'a>(&'a self, step: &'a str) -> impl Iterator<Item = &'a Entry> {
        let entries = self.history.iter();
        entries.filter(move |entry| entry.step.as_deref() == Some(step))
    }

    /// Returns the attempts of a step. The first is number 1.
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

    /// Returns whether a step that calls no service ever began.
    pub fn began(&self, step: &str) -> bool {
        self.of_step(step).any(|entry| entry.kind == "step.began")
    }

    /// Returns when a step was first processed.
    pub fn was_processed(&self, step: &str) -> Option<At> {
        let mut entries = self.of_step(step);
        let entry = entries.find(|entry| entry.kind == "step.processed");
        entry.map(|entry| entry.at)
    }

    /// Returns when an operator or a policy first skipped or resolved the step.
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
    /// Returns whether the effect was made and not undone at this moment.
    pub fn stood(&self, at: At) -> bool {
        self.done.iter().any(|done| *done < at) && self.undone.is_none_or(|undone| undone > at)
    }

    pub fn stands(&self) -> bool {
        !self.done.is_empty() && self.undone.is_none()
    }
}

impl Ledger {
    /// Returns the effects of each step, by the id of the task and the name of the step.
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

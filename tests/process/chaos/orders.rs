//! The tasks of the operated chaos: small graphs with quick steps, whose probes, undos, pivots and policies are drawn
//! from the seed.

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

use super::{broker, kinds, workers};

/// The events that a receiver can ask for.
const EVENTS: [&str; 8] = [
    "task.accepted",
    "task.processed",
    "task.error",
    "task.undoing",
    "task.undone",
    "task.cancelled",
    "step.processed",
    "step.error",
];

/// The mix of the kinds of steps. Some bugs show only if one kind is frequent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    All,
    /// Each step is a call that responds at once and has a long complete-by, so that it outlasts a lost lease.
    Plain,
    /// Half of the requests go to a queue, and all have a long complete-by, so that a lost reply shows.
    Queues,
    /// Most steps have items, children or asks.
    Kinds,
    /// Each step is a call that responds at once. Only the simulation has this mix.
    #[allow(dead_code, reason = "the simulation draws it")]
    Calls,
    /// The mix of `All` without a message broker, which only the simulation has.
    #[allow(dead_code, reason = "the simulation draws it")]
    Http,
    /// As `All`, and the services are protected by breakers, ejection, limits, a retry budget and fairness.
    Protected,
}

impl Mix {
    /// Returns the mix of the chaos test that `PROVOST_TEST_CHAOS_MIX` names.
    pub fn chosen() -> Self {
        match std::env::var("PROVOST_TEST_CHAOS_MIX").as_deref() {
            Err(_) | Ok("all") => Mix::All,
            Ok("plain") => Mix::Plain,
            Ok("queues") => Mix::Queues,
            Ok("kinds") => Mix::Kinds,
            Ok("protected") => Mix::Protected,
            Ok(other) => {
                panic!(
                    "PROVOST_TEST_CHAOS_MIX is all, plain, queues, kinds or protected, not {other}"
                )
            }
        }
    }

    pub fn has_broker(self) -> bool {
        matches!(self, Mix::All | Mix::Queues | Mix::Protected)
    }

    /// Returns whether the mix has the kinds of steps and of tasks that only some mixes draw.
    pub fn has_kinds(self) -> bool {
        !matches!(self, Mix::Plain | Mix::Calls | Mix::Queues)
    }

    /// Returns whether to draw a kind of step that only some mixes have: one in `kinds` or in `others`.
    pub fn has_kind(self, random: &mut StdRng, kinds: u32, others: u32) -> bool {
        match self {
            Mix::Plain | Mix::Calls | Mix::Queues => false,
            Mix::Kinds => random.random_ratio(1, kinds),
            Mix::All | Mix::Http | Mix::Protected => random.random_ratio(1, others),
        }
    }
}

/// The name of a step and of those that it follows.
type Node = (&'static str, &'static [&'static str]);

const PIPELINE: &[Node] = &[
    ("reserve", &[]),
    ("charge", &["reserve"]),
    ("ship", &["charge"]),
];
const BRANCHES: &[Node] = &[
    ("root", &[]),
    ("left", &["root"]),
    ("right", &["root"]),
    ("join", &["left", "right"]),
];
const WIDE: &[Node] = &[
    ("one", &[]),
    ("two", &[]),
    ("three", &[]),
    ("four", &["one", "two"]),
    ("five", &["three"]),
];
const SINGLE: &[Node] = &[("only", &[])];
/// The first three compete.
const RACE: &[Node] = &[
    ("one", &[]),
    ("before", &[]),
    ("two", &["before"]),
    ("three", &[]),
    ("join", &["one", "two", "three"]),
    ("last", &["join"]),
];

pub(super) fn one_of<T: Copy>(random: &mut StdRng, all: &[T]) -> T {
    all[random.random_range(0..all.len())]
}

/// Returns the whole submission. Steps may have children of the workflows `parts`.
pub fn order(random: &mut StdRng, mix: Mix, parts: &[String], key: &str, receiver: &str) -> Value {
    let nodes = one_of(
        random,
        &[PIPELINE, PIPELINE, BRANCHES, BRANCHES, WIDE, SINGLE, RACE],
    );
    // After a pivot nothing can be undone.
    let pivot = (nodes == PIPELINE && random.random_ratio(1, 3)).then_some("charge");
    let mut behind = false;
    let mut steps = Vec::new();
    for (name, after) in nodes {
        let is_pivot = pivot == Some(*name);
        if !is_pivot && !parts.is_empty() && mix.has_kind(random, 4, 20) {
            let mut step = kinds::child(random, name, after, parts);
            match random.random_range(0..6) {
                0 => kinds::for_each(random, &mut step, !behind),
                1 => kinds::repeat(random, &mut step),
                _ => {}
            }
            steps.push(step);
            continue;
        }
        if !is_pivot && mix.has_kind(random, 8, 8) {
            let mut step = match mix.has_kind(random, 2, 4) {
                true => kinds::ask(random, name, after, !behind),
                false => event(random, name, after, !behind),
            };
            if mix.has_kind(random, 3, 6) {
                kinds::for_each(random, &mut step, !behind);
            } else if mix.has_kind(random, 6, 10) {
                kinds::repeat(random, &mut step);
            }
            steps.push(step);
            continue;
        }
        let mut step = step(random, mix, name, after, !behind && !is_pivot);
        if !is_pivot && mix.has_kind(random, 3, 10) {
            kinds::for_each(random, &mut step, !behind);
        } else if !is_pivot && mix.has_kind(random, 3, 10) {
            kinds::repeat(random, &mut step);
        }
        if is_pivot {
            step["pivot"] = json!(true);
            behind = true;
        }
        steps.push(step);
    }
    if nodes == RACE {
        race(random, &mut steps);
    }
    let mut order = json!({
        "key": key,
        "steps": steps,
        "labels": { "lot": format!("lot-{}", random.random_range(0..20)) },
        "on_permanent": one_of(random, &["undo", "undo", "error"]),
        "on_exhausted": match random.random_range(0..4) {
            0 => json!("error"),
            1 => json!({ "extend": "500ms", "times": 2, "then": if pivot.is_some() { "error" } else { "undo" } }),
            _ => json!("undo"),
        },
    });
    if random.random_ratio(1, 10) {
        order["complete_within"] = json!("6s");
        order["on_deadline"] = json!("undo");
    }
    if random.random_ratio(2, 3) {
        let mut events: Vec<_> = EVENTS.into();
        if random.random_ratio(1, 2) {
            events.retain(|_| random.random_ratio(1, 2));
        }
        if !events.is_empty() {
            order["reply_to"] = match mix.has_broker() && random.random_ratio(1, 3) {
                true => json!({ "queue": broker::TOLD, "events": events }),
                false => json!({ "url": receiver, "events": events }),
            };
        }
    }
    order
}

/// Has the last step but one need only some of those that it follows.
fn race(random: &mut StdRng, steps: &mut [Value]) {
    let has_kinds = steps[..4].iter().any(|step| {
        let kinds = ["task", "for_each", "repeat"];
        kinds.iter().any(|kind| !step[*kind].is_null())
    });
    // A race cannot undo these.
    let rests: &[&str] = match has_kinds {
        true => &["cancel", "let"],
        false => &["cancel", "undo", "undo", "let"],
    };
    for step in &mut steps[..4] {
        if random.random_ratio(1, 3) && step["on_permanent"].is_null() {
            step["on_permanent"] = json!("skip");
        }
    }
    let of = steps[4]["after"].take();
    steps[4]["after"] = json!({
        "any": random.random_range(1..3), "of": of, "rest": one_of(random, rests),
    });
}

/// Returns a step that calls no service.
fn event(random: &mut StdRng, name: &str, after: &[&str], undoable: bool) -> Value {
    let mut step = json!({ "name": name, "after": after });
    if random.random_ratio(1, 2) {
        step["wait"] = json!({ "for": one_of(random, &["0s", "300ms", "2s"]) });
    } else {
        let policies: &[&str] = if undoable {
            &["error", "undo"]
        } else {
            &["error"]
        };
        step["signal"] = json!({ "within": one_of(random, &["1s", "5s"]),
                                 "on_timeout": one_of(random, policies) });
    }
    step
}

fn step(random: &mut StdRng, mix: Mix, name: &str, after: &[&str], undoable: bool) -> Value {
    let mut step = json!({
        "name": name,
        "agent": if random.random_ratio(1, 5) { "narrow" } else { "services" },
        "after": after,
        "complete_within": one_of(random, &["1500ms", "3s", "3s", "6s"]),
        "max_failures": random.random_range(0..3),
        "request": { "path": format!("/{name}"), "body": { "order": "{{ task.key }}" } },
        "on_undo": one_of(random, &["drop", "wait"]),
    });
    match random.random_range(0..10) {
        0..3 => {}
        3..7 => step["probe"] = json!({ "request": { "path": format!("/{name}/asked") } }),
        _ => {
            step["probe"] = json!({
                "request": { "path": format!("/{name}/state") },
                "outcome": "response.body.state if response.status == 200 else 'not_done'",
                "output": "response.body.receipt",
                "complete_within": "2s",
            });
        }
    }
    let way = match mix {
        Mix::All | Mix::Http | Mix::Protected => later(random, mix, name, &mut step),
        Mix::Kinds if random.random_ratio(1, 2) => later(random, mix, name, &mut step),
        Mix::Kinds => "",
        Mix::Calls => {
            if random.random_ratio(1, 4) {
                step["complete_within"] = json!("12s");
            }
            ""
        }
        Mix::Plain => {
            step["complete_within"] = json!("12s");
            ""
        }
        Mix::Queues if random.random_ratio(1, 2) => queued(random, &mut step, "60s"),
        Mix::Queues => "",
    };
    step["request"]["path"] = json!(format!("{way}/{name}"));
    if undoable && random.random_ratio(9, 10) {
        step["undo"] = json!({
            "request": { "method": one_of(random, &["POST", "DELETE"]), "path": format!("{way}/{name}/undo") },
            "complete_within": match mix {
                Mix::Plain => "12s",
                _ => one_of(random, &["1500ms", "3s"]),
            },
            "max_failures": random.random_range(0..4),
        });
    }
    step
}

/// Makes about a third of the services reply later or be polled, and makes workers fetch the steps of another third;
/// some services get their requests from a queue. Returns the begin of their paths, by which the services know their
/// role.
fn later(random: &mut StdRng, mix: Mix, name: &str, step: &mut Value) -> &'static str {
    let way = match random.random_range(0..20) {
        // Either the step or the service says that the reply comes later.
        0..2 => {
            step["reply"] = json!("callback");
            if random.random_ratio(1, 2) {
                step["heartbeat_within"] = json!("1s");
            }
            "/later"
        }
        2..4 => "/later",
        4..6 => {
            step["reply"] = json!({ "poll": {
                "until": "response.body.state in ['done', 'failed']",
                "failed": "response.body.state == 'failed'",
                "output": "response.body.receipt",
                "every": "1s",
            } });
            "/polled"
        }
        6..12 => {
            step["agent"] = json!(workers::AGENT);
            if random.random_ratio(1, 2) {
                step["heartbeat_within"] = json!("1s");
            }
            if step["probe"].is_object() {
                step["probe"] = json!({
                    "request": { "path": format!("/fetched/{name}/state") },
                    "outcome": "response.body.state",
                    "output": "response.body.receipt",
                    "complete_within": "2s",
                });
            }
            "/fetched"
        }
        12..15 if mix.has_broker() => {
            let longest = one_of(random, &["6s", "6s", "15s"]);
            return queued(random, step, longest);
        }
        _ => return "",
    };
    step["complete_within"] = json!(one_of(random, &["3s", "6s", "6s"]));
    if way != "/fetched" && step["on_undo"] == "drop" && random.random_ratio(1, 2) {
        let path = format!("{way}/{name}/cancel");
        step["cancel"] = match way {
            "/polled" => json!({}),
            _ => json!({ "request": { "method": "DELETE", "path": path } }),
        };
    }
    way
}

/// Makes the service get its requests from a queue, for which there are no probes.
fn queued(random: &mut StdRng, step: &mut Value, longest: &str) -> &'static str {
    step["agent"] = json!(broker::AGENT);
    step["complete_within"] = json!(one_of(random, &["3s", longest, longest]));
    step.as_object_mut().unwrap().remove("probe");
    "/queued"
}

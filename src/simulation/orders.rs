//! The tasks of a simulation: small graphs with quick steps, whose probes, undos, pivots and policies are drawn from the
//! seed; and their submitters.

use std::{sync::Arc, time::Duration};

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    audit::{Accepted, Plan},
    network::{RECEIVER, SERVICES},
    plan::one_of,
    world::SimulatedWorld,
};

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

/// The name of a step and of those that it follows.
type OrderStep = (&'static str, &'static [&'static str]);

const PIPELINE: &[OrderStep] = &[
    ("reserve", &[]),
    ("charge", &["reserve"]),
    ("ship", &["charge"]),
];
const BRANCHES: &[OrderStep] = &[
    ("root", &[]),
    ("left", &["root"]),
    ("right", &["root"]),
    ("join", &["left", "right"]),
];
const SINGLE: &[OrderStep] = &[("only", &[])];
/// The first three compete.
const RACE: &[OrderStep] = &[
    ("one", &[]),
    ("two", &[]),
    ("three", &[]),
    ("join", &["one", "two", "three"]),
    ("last", &["join"]),
];

/// Registers the agents of the steps.
pub async fn register(world: &SimulatedWorld) {
    for (name, slots, open) in [("services", 500, None), ("narrow", 3, Some(5))] {
        let mut spec = json!({
            "endpoints": [{ "url": format!("http://{SERVICES}"), "max_in_flight": slots }],
            "retry": { "initial": "200ms", "max": "800ms", "factor": 2 },
        });
        if let Some(open) = open {
            spec["max_open"] = json!(open);
        }
        let path = format!("/v1/agents/{name}");
        let answer = world.ask("PUT", &path, Some(&spec)).await;
        assert!([200, 201].contains(&answer.status), "{answer:?}");
    }
}

/// Returns the whole submission.
fn order(random: &mut StdRng, key: &str) -> Value {
    let nodes = *one_of(random, &[PIPELINE, PIPELINE, BRANCHES, SINGLE, RACE]);
    // After a pivot nothing can be undone.
    let pivot = (nodes == PIPELINE && random.random_ratio(1, 4)).then_some("charge");
    let mut is_past_pivot = false;
    let mut steps = Vec::new();
    for (name, after) in nodes {
        let is_pivot = pivot == Some(*name);
        let mut step = step(random, name, after, !is_past_pivot && !is_pivot);
        if is_pivot {
            step["pivot"] = json!(true);
            is_past_pivot = true;
        }
        steps.push(step);
    }
    if nodes == RACE {
        for step in &mut steps[..3] {
            if random.random_ratio(1, 3) {
                step["on_permanent"] = json!("skip");
            }
        }
        let of = steps[3]["after"].take();
        let rest = one_of(random, &["cancel", "undo", "undo", "let"]);
        steps[3]["after"] = json!({ "any": random.random_range(1..3), "of": of, "rest": rest });
    }
    let mut order = json!({
        "key": key,
        "steps": steps,
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
            let url = format!("http://{RECEIVER}/replies");
            order["reply_to"] = json!({ "url": url, "events": events });
        }
    }
    order
}

fn step(random: &mut StdRng, name: &str, after: &[&str], undoable: bool) -> Value {
    let mut step = json!({
        "name": name,
        "agent": if random.random_ratio(1, 5) { "narrow" } else { "services" },
        "after": after,
        "complete_within": one_of(random, &["1500ms", "3s", "3s", "12s"]),
        "max_failures": random.random_range(0..4),
        "request": { "path": format!("/{name}"), "body": { "order": "{{ task.key }}" } },
        "on_undo": one_of(random, &["drop", "wait"]),
    });
    if random.random_ratio(1, 3) {
        step["probe"] = json!({ "request": { "path": format!("/{name}/asked") } });
    }
    if undoable && random.random_ratio(9, 10) {
        step["undo"] = json!({
            "request": { "method": "POST", "path": format!("/{name}/undo") },
            "complete_within": one_of(random, &["1500ms", "3s"]),
            "max_failures": random.random_range(0..4),
        });
    }
    step
}

/// Submits one task after another, each under its Idempotency-Key until it is accepted. `number` is that of the submitter, and
/// `count` the number of its tasks.
pub async fn submit(world: Arc<SimulatedWorld>, number: usize, count: usize) {
    let mut random = world.random(100 + number as u64);
    let length = u64::try_from(world.plan.length.as_millis()).unwrap();
    let longest_pause = 2 * length / count.max(1) as u64;
    for at in 0..count {
        let pause = random.random_range(0..=longest_pause);
        if !world.is_well() {
            sleep(Duration::from_millis(pause)).await;
        }
        let key = format!("order-{number}-{at}");
        let order = order(&mut random, &key);
        loop {
            let to = world.instance(random.random_range(0..8));
            let answer = world.call(to, "POST", "/v1/tasks", Some(&key), Some(&order));
            match answer.await {
                Some(answer) if answer.status == 202 => {
                    let id = answer.body["id"].as_str().unwrap().to_owned();
                    world.note(format_args!("{key} is accepted as {id}"));
                    let plan = Plan::of(&order);
                    world.accepted.lock().push(Accepted {
                        id,
                        key,
                        plan,
                        ..Accepted::default()
                    });
                    break;
                }
                Some(answer) if answer.status != 503 => {
                    let what = format!("{} to {key}: {}", answer.status, answer.body);
                    world.odd.lock().push(what);
                    break;
                }
                _ => sleep(Duration::from_millis(random.random_range(50..500))).await,
            }
        }
    }
}

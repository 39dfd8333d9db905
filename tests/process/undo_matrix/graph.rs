//! The task under test: eleven steps in branches that split and join. Some have a probe and some do not; the call of
//! one is dropped when the task is undone, and one in the middle has no undo.

use serde_json::{Value, json};

pub struct Node {
    pub name: &'static str,
    pub after: &'static [&'static str],
    pub probe: Probe,
    /// True if the step has an effect, and so has an undo.
    pub effect: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    None,
    /// The status of the response decides: 2xx or 404.
    Status,
    /// An expression reads the response, and another the output in it.
    Expression,
}

const fn node(name: &'static str, after: &'static [&'static str], probe: Probe) -> Node {
    Node {
        name,
        after,
        probe,
        effect: true,
    }
}

pub const STEPS: [Node; 11] = [
    node("reserve", &[], Probe::Status),
    node("quote", &[], Probe::None),
    node("charge", &["reserve"], Probe::Expression),
    node("pack", &["reserve"], Probe::None),
    node("label", &["quote"], Probe::Expression),
    node("insure", &["quote"], Probe::None),
    Node {
        effect: false,
        ..node("weigh", &["pack", "label"], Probe::None)
    },
    node("book", &["charge", "weigh", "insure"], Probe::Expression),
    node("invoice", &["book"], Probe::None),
    node("notify", &["book"], Probe::Status),
    node("close", &["invoice", "notify"], Probe::None),
];

/// The step whose call is dropped when the task is undone.
pub const DROPPED: &str = "insure";
pub const LAST: &str = "close";

pub fn find(name: &str) -> &'static Node {
    let found = STEPS.iter().find(|node| node.name == name);
    found.unwrap_or_else(|| panic!("no step {name}"))
}

pub fn all() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|node| node.name)
}

/// Returns the steps that have an effect, and so have an undo.
pub fn undoable() -> impl Iterator<Item = &'static str> {
    STEPS
        .iter()
        .filter(|node| node.effect)
        .map(|node| node.name)
}

pub fn probed() -> impl Iterator<Item = &'static str> {
    STEPS
        .iter()
        .filter(|node| node.probe != Probe::None)
        .map(|node| node.name)
}

/// Returns whether `later` follows `earlier`, directly or not.
pub fn follows(later: &str, earlier: &str) -> bool {
    find(later)
        .after
        .iter()
        .any(|before| *before == earlier || follows(before, earlier))
}

/// Returns the definition. By default no step expires by itself, and a failure makes the task undone. The fields in
/// `tuning` replace those of a step, and the fields of its objects too.
pub fn steps(tuning: &[(&'static str, Value)]) -> Value {
    let steps = STEPS.iter().map(|node| {
        let mut step = step(node);
        for (_, change) in tuning.iter().filter(|(name, _)| *name == node.name) {
            lay_over(&mut step, change);
        }
        step
    });
    steps.collect()
}

fn step(node: &Node) -> Value {
    let name = node.name;
    let mut step = json!({
        "name": name,
        "agent": "services",
        "after": node.after,
        "complete_within": "60s",
        "request": { "path": format!("/{name}"), "body": { "amount": "{{ input.amount }}" } },
    });
    if name == DROPPED {
        step["on_undo"] = json!("drop");
    }
    if !node.effect {
        step["request"] = json!({ "method": "GET", "path": format!("/{name}") });
        return step;
    }
    let request = match node.probe {
        // Its output is known whenever it is undone, because the probe returns it.
        Probe::Status | Probe::Expression => {
            json!({ "method": "DELETE", "path": format!("/{name}/{{{{ output.id }}}}") })
        }
        Probe::None if name == "invoice" => {
            json!({ "path": "/invoice/void", "body": { "amount": "{{ request.body.amount }}" } })
        }
        Probe::None => json!({ "method": "DELETE", "path": format!("/{name}") }),
    };
    step["undo"] = json!({ "request": request, "complete_within": "60s" });
    match node.probe {
        Probe::None => {}
        Probe::Status => step["probe"] = json!({ "request": { "path": format!("/{name}") } }),
        Probe::Expression => {
            step["probe"] = json!({
                "request": { "path": format!("/{name}") },
                "outcome": "response.body.state if response.status == 200 else 'not_done'",
                "output": "response.body.receipt",
            });
        }
    }
    step
}

fn lay_over(value: &mut Value, change: &Value) {
    match (value, change) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, change) in changes {
                lay_over(fields.entry(name).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change.clone(),
    }
}

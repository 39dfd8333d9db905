//! Short functions for submissions, and for the data in responses.

use serde_json::{Value, json};

/// Returns a task of one step that posts its input to a path of a remote service.
pub fn one_step(url: &str, path: &str) -> Value {
    json!({ "steps": [{ "name": "only", "url": url, "request": { "path": path } }] })
}

/// Returns a pipeline of steps with these names. Each posts to the path of its name.
pub fn pipeline(url: &str, names: &[&str]) -> Value {
    let steps = names
        .iter()
        .map(|name| json!({ "name": name, "url": url, "request": { "path": format!("/{name}") } }));
    json!({ "steps": steps.collect::<Vec<_>>() })
}

#[track_caller]
pub fn step<'a>(task: &'a Value, name: &str) -> &'a Value {
    let steps = task["steps"].as_array().expect("a task has steps");
    let found = steps.iter().find(|step| step["name"] == name);
    found.unwrap_or_else(|| panic!("no step {name} in {task:#}"))
}

/// Returns the types of a history's entries, in order.
pub fn kinds(history: &[Value]) -> Vec<&str> {
    let kinds = history.iter().map(|entry| entry["type"].as_str());
    kinds
        .map(|kind| kind.expect("an entry has a type"))
        .collect()
}

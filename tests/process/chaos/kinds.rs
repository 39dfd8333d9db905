//! The steps of the operated chaos that are more than one call or one event.

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

use super::{orders::one_of, people::PEOPLE};

/// Makes the step run for each item of a short list.
pub fn for_each(random: &mut StdRng, step: &mut Value, undoable: bool) {
    let count = one_of(random, &[0, 1, 2, 3, 3, 4, 4, 5, 6]);
    let items: Vec<_> = (0..count).collect();
    step["for_each"] = json!(items);
    step["max_parallel"] = json!(random.random_range(1..4));
    let policies: &[&str] = match undoable {
        true => &["error", "skip", "skip", "undo"],
        false => &["error", "skip"],
    };
    if random.random_ratio(2, 3) {
        step["on_item_error"] = json!(one_of(random, policies));
    }
    if step["request"]["body"].is_object() {
        step["request"]["body"]["item"] = json!("{{ item }}");
    }
    if step["task"].is_object() {
        step["task"]["key"] = json!("{{ task.key }}.{{ index }}");
    }
}

/// Makes the step run one to three times.
pub fn repeat(random: &mut StdRng, step: &mut Value) {
    let times = random.random_range(1..=3);
    step["repeat"] = json!({
        "until": format!("index >= {}", times - 1),
        "at_most": random.random_range(2..=4),
        "every": one_of(random, &["0s", "0s", "300ms"]),
        "on_exhausted": one_of(random, &["error", "skip"]),
    });
    if step["request"]["body"].is_object() {
        step["request"]["body"]["item"] = json!("{{ index }}");
    }
    if step["task"].is_object() {
        step["task"]["key"] = json!("{{ task.key }}.{{ index }}");
    }
}

/// Returns a step with a child of one of these workflows.
pub fn child(random: &mut StdRng, name: &str, after: &[&str], parts: &[String]) -> Value {
    json!({
        "name": name,
        "after": after,
        "task": {
            "workflow": parts[random.random_range(0..parts.len())],
            "key": "{{ task.key }}.child",
            "labels": { "lot": "{{ task.labels.lot }}" },
            "on_error": one_of(random, &["wait", "undo", "undo"]),
        },
    })
}

/// Makes a workflow movable: its tasks can move as long as they have no lists and the steps that have begun stay the
/// same.
pub fn movable(mut workflow: Value) -> Value {
    for step in workflow["steps"].as_array_mut().unwrap() {
        for field in [
            "pivot",
            "for_each",
            "max_parallel",
            "on_item_error",
            "repeat",
        ] {
            step.as_object_mut().unwrap().remove(field);
        }
        if step["request"]["body"].is_object() {
            step["request"]["body"]
                .as_object_mut()
                .unwrap()
                .remove("item");
        }
        // A race that has ended keeps its task from another order of steps.
        if step["after"].is_object() {
            step["after"] = step["after"]["of"].take();
        }
        if step["task"].is_object() {
            step["task"]["key"] = json!("{{ task.key }}.child");
        }
    }
    workflow
}

/// Returns another version of a workflow: a step has another request or other limits, one step is new, or one is
/// removed.
pub fn next_version(random: &mut StdRng, number: u32, mut workflow: Value) -> Value {
    let steps = workflow["steps"].as_array_mut().unwrap();
    let at = random.random_range(0..steps.len());
    let name = steps[at]["name"].clone();
    let is_last = steps.iter().all(|step| {
        let mut after = step["after"].as_array().unwrap().iter();
        after.all(|before| *before != name)
    });
    match random.random_range(0..8) {
        0 if is_last && steps.len() > 1 => drop(steps.remove(at)),
        0..3 if steps.len() < 9 => {
            let mut new = json!({
                "name": format!("new-{number}"),
                "agent": "services",
                "after": [name],
                "complete_within": "3s",
                "request": { "path": "/new", "body": { "order": "{{ task.key }}", "made_by": number } },
            });
            if random.random_ratio(2, 3) {
                new["undo"] =
                    json!({ "request": { "path": "/new/undo" }, "complete_within": "3s" });
            }
            if random.random_ratio(1, 2) {
                // The steps that followed the step follow the new one now.
                for step in &mut *steps {
                    for before in step["after"].as_array_mut().unwrap() {
                        if *before == name {
                            *before = new["name"].clone();
                        }
                    }
                }
            }
            let place = random.random_range(at + 1..=steps.len());
            steps.insert(place, new);
        }
        3..6 if steps[at]["request"]["body"].is_object() => {
            steps[at]["request"]["body"]["made_by"] = json!(number);
        }
        _ if steps[at]["request"].is_object() => {
            steps[at]["max_failures"] = json!(random.random_range(0..5));
            steps[at]["complete_within"] = json!(one_of(random, &["3s", "4s", "5s"]));
            if steps[at]["undo"].is_object() {
                steps[at]["undo"]["max_failures"] = json!(random.random_range(0..5));
            }
        }
        _ => {}
    }
    workflow
}

/// Returns a step that asks people.
pub fn ask(random: &mut StdRng, name: &str, after: &[&str], undoable: bool) -> Value {
    let mut people = PEOPLE.to_vec();
    while people.len() > 3 || people.len() > 1 && random.random_ratio(1, 3) {
        people.remove(random.random_range(0..people.len()));
    }
    let approvals = random.random_range(1..=people.len().min(2));
    let policies: &[&str] = if undoable {
        &["error", "undo"]
    } else {
        &["error"]
    };
    json!({
        "name": name,
        "after": after,
        "signal": {
            "within": one_of(random, &["3s", "6s"]),
            "on_timeout": one_of(random, policies),
            "ask": { "title": "May {{ task.key }} go on?", "of": people, "approvals": approvals },
        },
    })
}

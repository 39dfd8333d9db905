//! Checks what must be true of every case at its end, by the services' ledgers and by the record of Provost.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    cases::{Case, ITEMS},
    services::{Book, Entry, Kind, Line},
};
use crate::harness::{Api, step};

/// Returns the steps and items of a task in the order in which they are done.
fn places() -> Vec<String> {
    let of = |list: &'static str| (0..ITEMS).map(move |at| format!("{list}[{at}]"));
    let mut places = vec!["reserve".to_owned()];
    places.extend(of("import").chain(of("ship")));
    places.push("close".to_owned());
    places
}

fn level(place: &str) -> usize {
    let steps = ["reserve", "import", "ship", "pivot", "close"];
    let found = steps.iter().position(|step| place.starts_with(step));
    found.unwrap()
}

pub async fn judge(api: &Api, case: &Case, task: &Value, book: &Book) -> Vec<String> {
    let mut faults = book.complaints.clone();
    if task["state"] != case.end {
        let (state, error) = (&task["state"], &task["error"]);
        faults.push(format!("the task is {state}, not {}: {error}", case.end));
        return faults;
    }
    let id = task["id"].as_str().unwrap();
    let mut recorded = Vec::new();
    for group in ["import", "ship"] {
        let page = format!("/v1/tasks/{id}/steps?of={group}");
        let page = api.get(&page).await.expect(200);
        recorded.extend(page["items"].as_array().unwrap().iter().cloned());
        if case.end == "processed" {
            let items = recorded
                .iter()
                .filter(|item| item["name"].as_str().unwrap().starts_with(group));
            let outputs: Vec<_> = items.map(|item| item["output"].clone()).collect();
            let list = &step(task, group)["output"];
            if *list != json!(outputs) || outputs.len() != ITEMS {
                faults.push(format!("the output of {group} is {list}, not {outputs:?}"));
            }
        }
    }
    for place in places() {
        let of_place = book.entries.iter().filter(|((at, _), _)| *at == place);
        let entries: Vec<Entry> = of_place.map(|(_, entry)| *entry).collect();
        let done = entries
            .iter()
            .filter(|entry| **entry == Entry::Done)
            .count();
        let is_skipped = case.skipped == Some(place.as_str());
        let expected = usize::from(case.end == "processed" && !is_skipped);
        if done != expected {
            faults.push(format!("the ledger says that {place} is {entries:?}"));
        }
        let record = recorded.iter().find(|item| item["name"] == place);
        if let Some(record) = record.or_else(|| {
            let steps = task["steps"].as_array().unwrap();
            steps.iter().find(|step| step["name"] == place)
        }) {
            let state = record["state"].as_str().unwrap();
            let took_effect = entries.iter().any(|entry| *entry != Entry::Absent);
            let is_right = match (case.end, took_effect) {
                ("processed", _) if is_skipped => state == "skipped",
                ("processed", _) => state == "processed",
                // Its child was undone by itself, before the undo reached it.
                (_, true) if place.starts_with("ship") => state != "processed",
                (_, true) => state == "undone",
                (_, false) => {
                    state != "processed"
                        && (case.unknown || state != "undone" || place.starts_with("ship"))
                }
            };
            if !is_right {
                faults.push(format!("{place} is recorded as {state}: {entries:?}"));
            }
        } else if !entries.is_empty() {
            faults.push(format!("{place} has no record: {entries:?}"));
        }
    }
    let children = api.get(&format!("/v1/tasks?parent={id}")).await.expect(200);
    for child in children["items"].as_array().unwrap() {
        let state = child["state"].as_str().unwrap();
        let is_right = match case.end {
            "processed" => ["processed", "undone"].contains(&state),
            _ => ["undone", "cancelled"].contains(&state),
        };
        if !is_right {
            faults.push(format!("a task of an item is {state}"));
        }
    }
    faults.extend(order(&book.log));
    faults
}

/// Checks that no undo of the task came before what must precede it: the calls and the undos of the steps that follow.
/// The child of an item may be undone by itself.
fn order(log: &[Line]) -> BTreeSet<String> {
    let mut wrong = BTreeSet::new();
    for (at, undo) in log.iter().enumerate() {
        let of_task = undo.kind == Kind::Undo && !undo.answered && !undo.place.starts_with("ship");
        if !of_task {
            continue;
        }
        let follows = |line: &&Line| level(&line.place) > level(&undo.place);
        let later = log[at..].iter().filter(follows);
        for line in later {
            wrong.insert(format!("{line:?} came after the undo of {}", undo.place));
        }
        let before = &log[..at];
        for line in before
            .iter()
            .filter(follows)
            .filter(|line| line.kind == Kind::Undo)
        {
            let mut of_place = before.iter().rev();
            let last = of_place.find(|other| other.place == line.place).unwrap();
            if !last.answered {
                let (first, then) = (&line.place, &undo.place);
                wrong.insert(format!(
                    "{then} was undone before the undo of {first} was answered"
                ));
            }
        }
    }
    wrong
}

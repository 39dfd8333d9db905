//! The items of a step that runs for each item of a list: their numbers as a bar, and a page of them by state.

use super::{
    excerpt,
    record::{Step, StepPage, Task},
    words,
};
use crate::{
    params::{Params, encoded},
    parts::{Bar, Html, counted, number},
    service::Refusal,
    shell::Shell,
};

/// The states by which items are listed, those that need a person first.
pub const STATES: [&str; 7] = [
    "error",
    "processing",
    "pending",
    "waiting",
    "processed",
    "skipped",
    "cancelled",
];

pub struct ItemsPanel {
    pub title: String,
    pub most: u32,
    pub bar: Html,
    /// The number of items in each state, with the link to these.
    pub states: Vec<(&'static str, String, String, bool)>,
    pub state: Option<&'static str>,
    pub rows: Vec<ItemRow>,
    pub refusal: Option<String>,
    pub next: Option<String>,
    pub first: Option<String>,
}

pub struct ItemRow {
    pub name: String,
    pub link: String,
    pub state: String,
    pub value: String,
    pub attempts: u32,
    pub ended_at: Option<String>,
    pub words: String,
}

/// Returns the state whose items are listed: the one in the address, or `error` if there are such.
pub fn listed_state(step: &Step, query: &Params) -> Option<&'static str> {
    match query.get("state") {
        Some(word) => STATES.into_iter().find(|state| *state == word),
        None => {
            let failed = step
                .items
                .as_ref()
                .is_some_and(|items| items.in_state("error") > 0);
            failed.then_some("error")
        }
    }
}

/// Returns the request for a page of items.
pub fn target(task: &Task, step: &Step, query: &Params) -> String {
    let mut params = Params::from_iter([("of", step.name.as_str()), ("limit", "25")]);
    if let Some(state) = listed_state(step, query) {
        params = params.with("state", state);
    }
    if let Some(after) = query.get("after") {
        params = params.with("cursor", after);
    }
    format!("/v1/tasks/{}/steps{}", encoded(&task.id), params.query())
}

impl ItemsPanel {
    pub fn new(
        page: &Shell,
        task: &Task,
        step: &Step,
        items: Result<StepPage, Refusal>,
        query: &Params,
    ) -> Self {
        let base = page.task(&task.id);
        let (items, refusal) = match items {
            Ok(items) => (items, None),
            Err(refusal) => (StepPage::default(), Some(refusal.detail)),
        };
        let held = step.items.as_ref();
        let count = |state: &str| held.map_or(0, |held| held.in_state(state));
        let total = held.map_or(0, super::record::Items::count);
        let words: Vec<String> = STATES
            .iter()
            .filter(|state| count(state) > 0)
            .map(|state| format!("{} {state}", number(count(state))))
            .collect();
        let state = listed_state(step, query);
        let here = Params::from_iter([("step", step.name.as_str())]);
        let link = |query: &Params| format!("{base}{}#step", query.query());
        let rows = items.items.iter().map(|item| ItemRow {
            name: item.name.clone(),
            link: link(&Params::from_iter([("step", item.name.as_str())])),
            state: item.state.clone(),
            value: item
                .item
                .as_ref()
                .map_or_else(String::new, |value| excerpt::brief(value.get(), 120)),
            attempts: item.attempt,
            ended_at: item.ended_at.clone(),
            words: words::state_of(item)
                .or_else(|| {
                    item.output
                        .as_ref()
                        .map(|output| excerpt::brief(output.get(), 60))
                })
                .unwrap_or_default(),
        });
        let listed = state.map_or_else(|| here.clone(), |state| here.with("state", state));
        Self {
            title: format!(
                "{}, for each of {}",
                step.name,
                counted(total, "item", "items")
            ),
            most: held.map_or(0, |held| held.max_parallel),
            bar: Bar::new(
                &words.join(", "),
                "fat",
                total,
                &[
                    ("f-processed", count("processed")),
                    ("f-processing", count("processing")),
                    ("f-error", count("error")),
                    ("f-idle", count("skipped") + count("cancelled")),
                ],
            ),
            states: STATES
                .into_iter()
                .filter(|name| count(name) > 0 || matches!(*name, "error" | "processed"))
                .map(|name| {
                    (
                        name,
                        number(count(name)),
                        link(&here.with("state", name)),
                        state == Some(name),
                    )
                })
                .collect(),
            state,
            rows: rows.collect(),
            refusal,
            next: items
                .next_cursor
                .as_deref()
                .map(|cursor| link(&listed.with("after", cursor))),
            first: query.get("after").map(|_| link(&listed)),
        }
    }
}

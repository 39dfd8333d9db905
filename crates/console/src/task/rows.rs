//! The tables of a page: all steps, and those that wait for something else than a step.

use std::collections::BTreeMap;

use super::{
    excerpt,
    record::{Step, Task, between, millis, span},
    words::{self, Why},
};
use crate::parts::counted;

/// A row of the table of steps.
pub struct StepRow {
    pub name: String,
    pub link: String,
    pub state: String,
    pub agent: Option<String>,
    pub attempts: u32,
    pub started_at: Option<String>,
    pub took: String,
    pub is_selected: bool,
    pub output: Option<String>,
    pub words: String,
    pub why: Option<Why>,
    pub child: Option<String>,
}

/// A step that waits for something that is not a step.
pub struct Waiting {
    pub step: String,
    pub link: String,
    pub why: Why,
    pub since: Option<String>,
}

pub fn waiting(task: &Task, link: &impl Fn(&str) -> String) -> Vec<Waiting> {
    if task.has_ended() {
        return Vec::new();
    }
    let open = task.steps.iter().filter_map(|step| {
        let blocked = step.blocked_by.as_ref()?;
        let is_shown = !matches!(blocked.reason.as_str(), "steps" | "operator");
        is_shown.then(|| Waiting {
            step: step.name.clone(),
            link: link(&step.name),
            why: words::why(blocked),
            since: step
                .ready_at
                .clone()
                .filter(|_| blocked.reason != "time")
                .or_else(|| step.started_at.clone()),
        })
    });
    open.take(12).collect()
}

pub fn counts(task: &Task) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for step in task.steps.iter().filter(|step| step.undoes.is_none()) {
        *counts.entry(step.state.as_str()).or_default() += 1;
    }
    let order = [
        "processed",
        "skipped",
        "error",
        "processing",
        "pending",
        "waiting",
        "cancelled",
        "undone",
    ];
    let place = |state: &str| {
        order
            .iter()
            .position(|other| *other == state)
            .unwrap_or(order.len())
    };
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(state, _)| place(state));
    let words = counts.iter().map(|(state, count)| match *state {
        "error" => format!("{count} in error"),
        state => format!("{count} {state}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

pub fn row(
    step: &Step,
    now: i64,
    link: &impl Fn(&str) -> String,
    shown: Option<&str>,
    conditions: &BTreeMap<&str, &str>,
    pivots: &[&str],
) -> StepRow {
    let why = step
        .blocked_by
        .as_ref()
        .filter(|blocked| blocked.reason != "operator" && step.state != "error")
        .map(words::why);
    let mut words = words::state_of(step).unwrap_or_default();
    if step.state == "skipped" {
        words = conditions
            .get(step.name.as_str())
            .map_or_else(String::new, |condition| {
                format!("when: {condition} was false")
            });
    }
    if let Some(items) = &step.items {
        let states = items
            .states
            .iter()
            .map(|(state, count)| format!("{} {state}", crate::parts::number(*count)));
        words = format!(
            "{} of {}",
            states.collect::<Vec<_>>().join(", "),
            counted(items.count(), "item", "items")
        );
    }
    if step.outcome.is_some() {
        words = format!(
            "{words}{}its outcome is unknown: it may have taken effect",
            if words.is_empty() { "" } else { "; " }
        );
    }
    if step.state == "processed"
        && let Some(fault) = &step.last_fault
    {
        words = format!("after {}", fault.short());
    }
    if pivots.contains(&step.name.as_str()) {
        let and = if words.is_empty() { "" } else { "; " };
        words = format!("{words}{and}point of no return");
    }
    StepRow {
        name: step.name.clone(),
        link: link(&step.name),
        state: step.state.clone(),
        agent: step.agent.clone(),
        attempts: step.attempt,
        started_at: step.started_at.clone(),
        took: match (step.started_at.as_deref(), step.ended_at.as_deref()) {
            (Some(begin), Some(end)) => between(Some(begin), Some(end))
                .map(span)
                .unwrap_or_default(),
            (Some(begin), None) => millis(begin)
                .map(|begin| span(now - begin))
                .unwrap_or_default(),
            _ => String::new(),
        },
        is_selected: shown == Some(&step.name),
        output: step
            .output
            .as_ref()
            .filter(|_| step.items.is_none())
            .map(|output| excerpt::brief(output.get(), 90)),
        words,
        why,
        child: step.child.as_ref().map(|child| child.id.clone()),
    }
}

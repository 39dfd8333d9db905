//! The relations of a task: its parent and its children, its origin, its messages and the tasks with its key.

use super::{
    picture,
    record::{History, Task},
};
use crate::{
    params::{Params, encoded},
    shell::Shell,
};

/// A line of what the task belongs to.
pub struct Relation {
    pub class: &'static str,
    pub shape: &'static str,
    pub kind: &'static str,
    pub link: Option<String>,
    pub words: String,
    pub more: String,
}

pub fn relations(page: &Shell, task: &Task, history: &History) -> Vec<Relation> {
    let mut relations = Vec::new();
    let mut add = |class, shape, kind, link: Option<String>, words: String, more: String| {
        relations.push(Relation {
            class,
            shape,
            kind,
            link,
            words,
            more,
        });
    };
    if let Some(parent) = &task.parent {
        add(
            "pending",
            "dot",
            "part of",
            Some(page.task(&parent.task)),
            format!("task {}", parent.task),
            format!(", step {}", parent.step),
        );
    }
    for step in &task.steps {
        if let Some(child) = &step.child {
            let state = child.state.as_deref().unwrap_or("unknown");
            let (class, shape) = picture::look(state);
            add(
                class,
                shape,
                "child",
                Some(page.task(&child.id)),
                format!("task of {}", step.name),
                format!(", {state}"),
            );
        }
    }
    // The schedule and the original of a clone are only in the words of the history.
    let accepted = history
        .items
        .first()
        .filter(|entry| entry.kind == "task.accepted");
    if let Some(reason) = accepted.and_then(|entry| entry.reason.as_deref()) {
        add(
            "pending",
            "dot",
            "origin",
            None,
            reason.to_owned(),
            String::new(),
        );
    }
    if task.reply_to.is_some() {
        let link = page.to(&format!("/messages?task={}", encoded(&task.id)));
        add(
            "pending",
            "mail",
            "reply to",
            Some(link),
            String::from("undelivered messages of this task"),
            String::new(),
        );
    }
    if let Some(key) = &task.key {
        let link = page.to(&format!(
            "/tasks{}",
            Params::from_iter([("key", key.as_str())]).query()
        ));
        add(
            "pending",
            "dot",
            "key",
            Some(link),
            String::from("tasks with this key"),
            String::from(", this one among them"),
        );
    }
    relations
}

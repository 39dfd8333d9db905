//! The pages of a task, made of responses that a running service gave, and read with an HTML parser.

mod dom;
mod forms;
mod pages;

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::{
    page::{OneTaskPage, TaskSources},
    record::{History, Task},
    undo::{Plan, UndoPage},
};
use crate::{
    params::Params,
    service::{Installation, Person, Role},
    shell::{Section, Shell},
};

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name, ".json"))
    };
}
use fixture;

fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

fn person(role: Role) -> Person {
    Person {
        name: String::from("night-shift"),
        role,
        credential: None,
    }
}

fn shell(role: Role) -> Shell {
    Shell {
        title: String::from("A page"),
        section: Section::Tasks,
        person: person(role),
        installation: Installation {
            base: String::from("/p"),
            version: "0.1.0",
            ..Installation::default()
        },
        now: "2026-11-28T21:56:26Z".parse::<Timestamp>().unwrap(),
        here: String::from("/p/console/tasks/1"),
        query: Params::default(),
        counts: Vec::new(),
    }
}

fn sources(task: &str, history: &str) -> TaskSources {
    TaskSources {
        task: read::<Task>(task),
        history: Ok(read::<History>(history)),
        attempts: None,
        items: None,
        failures: None,
        undo: None,
        definition: None,
    }
}

/// The page of the task that failed at `charge`, with everything that the API says about it.
fn failed_page(query: &str) -> OneTaskPage {
    let mut sources = sources(fixture!("task-error"), fixture!("history-error"));
    sources.attempts = Some(Ok((
        read(fixture!("attempts-charge")),
        read(fixture!("attempt-charge")),
    )));
    sources.failures = Some(read(fixture!("failures")));
    sources.definition = Some(read(fixture!("order-2")));
    OneTaskPage::new(shell(Role::Operate), &Params::read(query), sources)
}

fn undo_page(role: Role) -> UndoPage {
    let task: Task = read(fixture!("task-waiting"));
    let plan: Plan = read(fixture!("undo-waiting"));
    UndoPage::new(
        shell(role),
        task,
        plan,
        String::from("once-1"),
        String::new(),
        None,
    )
}

//! The list of tasks, with the filter of `GET /v1/tasks`.

use std::collections::BTreeMap;

use askama::Template;
use axum::response::Response;
use serde::Deserialize;

use crate::{
    params::Params,
    parts::counted,
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// The parameters of the filter. They have the names and the meaning that they have in `GET /v1/tasks`.
pub const FILTER: [&str; 14] = [
    "state",
    "workflow",
    "key",
    "agent",
    "text",
    "label",
    "cause",
    "at_risk",
    "created_after",
    "created_before",
    "alert",
    "parent",
    "bulk",
    "bulk_result",
];

const STATES: [&str; 8] = [
    "error",
    "processing",
    "paused",
    "pending",
    "undoing",
    "processed",
    "undone",
    "cancelled",
];

/// The number of rows on a page.
const ROWS: &str = "25";

/// A page of `GET /v1/tasks`.
#[derive(Deserialize)]
pub struct TaskPage {
    pub items: Vec<TaskRow>,
    pub next_cursor: Option<String>,
    pub examined_back_to: Option<String>,
}

#[derive(Deserialize)]
pub struct TaskRow {
    pub id: String,
    pub key: Option<String>,
    pub workflow: Option<String>,
    pub workflow_version: Option<u64>,
    pub state: String,
    pub labels: BTreeMap<String, String>,
    pub created_at: String,
    pub ended_at: Option<String>,
    #[serde(default)]
    pub at_risk: Option<serde_json::Value>,
    pub error: Option<TaskFault>,
}

/// The first error of a task that needs a person.
#[derive(Deserialize)]
pub struct TaskFault {
    pub message: String,
    pub step: Option<String>,
    pub at: String,
    pub outcome: Option<String>,
}

impl TaskRow {
    /// Returns the name by which people know the task.
    pub fn name(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.id)
    }

    pub fn workflow_in_words(&self) -> String {
        match (&self.workflow, self.workflow_version) {
            (Some(name), Some(version)) => format!("{name} {version}"),
            (Some(name), None) => name.clone(),
            (None, _) => String::from("–"),
        }
    }

    pub fn has_unknown_outcome(&self) -> bool {
        let outcome = self
            .error
            .as_ref()
            .and_then(|error| error.outcome.as_deref());
        outcome == Some("unknown")
    }

    /// Returns the message without the step's name at its begin, which the row shows apart.
    pub fn message<'e>(&self, error: &'e TaskFault) -> &'e str {
        let step = error.step.as_deref().unwrap_or_default();
        let rest = error
            .message
            .strip_prefix("step ")
            .and_then(|rest| rest.strip_prefix(step));
        rest.and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or(&error.message)
    }
}

/// A filter in force, with the link to the list without it.
pub struct Chip {
    pub words: String,
    pub without: String,
}

#[derive(Template)]
#[template(path = "tasks.html")]
pub struct TasksPage {
    pub page: Shell,
    pub query: Params,
    /// The title: the filter in words.
    pub sentence: String,
    pub states: [&'static str; 8],
    pub chips: Vec<Chip>,
    pub tasks: Vec<TaskRow>,
    /// True: other pages follow, or precede.
    pub is_part: bool,
    pub next: Option<String>,
    pub examined_back_to: Option<String>,
}

impl TasksPage {
    pub fn new(page: Shell, query: &Params, tasks: TaskPage) -> Self {
        let filter = query.only(&FILTER);
        let is_part = tasks.next_cursor.is_some() || query.get("after").is_some();
        let count = tasks.items.len() as u64;
        let chips = filter.iter().map(|(name, value)| Chip {
            words: format!("{name}:{value}"),
            without: page.to(&format!("/tasks{}", without(&filter, name, value).query())),
        });
        Self {
            sentence: sentence(&filter, count, is_part),
            states: STATES,
            chips: chips.collect(),
            next: next_page(&filter, tasks.next_cursor.as_deref()),
            examined_back_to: tasks.examined_back_to,
            is_part,
            tasks: tasks.items,
            query: filter,
            page,
        }
    }

    /// Returns the address of the list of all tasks in a state.
    pub fn in_state(&self, state: &str) -> String {
        self.page.to(&format!("/tasks?state={state}"))
    }

    /// Returns the address of the commands for all tasks of this filter.
    pub fn act_on_all(&self) -> String {
        self.page.to(&format!("/tasks/fix{}", self.query.query()))
    }
}

/// Returns the filter without one of its values. The result of a bulk job goes with the job that it belongs to.
fn without(filter: &Params, name: &str, value: &str) -> Params {
    let rest = filter.without_value(name, value);
    match name {
        "bulk" => rest.without("bulk_result"),
        _ => rest,
    }
}

/// Returns the filter in words: `25 or more tasks in error of workflow order`.
fn sentence(filter: &Params, count: u64, is_part: bool) -> String {
    let mut words = match (is_part, count) {
        (true, _) => String::from("Tasks"),
        (false, 0) => String::from("No tasks"),
        (false, _) => counted(count, "task", "tasks"),
    };
    match filter.get("state") {
        Some("error") => words.push_str(" in error"),
        Some(state) => {
            words.push_str(" that are ");
            words.push_str(state);
        }
        None => {}
    }
    for (name, value) in filter.iter() {
        let phrase = match name {
            "state" => continue,
            "workflow" => format!(" of workflow {value}"),
            "key" => format!(" with the key {value}"),
            "agent" => format!(" at agent {value}"),
            "text" => format!(" with the text “{value}”"),
            "label" => format!(" labelled {value}"),
            "cause" => format!(" of cause {value}"),
            "at_risk" => String::from(" that will be late"),
            "created_after" => format!(" created after {value}"),
            "created_before" => format!(" created before {value}"),
            "alert" => format!(" of alert {value}"),
            "parent" => format!(" of parent {value}"),
            "bulk" => format!(" of bulk job {value}"),
            "bulk_result" => match value {
                "accepted" => String::from(" that accepted the command"),
                "refused" => String::from(" that refused the command"),
                other => format!(" that {}", other.replace('_', " ")),
            },
            _ => continue,
        };
        words.push_str(&phrase);
    }
    words
}

/// Returns the address of the tasks that a page shows.
pub fn target(query: &Params, rows: &str) -> String {
    let mut asked = query.only(&FILTER).with("limit", rows);
    if let Some(cursor) = query.get("after") {
        asked = asked.with("cursor", cursor);
    }
    format!("/v1/tasks{}", asked.query())
}

pub async fn show(visit: Visit) -> Response {
    let page = build(&visit).await;
    visit.show(page)
}

async fn build(visit: &Visit) -> Result<TasksPage, Refusal> {
    let tasks: TaskPage = visit.get(&target(&visit.query, ROWS)).await?;
    let shell = visit.shell(Section::Tasks, "Tasks");
    Ok(TasksPage::new(shell, &visit.query, tasks))
}

//! The page of a command: one sentence that says what will happen, what it needs, and a form that does it. A refused
//! command shows what has happened since.

use askama::Template;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{
    command::{Command, command_link},
    compare::Difference,
    record::{AttemptList, History, Step, Task},
    words,
};
use crate::{
    assets::hex,
    changed::{ChangedPage, LineRow, Link},
    json::{self, Line},
    params::Params,
    service::Refusal,
    shell::Shell,
};

/// The response of `POST /v1/tasks/{id}/migrate` with `dry_run`.
#[derive(Deserialize)]
pub struct MigrationReport {
    pub from_version: u32,
    pub to_version: u32,
    pub can_migrate: bool,
    pub refusal: Option<String>,
    #[serde(default)]
    pub steps: Vec<MigratedStep>,
    #[serde(default)]
    pub input_errors: Vec<InputError>,
}

#[derive(Deserialize)]
pub struct MigratedStep {
    pub name: String,
    pub state: Option<String>,
    pub change: Option<String>,
    #[serde(default)]
    pub differs: Vec<String>,
    pub reason: Option<String>,
}

#[derive(Deserialize)]
pub struct InputError {
    pub pointer: String,
    pub message: String,
}

/// The responses of the API that the preview of a command is made of.
#[derive(Default)]
pub struct PreviewSources {
    /// The last attempt of the step, for its request.
    pub attempt: Option<AttemptList>,
    pub migration: Option<Result<MigrationReport, Refusal>>,
    pub clone: Option<Result<Difference, Refusal>>,
    /// The versions of the workflow, the newest first.
    pub versions: Vec<u32>,
    /// Guards against a form that is sent twice.
    pub once: String,
    /// The fault of the form that was sent.
    pub complaint: Option<String>,
}

/// A text of JSON that the person may change before the command is sent.
pub struct Editor {
    /// The name of the parameter.
    pub name: &'static str,
    pub label: &'static str,
    pub text: String,
    pub help: &'static str,
    pub difference: Vec<Line>,
    pub fault: Option<String>,
    pub is_changed: bool,
}

#[derive(Template)]
#[template(path = "task/preview.html")]
pub struct TaskCommandPage {
    pub page: Shell,
    pub task: Task,
    pub command: Command,
    pub step: Option<String>,
    pub step_state: Option<String>,
    pub sentence: String,
    pub lead: String,
    pub editor: Option<Editor>,
    pub migration: Option<MigrationReport>,
    pub clone: Option<Difference>,
    pub versions: Vec<(u32, bool)>,
    pub rerun: Vec<(String, bool)>,
    pub refusal: Option<String>,
    pub complaint: Option<String>,
    pub etag: String,
    /// A text that differs once what the page says is not true any more; empty if it says more than can be compared.
    pub said: String,
    pub once: String,
    pub reason: String,
    pub post: String,
    pub here: String,
    /// The values that the form sends besides those that are typed.
    pub hidden: Vec<(&'static str, String)>,
}

impl TaskCommandPage {
    pub fn new(
        page: Shell,
        task: Task,
        command: Command,
        query: &Params,
        sources: PreviewSources,
    ) -> Self {
        let step_name = query.get("step");
        let step = step_name.and_then(|name| task.step(name));
        let mut refusal = command
            .obstacle(&task, step)
            .filter(|_| step.is_some() || step_name.is_none());
        if command.needs_step() && step_name.is_none() {
            refusal = Some(String::from("choose a step on the page of the task"));
        }
        let mut complaint = sources.complaint;
        let editor = editor(command, &task, query, sources.attempt.as_ref());
        if let Some(fault) = editor.as_ref().and_then(|editor| editor.fault.clone()) {
            refusal = Some(fault);
        }
        if command == Command::Signal && query.get("output").is_none() && refusal.is_none() {
            refusal = Some(String::from(
                "say first what the event brings; null, if nothing",
            ));
        }
        let (migration, no_migration) = split(sources.migration);
        let (clone, no_clone) = split(sources.clone);
        complaint = complaint.or(no_migration).or(no_clone);
        if let Some(report) = &migration
            && !report.can_migrate
        {
            let why = report.refusal.clone();
            refusal = Some(why.unwrap_or_else(|| {
                String::from("a step below cannot move; choose another version, or clone the task")
            }));
        }
        if command == Command::Migrate && migration.is_none() && refusal.is_none() {
            refusal = Some(String::from("choose a version first"));
        }
        if !page.operates() {
            refusal = Some(format!(
                "your role is {}; this needs the role operate",
                page.person.role.word()
            ));
        }
        let from = query.get("from");
        let is_rerun =
            command == Command::Retry && (query.get("rerun").is_some() || from.is_some());
        if is_rerun && from.is_none() {
            refusal = Some(String::from("choose a step first"));
        } else if is_rerun && page.operates() {
            refusal = None;
        }
        let is_changed = editor.as_ref().is_some_and(|editor| editor.is_changed);
        let mut sentence = match (is_rerun, from, &migration) {
            (true, Some(from), _) => format!("Rerun {} from {from}", task.name()),
            (true, None, _) => format!("Rerun {} from a step", task.name()),
            (_, _, Some(report)) => {
                format!(
                    "Move {} from version {} to {}",
                    task.name(),
                    report.from_version,
                    report.to_version
                )
            }
            _ => command.sentence(&task, step, is_changed),
        };
        if step.is_none()
            && let Some(name) = step_name
        {
            sentence = format!("{} {name} of {}", command.title(), task.name());
        }
        let lead = match (is_rerun, &clone) {
            (true, _) => String::from(
                "This step and all that follow it run again, also those that are done. Calls keep their Idempotency-Key.",
            ),
            (_, Some(difference)) => as_sentence(&difference.sentence),
            _ => command.consequence(&task, step),
        };
        let mut hidden = Vec::new();
        for name in ["step", "body", "input", "output", "from", "to_version"] {
            let own = editor.as_ref().filter(|editor| editor.name == name);
            match own {
                Some(editor) if editor.is_changed => {
                    hidden.push((editor.name, editor.text.clone()))
                }
                Some(_) => {}
                None => hidden.extend(query.get(name).map(|value| (name, value.to_owned()))),
            }
        }
        let rerun = is_rerun.then(|| {
            let steps = task
                .steps
                .iter()
                .filter(|step| step.undoes.is_none() && step.state != "waiting");
            steps
                .map(|step| (step.name.clone(), from == Some(&step.name)))
                .collect()
        });
        let is_compared = migration.is_none() && clone.is_none() && !is_rerun;
        let said = match is_compared {
            true => said(&task, step, &[&sentence, &lead]),
            false => String::new(),
        };
        let chosen = migration.as_ref().map(|report| report.to_version);
        let post = page.task(&task.id) + "/" + command.word();
        Self {
            step: step_name.map(str::to_owned),
            step_state: step.map(|step| step.state.clone()),
            lead: format!("{lead} Nothing has changed yet."),
            sentence,
            migration,
            clone,
            versions: sources
                .versions
                .iter()
                .filter(|version| Some(**version) != task.workflow_version)
                .map(|version| (*version, chosen == Some(*version)))
                .collect(),
            rerun: rerun.unwrap_or_default(),
            refusal,
            complaint,
            etag: query
                .get("if_match")
                .map_or_else(|| task.etag(), str::to_owned),
            said,
            once: sources.once,
            reason: query.text("reason").to_owned(),
            here: command_link(&page, &task.id, command, None),
            post,
            hidden,
            editor,
            command,
            task,
            page,
        }
    }

    /// Returns the words on the button that does it.
    pub fn button(&self) -> String {
        match &self.step {
            Some(step) => format!("{} {step}", self.command.title()),
            None if self.command == Command::Clone => String::from("Clone the task"),
            None if self.command == Command::Migrate => String::from("Move the task"),
            None => format!("{} the task", self.command.title()),
        }
    }
}

/// Returns a text that differs once a sentence of a preview, the state of the task or the step, or the failure that was looked at
/// is another one. Many other changes of a task, such as the end of another step, make the preview no less true.
fn said(task: &Task, step: Option<&Step>, sentences: &[&str]) -> String {
    let mut hash = Sha256::new();
    let failures = [
        task.error.as_ref(),
        step.and_then(|step| step.error.as_ref()),
    ];
    let failures = failures.map(|fault| fault.map_or("", |fault| &fault.at));
    let step = step.map_or_else(String::new, |step| {
        format!("{} {}", step.state, step.attempt)
    });
    let paused = if task.is_paused() { "paused" } else { "" };
    // That its first step has begun is no change for a person.
    let state = match task.state.as_str() {
        "pending" => "processing",
        state => state,
    };
    let state = [state, paused, &step, failures[0], failures[1]];
    for part in sentences.iter().chain(&state) {
        hash.update(part);
        hash.update([0]);
    }
    hex(&hash.finalize()[..8])
}

/// Returns the text with the full stop that ends a sentence.
fn as_sentence(text: &str) -> String {
    let text = text.trim_end();
    let end = if text.ends_with('.') { "" } else { "." };
    format!("{text}{end}")
}

fn split<T>(result: Option<Result<T, Refusal>>) -> (Option<T>, Option<String>) {
    match result {
        Some(Ok(value)) => (Some(value), None),
        Some(Err(refusal)) => (None, Some(refusal.detail)),
        None => (None, None),
    }
}

fn editor(
    command: Command,
    task: &Task,
    query: &Params,
    attempt: Option<&AttemptList>,
) -> Option<Editor> {
    let make = |name: &'static str, label, original: String, help| {
        let typed = query.get(name).map(|text| text.replace("\r\n", "\n"));
        let text = typed.clone().unwrap_or_else(|| original.clone());
        let fault = typed.as_ref().and_then(|text| {
            let fault = serde_json::from_str::<&RawValue>(text).err()?;
            Some(format!(
                "this is not JSON: {fault}; correct it, and show the difference again"
            ))
        });
        let is_changed = typed.is_some() && json::pretty(&text) != json::pretty(&original);
        // An event has no earlier payload to compare with.
        let difference = if is_changed && command != Command::Signal {
            json::difference(&original, &text)
        } else {
            Vec::new()
        };
        Some(Editor {
            name,
            label,
            text,
            help,
            difference,
            fault,
            is_changed,
        })
    };
    match command {
        Command::Retry => {
            let attempt = attempt?.items.first()?;
            let body = attempt.request.as_ref()?.body.as_ref()?;
            let start = body
                .start
                .as_deref()
                .filter(|start| start.len() as u64 == body.bytes)?;
            make(
                "body",
                "Body, to change",
                json::pretty(start),
                "A changed body replaces the request of this step from now on. “***” stands for a value that you may not see: replace it, or leave the body as it is.",
            )
        }
        Command::Skip | Command::Resolve => make(
            "output",
            "Output, for later steps",
            String::from("null"),
            "JSON. Later steps see it as the output of this step.",
        ),
        Command::Signal => make(
            "output",
            "What the event brings",
            String::from("null"),
            "JSON. Later steps see it as the output of this step.",
        ),
        Command::Clone if task.input.get().len() <= 256 * 1024 => make(
            "input",
            "Input of the new task",
            json::pretty(task.input.get()),
            "JSON. Without a change the new task has the same input.",
        ),
        _ => None,
    }
}

/// The page of a command that was refused because the task has changed, or is in another state.
impl ChangedPage {
    pub fn of_task(
        page: Shell,
        task: Task,
        history: History,
        command: Command,
        form: &Params,
        refusal: Refusal,
    ) -> Self {
        let seen = form.text("if_match").trim_matches('"').parse::<u64>().ok();
        let workflow = task.workflow.as_deref().zip(task.workflow_version);
        let since = history
            .items
            .iter()
            .filter(|entry| seen.is_some_and(|seen| entry.version() > seen));
        let lines: Vec<LineRow> = since
            .filter(|entry| !words::is_detail(entry))
            .map(|entry| LineRow::of(&words::line(entry, workflow)))
            .take(50)
            .collect();
        let step = form.get("step");
        let is_stale = refusal.status == 412;
        let title = match is_stale {
            true => format!(
                "{} has changed since you looked: nothing was done",
                task.name()
            ),
            false => format!(
                "{} was not done: {}",
                command.sentence(&task, step.and_then(|step| task.step(step)), false),
                refusal.title.to_lowercase()
            ),
        };
        let lead = match (is_stale, seen) {
            (true, Some(seen)) => format!(
                "You previewed version {seen}. It is at version {} now.",
                task.version
            ),
            _ => format!("{}. Nothing was done.", refusal.detail),
        };
        let typed = ["body", "input", "output"]
            .iter()
            .find_map(|name| form.get(name))
            .map(str::to_owned);
        let kept = ["if_match", "said", "once", "sure"];
        let kept = kept
            .iter()
            .fold(form.clone(), |form, name| form.without(name));
        Self {
            title,
            lead,
            lines,
            was: match step {
                Some(step) => format!("{} {step}", command.title().to_lowercase()),
                None => command.title().to_lowercase(),
            },
            reason: form.text("reason").to_owned(),
            typed,
            list: Link {
                to: page.to("/tasks"),
                text: String::from("Tasks"),
            },
            thing: Link {
                to: page.task(&task.id),
                text: task.name().to_owned(),
            },
            step_state: step
                .and_then(|step| task.step(step))
                .map(|step| (step.name.clone(), step.state.clone())),
            again: Some(format!(
                "{}/{}{}",
                page.task(&task.id),
                command.word(),
                kept.query()
            )),
            refusal,
            page,
        }
    }
}

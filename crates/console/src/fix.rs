//! A command for many tasks: its choice, its preview, and its confirmation. The preview is the dry run of the API, and
//! the confirmation sends the same selection without `dry_run`.

use std::collections::BTreeMap;

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    assets::hex,
    confirmations::Begun,
    form::read_form,
    json::{self, Line},
    params::{self, Params, encoded},
    parts::{counted, duration_in_words, number},
    respond,
    service::Refusal,
    shell::{Section, Shell},
    tasks::list::FILTER,
    visit::Visit,
};

/// The parameters of a command, besides those of the filter.
pub const COMMAND: [&str; 7] = ["do", "patch", "step", "output", "to_version", "from", "ids"];

/// The fields of a confirmation, besides those.
const CONFIRMATION: [&str; 7] = [
    "expected", "as_of", "once", "typed", "first", "rate", "reason",
];

/// The usual number of tasks in a second.
const USUAL_RATE: u64 = 20;

/// The number of tasks with which a job begins.
const FIRST: u64 = 5;

/// A command for many tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Patch,
    Retry,
    Rerun,
    Migrate,
    Skip,
    Resolve,
    Pause,
    Resume,
    Undo,
    Cancel,
    Clone,
}

impl Action {
    const ALL: [(&'static str, Self); 11] = [
        ("patch", Self::Patch),
        ("retry", Self::Retry),
        ("rerun", Self::Rerun),
        ("migrate", Self::Migrate),
        ("skip", Self::Skip),
        ("resolve", Self::Resolve),
        ("pause", Self::Pause),
        ("resume", Self::Resume),
        ("undo", Self::Undo),
        ("cancel", Self::Cancel),
        ("clone", Self::Clone),
    ];

    fn read(query: &Params) -> Result<Self, Refusal> {
        let asked = query.text("do");
        let found = Self::ALL.iter().find(|(word, _)| *word == asked);
        found.map(|(_, action)| *action).ok_or_else(|| {
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "No such command",
                format!("{asked:?} is no command for many tasks: choose one of those that the page lists"),
            )
        })
    }

    /// Returns the last part of the path of the API.
    fn path(self) -> &'static str {
        match self {
            Self::Patch | Self::Retry => "retry",
            Self::Rerun => "rerun",
            Self::Migrate => "migrate",
            Self::Skip => "skip",
            Self::Resolve => "resolve",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Undo => "undo",
            Self::Cancel => "cancel",
            Self::Clone => "clone",
        }
    }

    /// Returns the command with its number of tasks, such as `Retry 403 tasks`.
    fn sentence(self, run: &DryRun) -> String {
        let at_least = if run.is_part() { "at least " } else { "" };
        let tasks = format!("{at_least}{}", counted(run.accepted, "task", "tasks"));
        match self {
            Self::Patch => format!("Retry {tasks} with a changed request"),
            Self::Retry => format!("Retry {tasks}"),
            Self::Rerun => format!("Rerun {tasks} from a step"),
            Self::Migrate => format!("Move {tasks} to another version"),
            Self::Skip => format!("Skip the failed step of {tasks}"),
            Self::Resolve => format!("Resolve the failed step of {tasks}"),
            Self::Pause => format!("Pause {tasks}"),
            Self::Resume => format!("Resume {tasks}"),
            Self::Undo => format!("Undo {tasks}"),
            Self::Cancel => format!("Cancel {tasks}"),
            Self::Clone => format!("Clone {tasks}"),
        }
    }

    /// Returns whether nothing takes the command back.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Undo | Self::Cancel)
    }

    /// Returns what the command means to the services.
    fn note(self) -> &'static str {
        match self {
            Self::Patch => {
                "Services see the same Idempotency-Key as before for each task, with another body. A service that \
                 remembers the key of a refused request may return the old refusal."
            }
            Self::Retry => "Services see the same Idempotency-Key as before, for each task.",
            Self::Rerun => {
                "The step and all that follow it run again, those that are done among them, under the same Idempotency-Keys. \
                 What they did stands until they have done it again."
            }
            Self::Migrate => {
                "Steps that are done stay done; the others follow the definition of the other version."
            }
            Self::Skip => {
                "The tasks go on as if the step had succeeded. Its effect, if it had one, stays."
            }
            Self::Resolve => {
                "The tasks go on with this output, the same for all. Nothing is called for the step."
            }
            Self::Pause => {
                "Calls in flight continue, and their responses count. No further step of these tasks begins until they are resumed."
            }
            Self::Resume => "The tasks go on where they were paused.",
            Self::Undo => {
                "The undo of each step that took effect is called, in reverse order. This cannot be taken back."
            }
            Self::Cancel => {
                "Nothing is undone: what took effect remains. This cannot be taken back."
            }
            Self::Clone => "New tasks begin with the same input. These tasks stay as they are.",
        }
    }
}

/// A dry run of a command for many tasks.
#[derive(Deserialize)]
pub struct DryRun {
    pub matched: u64,
    pub accepted: u64,
    pub refused: u64,
    #[serde(default)]
    pub refusals: BTreeMap<String, u64>,
    #[serde(default)]
    pub as_of: String,
    pub sentence: String,
    #[serde(default)]
    pub examples: Vec<DryRunExample>,
    pub plan: Option<UndoSummary>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct DryRunExample {
    pub task: String,
    pub key: Option<String>,
    pub before: Side,
    pub after: Side,
}

#[derive(Deserialize)]
pub struct Side {
    pub state: String,
    #[serde(default)]
    pub paused: bool,
    #[serde(default)]
    pub steps: Vec<SideStep>,
    pub request_body: Option<String>,
}

#[derive(Deserialize)]
pub struct SideStep {
    pub name: String,
    pub state: String,
}

#[derive(Deserialize)]
pub struct UndoSummary {
    pub tasks: u64,
    pub steps: Vec<UndoSummaryStep>,
}

#[derive(Deserialize)]
pub struct UndoSummaryStep {
    pub step: String,
    pub calls: u64,
    pub unknown: u64,
    pub effect_remains: u64,
}

impl DryRun {
    /// Returns true if the selection has more tasks than the preview examined.
    pub fn is_part(&self) -> bool {
        self.next_cursor.is_some()
    }
}

/// Returns the kind of a problem in words: why a task refuses a command.
pub fn why_not(kind: &str) -> String {
    String::from(match kind {
        "wrong-task-state" => "the state of the task does not allow it",
        "wrong-step-state" => "the state of the step does not allow it",
        "task-ended" => "the task has ended",
        "no-such-task" => "the task does not exist any more",
        "no-such-step" => "the task has no such step",
        "past-pivot" => "the task is past its point of no return",
        "undo-expired" => "the time in which the task can be undone is over",
        "cannot-migrate" => "a step of the task has no counterpart in the other version",
        "task-full" => "the task has no room for another attempt",
        "task-limit" => "the workflow has as many tasks as it may have",
        "unreadable-record" => "the record of the task cannot be read",
        "invalid" => "the changed task would not be valid",
        other => return other.replace('-', " "),
    })
}

impl Side {
    /// Returns whether the task is in a state that does not say that it is paused, too.
    pub fn is_paused_too(&self) -> bool {
        self.paused && self.state != "paused"
    }
}

impl DryRunExample {
    pub fn name(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.task)
    }

    /// Returns the request before and after the command.
    pub fn bodies(&self) -> Vec<Line> {
        match (&self.before.request_body, &self.after.request_body) {
            (Some(before), Some(after)) => json::difference(before, after),
            _ => Vec::new(),
        }
    }
}

/// The page on which a person chooses a command for the tasks of a filter, or for those that are selected.
#[derive(Template)]
#[template(path = "fix_choice.html")]
struct ChoicePage {
    page: Shell,
    /// The tasks in words.
    tasks: String,
    hidden: Params,
    action: String,
    list: String,
}

/// The preview of a command.
#[derive(Template)]
#[template(path = "fix_preview.html")]
pub struct PreviewPage {
    pub page: Shell,
    pub title: String,
    pub command: Action,
    pub run: DryRun,
    /// The parameters of this page, which the confirmation repeats.
    pub hidden: Params,
    /// The address to which the form is sent.
    pub confirm: String,
    /// The address of the page before.
    pub back: String,
    /// The confirmation is sent once, even if a person sends the form twice.
    pub once: String,
    /// The fields that the person filled in, if the confirmation was refused.
    pub typed: Params,
    pub fault: Option<String>,
    pub first: u64,
    /// The rate as it was typed, or the usual one.
    pub rate: String,
    pub note: &'static str,
}

impl PreviewPage {
    /// Returns how long the job takes at the usual rate.
    pub fn takes_about(&self) -> String {
        let rate = self.rate.parse().ok().filter(|rate| *rate > 0);
        let seconds = self.run.accepted.div_ceil(rate.unwrap_or(USUAL_RATE));
        duration_in_words(i64::try_from(seconds).unwrap_or(i64::MAX))
    }

    /// Returns true if all tasks may be confirmed at once: what cannot be taken back is confirmed for no task that was not
    /// counted.
    pub fn may_be_for_all(&self) -> bool {
        !self.run.is_part() || !self.command.is_final()
    }

    /// Returns true if a person may choose the number of tasks with which the job begins.
    pub fn may_begin(&self) -> bool {
        self.run.accepted > self.first || !self.may_be_for_all()
    }

    pub fn why_not(&self, kind: &str) -> String {
        why_not(kind)
    }

    pub fn reason(&self) -> &str {
        self.typed.text("reason")
    }
}

/// The place of a command: the tasks of a cause, or those of the filter.
struct Place<'a> {
    cause: Option<&'a str>,
}

impl Place<'_> {
    /// Returns the path of the preview.
    fn path(&self) -> String {
        match self.cause {
            Some(fingerprint) => format!("/causes/{}/fix", encoded(fingerprint)),
            None => String::from("/tasks/fix"),
        }
    }

    fn back(&self, params: &Params) -> String {
        match self.cause {
            Some(fingerprint) => {
                let typed = params.only(&["patch"]).query();
                format!("/causes/{}{typed}#fix", encoded(fingerprint))
            }
            None => format!("/tasks{}", params.only(&FILTER).query()),
        }
    }

    /// Returns the body of the request to the API, without its mode.
    fn body(&self, action: Action, params: &Params) -> Result<CommandBody, Refusal> {
        let mut body = CommandBody::default();
        let ids: Vec<_> = params.all("ids").filter(|id| !id.is_empty()).collect();
        let mut labels = BTreeMap::new();
        let filter = params.only(&FILTER);
        if !ids.is_empty() {
            body.set("ids", ids);
        } else {
            for (name, value) in filter.iter() {
                match (name, value.split_once(':')) {
                    ("label", Some((label, value))) => drop(labels.insert(label, value)),
                    ("at_risk", _) => body.set(name, value == "true"),
                    _ => body.set(name, value),
                }
            }
            if let Some(fingerprint) = self.cause {
                body.set("cause", fingerprint);
            }
            if !labels.is_empty() {
                body.set("labels", labels);
            }
            if body.0.is_empty() {
                body.set("all", true);
            }
        }
        match action {
            Action::Patch => {
                body.set("patch", member(params, "patch")?);
                if let Some(step) = params.get("step") {
                    body.set("step", step);
                }
            }
            Action::Skip if params.get("output").is_some() => {
                body.set("output", member(params, "output")?);
                body.set("step", params.text("step"));
            }
            Action::Resolve => {
                match params.text("output").trim() {
                    "" => body.set("output", ()),
                    _ => body.set("output", member(params, "output")?),
                }
                body.set("step", params.text("step"));
            }
            Action::Rerun => body.set("from", params.text("from")),
            Action::Migrate => {
                let version = params.text("to_version");
                match version.parse::<u32>() {
                    Ok(number) => body.set("to_version", number),
                    Err(_) => body.set("to_version", version),
                }
            }
            _ => {}
        }
        Ok(body)
    }
}

/// The body of a command. Its values are texts: numbers that a person typed are sent as they are.
#[derive(Default, Serialize)]
#[serde(transparent)]
struct CommandBody(BTreeMap<String, Box<RawValue>>);

impl CommandBody {
    fn set(&mut self, name: &str, value: impl Serialize) {
        // Texts, numbers and lists of them can always be written.
        if let Ok(value) = to_raw_value(&value) {
            self.0.insert(name.to_owned(), value);
        }
    }
}

/// Returns a parameter that is JSON.
fn member(params: &Params, name: &str) -> Result<Box<RawValue>, Refusal> {
    let text = params.text(name);
    let fault = |fault: String| {
        let title = "This is not JSON";
        Refusal::new(
            StatusCode::BAD_REQUEST,
            title,
            format!("{name}: {fault}. Go back, and correct it"),
        )
    };
    if text.is_empty() {
        return Err(fault(String::from(
            "it is empty; an example is {\"currency\": \"EUR\"}",
        )));
    }
    serde_json::from_str(text).map_err(|error| fault(error.to_string()))
}

pub async fn of_cause(Path(fingerprint): Path<String>, visit: Visit) -> Response {
    let place = Place {
        cause: Some(&fingerprint),
    };
    if visit.query.get("do").is_none() {
        return visit.show(Ok(choice(&visit, &place)));
    }
    let page = preview(&visit, &place, &visit.query, None).await;
    visit.show(page)
}

pub async fn confirm_of_cause(
    Path(fingerprint): Path<String>,
    visit: Visit,
    request: Request,
) -> Response {
    let form = read_form(request.into_body()).await;
    confirm(
        &visit,
        &Place {
            cause: Some(&fingerprint),
        },
        &form,
    )
    .await
}

pub async fn of_tasks(visit: Visit) -> Response {
    if visit.query.get("do").is_none() {
        return visit.show(Ok(choice(&visit, &Place { cause: None })));
    }
    let page = preview(&visit, &Place { cause: None }, &visit.query, None).await;
    visit.show(page)
}

pub async fn confirm_of_tasks(visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    confirm(&visit, &Place { cause: None }, &form).await
}

fn choice(visit: &Visit, place: &Place<'_>) -> ChoicePage {
    let ids = visit.query.all("ids").count() as u64;
    let filter = visit.query.only(&FILTER);
    let page = visit.shell(Section::Tasks, "Act on tasks");
    let tasks = match (ids, filter.is_empty()) {
        (0, true) if place.cause.is_some() => String::from("the tasks of this cause"),
        (0, true) => String::from("all tasks"),
        (0, false) => {
            let words: Vec<_> = filter
                .iter()
                .map(|(name, value)| format!("{name}:{value}"))
                .collect();
            format!("all tasks with {}", words.join(", "))
        }
        (ids, _) => counted(ids, "selected task", "selected tasks"),
    };
    ChoicePage {
        tasks,
        action: page.to(&place.path()),
        list: page.to(&place.back(&filter)),
        hidden: match ids {
            0 => filter,
            _ => visit.query.only(&["ids"]),
        },
        page,
    }
}

/// `as_of`: the time of the dry run whose tasks are looked at again.
async fn dry_run(
    visit: &Visit,
    place: &Place<'_>,
    params: &Params,
    as_of: Option<&str>,
) -> Result<DryRun, Refusal> {
    let action = Action::read(params)?;
    let mut body = place.body(action, params)?;
    body.set("dry_run", true);
    if let Some(as_of) = as_of {
        body.set("as_of", as_of);
    }
    let target = format!("/v1/tasks/{}", action.path());
    visit.post(&target, HeaderMap::new(), &body).await
}

async fn preview(
    visit: &Visit,
    place: &Place<'_>,
    params: &Params,
    fault: Option<String>,
) -> Result<PreviewPage, Refusal> {
    let action = Action::read(params)?;
    let run = dry_run(visit, place, params, None).await?;
    let title = action.sentence(&run);
    let page = visit.shell(Section::Tasks, title.clone());
    let names: Vec<_> = FILTER.iter().chain(&COMMAND).copied().collect();
    Ok(PreviewPage {
        confirm: page.to(&place.path()),
        back: page.to(&place.back(params)),
        hidden: params.only(&names),
        once: hex(&rand::random::<[u8; 16]>()),
        typed: params.only(&["reason"]),
        first: FIRST,
        rate: match params.text("rate").trim() {
            "" => USUAL_RATE.to_string(),
            typed => typed.to_owned(),
        },
        note: action.note(),
        command: action,
        title,
        run,
        fault,
        page,
    })
}

async fn confirm(visit: &Visit, place: &Place<'_>, form: &Params) -> Response {
    let (confirmations, once) = (&visit.console.confirmations, form.text("once"));
    match confirmations.begin(once) {
        Begun::First => {}
        Begun::Running => return visit.go("/bulk"),
        Begun::Done(job) => return visit.go(&format!("/bulk/{}", encoded(&job))),
    }
    let confirmed = try_confirm(visit, place, form).await;
    let made = match &confirmed {
        Ok(Confirmed::Job(id)) => Some(id.as_str()),
        _ => None,
    };
    confirmations.end(once, made);
    match confirmed {
        Ok(Confirmed::Job(id)) => visit.go(&format!("/bulk/{}", encoded(&id))),
        Ok(Confirmed::Again(page)) => respond::page(StatusCode::CONFLICT, &*page),
        Err(refusal) => visit.refused(&refusal),
    }
}

enum Confirmed {
    Job(String),
    /// The preview again, with what has changed since or is missing.
    Again(Box<PreviewPage>),
}

#[derive(Deserialize)]
struct NewJob {
    id: String,
}

async fn try_confirm(
    visit: &Visit,
    place: &Place<'_>,
    form: &Params,
) -> Result<Confirmed, Refusal> {
    params::refuse_unknown(form, &[&FILTER, &COMMAND, &CONFIRMATION])?;
    let action = Action::read(form)?;
    let expected = form.text("expected");
    let as_of = form.get("as_of");
    let run = dry_run(visit, place, form, as_of).await?;
    let typed = form.text("typed").replace(',', "");
    let first = form
        .get("first")
        .and_then(|first| first.parse::<u64>().ok());
    let is_too_much = first.is_none_or(|first| first > run.accepted);
    let fault = if run.accepted.to_string() != expected {
        let then = expected.parse().map_or_else(
            |_| String::from("another number of tasks"),
            |then| counted(then, "task", "tasks"),
        );
        Some(format!(
            "Something has changed since the preview: the command was for {then} then, and is for {} now. Nothing has been done. Look again, and confirm.",
            number(run.accepted)
        ))
    } else if action.is_final() && run.is_part() && is_too_much {
        Some(format!(
            "More tasks match than the {} that the preview examined, and this cannot be taken back. Nothing has been done. Begin with a number of tasks, or go back and narrow the filter.",
            number(run.matched)
        ))
    } else if action.is_final() && typed.trim() != expected {
        Some(format!(
            "Type the number of tasks, {expected}, to confirm. Nothing has been done."
        ))
    } else {
        None
    };
    if fault.is_some() {
        let again = preview(visit, place, form, fault).await?;
        return Ok(Confirmed::Again(Box::new(again)));
    }
    let mut body = place.body(action, form)?;
    if let Some(as_of) = as_of {
        body.set("as_of", as_of);
    }
    if let Some(first) = first {
        body.set("first", first);
    }
    if let Some(rate) = form.get("rate") {
        body.set("rate", format!("{}/s", rate.trim()));
    }
    if let Some(reason) = form.get("reason") {
        body.set("reason", reason);
    }
    let mut headers = HeaderMap::new();
    if let Ok(key) = HeaderValue::try_from(form.text("once")) {
        headers.insert(HeaderName::from_static("idempotency-key"), key);
    }
    let job: NewJob = visit
        .post(&format!("/v1/tasks/{}", action.path()), headers, &body)
        .await?;
    Ok(Confirmed::Job(job.id))
}

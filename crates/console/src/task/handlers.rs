//! The handlers of the pages of a task: they read the API, and send the commands of forms to it.

use std::collections::BTreeMap;

use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use rand::RngExt;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{
    command::Command,
    compare::{ComparePage, Difference},
    items,
    page::{self, Causes, Definition, OneTaskPage, TaskSources},
    preview::{self, MigrationReport, TaskCommandPage},
    record::{AttemptList, History, StepPage, Task},
    undo::{self, Plan, UndoPage},
};
use crate::{
    changed::{self, ChangedPage},
    form::read_form,
    params::{Params, encoded},
    respond,
    service::Refusal,
    shell::Section,
    visit::Visit,
};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn of_task(id: &str, rest: &str) -> String {
    format!("/v1/tasks/{}{rest}", encoded(id))
}

/// The page of a task, or its comparison with another one.
pub async fn show(visit: Visit, Path(id): Path<String>) -> Response {
    if let Some(other) = visit.query.get("compare") {
        return visit.show(compare(&visit, &id, other).await);
    }
    visit.show(task_page(&visit, &id).await)
}

async fn task_page(visit: &Visit, id: &str) -> Result<OneTaskPage, Refusal> {
    let task: Task = visit.get(&of_task(id, "")).await?;
    let history = history(visit, id);
    let undo = async {
        match task.has_ended() {
            true => None,
            false => undo::optional(visit.get::<Plan>(&of_task(id, "/undo-plan")).await),
        }
    };
    let definition = async {
        let (name, version) = task.workflow.as_deref().zip(task.workflow_version)?;
        let target = format!("/v1/workflows/{}/versions/{version}", encoded(name));
        visit.get::<Definition>(&target).await.ok()
    };
    let (history, undo, definition) = tokio::join!(history, undo, definition);
    let selected = page::selected(&task, &visit.query);
    let list = selected
        .and_then(|name| task.step(name))
        .filter(|step| step.items.is_some());
    let items = match (list, selected.and_then(|name| name.split_once('['))) {
        (Some(step), _) => Some(
            visit
                .get::<StepPage>(&items::target(&task, step, &visit.query))
                .await,
        ),
        (None, Some((list, _))) => Some(item(visit, id, list, selected.unwrap_or_default()).await),
        (None, None) => None,
    };
    let attempts = match selected.filter(|_| list.is_none()) {
        Some(name) => Some(attempts(visit, id, name).await),
        None => None,
    };
    check_place(&visit.query, &task, &history, &items, &attempts)?;
    let failures = match (task.state.as_str(), task.failed_step()) {
        ("error", Some(step)) => {
            let mut filter = Params::from_iter([("step", step.name.as_str()), ("limit", "20")]);
            if let Some(workflow) = &task.workflow {
                filter = filter.with("workflow", workflow);
            }
            visit
                .get::<Causes>(&format!("/v1/failures{}", filter.query()))
                .await
                .ok()
        }
        _ => None,
    };
    let shell = visit.shell(Section::Tasks, format!("{}, {}", task.name(), task.state));
    let sources = TaskSources {
        task,
        history,
        attempts,
        items,
        failures,
        undo,
        definition,
    };
    Ok(OneTaskPage::new(shell, &visit.query, sources))
}

/// Refuses an address that leads to no place of the task: the page would say nothing about what was asked.
fn check_place(
    query: &Params,
    task: &Task,
    history: &Result<History, Refusal>,
    items: &Option<Result<StepPage, Refusal>>,
    attempts: &Option<Result<(AttemptList, AttemptList), Refusal>>,
) -> Result<(), Refusal> {
    let is_about_address = |refusal: &&Refusal| matches!(refusal.status, 400 | 404);
    let of = |name: &str, refusal: Option<&Refusal>| {
        let refusal = refusal.filter(|_| query.get(name).is_some());
        refusal
            .filter(is_about_address)
            .cloned()
            .map_or(Ok(()), Err)
    };
    of("history", history.as_ref().err())?;
    of(
        "after",
        items.as_ref().and_then(|items| items.as_ref().err()),
    )?;
    if let Some(name) = query.get("step") {
        let listed = items.as_ref().and_then(|items| items.as_ref().ok());
        let is_item = listed.is_some_and(|list| list.items.iter().any(|item| item.name == name));
        // An item cannot be looked for while the API refuses to list them.
        let is_unknown = items.as_ref().is_some_and(Result::is_err);
        if task.step(name).is_none() && !is_item && !is_unknown {
            let detail = format!("the task {} has no step {name:?}", task.name());
            return Err(Refusal::new(StatusCode::NOT_FOUND, "No such step", detail));
        }
    }
    of(
        "attempt",
        attempts
            .as_ref()
            .and_then(|attempts| attempts.as_ref().err()),
    )?;
    if let Some(state) = query
        .get("state")
        .filter(|state| !items::STATES.contains(state))
    {
        let is = format!("one of {}", items::STATES.join(", "));
        return Err(Refusal::of_value("state", state, &is));
    }
    Ok(())
}

/// The pages of the history that are read at once. The API has no order from the end, where the newest entries are.
const HISTORY_PAGES: usize = 4;

/// Reads the history from the place in the address, or from its beginning.
async fn history(visit: &Visit, id: &str) -> Result<History, Refusal> {
    let mut history = History {
        next_cursor: visit.query.get("history").map(str::to_owned),
        ..History::default()
    };
    for _ in 0..HISTORY_PAGES {
        let cursor = history.next_cursor.take();
        let cursor = cursor.map_or_else(String::new, |cursor| {
            format!("?cursor={}", encoded(&cursor))
        });
        let page: History = visit
            .get(&of_task(id, &format!("/history{cursor}")))
            .await?;
        history.items.extend(page.items);
        history.next_cursor = page.next_cursor;
        if history.next_cursor.is_none() {
            break;
        }
    }
    Ok(history)
}

/// Reads one item of a list. The API lists items and has no resource for one, so that it is looked for among those in
/// error first.
async fn item(visit: &Visit, id: &str, list: &str, name: &str) -> Result<StepPage, Refusal> {
    let index: usize = name
        .trim_end_matches(']')
        .rsplit('[')
        .next()
        .and_then(|index| index.parse().ok())
        .unwrap_or(0);
    let pages = index / 500 + 1;
    let mut cursor = String::new();
    for filter in ["&state=error", ""] {
        cursor.clear();
        for _ in 0..pages {
            let target = of_task(
                id,
                &format!("/steps?of={}{filter}&limit=500{cursor}", encoded(list)),
            );
            let mut page: StepPage = visit.get(&target).await?;
            page.items.retain(|item| item.name == name);
            if !page.items.is_empty() {
                return Ok(page);
            }
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={}", encoded(&next)),
                None => break,
            }
        }
    }
    Ok(StepPage::default())
}

/// Reads the attempts of a step: all of them in short, and the chosen or last one in full.
async fn attempts(
    visit: &Visit,
    id: &str,
    step: &str,
) -> Result<(AttemptList, AttemptList), Refusal> {
    let step = encoded(step);
    let list: AttemptList = visit
        .get(&of_task(id, &format!("/steps/{step}/attempts?limit=12")))
        .await?;
    let chosen = match visit.query.get("attempt") {
        Some(text) => Some(text.parse::<u32>().map_err(|_| {
            Refusal::of_value("attempt", text, "the number of an attempt, such as 2")
        })?),
        None => None,
    };
    let Some(number) = chosen.or_else(|| list.items.first().map(|attempt| attempt.attempt)) else {
        return Ok((list, AttemptList::default()));
    };
    let full = visit
        .get(&of_task(id, &format!("/steps/{step}/attempts/{number}")))
        .await?;
    Ok((list, full))
}

async fn compare(visit: &Visit, id: &str, other: &str) -> Result<ComparePage, Refusal> {
    let with = id_of(visit, other).await?;
    let difference: Difference = visit
        .get(&of_task(id, &format!("/diff/{}", encoded(&with))))
        .await?;
    let shell = visit.shell(
        Section::Tasks,
        format!("{} and {}", difference.a.name(), difference.b.name()),
    );
    Ok(ComparePage {
        page: shell,
        id: id.to_owned(),
        with: other.to_owned(),
        difference,
    })
}

/// Returns the id of the task that the person named by its id or its key.
async fn id_of(visit: &Visit, name: &str) -> Result<String, Refusal> {
    #[derive(Deserialize)]
    struct Found {
        items: Vec<FoundTask>,
    }
    #[derive(Deserialize)]
    struct FoundTask {
        id: String,
    }
    let is_id = name.len() == 36
        && name
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_id {
        return Ok(name.to_owned());
    }
    let query = Params::from_iter([("key", name), ("limit", "1")]).query();
    let found: Found = visit.get(&format!("/v1/tasks{query}")).await?;
    let first = found.items.into_iter().next().map(|task| task.id);
    first.ok_or_else(|| {
        Refusal::new(
            StatusCode::NOT_FOUND,
            "No task has this key",
            format!("no task has the id or the key {name:?}: correct it"),
        )
    })
}

/// The page of a command, before it is sent.
pub async fn preview(visit: Visit, Path((id, word)): Path<(String, String)>) -> Response {
    let Some(command) = Command::named(&word) else {
        return visit.refused(&no_command(&word));
    };
    let query = visit.query.clone();
    show_preview(&visit, &id, command, &query, None).await
}

fn no_command(word: &str) -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "No such page",
        format!("a task has no command {word:?}"),
    )
}

async fn show_preview(
    visit: &Visit,
    id: &str,
    command: Command,
    query: &Params,
    complaint: Option<String>,
) -> Response {
    let status = if complaint.is_some() {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::OK
    };
    let once = format!("console-{:032x}", rand::rng().random::<u128>());
    if command == Command::Undo {
        return match undo_page(visit, id, once, query, complaint).await {
            Ok(page) => respond::page(status, &page),
            Err(refusal) => visit.refused(&refusal),
        };
    }
    match preview_page(visit, id, command, query, once, complaint).await {
        Ok(page) => respond::page(status, &page),
        Err(refusal) => visit.refused(&refusal),
    }
}

async fn undo_page(
    visit: &Visit,
    id: &str,
    once: String,
    query: &Params,
    complaint: Option<String>,
) -> Result<UndoPage, Refusal> {
    let task: Task = visit.get(&of_task(id, "")).await?;
    let plan: Plan = visit.get(&of_task(id, "/undo-plan")).await?;
    let shell = visit.shell(Section::Tasks, format!("Undo {}", task.name()));
    Ok(UndoPage::new(
        shell,
        task,
        plan,
        once,
        query.text("reason").to_owned(),
        complaint,
    ))
}

async fn preview_page(
    visit: &Visit,
    id: &str,
    command: Command,
    query: &Params,
    once: String,
    complaint: Option<String>,
) -> Result<TaskCommandPage, Refusal> {
    let task: Task = visit.get(&of_task(id, "")).await?;
    let mut sources = preview::PreviewSources {
        once,
        complaint,
        ..Default::default()
    };
    match (command, query.get("step")) {
        (Command::Retry, Some(step)) => {
            let read = attempts(visit, id, step).await;
            sources.attempt = read.ok().map(|(_, full)| full);
        }
        (Command::Migrate, _) => {
            if let Some(workflow) = &task.workflow {
                sources.versions = versions(visit, workflow).await?;
            }
            if let Some(version) = query
                .get("to_version")
                .and_then(|version| version.parse::<u32>().ok())
            {
                let body = serde_json::json!({ "to_version": version, "dry_run": true });
                sources.migration = Some(
                    visit
                        .post::<MigrationReport>(&of_task(id, "/migrate"), HeaderMap::new(), &body)
                        .await,
                );
            }
        }
        (Command::Clone, _) => {
            if let Ok(body) = body_of(command, &query.only(&["input"])) {
                let target = of_task(id, "/clone?dry_run=true");
                sources.clone = Some(
                    visit
                        .post::<Difference>(&target, HeaderMap::new(), &body)
                        .await,
                );
            }
        }
        _ => {}
    }
    let shell = visit.shell(
        Section::Tasks,
        format!("{} {}", command.title(), task.name()),
    );
    Ok(TaskCommandPage::new(shell, task, command, query, sources))
}

async fn versions(visit: &Visit, workflow: &str) -> Result<Vec<u32>, Refusal> {
    #[derive(Deserialize)]
    struct VersionList {
        items: Vec<Version>,
    }
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let found: VersionList = visit
        .get(&format!(
            "/v1/workflows/{}/versions?limit=100",
            encoded(workflow)
        ))
        .await?;
    Ok(found
        .items
        .into_iter()
        .map(|version| version.version)
        .collect())
}

/// Sends a command, and goes to the task; or says why it was refused.
pub async fn send(
    visit: Visit,
    Path((id, word)): Path<(String, String)>,
    request: Request,
) -> Response {
    let form = read_form(request.into_body()).await;
    let Some(command) = Command::named(&word) else {
        return visit.refused(&no_command(&word));
    };
    let (form, look) = looked_at(command, form);
    if let Some(complaint) = look {
        return show_preview(&visit, &id, command, &form, complaint).await;
    }
    match sent_as_previewed(&visit, &id, command, &form).await {
        Ok(to) => visit.go(&format!("/tasks/{}", encoded(&to))),
        Err(SendFault::Mistyped(complaint)) => {
            show_preview(&visit, &id, command, &form, Some(complaint)).await
        }
        Err(SendFault::Refused(refusal)) if changed::is_change(&refusal) => {
            match changed_page(&visit, &id, command, &form, refusal).await {
                Ok((status, page)) => respond::page(status, &page),
                Err(refusal) => visit.refused(&refusal),
            }
        }
        Err(SendFault::Refused(refusal)) if matches!(refusal.status, 400 | 422) => {
            show_preview(&visit, &id, command, &form, Some(refusal.detail)).await
        }
        Err(SendFault::Refused(refusal)) => visit.refused(&refusal),
    }
}

/// Takes the text that a person edits beside the form. Returns that the page is to be shown again, and not the command sent,
/// if the person asks for that, or has changed the text since its difference was shown.
fn looked_at(command: Command, form: Params) -> (Params, Option<Option<String>>) {
    // Browsers send each end of a line in two characters.
    let plain = |text: &str| text.replace("\r\n", "\n").trim().to_owned();
    let (Some(edited), Some((member, _))) = (form.get("edited").map(plain), typed_member(command))
    else {
        return (form, None);
    };
    let is_asked = form.get("look").is_some();
    let is_same = edited == plain(form.text("looked_at"));
    let form = { form.without("edited").without("look") }.without("looked_at");
    if is_same && !is_asked {
        return (form, None);
    }
    let form = match edited.is_empty() {
        true => form.without(member),
        false => form.with(member, &edited),
    };
    let complaint = "The text was changed after its difference was shown. Look at the difference, and confirm then.";
    (form, Some((!is_asked).then(|| complaint.to_owned())))
}

/// Returns the parameter that has the JSON that a person types, and its member in the request.
fn typed_member(command: Command) -> Option<(&'static str, &'static str)> {
    match command {
        Command::Retry => Some(("body", "input")),
        Command::Skip | Command::Resolve | Command::Signal => Some(("output", "output")),
        Command::Clone => Some(("input", "input")),
        _ => None,
    }
}

enum SendFault {
    Mistyped(String),
    Refused(Refusal),
}

impl From<Refusal> for SendFault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A command is sent for so many versions of a task that changes all the time, and then for the one that it has.
const MOST_VERSIONS: u32 = 3;

/// Sends a command for the version that was previewed, and again for a later one for which the preview says the same: a busy
/// task changes many times while a person reads, and some a hundred times while this page asks.
async fn sent_as_previewed(
    visit: &Visit,
    id: &str,
    command: Command,
    form: &Params,
) -> Result<String, SendFault> {
    let mut sent = command_sent(visit, id, command, form).await;
    let said = form.text("said");
    for versions in 1..=MOST_VERSIONS {
        let is_stale = matches!(&sent, Err(SendFault::Refused(refusal)) if refusal.status == 412);
        if !is_stale || said.is_empty() {
            break;
        }
        let form = form.without("if_match");
        let now = preview_page(visit, id, command, &form, String::new(), None).await?;
        if now.said != said || now.refusal.is_some() {
            break;
        }
        let form = match versions < MOST_VERSIONS {
            true => form.with("if_match", &now.etag),
            false => form,
        };
        sent = command_sent(visit, id, command, &form).await;
    }
    sent
}

/// Returns the id of the task to show then.
async fn command_sent(
    visit: &Visit,
    id: &str,
    command: Command,
    form: &Params,
) -> Result<String, SendFault> {
    if command.is_final() {
        let task: Task = visit.get(&of_task(id, "")).await?;
        if form.text("sure").trim() != task.name() {
            return Err(SendFault::Mistyped(format!(
                "Type {} exactly as it is written to confirm.",
                task.name()
            )));
        }
    }
    let body = body_of(command, form).map_err(SendFault::Mistyped)?;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (header::IF_MATCH, form.get("if_match")),
        (IDEMPOTENCY_KEY, form.get("once")),
    ] {
        let value = value.and_then(|value| HeaderValue::try_from(value).ok());
        headers.extend(value.map(|value| (name, value)));
    }
    let step = form
        .get("step")
        .filter(|_| command.needs_step() || command == Command::Retry);
    let target = match step {
        Some(step) if command == Command::Signal => {
            of_task(id, &format!("/signals/{}", encoded(step)))
        }
        Some(step) => of_task(
            id,
            &format!("/steps/{}/{}", encoded(step), command.api_word()),
        ),
        None => of_task(id, &format!("/{}", command.api_word())),
    };
    let task: Task = match command {
        // The whole body is what the step gets.
        Command::Signal => visit.post(&target, headers, &body.get("output")).await?,
        _ => visit.post(&target, headers, &body).await?,
    };
    Ok(task.id)
}

/// The members of a request, each as JSON text.
type RequestBody = BTreeMap<&'static str, Box<RawValue>>;

/// Returns the body of a command. JSON that a person typed is passed on as it was typed, with all its digits.
fn body_of(command: Command, form: &Params) -> Result<RequestBody, String> {
    let mut body = RequestBody::new();
    let mut text = |member, value: Option<&str>| {
        let raw = value.and_then(|value| to_raw_value(value).ok());
        body.extend(raw.map(|raw| (member, raw)));
    };
    text("reason", form.get("reason"));
    if command == Command::Retry {
        text("from", form.get("from"));
    }
    if let Some((name, member)) = typed_member(command)
        && let Some(text) = form.get(name)
    {
        let raw = RawValue::from_string(text.to_owned());
        let raw = raw.map_err(|fault| format!("The text is not JSON: {fault}."))?;
        body.insert(member, raw);
    }
    if command == Command::Migrate {
        let version = form
            .get("to_version")
            .and_then(|version| version.parse::<u32>().ok());
        let version = version.ok_or("Choose the version to which the task moves.")?;
        body.extend(to_raw_value(&version).ok().map(|raw| ("to_version", raw)));
    }
    Ok(body)
}

async fn changed_page(
    visit: &Visit,
    id: &str,
    command: Command,
    form: &Params,
    refusal: Refusal,
) -> Result<(StatusCode, ChangedPage), Refusal> {
    let task: Task = visit.get(&of_task(id, "")).await?;
    // The history has no order from its end: a change since is on its last page.
    let mut history: History = visit.get(&of_task(id, "/history")).await?;
    for _ in 0..4 {
        let Some(cursor) = &history.next_cursor else {
            break;
        };
        history = visit
            .get(&of_task(
                id,
                &format!("/history?cursor={}", encoded(cursor)),
            ))
            .await?;
    }
    let shell = visit.shell(Section::Tasks, refusal.title.clone());
    Ok((
        refusal.status(),
        ChangedPage::of_task(shell, task, history, command, form, refusal),
    ))
}

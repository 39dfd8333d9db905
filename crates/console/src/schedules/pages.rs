//! The list of schedules, the page of one, and its commands.

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::view::{Schedule, SchedulePage};
use crate::{
    assets::hex,
    changed::{self, is_change},
    command_page::{CommandPage, Field},
    form::read_form,
    params::{Params, encoded},
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

#[derive(Template)]
#[template(path = "schedules.html")]
struct SchedulesPage {
    page: Shell,
    title: String,
    list: SchedulePage,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct OneSchedulePage {
    page: Shell,
    schedule: Schedule,
}

impl OneSchedulePage {
    fn command(&self, command: &str) -> String {
        self.page.to(&format!(
            "/schedules/{}/{command}",
            encoded(&self.schedule.head.name)
        ))
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build_list(&visit).await;
    visit.show(page)
}

async fn build_list(visit: &Visit) -> Result<SchedulesPage, Refusal> {
    let mut query = Params::from_iter([("limit", "50")]);
    if let Some(cursor) = visit.query.get("after") {
        query = query.with("cursor", cursor);
    }
    let mut list: SchedulePage = visit
        .get(&format!("/v1/schedules{}", query.query()))
        .await?;
    list.items
        .sort_by_key(|item| (item.failing.is_none(), item.name.clone()));
    let failing = list
        .items
        .iter()
        .filter(|item| item.failing.is_some())
        .count();
    let title = match (list.items.len(), failing) {
        (0, _) => String::from("There are no schedules"),
        (_, 0) => String::from("No schedule fails"),
        (all, 1) => format!("1 of {all} schedules fails"),
        (all, some) => format!("{some} of {all} schedules fail"),
    };
    Ok(SchedulesPage {
        page: visit.shell(Section::Schedules, "Schedules"),
        title,
        next: next_page(&Params::default(), list.next_cursor.as_deref()),
        list,
    })
}

async fn read(visit: &Visit, name: &str) -> Result<Schedule, Refusal> {
    visit.get(&format!("/v1/schedules/{}", encoded(name))).await
}

pub async fn show(Path(name): Path<String>, visit: Visit) -> Response {
    let schedule = read(&visit, &name).await;
    visit.show(schedule.map(|schedule| OneSchedulePage {
        page: visit.shell(
            Section::Schedules,
            format!("Schedule {}", schedule.head.name),
        ),
        schedule,
    }))
}

pub async fn preview(Path((name, command)): Path<(String, String)>, visit: Visit) -> Response {
    let page = build(&visit, &name, &command).await;
    visit.show(page)
}

async fn build(visit: &Visit, name: &str, command: &str) -> Result<CommandPage, Refusal> {
    let schedule = read(visit, name).await?;
    let (title, consequence) = match command {
        "pause" => (
            format!("Pause schedule {name}: it submits no tasks"),
            "Fire times that pass meanwhile are left out, or caught up, as the schedule says. Tasks that run continue.",
        ),
        "resume" => (
            format!("Resume schedule {name}: it submits tasks again"),
            "It continues with its next fire time.",
        ),
        "trigger" => (
            format!(
                "Trigger schedule {name}: it submits a task of workflow {} now",
                schedule.workflow
            ),
            "The task has the input of the schedule. If another run is not over, the rule about overlap decides.",
        ),
        _ => {
            let detail = format!("schedules have no command {command}");
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "No such command",
                detail,
            ));
        }
    };
    let page = visit.shell(Section::Schedules, title.clone());
    Ok(CommandPage {
        action: page.to(&format!(
            "/schedules/{}/{}",
            encoded(name),
            encoded(command)
        )),
        back: page.schedule(name),
        button: format!("{}{} {name}", command[..1].to_uppercase(), &command[1..]),
        asks_reason: command != "resume",
        reason: String::new(),
        is_final: false,
        needs_admin: false,
        fault: None,
        title,
        consequences: vec![consequence.to_owned()],
        fields: vec![Field::hidden("once", &hex(&rand::random::<[u8; 16]>()))],
        page,
    })
}

pub async fn send(
    Path((name, command)): Path<(String, String)>,
    visit: Visit,
    request: Request,
) -> Response {
    let form = read_form(request.into_body()).await;
    let body = match form.get("reason") {
        Some(reason) => json!({ "reason": reason }),
        None => json!({}),
    };
    let target = format!("/v1/schedules/{}/{}", encoded(&name), encoded(&command));
    let mut headers = HeaderMap::new();
    // A form that is sent twice triggers once.
    if command == "trigger"
        && let Ok(key) = HeaderValue::try_from(form.text("once"))
        && !key.is_empty()
    {
        headers.insert(HeaderName::from_static("idempotency-key"), key);
    }
    let sent: Result<Value, Refusal> = visit.post(&target, headers, &body).await;
    match sent {
        Ok(_) => visit.go(&format!("/schedules/{}", encoded(&name))),
        Err(refusal) if is_change(&refusal) => {
            let changes = read(&visit, &name).await.map(|schedule| schedule.lines());
            let sent = changed::Refused {
                section: Section::Schedules,
                list: "schedules",
                path: format!("/schedules/{}", encoded(&name)),
                name: format!("schedule {name}"),
                command: &command,
                form: &form,
                has_preview: true,
            };
            changed::respond(&visit, refusal, &sent, changes.unwrap_or_default())
        }
        Err(refusal) => visit.refused(&refusal),
    }
}

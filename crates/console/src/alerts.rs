//! Alerts: everything that Provost has noticed and that a person should look at, and the command that says who does.

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    command_page::CommandPage,
    form::read_form,
    params::{Params, encoded},
    parts::counted,
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// A page of `GET /v1/alerts`.
#[derive(Deserialize)]
pub struct AlertPage {
    pub items: Vec<AlertItem>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct AlertItem {
    pub id: String,
    pub task: Option<String>,
    pub step: Option<String>,
    pub receiver: Option<String>,
    pub kind: String,
    pub message: String,
    pub state: String,
    pub raised_at: String,
    pub acknowledged_by: Option<String>,
    pub count: u64,
}

impl AlertItem {
    pub fn words(&self) -> String {
        self.kind.replace(['.', '_'], " ")
    }

    pub fn badge(&self) -> (&'static str, &'static str) {
        match self.state.as_str() {
            "open" => ("error", "warn"),
            "acknowledged" => ("paused", "hand"),
            _ => ("ok", "processed"),
        }
    }

    pub fn may_be_acknowledged(&self) -> bool {
        self.state == "open"
    }
}

const STATES: [&str; 3] = ["open", "acknowledged", "closed"];

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    page: Shell,
    title: String,
    states: [&'static str; 3],
    state: Option<String>,
    /// The text that is searched.
    text: String,
    alerts: Vec<AlertItem>,
    next: Option<String>,
}

impl AlertsPage {
    fn acknowledge(&self, id: &str) -> String {
        self.page
            .to(&format!("/alerts/{}/acknowledge", encoded(id)))
    }

    fn tasks(&self, id: &str) -> String {
        self.page.to(&format!("/tasks?alert={}", encoded(id)))
    }

    fn in_state(&self, state: &str) -> String {
        let query = Params::from_iter([("state", state), ("text", &self.text)]);
        self.page.to(&format!("/alerts{}", query.query()))
    }
}

pub async fn list(visit: Visit) -> Response {
    visit.show(build(&visit).await)
}

async fn build(visit: &Visit) -> Result<AlertsPage, Refusal> {
    let filter = visit.query.only(&["state", "text"]);
    let mut asked = filter.with("limit", "50");
    if let Some(cursor) = visit.query.get("after") {
        asked = asked.with("cursor", cursor);
    }
    let found: AlertPage = visit.get(&format!("/v1/alerts{}", asked.query())).await?;
    let open = found
        .items
        .iter()
        .filter(|alert| alert.may_be_acknowledged());
    let title = match (open.count() as u64, found.next_cursor.is_some()) {
        (0, _) if filter.get("text").is_some() => String::from("Alerts with this text"),
        (0, _) => String::from("No alert waits for a person"),
        (_, true) => String::from("Alerts wait for a person"),
        (1, false) => String::from("1 alert waits for a person"),
        (count, false) => format!("{} wait for a person", counted(count, "alert", "alerts")),
    };
    Ok(AlertsPage {
        page: visit.shell(Section::Home, "Alerts"),
        title,
        states: STATES,
        state: filter.get("state").map(str::to_owned),
        text: filter.text("text").to_owned(),
        next: next_page(&filter, found.next_cursor.as_deref()),
        alerts: found.items,
    })
}

pub async fn preview(Path(id): Path<String>, visit: Visit) -> Response {
    visit.show(build_preview(&visit, &id).await)
}

/// Looks for the alert among those that are open: the API has no address of a single one.
async fn build_preview(visit: &Visit, id: &str) -> Result<CommandPage, Refusal> {
    let mut query = Params::from_iter([("state", "open"), ("limit", "500")]);
    let alert = loop {
        let page: AlertPage = visit.get(&format!("/v1/alerts{}", query.query())).await?;
        if let Some(alert) = page.items.into_iter().find(|alert| alert.id == id) {
            break alert;
        }
        match page.next_cursor {
            Some(cursor) => query = query.with("cursor", &cursor),
            None => {
                let detail = "no open alert has this id: it was acknowledged or closed meanwhile";
                return Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    "Alert not found",
                    detail,
                ));
            }
        }
    };
    let title = format!("Acknowledge: {}", alert.message);
    let page = visit.shell(Section::Home, "Acknowledge an alert");
    Ok(CommandPage {
        title,
        consequences: vec![
            String::from(
                "Your name is recorded, so that others see that a person is looking at it.",
            ),
            String::from("The alert stays open until its cause is gone. Nothing else changes."),
        ],
        fields: Vec::new(),
        action: page.to(&format!("/alerts/{}/acknowledge", encoded(id))),
        back: page.to("/alerts"),
        button: String::from("Acknowledge the alert"),
        asks_reason: false,
        reason: String::new(),
        is_final: false,
        needs_admin: false,
        fault: None,
        page,
    })
}

pub async fn acknowledge(Path(id): Path<String>, visit: Visit, request: Request) -> Response {
    // The form has no field that matters, and is read all the same, so that the connection can be used again.
    read_form(request.into_body()).await;
    let target = format!("/v1/alerts/{}/acknowledge", encoded(&id));
    let sent = visit
        .post::<Value>(&target, HeaderMap::new(), &json!({}))
        .await;
    match sent {
        Ok(_) => visit.go("/alerts"),
        Err(refusal) => visit.refused(&refusal),
    }
}

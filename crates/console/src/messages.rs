//! Messages to receivers: those that were given up, and those that are pending. Dead letters are delivered again or
//! discarded, after a page that says how many.

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    command_page::{CommandPage, Field},
    form::read_form,
    json::pretty,
    params::{Params, encoded},
    parts::counted,
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    task::record::{millis, span},
    visit::Visit,
};

/// A page of `GET /v1/messages`.
#[derive(Deserialize)]
pub struct MessagePage {
    pub items: Vec<Message>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct Message {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub receiver: String,
    pub url: Option<String>,
    pub task: Option<String>,
    pub state: String,
    pub created_at: String,
    pub tries: u64,
    pub next_try_at: Option<String>,
    pub error: Option<String>,
    pub died_at: Option<String>,
    /// Only a single message has it.
    pub body: Option<Box<RawValue>>,
    /// The failed attempts, the latest first. Only a single message has them.
    #[serde(default)]
    pub attempts: Vec<MessageAttempt>,
}

#[derive(Deserialize)]
pub struct MessageAttempt {
    pub attempt: u64,
    pub began_at: String,
    pub ended_at: String,
    pub instance: String,
    pub status: Option<u64>,
    pub reason: String,
    pub next_at: Option<String>,
}

impl MessageAttempt {
    /// Returns the time that it took.
    pub fn took(&self) -> String {
        let took = millis(&self.ended_at).zip(millis(&self.began_at));
        took.map_or_else(String::new, |(end, begin)| span(end - begin))
    }
}

impl Message {
    pub fn is_dead(&self) -> bool {
        self.state == "dead"
    }
}

#[derive(Template)]
#[template(path = "messages.html")]
pub struct MessagesPage {
    pub page: Shell,
    pub title: String,
    pub query: Params,
    pub messages: Vec<Message>,
    pub next: Option<String>,
}

impl MessagesPage {
    pub fn new(page: Shell, query: &Params, list: MessagePage) -> Self {
        let count = list.items.len() as u64;
        let least = match list.next_cursor {
            Some(_) => "At least ",
            None => "",
        };
        let noun = match query.get("state") {
            Some("dead") => counted(count, "message was given up", "messages were given up"),
            Some("pending") => counted(count, "message is pending", "messages are pending"),
            _ => counted(count, "message is kept", "messages are kept"),
        };
        let to = query
            .get("receiver")
            .map(|receiver| format!(", to {receiver}"));
        let query = query.only(&["state", "receiver", "task"]);
        Self {
            title: match count {
                0 => format!("No messages{}", to.unwrap_or_default()),
                _ => format!("{least}{noun}{}", to.unwrap_or_default()),
            },
            next: next_page(&query, list.next_cursor.as_deref()),
            messages: list.items,
            query,
            page,
        }
    }

    pub fn command(&self, command: &str) -> String {
        let receiver = self.query.only(&["receiver"]).query();
        self.page.to(&format!("/messages/all/{command}{receiver}"))
    }
}

#[derive(Template)]
#[template(path = "message.html")]
pub struct OneMessagePage {
    pub page: Shell,
    pub message: Message,
}

impl OneMessagePage {
    pub fn body(&self) -> String {
        self.message
            .body
            .as_ref()
            .map_or_else(String::new, |body| pretty(body.get()))
    }

    pub fn command(&self, command: &str) -> String {
        self.page.to(&format!(
            "/messages/{}/{command}",
            encoded(&self.message.id)
        ))
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build_list(&visit).await;
    visit.show(page)
}

async fn build_list(visit: &Visit) -> Result<MessagesPage, Refusal> {
    let query = visit.query.only(&["state", "receiver", "task", "text"]);
    let mut asked = query.with("limit", "50");
    if let Some(cursor) = visit.query.get("after") {
        asked = asked.with("cursor", cursor);
    }
    let list = visit.get(&format!("/v1/messages{}", asked.query())).await?;
    Ok(MessagesPage::new(
        visit.shell(Section::Messages, "Messages"),
        &query,
        list,
    ))
}

pub async fn show(Path(id): Path<String>, visit: Visit) -> Response {
    let message = visit
        .get::<Message>(&format!("/v1/messages/{}", encoded(&id)))
        .await;
    visit.show(message.map(|message| OneMessagePage {
        page: visit.shell(Section::Messages, format!("Message {}", message.kind)),
        message,
    }))
}

/// The letters that a command is for: one of them, or all that are dead, of one receiver or of all.
const ALL: &str = "all";

#[derive(Deserialize)]
struct Letters {
    matched: u64,
}

pub async fn preview(Path((id, command)): Path<(String, String)>, visit: Visit) -> Response {
    let page = build(&visit, &id, &command).await;
    visit.show(page)
}

/// The field with what the preview said: a command for all dead letters is for so many of them.
const SEEN: &str = "said";

fn selection(query: &Params) -> Value {
    match query.get("receiver") {
        Some(receiver) => json!({ "receiver": receiver }),
        None => json!({ "all": true }),
    }
}

async fn build(visit: &Visit, id: &str, command: &str) -> Result<CommandPage, Refusal> {
    let receiver = visit.query.get("receiver");
    let letters = match id {
        ALL => {
            let mut body = selection(&visit.query);
            body["dry_run"] = true.into();
            let target = format!("/v1/messages/{}", encoded(command));
            let found: Letters = visit.post(&target, HeaderMap::new(), &body).await?;
            let to = receiver.map(|receiver| format!(" to {receiver}"));
            format!(
                "{}{}",
                counted(found.matched, "dead letter", "dead letters"),
                to.unwrap_or_default()
            )
        }
        _ => {
            let message: Message = visit.get(&format!("/v1/messages/{}", encoded(id))).await?;
            format!("the message {} to {}", message.kind, message.receiver)
        }
    };
    let (title, consequence, is_final) = match command {
        "redeliver" => (
            format!("Deliver {letters} again"),
            "The receiver gets the same ids as before, and recognises what it has. Other messages of the same tasks wait meanwhile, so that the order stays.",
            false,
        ),
        "discard" => (
            format!("Discard {letters}"),
            "The receiver never gets them. This cannot be taken back.",
            true,
        ),
        _ => {
            let detail = format!("messages have no command {command}");
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "No such command",
                detail,
            ));
        }
    };
    let page = visit.shell(Section::Messages, title.clone());
    let query = visit.query.only(&["receiver"]).query();
    Ok(CommandPage {
        action: page.to(&format!(
            "/messages/{}/{}{query}",
            encoded(id),
            encoded(command)
        )),
        back: page.to("/messages?state=dead"),
        button: title.clone(),
        asks_reason: false,
        reason: String::new(),
        fields: vec![Field::hidden(SEEN, &title)],
        consequences: vec![consequence.to_owned()],
        is_final,
        needs_admin: false,
        fault: None,
        title,
        page,
    })
}

pub async fn send(
    Path((id, command)): Path<(String, String)>,
    visit: Visit,
    request: Request,
) -> Response {
    let form = read_form(request.into_body()).await;
    if let Some(seen) = form.get(SEEN).filter(|_| id == ALL) {
        let mut page = match build(&visit, &id, &command).await {
            Ok(page) => page,
            Err(refusal) => return visit.refused(&refusal),
        };
        if page.title != seen {
            let fault = format!(
                "Something has changed since the preview, which said: {seen}. Look again, and confirm."
            );
            page.fault = Some(fault);
            return visit.show(Ok(page));
        }
    }
    let sent: Result<Value, Refusal> = match (id.as_str(), command.as_str()) {
        (ALL, command) => {
            let body = selection(&visit.query);
            let target = format!("/v1/messages/{}", encoded(command));
            visit.post(&target, HeaderMap::new(), &body).await
        }
        (id, "discard") => {
            let target = format!("/v1/messages/{}", encoded(id));
            let sent = visit
                .send(http::Method::DELETE, &target, HeaderMap::new(), None)
                .await;
            sent.map(|_| Value::Null)
        }
        (id, command) => {
            let target = format!("/v1/messages/{}/{}", encoded(id), encoded(command));
            let sent = visit
                .send(http::Method::POST, &target, HeaderMap::new(), None)
                .await;
            sent.map(|_| Value::Null)
        }
    };
    match sent {
        Ok(_) => visit.go("/messages?state=dead"),
        Err(refusal) => visit.refused(&refusal),
    }
}

//! The page of one cause: one of its tasks with what was sent and what came, how that differs from a success, and the
//! commands for all of its tasks.

use askama::Template;
use axum::{extract::Path, response::Response};
use serde::Deserialize;
use std::collections::BTreeMap;

use super::failure::Failure;
use crate::{
    changes::{
        before::before,
        lines::{ChangeLine, lines},
        record::LedgerChange,
    },
    json::{self, Line},
    params::{Params, encoded},
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    tasks::list::{TaskPage, TaskRow, target},
    visit::Visit,
};

/// The number of tasks on the page.
const ROWS: &str = "10";

/// The most bytes of a body that a page shows.
const MOST_SHOWN: usize = 16 * 1024;

/// The attempts of a step, as `GET …/attempts/{attempt}` has them.
#[derive(Deserialize)]
pub struct Attempts {
    pub items: Vec<Attempt>,
}

#[derive(Deserialize)]
pub struct Attempt {
    pub attempt: u64,
    pub instance: Option<String>,
    pub endpoint: Option<String>,
    pub request: Option<Sent>,
    pub response: Option<Received>,
    pub reason: Option<String>,
    pub claimed_at: Option<String>,
    pub ended_at: Option<String>,
}

#[derive(Deserialize)]
pub struct Sent {
    pub as_sent: bool,
    pub method: String,
    pub url: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: Option<Body>,
}

#[derive(Deserialize)]
pub struct Body {
    pub start: Option<String>,
    pub bytes: u64,
}

#[derive(Deserialize)]
pub struct Received {
    pub status: u64,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: Option<String>,
}

impl Sent {
    fn text(&self) -> Option<&str> {
        self.body.as_ref()?.start.as_deref()
    }
}

impl Attempt {
    pub fn response_text(&self) -> Option<String> {
        let body = self.response.as_ref()?.body.as_deref()?;
        Some(json::pretty(first_bytes(body)))
    }
}

/// Returns the begin of a long text.
pub fn first_bytes(text: &str) -> &str {
    let mut end = text.len().min(MOST_SHOWN);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A success of the same step, with which the failure is compared.
pub struct Success {
    pub task: TaskRow,
    pub comparison: Comparison,
}

pub enum Comparison {
    /// The request of the success is on record.
    Requests(Box<Attempt>),
    /// It is not: the API renders it again, and says how the tasks differ.
    InWords(String),
}

impl Success {
    /// Returns the body of the request on record.
    fn body(&self) -> Option<&str> {
        match &self.comparison {
            Comparison::Requests(attempt) => attempt.request.as_ref()?.text(),
            Comparison::InWords(_) => None,
        }
    }
}

/// The part of `GET /v1/tasks/{id}/diff/{other}` that the page shows.
#[derive(Deserialize)]
struct DifferenceInWords {
    sentence: String,
}

/// The parts of the page besides the cause. Each may be refused without the others.
pub struct CauseParts {
    pub attempt: Option<Result<Attempt, Refusal>>,
    pub success: Option<Success>,
    pub tasks: Result<TaskPage, Refusal>,
    pub changes: Vec<LedgerChange>,
}

#[derive(Template)]
#[template(path = "cause.html")]
pub struct CausePage {
    pub page: Shell,
    pub cause: Failure,
    pub attempt: Option<Result<Attempt, Refusal>>,
    pub success: Option<Success>,
    /// The body that was sent, with its differences from that of the success.
    pub sent: Vec<Line>,
    pub tasks: Result<TaskPage, Refusal>,
    pub text: String,
    pub next: Option<String>,
    pub patch: String,
    /// The changes in the hour before the first failure.
    pub lines: Vec<ChangeLine>,
}

impl CausePage {
    pub fn new(page: Shell, query: &Params, cause: Failure, parts: CauseParts) -> Self {
        let failed = match &parts.attempt {
            Some(Ok(attempt)) => attempt.request.as_ref().and_then(Sent::text),
            _ => None,
        };
        let succeeded = parts.success.as_ref().and_then(Success::body);
        let sent = match (succeeded, failed) {
            (Some(succeeded), Some(failed)) => {
                json::difference(first_bytes(succeeded), first_bytes(failed))
            }
            (None, Some(failed)) => json::difference(first_bytes(failed), first_bytes(failed)),
            _ => Vec::new(),
        };
        let cursor = parts
            .tasks
            .as_ref()
            .ok()
            .and_then(|tasks| tasks.next_cursor.as_deref());
        Self {
            next: next_page(&query.only(&["text"]), cursor),
            text: query.text("text").to_owned(),
            patch: query.text("patch").to_owned(),
            attempt: parts.attempt,
            success: parts.success,
            sent,
            tasks: parts.tasks,
            lines: lines(&page, parts.changes),
            cause,
            page,
        }
    }

    /// Returns the sentence about a command that the API recommends for this cause.
    pub fn when(&self, command: &str) -> Option<&str> {
        let mut remedies = self.cause.remedies.iter();
        let found = remedies.find(|remedy| remedy.command == command);
        found.map(|remedy| remedy.when.as_str())
    }

    pub fn is_different(&self) -> bool {
        self.sent.iter().any(|line| line.mark != ' ')
    }

    pub fn fix(&self) -> String {
        self.page
            .to(&format!("/causes/{}/fix", encoded(&self.cause.fingerprint)))
    }

    pub fn all_tasks(&self) -> String {
        self.page.to(&format!(
            "/tasks?cause={}",
            encoded(&self.cause.fingerprint)
        ))
    }
}

pub async fn show(Path(fingerprint): Path<String>, visit: Visit) -> Response {
    let page = build(&visit, &fingerprint).await;
    visit.show(page)
}

async fn build(visit: &Visit, fingerprint: &str) -> Result<CausePage, Refusal> {
    let cause: Failure = visit
        .get(&format!("/v1/failures/{}", encoded(fingerprint)))
        .await?;
    let of_cause = visit
        .query
        .only(&["text", "after"])
        .with("cause", fingerprint);
    let tasks = target(&of_cause, ROWS);
    let (attempt, success, tasks, changes) = tokio::join!(
        failed_attempt(visit, &cause),
        last_success(visit, &cause),
        visit.get(&tasks),
        before(visit, &cause.first_at)
    );
    let shell = visit.shell(Section::Home, cause.sentence.clone());
    let parts = CauseParts {
        attempt,
        success,
        tasks,
        changes,
    };
    Ok(CausePage::new(shell, &visit.query, cause, parts))
}

async fn failed_attempt(visit: &Visit, cause: &Failure) -> Option<Result<Attempt, Refusal>> {
    let example = cause.example.as_ref()?;
    let target = format!(
        "/v1/tasks/{}/steps/{}/attempts/{}",
        encoded(&example.task),
        encoded(&example.step),
        example.attempt?
    );
    let attempts = visit.get::<Attempts>(&target).await;
    match attempts {
        Ok(mut attempts) => attempts.items.pop().map(Ok),
        Err(refusal) => Some(Err(refusal)),
    }
}

/// Returns a recent success of the same step, with how the failure differs from it.
async fn last_success(visit: &Visit, cause: &Failure) -> Option<Success> {
    let workflow = cause.workflow.as_deref()?;
    let query = Params::from_iter([
        ("workflow", workflow),
        ("state", "processed"),
        ("limit", "1"),
    ]);
    let tasks: TaskPage = visit
        .get(&format!("/v1/tasks{}", query.query()))
        .await
        .ok()?;
    let task = tasks.items.into_iter().next()?;
    let target = format!(
        "/v1/tasks/{}/steps/{}/attempts?limit=1",
        encoded(&task.id),
        encoded(&cause.step)
    );
    let attempts: Attempts = visit.get(&target).await.ok()?;
    let attempt = attempts.items.into_iter().next()?;
    let comparison = match attempt.request.as_ref().and_then(Sent::text) {
        Some(_) => Comparison::Requests(Box::new(attempt)),
        None => {
            let failed = &cause.example.as_ref()?.task;
            let target = format!("/v1/tasks/{}/diff/{}", encoded(failed), encoded(&task.id));
            let difference: DifferenceInWords = visit.get(&target).await.ok()?;
            Comparison::InWords(difference.sentence)
        }
    };
    Some(Success { task, comparison })
}

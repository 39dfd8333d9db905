//! Commands for many tasks that were confirmed: jobs with their progress.

use askama::Template;
use axum::{
    extract::{Path, Request},
    response::Response,
};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    changed::{self, LineRow, is_change},
    form::read_form,
    params::{Params, encoded},
    parts::{Bar, Html, counted, number},
    respond::next_page,
    service::Refusal,
    shell::{Section, Shell},
    visit::Visit,
};

/// The number of tasks in each list of the page of a job.
const ROWS: &str = "15";

/// A job as `GET /v1/bulk/{id}` has it.
#[derive(Deserialize)]
pub struct Job {
    pub id: String,
    pub command: String,
    pub sentence: String,
    pub state: String,
    pub stop_cause: Option<String>,
    pub failure: Option<String>,
    pub by: String,
    pub reason: Option<String>,
    pub created_at: String,
    pub ended_at: Option<String>,
    pub rate: Option<String>,
    pub total: u64,
    #[serde(default)]
    pub total_is_at_least: bool,
    pub matched: u64,
    pub accepted: u64,
    pub refused: u64,
    pub failed_again: Option<u64>,
    pub instance: Option<String>,
    #[serde(default)]
    pub events: Vec<JobEvent>,
}

#[derive(Deserialize)]
pub struct JobEvent {
    pub at: String,
    pub event: String,
    pub by: String,
}

#[derive(Deserialize)]
pub struct JobPage {
    pub items: Vec<Job>,
    pub next_cursor: Option<String>,
}

/// A page of `GET /v1/bulk/{id}/tasks`.
#[derive(Deserialize)]
pub struct JobTasks {
    pub items: Vec<JobTask>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
pub struct JobTask {
    pub task: String,
    pub key: Option<String>,
    pub state: Option<String>,
    pub at: String,
    pub problem: Option<String>,
    pub reason: Option<String>,
    pub failed_step: Option<String>,
    pub failed_at: Option<String>,
    pub error: Option<JobFault>,
}

#[derive(Deserialize)]
pub struct JobFault {
    pub message: String,
}

impl JobTask {
    pub fn why_not(&self, kind: &str) -> String {
        crate::fix::why_not(kind)
    }

    pub fn name(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.task)
    }
}

impl Job {
    /// Returns the sentence without its time, with a capital letter at its begin.
    pub fn title(&self) -> String {
        let by = [", that failed by ", ", created by ", ", by ", " by "]
            .iter()
            .find_map(|by| self.sentence.rsplit_once(by));
        let sentence = match by {
            Some((sentence, time)) if time.ends_with('Z') => sentence,
            _ => &self.sentence,
        };
        let mut letters = sentence.chars();
        let first = letters.next().map(|first| first.to_uppercase().to_string());
        format!("{}{}", first.unwrap_or_default(), letters.as_str())
    }

    pub fn runs(&self) -> bool {
        matches!(self.state.as_str(), "running" | "stopping")
    }

    pub fn can_go_on(&self) -> bool {
        matches!(self.state.as_str(), "stopped" | "failed")
    }

    pub fn left(&self) -> u64 {
        self.total.saturating_sub(self.matched)
    }

    /// Returns the word for the tasks that the job has not processed.
    pub fn rest_is(&self) -> &'static str {
        match self.state.as_str() {
            "ended" => "matched no longer",
            _ => "not begun",
        }
    }

    /// Returns what became of the tasks that an ended job has not processed: its filter is applied again to each batch, so that
    /// those are left alone that something else has changed meanwhile.
    pub fn unmatched(&self) -> Option<String> {
        if self.state != "ended" || self.left() == 0 {
            return None;
        }
        let (tasks, they) = match self.left() {
            1 => ("1 task".to_owned(), "it"),
            left => (format!("{} tasks", number(left)), "them"),
        };
        Some(format!(
            "{tasks} matched the filter when the job was confirmed, and no longer when it came to {they}: another job, an \
             operator or the service had changed {they}. The job left {they} alone; the history of each says who did what."
        ))
    }

    pub fn went_on(&self) -> u64 {
        self.accepted.saturating_sub(self.failed_again.unwrap_or(0))
    }

    /// Returns the class, the shape and the word of the state.
    pub fn badge(&self) -> (&'static str, &'static str, String) {
        match (self.state.as_str(), self.stop_cause.as_deref()) {
            ("running", _) => ("processing", "processing", String::from("running")),
            ("stopping", _) => ("paused", "paused", String::from("stopping")),
            ("stopped", Some("first")) => ("paused", "paused", String::from("waits for you")),
            ("stopped", _) => ("paused", "paused", String::from("stopped")),
            ("ended", _) => ("processed", "processed", String::from("ended")),
            ("failed", _) => ("error", "error", String::from("failed")),
            (other, _) => ("pending", "pending", other.to_owned()),
        }
    }

    /// Returns the progress in words.
    pub fn progress(&self) -> String {
        let total = match self.total_is_at_least {
            true => format!("at least {}", number(self.total)),
            false => number(self.total),
        };
        let mut words = format!(
            "{} of {total} processed: {} accepted",
            number(self.matched),
            number(self.accepted)
        );
        if self.refused > 0 {
            words = format!("{words}, {} refused", number(self.refused));
        }
        if let Some(failed) = self.failed_again.filter(|failed| *failed > 0) {
            words = format!("{words}, {} failed again", number(failed));
        }
        words
    }

    pub fn bar(&self, size: &'static str) -> Html {
        let counts = [
            ("f-processed", self.went_on()),
            ("f-error", self.failed_again.unwrap_or(0)),
            ("f-paused", self.refused),
            ("f-idle", self.left()),
        ];
        Bar::new(&self.progress(), size, self.total, &counts)
    }

    /// Returns the first sentence of the page about what is the case.
    pub fn lead(&self) -> String {
        let left = counted(self.left(), "task is", "tasks are");
        match (self.state.as_str(), self.stop_cause.as_deref()) {
            ("running", _) => format!("The job runs; {left} left."),
            ("stopping", _) => String::from("The job completes its batch, and stops then."),
            ("stopped", Some("first")) => {
                format!(
                    "The first tasks are processed, and {left} left. Look what became of them, and continue."
                )
            }
            ("stopped", _) => format!("The job was stopped; {left} left."),
            ("failed", _) => format!(
                "The job cannot continue: {}",
                self.failure.as_deref().unwrap_or("no reason was recorded")
            ),
            _ if self.failed_again.is_some_and(|failed| failed > 0) => {
                String::from("The job has ended. Some tasks failed again.")
            }
            _ => String::from("The job has ended."),
        }
    }
}

#[derive(Template)]
#[template(path = "bulk.html")]
pub struct BulkPage {
    pub page: Shell,
    pub job: Job,
    pub failed_again: Result<JobTasks, Refusal>,
    pub refused: Result<JobTasks, Refusal>,
}

impl BulkPage {
    pub fn badge(&self) -> Html {
        let (class, shape, word) = self.job.badge();
        self.page.badge(class, shape, word)
    }

    fn command(&self, command: &str) -> String {
        self.page
            .to(&format!("/bulk/{}/{command}", encoded(&self.job.id)))
    }

    /// Returns the address of the list of the tasks with a result.
    pub fn list(&self, result: &str) -> String {
        let query = Params::from_iter([("bulk", self.job.id.as_str()), ("bulk_result", result)]);
        self.page.to(&format!("/tasks{}", query.query()))
    }
}

#[derive(Template)]
#[template(path = "bulk_list.html")]
pub struct BulkListPage {
    pub page: Shell,
    pub jobs: Vec<Job>,
    pub next: Option<String>,
}

impl BulkListPage {
    pub fn badge(&self, job: &Job) -> Html {
        let (class, shape, word) = job.badge();
        self.page.badge(class, shape, word)
    }
}

pub async fn list(visit: Visit) -> Response {
    let page = build_list(&visit).await;
    visit.show(page)
}

async fn build_list(visit: &Visit) -> Result<BulkListPage, Refusal> {
    let mut query = Params::from_iter([("limit", "25")]);
    if let Some(cursor) = visit.query.get("after") {
        query = query.with("cursor", cursor);
    }
    let jobs: JobPage = visit.get(&format!("/v1/bulk{}", query.query())).await?;
    Ok(BulkListPage {
        page: visit.shell(Section::Bulk, "Bulk jobs"),
        next: next_page(&Params::default(), jobs.next_cursor.as_deref()),
        jobs: jobs.items,
    })
}

pub async fn show(Path(id): Path<String>, visit: Visit) -> Response {
    let page = build(&visit, &id).await;
    visit.show(page)
}

async fn build(visit: &Visit, id: &str) -> Result<BulkPage, Refusal> {
    let target = format!("/v1/bulk/{}", encoded(id));
    let tasks = |result: &str| format!("{target}/tasks?result={result}&limit={ROWS}");
    let (failed, refused) = (tasks("failed_again"), tasks("refused"));
    let (job, failed_again, refused) = tokio::join!(
        visit.get::<Job>(&target),
        visit.get(&failed),
        visit.get(&refused)
    );
    let job = job?;
    Ok(BulkPage {
        page: visit.shell(Section::Bulk, job.title()),
        job,
        failed_again,
        refused,
    })
}

pub async fn stop(Path(id): Path<String>, visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    let sent: Result<Value, Refusal> = visit
        .post(
            &format!("/v1/bulk/{}/stop", encoded(&id)),
            HeaderMap::new(),
            &json!({}),
        )
        .await;
    back(&visit, &id, "stop", &form, sent).await
}

pub async fn resume(Path(id): Path<String>, visit: Visit, request: Request) -> Response {
    let form = read_form(request.into_body()).await;
    let body = match form
        .get("first")
        .and_then(|first| first.parse::<u64>().ok())
    {
        Some(first) => json!({"first": first}),
        None => json!({}),
    };
    let sent: Result<Value, Refusal> = visit
        .post(
            &format!("/v1/bulk/{}/resume", encoded(&id)),
            HeaderMap::new(),
            &body,
        )
        .await;
    back(&visit, &id, "resume", &form, sent).await
}

/// Goes back to the job, or says what happened to it since the person looked.
async fn back(
    visit: &Visit,
    id: &str,
    command: &str,
    form: &Params,
    sent: Result<Value, Refusal>,
) -> Response {
    let path = format!("/bulk/{}", encoded(id));
    match sent {
        Ok(_) => visit.go(&path),
        Err(refusal) if is_change(&refusal) => {
            let job = visit.get::<Job>(&format!("/v1/bulk/{}", encoded(id))).await;
            let events = job.map(|job| job.events).unwrap_or_default();
            let lines = events
                .iter()
                .map(|event| LineRow::done(&event.at, &event.by, event.event.as_str(), None));
            let sent = changed::Refused {
                section: Section::Bulk,
                list: "bulk",
                path,
                name: format!("bulk job {id}"),
                command,
                form,
                has_preview: false,
            };
            changed::respond(visit, refusal, &sent, lines.collect())
        }
        Err(refusal) => visit.refused(&refusal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_of_a_job_is_its_sentence_without_the_time() {
        let title = |sentence: &str| {
            let job = json!({
                "id": "1", "command": "retry", "sentence": sentence, "state": "ended", "by": "operator:ada",
                "created_at": "2026-11-26T03:13:20Z", "total": 1, "matched": 1, "accepted": 1, "refused": 0
            });
            let job: Job = serde_json::from_value(job).unwrap();
            job.title()
        };
        let at = "2026-11-28T22:13:48.386Z";
        assert_eq!(
            title(&format!("retry 2 tasks that failed for cause 5f, by {at}")),
            "Retry 2 tasks that failed for cause 5f"
        );
        assert_eq!(
            title(&format!("retry 44 tasks for cause 9e, that failed by {at}")),
            "Retry 44 tasks for cause 9e"
        );
        assert_eq!(
            title(&format!("undo 1 task for cause 5f, created by {at}")),
            "Undo 1 task for cause 5f"
        );
        assert_eq!(title("cancel 2 tasks by bob"), "Cancel 2 tasks by bob");
    }
}

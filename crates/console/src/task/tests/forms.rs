//! The previews of commands, and the requests that their forms send.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tower::ServiceExt;

use super::{dom::Dom, fixture, person, read, shell, undo_page};
use crate::{
    params::Params,
    service::{Call, Installation, Person, Reply, Role, Service},
    session::MemorySessions,
    task::{
        command::Command,
        preview::{PreviewSources, TaskCommandPage},
        record::Task,
    },
};

const ID: &str = "01a2240c-692d-7565-bb7d-e6c519dd0744";

fn preview(command: Command, query: &str, sources: PreviewSources) -> Dom {
    let task: Task = read(fixture!("task-error"));
    Dom::of(&TaskCommandPage::new(
        shell(Role::Operate),
        task,
        command,
        &Params::read(query),
        sources,
    ))
}

fn with_attempt() -> PreviewSources {
    PreviewSources {
        attempt: Some(read(fixture!("attempt-charge"))),
        once: String::from("once-1"),
        ..PreviewSources::default()
    }
}

#[test]
fn a_retry_says_what_happens_and_carries_the_etag() {
    let dom = preview(Command::Retry, "step=charge", with_attempt());
    assert_eq!(dom.text("h1"), "Retry charge of order-20871");
    let lead = &dom.classed("lead")[0].text;
    assert!(lead.contains("payments is called again, under the same Idempotency-Key. invoice, pick and loyalty can go on if it succeeds."), "{lead}");
    assert_eq!(
        (dom.field("if_match"), dom.field("once")),
        (Some("\"9\""), Some("once-1"))
    );
    assert!(dom.text("textarea").contains("\"amount\": 12900"));
    assert_eq!(
        dom.field("body"),
        None,
        "a body that nobody changed is not sent"
    );
}

#[test]
fn a_changed_body_shows_its_difference_and_is_sent_as_it_was_typed() {
    let typed = r#"{"order":"order-20871","amount":12900,"currency":"EUR","card":"tok_visa","reservation":"rs_88214"}"#;
    let query = Params::from_iter([("step", "charge"), ("body", typed)]).query();
    let dom = preview(Command::Retry, &query[1..], with_attempt());
    assert_eq!(
        dom.text("h1"),
        "Retry charge of order-20871, with a changed request"
    );
    let added: Vec<_> = dom
        .all("ins")
        .into_iter()
        .map(|line| line.text.as_str())
        .collect();
    assert_eq!(added, ["+   \"currency\": \"EUR\""]);
    assert_eq!(dom.all("del").len(), 0);
    assert_eq!(dom.field("body"), Some(typed));
}

#[test]
fn a_body_that_is_no_json_cannot_be_confirmed_and_stays() {
    let dom = preview(Command::Retry, "step=charge&body=%7Boops", with_attempt());
    assert_eq!(dom.field("if_match"), None);
    assert_eq!(dom.text("textarea"), "{oops");
    assert!(
        dom.all("p")
            .iter()
            .any(|line| line.text.starts_with("Not now: this is not JSON"))
    );
}

#[test]
fn what_cannot_be_taken_back_asks_for_the_key() {
    assert_eq!(
        preview(Command::Cancel, "", PreviewSources::default()).field("sure"),
        Some("")
    );
    assert_eq!(
        preview(Command::Pause, "", PreviewSources::default()).field("sure"),
        None
    );
    let undo = Dom::of(&undo_page(Role::Operate));
    assert_eq!(
        (undo.field("sure"), undo.field("if_match")),
        (Some(""), Some("\"124\""))
    );
}

#[test]
fn a_command_that_does_not_apply_and_a_role_that_lacks_it_have_no_form() {
    let dom = preview(Command::Resume, "", PreviewSources::default());
    assert!(
        dom.all("p")
            .iter()
            .any(|line| line.text == "Not now: the task is not paused.")
    );
    assert_eq!(dom.field("if_match"), None);
    assert_eq!(Dom::of(&undo_page(Role::Read)).field("if_match"), None);
}

#[test]
fn a_migration_shows_the_change_of_each_step_before_it_is_confirmed() {
    let sources = PreviewSources {
        migration: Some(Ok(read(fixture!("migrate")))),
        versions: vec![2, 1],
        ..PreviewSources::default()
    };
    let dom = preview(Command::Migrate, "to_version=1", sources);
    assert_eq!(dom.text("h1"), "Move order-20871 from version 2 to 1");
    assert!(
        dom.all("tr").iter().any(
            |row| row.text.contains("charge") && row.text.ends_with("complete_within, request")
        )
    );
    assert_eq!(dom.field("to_version"), Some("1"));
    assert_eq!(
        dom.all("option").len(),
        1,
        "the version that it has is no choice"
    );
}

/// An API that has one task, and records what is sent to it.
struct Api {
    sent: Mutex<Vec<Call>>,
    refusal: Option<(StatusCode, &'static str)>,
}

#[async_trait]
impl Service for Api {
    fn installation(&self) -> Installation {
        Installation {
            base: String::from("/p"),
            ..Installation::default()
        }
    }

    fn needs_token(&self) -> bool {
        false
    }

    fn person_without_token(&self) -> Option<Person> {
        Some(person(Role::Operate))
    }

    fn person_of_token(&self, _: &str) -> Option<Person> {
        None
    }

    fn person_of_credential(&self, _: &[u8; 32]) -> Option<Person> {
        None
    }

    async fn call(&self, _: &Person, call: Call) -> Reply {
        let (status, body) = match (&call.method, call.target.as_str()) {
            (&Method::POST, _) => self
                .refusal
                .unwrap_or((StatusCode::OK, fixture!("task-error"))),
            (_, target) if target.contains("cursor=none") || target.ends_with("/attempts/999") => (
                StatusCode::NOT_FOUND,
                r#"{"title":"Not found","status":404,"detail":"no such place"}"#,
            ),
            (_, target) if target.contains("/history") => {
                (StatusCode::OK, fixture!("history-error"))
            }
            (_, target) if target.contains("/undo-plan") => {
                (StatusCode::OK, fixture!("undo-waiting"))
            }
            (_, target) if target.ends_with("/attempts?limit=12") => {
                (StatusCode::OK, fixture!("attempts-charge"))
            }
            (_, target) if target.contains("/attempts/") => {
                (StatusCode::OK, fixture!("attempt-charge"))
            }
            (_, target) if target.contains("/versions/2") => (StatusCode::OK, fixture!("order-2")),
            (_, target) if target.contains("/failures") => (StatusCode::OK, fixture!("failures")),
            _ => (StatusCode::OK, fixture!("task-error")),
        };
        self.sent.lock().push(call);
        Reply {
            status,
            headers: http::HeaderMap::new(),
            body: body.as_bytes().to_vec(),
        }
    }
}

struct Answer {
    status: StatusCode,
    location: String,
    html: String,
    sent: Vec<Call>,
}

async fn request(
    method: Method,
    path: &str,
    form: &str,
    refusal: Option<(StatusCode, &'static str)>,
) -> Answer {
    let api = Arc::new(Api {
        sent: Mutex::new(Vec::new()),
        refusal,
    });
    let router = crate::router(api.clone(), Arc::new(MemorySessions::default()));
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("sec-fetch-site", "same-origin");
    let response = router
        .oneshot(request.body(Body::from(form.to_owned())).unwrap())
        .await
        .unwrap();
    let location = response
        .headers()
        .get(header::LOCATION)
        .map(|to| to.to_str().unwrap().to_owned());
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Answer {
        status,
        location: location.unwrap_or_default(),
        html: String::from_utf8(body.to_vec()).unwrap(),
        sent: std::mem::take(&mut *api.sent.lock()),
    }
}

#[tokio::test]
async fn a_page_is_made_of_what_the_api_says() {
    let page = request(Method::GET, &format!("/console/tasks/{ID}"), "", None).await;
    assert_eq!(page.status, StatusCode::OK);
    let dom = Dom::parse(&page.html);
    assert!(dom.text("h1").starts_with("order-20871"));
    assert!(
        dom.all("pre")
            .iter()
            .any(|pre| pre.text.contains("\"message\": \"currency is required\""))
    );
    assert!(
        page.sent.len() < 10,
        "a page reads few resources, not {}",
        page.sent.len()
    );
}

#[tokio::test]
async fn a_confirmed_command_is_sent_with_its_etag_and_every_digit_that_was_typed() {
    let form = "step=charge&if_match=%229%22&once=o-1&reason=a+%3Cb%3E&body=%7B%22n%22%3A12345678901234567890.10%7D";
    let done = request(
        Method::POST,
        &format!("/console/tasks/{ID}/retry"),
        form,
        None,
    )
    .await;
    assert_eq!(
        (done.status, done.location.as_str()),
        (StatusCode::SEE_OTHER, &*format!("/p/console/tasks/{ID}"))
    );
    let [command] = done.sent.as_slice() else {
        panic!("{:?}", done.sent)
    };
    assert_eq!(command.target, format!("/v1/tasks/{ID}/steps/charge/retry"));
    assert_eq!(command.headers["if-match"], "\"9\"");
    assert_eq!(command.headers["idempotency-key"], "o-1");
    assert_eq!(
        command.body.as_deref(),
        Some(r#"{"input":{"n":12345678901234567890.10},"reason":"a <b>"}"#)
    );
}

#[tokio::test]
async fn a_command_on_a_task_that_has_changed_shows_what_happened_since_and_keeps_what_was_typed() {
    let refusal = Some((StatusCode::PRECONDITION_FAILED, fixture!("stale")));
    let form = "step=charge&if_match=%228%22&reason=currency+was+missing";
    let page = request(
        Method::POST,
        &format!("/console/tasks/{ID}/retry"),
        form,
        refusal,
    )
    .await;
    assert_eq!(page.status, StatusCode::PRECONDITION_FAILED);
    let dom = Dom::parse(&page.html);
    assert_eq!(
        dom.text("h1"),
        "order-20871 has changed since you looked: nothing was done"
    );
    let log = dom
        .all("ol")
        .into_iter()
        .find(|list| list.has_class("log"))
        .unwrap();
    assert!(
        log.text.contains("charge failed permanently") && !log.text.contains("fraud-check"),
        "{}",
        log.text
    );
    assert!(
        dom.all("dd")
            .iter()
            .any(|value| value.text == "currency was missing")
    );
    assert!(
        dom.link("Preview it again")
            .contains("reason=currency+was+missing")
    );
}

#[tokio::test]
async fn a_refused_command_says_why() {
    let refusal = Some((StatusCode::CONFLICT, fixture!("refused")));
    let page = request(
        Method::POST,
        &format!("/console/tasks/{ID}/resume"),
        "if_match=%229%22",
        refusal,
    )
    .await;
    assert_eq!(page.status, StatusCode::CONFLICT);
    let dom = Dom::parse(&page.html);
    assert!(
        dom.classed("lead")[0]
            .text
            .contains("only a paused task can be resumed")
    );
}

#[tokio::test]
async fn an_undo_with_another_key_than_that_of_the_task_is_not_sent() {
    let form = "if_match=%2250%22&reason=wrong&sure=order-1";
    let page = request(
        Method::POST,
        &format!("/console/tasks/{ID}/undo"),
        form,
        None,
    )
    .await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(page.sent.iter().all(|call| call.method == Method::GET));
    let dom = Dom::parse(&page.html);
    assert_eq!(dom.field("reason"), Some("wrong"), "what was typed is kept");
    let right = request(
        Method::POST,
        &format!("/console/tasks/{ID}/undo"),
        "sure=order-20871",
        None,
    )
    .await;
    assert_eq!(right.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn an_address_of_no_place_of_the_task_is_refused() {
    for (query, title) in [
        ("history=none", "Not found"),
        ("step=charge&attempt=999", "Not found"),
        ("step=charge&attempt=x", "Invalid parameter"),
        ("step=chrage", "No such step"),
        ("step=charge&state=eror", "Invalid parameter"),
    ] {
        let page = request(
            Method::GET,
            &format!("/console/tasks/{ID}?{query}"),
            "",
            None,
        )
        .await;
        assert!(page.status.is_client_error(), "{query}: {}", page.status);
        assert_eq!(Dom::parse(&page.html).text("h1"), title, "{query}");
    }
    let there = "step=charge&attempt=1&raw=1";
    let page = request(
        Method::GET,
        &format!("/console/tasks/{ID}?{there}"),
        "",
        None,
    )
    .await;
    assert_eq!(page.status, StatusCode::OK);
}

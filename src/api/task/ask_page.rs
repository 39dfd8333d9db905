//! The page that a person's link opens: it shows the question, and takes the decision. The link is the only
//! credential. A GET changes nothing, because mail programs open links; the form posts to its own address. The query
//! is ignored, because mail programs and trackers append parameters to links.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{FromRequestParts, RawPathParams, State},
    http::{StatusCode, request::Parts},
    response::Response,
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::ask_html::{AskPage, AskSubject, respond};
use crate::api::{
    App, Problem,
    extract::FormBody,
    problem::{ProblemKind, add_retry_after},
};
use crate::{
    domain::{
        task::{Actor, Command, StepState, Task},
        values::{Attempt, StepRef},
        view::ChangeOrigin,
    },
    listener::PeerAddress,
    store::{Apply, CommandError},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(show, decide))
}

/// `{token}` in the path: the person that it was made for, and the attempt.
struct AskPath {
    step: StepRef,
    attempt: Attempt,
    person: u16,
}

impl FromRequestParts<Arc<App>> for AskPath {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let params = RawPathParams::from_request_parts(parts, app).await;
        let params = params.map_err(|_| unknown(app))?;
        let token = params.iter().find(|(key, _)| *key == "token");
        let known = token.and_then(|(_, token)| app.reply_key.verify_ask(token));
        let (step, attempt, person) = known.ok_or_else(|| unknown(app))?;
        Ok(Self {
            step,
            attempt,
            person,
        })
    }
}

fn unknown(app: &App) -> Response {
    respond(StatusCode::NOT_FOUND, &AskPage::Unknown, &base(app))
}

/// Returns the path of the public URL, below which the stylesheet is.
fn base(app: &App) -> String {
    app.config.public_path()
}

/// The parameter of both operations, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
struct AskParams {
    /// The last part of a link that a person got: a credential.
    #[param(example = "AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQAADHWYLmrRpLrDRtn1Xhh3Zw")]
    token: String,
}

/// The answer of a person, as the form of the page sends it. Each of the step's `fields` is sent under its name after
/// `field.`.
#[derive(utoipa::ToSchema)]
#[schema(as = AskAnswer)]
#[expect(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct AskAnswerBody {
    #[schema(example = "approve")]
    choice: String,
    #[schema(max_length = 1000, example = "within the budget")]
    comment: Option<String>,
}

/// Show what a person is asked
///
/// An HTML page for the person whom the link was made for. Opening it changes nothing.
#[utoipa::path(
    get, path = "/v1/asks/{token}", tag = "asks", operation_id = "show_ask",
    params(AskParams),
    responses(
        (status = 200, description = "The question with its form, or what this person has decided", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 404, description = "The link is not known", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 410, description = "The question is closed", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
    )
)]
async fn show(State(app): State<Arc<App>>, path: AskPath) -> Response {
    answer(&app, &path).await
}

/// Decide what a person is asked
///
/// The first decision of each person counts: the same one again changes nothing, and another one is refused.
#[utoipa::path(
    post, path = "/v1/asks/{token}", tag = "asks", operation_id = "decide_ask",
    params(AskParams),
    request_body(content = AskAnswerBody, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "The decision is saved, or was saved before", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 404, description = "The link is not known", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 409, description = "This person has decided something else before", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 410, description = "The question is closed: nothing changed", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 413, description = "The form is too large", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 415, description = "The body is not that of a form", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
        (status = 422, description = "The answer has faults: the page shows them", body = String, content_type = "text/html", example = json!("<!doctype html>…")),
    )
)]
async fn decide(
    State(app): State<Arc<App>>,
    path: AskPath,
    peer: Option<Extension<PeerAddress>>,
    form: Result<FormBody, Problem>,
) -> Response {
    let form = match form {
        Ok(FormBody(form)) => form,
        Err(problem) => return problem_page(&app, &problem),
    };
    let task = match app.store.reader.task(path.step.task).await {
        Ok(Some(task)) => task,
        Ok(None) => return unknown(&app),
        Err(error) => return problem_page(&app, &error.into()),
    };
    let Some(asked) = AskSubject::of(&task, &path) else {
        return respond(StatusCode::GONE, &AskPage::AskedAgain, &base(&app));
    };
    let answer_read = match asked.rule.read_answer(&form) {
        Ok(read) => read,
        Err(faults) if asked.is_open(&path) => {
            let page = asked.form(&path, &form, &faults);
            return respond(StatusCode::UNPROCESSABLE_ENTITY, &page, &base(&app));
        }
        // The page says why the person cannot decide.
        Err(_) => return answer(&app, &path).await,
    };
    let person = Actor::person(asked.ask.person(path.person).unwrap_or_default());
    let store = app.store.ordered_by(ChangeOrigin {
        by: person.to_string(),
        address: peer.map(|Extension(peer)| peer.0.to_string()),
        ..ChangeOrigin::default()
    });
    let applied = store.apply(Apply::new(
        path.step.task,
        Command::Decide {
            step: path.step.step,
            attempt: path.attempt,
            person: path.person,
            answer: answer_read,
        },
        person,
    ));
    match applied.await {
        Ok(_) => answer(&app, &path).await,
        Err(CommandError::NoTask) => unknown(&app),
        Err(CommandError::Refused { .. }) => refused(&app, &path).await,
        Err(error) => problem_page(&app, &error.into()),
    }
}

/// Returns the page in its current state.
async fn answer(app: &App, path: &AskPath) -> Response {
    render_state(app, path, StatusCode::OK).await
}

/// Returns the same page with 409, because this person has decided something else before.
async fn refused(app: &App, path: &AskPath) -> Response {
    render_state(app, path, StatusCode::CONFLICT).await
}

async fn render_state(app: &App, path: &AskPath, decided: StatusCode) -> Response {
    let base = &base(app);
    let task = match app.store.reader.task(path.step.task).await {
        Ok(Some(task)) => task,
        Ok(None) => return unknown(app),
        Err(error) => return problem_page(app, &error.into()),
    };
    let Some(asked) = AskSubject::of(&task, path) else {
        return respond(StatusCode::GONE, &AskPage::AskedAgain, base);
    };
    let now = match app.store.reader.now().await {
        Ok(now) => now,
        Err(error) => return problem_page(app, &error.into()),
    };
    if let Some(decision) = asked.ask.decision_of(path.person) {
        let page = AskPage::Decided {
            asked: &asked,
            decision,
            is_refused: decided == StatusCode::CONFLICT,
        };
        return respond(decided, &page, base);
    }
    match asked.until {
        Some(until) if until > now => respond(StatusCode::OK, &asked.form(path, &[], &[]), base),
        Some(_) => respond(StatusCode::GONE, &AskPage::TooLate { asked: &asked }, base),
        None => respond(StatusCode::GONE, &AskPage::Closed { asked: &asked }, base),
    }
}

/// Returns a problem as a page for people.
fn problem_page(app: &App, problem: &Problem) -> Response {
    let status = match problem.kind() {
        // The page has its own media type.
        ProblemKind::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        kind => kind.status(),
    };
    let mut response = respond(status, &AskPage::Failed(problem.detail()), &base(app));
    add_retry_after(status, response.headers_mut());
    response
}

/// There is no question to show if the link is of an earlier attempt.
impl<'t> AskSubject<'t> {
    fn of(task: &'t Task, path: &AskPath) -> Option<Self> {
        let index = path.step.step;
        if !task.has_step(index) {
            return None;
        }
        let step = task.step(index);
        let ask = step.ask.as_deref()?;
        ask.person(path.person)
            .filter(|_| ask.attempt == path.attempt && step.attempt == path.attempt)?;
        let definition = task.definition(index);
        Some(Self {
            task,
            rule: definition.work.ask()?,
            ask,
            step: definition.name.as_str(),
            until: match step.state {
                StepState::Processing { complete_by, .. } => Some(complete_by),
                _ => None,
            },
        })
    }

    fn is_open(&self, path: &AskPath) -> bool {
        self.until.is_some() && self.ask.decision_of(path.person).is_none()
    }

    fn form<'a>(
        &'a self,
        path: &AskPath,
        given: &'a [(String, String)],
        faults: &'a [crate::domain::task::AnswerFault],
    ) -> AskPage<'a> {
        AskPage::Form {
            asked: self,
            person: self.ask.person(path.person).unwrap_or_default(),
            given,
            faults,
        }
    }
}

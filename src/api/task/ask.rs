//! The open questions to people.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use crate::api::{
    App, Problem,
    extract::{Caller, PageQuery, Query},
    problem::ProblemKind,
    response::{Page, json},
    text_filter::{self, PageSearch},
};
use crate::{
    config::Role,
    domain::{
        message::Sender,
        task::OpenAsk,
        values::{StepIndex, StepRef, TaskId, Timestamp},
    },
    store::{AskQuery, ListedAsk},
};

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// An open question to people.
#[derive(Serialize, ToSchema)]
#[schema(as = Ask)]
pub struct AskListView {
    #[schema(value_type = String, format = "uuid", example = "0197a2b4-5f00-7b11-8c22-0d9e8f7a6b5c")]
    task: TaskId,
    /// The task's key.
    #[schema(required, example = "order-1001")]
    key: Option<String>,
    #[schema(required, example = "order")]
    workflow: Option<String>,
    #[schema(example = "approval")]
    step: String,
    /// Null if the record is damaged.
    #[schema(required, example = "Approve the refund of 120 EUR?")]
    title: Option<String>,
    /// The time until which the links can be used to decide.
    #[schema(required)]
    until: Option<Timestamp>,
    #[schema(max_items = 20)]
    people: Vec<AskedPersonView>,
    #[serde(skip)]
    position: String,
}

/// A person who is asked.
#[derive(Serialize, ToSchema)]
#[schema(as = AskedPerson)]
pub struct AskedPersonView {
    #[schema(example = "ops@example.com")]
    person: String,
    /// Null until this person has decided.
    #[schema(required, example = "approve")]
    choice: Option<String>,
    #[schema(required)]
    at: Option<Timestamp>,
    /// The link with which the person decides. Only for the role `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        example = "https://provost.example/v1/asks/AZc0bXx_cAmAAAAAAAAAAQAAAAAAAQAADHWYLmrRpLrDRtn1Xhh3Zw"
    )]
    link: Option<String>,
}

impl AskListView {
    /// `sender` makes the links, if the caller may see them.
    fn new(listed: ListedAsk, sender: Option<&Sender>) -> Self {
        let step = listed.step;
        let ask = listed.ask.as_deref();
        Self {
            task: step.task,
            key: listed.key,
            workflow: listed.workflow,
            step: listed.name.to_string(),
            title: ask.map(|ask| ask.text.title.clone()),
            until: listed.until,
            people: ask.map_or_else(Vec::new, |ask| people(step, ask, sender)),
            position: format!("{}.{}", step.task, step.step.0),
        }
    }
}

impl AskListView {
    fn texts(&self) -> Vec<&str> {
        let named = [&self.title, &self.key].into_iter().flatten();
        let named = named.map(String::as_str);
        let people = self.people.iter().map(|asked| asked.person.as_str());
        named.chain(people).chain([self.step.as_str()]).collect()
    }
}

fn people(step: StepRef, ask: &OpenAsk, sender: Option<&Sender>) -> Vec<AskedPersonView> {
    let people = (0..).zip(&ask.text.of).map(|(person, name)| {
        let decision = ask.decision_of(person);
        AskedPersonView {
            person: name.clone(),
            choice: decision.map(|decision| decision.answer.choice.clone()),
            at: decision.map(|decision| decision.at),
            link: sender.and_then(|sender| sender.ask_link(step, ask, person)),
        }
    });
    people.collect()
}

/// List what people are asked
///
/// The open questions, of the newest tasks first. Decisions are in the history of the task, and in the output of the
/// step.
#[utoipa::path(
    get, path = "/v1/asks", tag = "asks", operation_id = "list_asks",
    params(
        ("open" = Option<bool>, Query, description = "Only `true` is possible: closed questions are not listed", example = true),
        ("of" = Option<String>, Query, description = "A person who is asked, as the definition names them", example = "ops@example.com"),
        ("workflow" = Option<String>, Query, description = "The name of a workflow", example = "order"),
        ("text" = Option<String>, Query, min_length = 1, max_length = 200, description = "A part of the title, of the task's key, of the step or of a person; case does not matter. A page may have fewer items than `limit` although others follow", example = "refund"),
        PageQuery,
    ),
    responses((status = 200, description = "A page of questions", body = Page<AskListView>)),
)]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    mut query: Query,
) -> Result<Response, Problem> {
    if query.boolean("open")? == Some(false) {
        return Err(Problem::new(
            ProblemKind::InvalidQuery,
            "open is \"false\", but only open questions are listed: GET /v1/tasks/{id}/history has what was decided",
        ));
    }
    let person = query.string("of");
    let workflow = query.string("workflow");
    let text = text_filter::text(&mut query)?;
    let limit = query.limit()?;
    let place = query.cursor(|text| position(text).map(|_| text.to_owned()))?;
    query.finish()?;
    let sender = app.sender.load();
    let sender = (caller.role == Role::Admin).then_some(&**sender);
    let mut search = PageSearch::new(text, place, limit);
    while let Some((before, wanted)) = search.wants() {
        let asked = AskQuery {
            person: person.clone(),
            workflow: workflow.clone(),
            before: before.as_deref().and_then(position),
            limit: wanted,
        };
        let found = app.store.reader.open_asks(&asked).await?;
        let views = found.into_iter().map(|ask| AskListView::new(ask, sender));
        let position_of = |view: &AskListView| view.position.clone();
        search.add(views.collect(), position_of, AskListView::texts);
    }
    Ok(json(StatusCode::OK, &search.page()))
}

fn position(text: &str) -> Option<StepRef> {
    let (task, step) = text.split_once('.')?;
    Some(StepRef {
        task: TaskId(Uuid::try_parse(task).ok()?),
        step: StepIndex(step.parse().ok()?),
    })
}

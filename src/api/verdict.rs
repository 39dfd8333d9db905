//! What a definition would mean, before anything is stored.

use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{App, answer::json};
use crate::domain::{Definition, Span};

/// What a definition would mean.
#[derive(Serialize, ToSchema)]
#[schema(as = Verdict)]
pub struct VerdictBody<'a> {
    /// What would run, in the order of the definition.
    steps: Vec<VerdictStep<'a>>,
    #[schema(value_type = Option<String>, example = "15m")]
    complete_within: Option<Span>,
}

/// One step that would run.
#[derive(Serialize, ToSchema)]
pub struct VerdictStep<'a> {
    #[schema(example = "charge")]
    name: &'a str,
    /// The agent, or the origin of the step's URL.
    #[schema(example = "payments")]
    agent: &'a str,
    /// The steps that must be done before this one.
    #[schema(example = json!(["reserve"]))]
    after: Vec<&'a str>,
}

pub fn answer(_app: &App, definition: &Definition, complete_within: Option<Span>) -> Response {
    let name = |at: usize| definition.steps[at].name.as_str();
    let steps = definition.steps.iter().map(|step| VerdictStep {
        name: step.name.as_str(),
        agent: step.agent().as_str(),
        after: step.after.iter().map(|index| name(index.at())).collect(),
    });
    let body = VerdictBody {
        steps: steps.collect(),
        complete_within,
    };
    json(StatusCode::OK, &body)
}

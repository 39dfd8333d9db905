//! The body of a request that has a definition: JSON, or the same in YAML.

use axum::{
    extract::{FromRef, FromRequest, Request},
    http::header,
};
use serde_json::value::RawValue;

use super::{
    JsonBody,
    body::{BodyLimit, read},
};
use crate::{
    api::problem::{Problem, ProblemKind},
    domain::values::is_yaml,
    rehearsal::{SourceFormat, SourceText},
};

/// A JSON document that was sent as JSON or as YAML.
#[derive(Debug)]
pub struct DefinitionBody(pub Box<RawValue>);

impl<S> FromRequest<S> for DefinitionBody
where
    BodyLimit: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        if !content_type.is_some_and(|value| value.to_str().is_ok_and(is_yaml)) {
            let JsonBody(json) = JsonBody::from_request(request, state).await?;
            return Ok(Self(json));
        }
        let bytes = read(request, BodyLimit::from_ref(state)).await?;
        let text = String::from_utf8(bytes.into());
        let text = text.map_err(|_| not_yaml("is not UTF-8", 1, 1))?;
        let source = SourceText::parse(text, SourceFormat::Yaml).map_err(|fault| {
            let location = fault.location;
            not_yaml(&fault.message, location.line, location.column)
        })?;
        Ok(Self(source.json().raw().to_owned()))
    }
}

fn not_yaml(why: &str, line: usize, column: usize) -> Problem {
    Problem::new(
        ProblemKind::MalformedJson,
        format!("the body cannot be read as YAML: at line {line}, column {column} it {why}"),
    )
    .with("line", line)
    .with("column", column)
}

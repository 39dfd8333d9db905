//! Diagrams as responses: content negotiation and labels.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use utoipa::IntoParams;

use crate::api::{Problem, extract::Query};
use crate::domain::view::DiagramFormat;

const MERMAID: &str = "text/vnd.mermaid; charset=utf-8";
const DOT: &str = "text/vnd.graphviz; charset=utf-8";

/// The parameters of a diagram, for the OpenAPI document: `params(PictureQuery)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct PictureQuery {
    /// Default: the format that Accept names, or else `mermaid`.
    #[param(example = "mermaid")]
    format: Option<DiagramFormat>,
}

/// Returns the requested format: from `format` or, without it, from Accept.
pub fn form(query: &mut Query, headers: &HeaderMap) -> Result<DiagramFormat, Problem> {
    if let Some(form) = query.one_of(
        "format",
        DiagramFormat::ALL.iter().copied(),
        DiagramFormat::as_str,
    )? {
        return Ok(form);
    }
    let accepted = headers.get_all(header::ACCEPT).iter();
    let wants_dot = accepted
        .filter_map(|accepted| accepted.to_str().ok())
        .any(|accepted| accepted.contains("text/vnd.graphviz"));
    Ok(match wants_dot {
        true => DiagramFormat::Dot,
        false => DiagramFormat::Mermaid,
    })
}

pub fn picture(form: DiagramFormat, drawn: String) -> Response {
    let content_type = match form {
        DiagramFormat::Mermaid => MERMAID,
        DiagramFormat::Dot => DOT,
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        // The response depends on Accept.
        (header::VARY, HeaderValue::from_static("accept")),
    ];
    (StatusCode::OK, headers, Body::from(drawn)).into_response()
}

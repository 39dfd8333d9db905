//! If-Match and If-None-Match on agents and workflows, and on operations that do not support them.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, Method, header, request::Parts},
};
use utoipa::IntoParams;

use super::conditions::refused;
use crate::{
    api::problem::{Problem, ProblemKind},
    domain::values::{ETags, MOST_ETAGS, Precondition},
};

/// The headers of a change to an agent or a workflow, for the OpenAPI document: `params(RegistrationHeaders)`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the OpenAPI document reads its fields")]
pub struct RegistrationHeaders {
    /// ETags, or `*`: the request is refused unless the resource has one of these ETags, or exists at all.
    /// Evaluated in the transaction that makes the change.
    #[param(rename = "If-Match", example = "\"5f0c1d2e3fb7ad6b7169203331c80319\"")]
    if_match: Option<String>,
    /// `*`: the request is refused if the resource exists. ETags: it is refused if the resource has one of them.
    #[param(rename = "If-None-Match", example = "*")]
    if_none_match: Option<String>,
}

/// Returns the preconditions that an operation evaluates. Its documentation names these and no others.
pub fn evaluated_preconditions(method: &Method, route: &str) -> &'static [HeaderName] {
    match (method.as_str(), route) {
        (
            "PUT" | "DELETE",
            "/v1/agents/{name}"
            | "/v1/workflows/{name}"
            | "/v1/schedules/{name}"
            | "/v1/readers/{name}",
        ) => &[header::IF_MATCH, header::IF_NONE_MATCH],
        ("POST", "/v1/workflows/{name}/activate") => &[header::IF_MATCH, header::IF_NONE_MATCH],
        ("POST", route)
            if route.starts_with("/v1/tasks/{id}/") || route.starts_with("/v1/signals/") =>
        {
            &[header::IF_MATCH]
        }
        _ => &[],
    }
}

/// Refuses a precondition that the operation would not evaluate: the caller relies on it, and no ETag could match.
pub fn refuse_unevaluated(
    method: &Method,
    route: &str,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    if method.is_safe() {
        return Ok(());
    }
    let judged = evaluated_preconditions(method, route);
    let unjudged = |name: &HeaderName| headers.contains_key(name) && !judged.contains(name);
    let fails = |name: HeaderName, tags: &ETags| match name {
        header::IF_MATCH => *tags != ETags::Any,
        _ => *tags == ETags::Any,
    };
    for name in [header::IF_MATCH, header::IF_NONE_MATCH] {
        if !unjudged(&name) {
            continue;
        }
        let Some(tags) = etags(headers, &name)? else {
            continue;
        };
        if fails(name.clone(), &tags) {
            let name = titled(&name);
            return Err(Problem::new(
                ProblemKind::PreconditionFailed,
                format!("{name} does not apply to {method} {route}: omit it"),
            ));
        }
    }
    Ok(())
}

/// The preconditions of a change to an agent or a workflow.
pub struct IfTagged(pub Precondition);

impl<S: Send + Sync> FromRequestParts<S> for IfTagged {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(Precondition {
            if_match: etags(&parts.headers, &header::IF_MATCH)?,
            if_none_match: etags(&parts.headers, &header::IF_NONE_MATCH)?,
        }))
    }
}

/// Returns the ETags of a header. All fields of the header with this name form one list.
fn etags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<ETags>, Problem> {
    let lines = headers.get_all(name).iter();
    let lines: Vec<_> = lines.map(|line| line.to_str().unwrap_or("?")).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let tags = ETags::parse(&lines.join(","));
    tags.map(Some).ok_or_else(|| {
        let name = titled(name);
        refused(&format!(
            "{name} must be * or up to {MOST_ETAGS} ETags as the API returned them, such as \"7\" including the quotes"
        ))
    })
}

fn titled(name: &HeaderName) -> &'static str {
    match *name {
        header::IF_MATCH => "If-Match",
        _ => "If-None-Match",
    }
}

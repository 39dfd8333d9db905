//! The OpenAPI document: the handlers' own annotations, completed by what applies to all of them. Problems and
//! access rules are added here once, from the tables that the service itself uses.
//!
//! This file begins the document and completes it. `common_problems`, `headers`, `links` and `webhooks` are the parts
//! that it adds, `shape` arranges the whole; `objects` and `words` have the schemas that no handler derives.

mod common_problems;
#[cfg(test)]
mod default_tests;
mod headers;
mod links;
mod objects;
mod shape;
#[cfg(test)]
mod tests;
mod webhooks;
pub mod words;

use axum::http::Method;
use utoipa::{
    ToSchema,
    openapi::{
        Components, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, PathItem, Ref,
        path::Operation,
        security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
        tag::{Tag, TagBuilder},
    },
};

pub use self::objects::AgentSpecSchema;
use self::{common_problems::COMMON, words::LabelFilterSchema};
use super::{
    auth::{self, Access},
    definition::shapes::SwitchBranchBody,
    extract::PlainName,
    problem::{FieldErrorBody, ProblemBody},
};
use crate::domain::view::DiagramFormat;

const DESCRIPTION: &str = "Runs multi-step tasks across HTTP services so that each task succeeds as a whole or is undone as a whole.

Durations are strings such as `250ms`, `30s`, `15m`, `24h`; times are RFC 3339 in UTC; ids are UUIDv7. Unknown fields and query parameters are rejected by name. Errors are problem details (RFC 9457): `type` names the kind and never changes its meaning. Every kind has a section in `docs/problems.md`, which the service also serves at the URL in `type`.

Every request has an id: the `X-Request-Id` that you send (1 to 128 letters, digits and `-_.:/+=@`), or a generated one. It is returned in the response header, in every problem as `request_id`, and is part of every log line about the request.
\nThe service evaluates `If-Match` and `If-None-Match` on the operations that list them. On any other operation that changes something, a condition that names an ETag is refused with 412. On every path, a URL that is too long is refused with 414, headers that are too large with 431, and bytes that are not HTTP with 400.";

const TAGS: [(&str, &str); 11] = [
    ("tasks", "Submit tasks and follow their progress"),
    ("replies", "For services: reply to a call later"),
    ("operate", "Operator commands on a task"),
    ("asks", "Steps that ask people for a decision"),
    ("alerts", "Conditions that need a person's attention"),
    (
        "messages",
        "Undelivered messages to submitters and alert webhooks",
    ),
    (
        "events",
        "What happened, in one order, and what people and definitions changed",
    ),
    ("workflows", "Registered definitions, versioned"),
    ("schedules", "Tasks that are submitted at certain times"),
    ("agents", "The remote services that steps call"),
    ("service", "The service itself"),
];

const BEARER: &str = "token";

/// The document that the routes are added to.
pub fn start() -> OpenApi {
    let license = LicenseBuilder::new()
        .name(env!("CARGO_PKG_LICENSE"))
        .identifier(Some(env!("CARGO_PKG_LICENSE")));
    let info = InfoBuilder::new()
        .title("Provost")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(license.build()));
    OpenApiBuilder::new()
        .info(info)
        .tags(Some(TAGS.map(tag)))
        .build()
}

fn tag((name, description): (&str, &str)) -> Tag {
    TagBuilder::new()
        .name(name)
        .description(Some(description))
        .build()
}

/// Adds to every operation what applies to all of them: problems and access rules.
pub fn complete(mut document: OpenApi) -> OpenApi {
    let mut scheme = Http::new(HttpAuthScheme::Bearer);
    scheme.description = Some(
        "One of the configured tokens. Without configured tokens the service is reachable only from its own machine and requires none."
            .to_owned(),
    );
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    // utoipa collects the schemas that bodies refer to. It does not collect those of parameters and of what is
    // written here.
    add::<ProblemBody>(components);
    add::<FieldErrorBody>(components);
    add::<DiagramFormat>(components);
    add::<LabelFilterSchema>(components);
    add::<PlainName>(components);
    add::<SwitchBranchBody>(components);
    for problem in &COMMON {
        let response = problem.response().into();
        components
            .responses
            .insert(problem.name.to_owned(), response);
    }
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations_of(item) {
            let access = auth::needed(&method, Some(path));
            for problem in &COMMON {
                if (problem.applies)(operation, path, access) {
                    let status = problem.kind.status().as_str().to_owned();
                    let common = Ref::from_response_name(problem.name);
                    let responses = &mut operation.responses.responses;
                    responses.entry(status).or_insert(common.into());
                }
            }
            say_access(operation, access);
        }
    }
    headers::describe(&mut document);
    links::add(&mut document);
    webhooks::describe(&mut document);
    shape::arrange(&mut document);
    document
}

fn add<T: ToSchema>(components: &mut Components) {
    let schemas = &mut components.schemas;
    schemas.insert(T::name().into_owned(), T::schema());
}

fn say_access(operation: &mut Operation, access: Access) {
    if access == Access::Open {
        return;
    }
    let role = match access.role() {
        "any" => "If tokens are configured: any token.".to_owned(),
        "submit or read" => "If tokens are configured: any role but `work`.".to_owned(),
        role => format!("If tokens are configured: role `{role}`, or one that includes it."),
    };
    let description = operation.description.get_or_insert_default();
    if !description.is_empty() {
        description.push_str("\n\n");
    }
    description.push_str(&role);
    operation.security = Some(vec![
        SecurityRequirement::default(),
        SecurityRequirement::new::<_, [&str; 0], _>(BEARER, []),
    ]);
}

fn operations_of(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    [
        (Method::GET, &mut item.get),
        (Method::PUT, &mut item.put),
        (Method::POST, &mut item.post),
        (Method::DELETE, &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

#[cfg(test)]
pub fn operations(document: &OpenApi) -> Vec<(Method, String)> {
    let mut paths = document.paths.paths.clone();
    let listed = paths.iter_mut().flat_map(|(path, item)| {
        operations_of(item)
            .map(|(method, _)| (method, path.clone()))
            .collect::<Vec<_>>()
    });
    listed.collect()
}

//! The OpenAPI document: the handlers' own annotations, completed by what applies to all of them. Problems and
//! access rules are added here once, from the tables that the service itself uses.

mod headers;
mod links;
pub mod schemas;
mod shape;
mod webhooks;
pub mod words;

use axum::http::Method;
use serde_json::json;
use utoipa::{
    ToSchema,
    openapi::{
        Components, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, PathItem,
        Ref, Response, ResponseBuilder,
        path::Operation,
        security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
        tag::{Tag, TagBuilder},
    },
};

use super::{
    auth::{self, Access},
    extract::PlainName,
    problem::{FieldErrorBody, ProblemBody, ProblemKind},
};
use crate::api::openapi::words::{DiagramFormatSchema, LabelFilterSchema};

const DESCRIPTION: &str = "Runs multi-step tasks across HTTP services so that each task succeeds as a whole or is undone as a whole.

Durations are strings such as `250ms`, `30s`, `15m`, `24h`; times are RFC 3339 in UTC; ids are UUIDv7. Unknown fields and query parameters are rejected by name. Errors are problem details (RFC 9457): `type` names the kind and never changes its meaning. Every kind has a section in `docs/problems.md`, which the service also serves at the URL in `type`.

Every request has an id: the `X-Request-Id` that you send (1 to 128 letters, digits and `-_.:/+=@`), or a generated one. It is returned in the response header, in every problem as `request_id`, and is part of every log line about the request.
\nThe service evaluates `If-Match` and `If-None-Match` on the operations that list them. On any other operation that changes something, a condition that names an ETag is refused with 412. On every path, a URL that is too long is refused with 414, headers that are too large with 431, and bytes that are not HTTP with 400.";

const TAGS: [(&str, &str); 10] = [
    ("tasks", "Submit tasks and follow their progress"),
    ("replies", "For services: reply to a call later"),
    ("operate", "Operator commands on a task"),
    ("asks", "Steps that ask people for a decision"),
    ("alerts", "Conditions that need a person's attention"),
    (
        "messages",
        "Undelivered messages to submitters and alert webhooks",
    ),
    ("workflows", "Registered definitions, versioned"),
    ("schedules", "Tasks that are submitted at certain times"),
    ("agents", "The remote services that steps call"),
    ("service", "The service itself"),
];

const BEARER: &str = "token";

/// The problems that any operation of a kind may return, in addition to those that the operation declares.
struct CommonProblem {
    name: &'static str,
    kind: ProblemKind,
    description: &'static str,
    detail: &'static str,
    /// Whether an operation with this path and this access rule may return the problem.
    applies: fn(&Operation, &str, Access) -> bool,
}

fn has_body(operation: &Operation) -> bool {
    operation.request_body.is_some()
}

const COMMON: [CommonProblem; 11] = [
    CommonProblem {
        name: "BadRequest",
        kind: ProblemKind::InvalidQuery,
        description: "A query parameter or a header is invalid, or the body is not JSON",
        detail: "limit is \"0\", but must be a whole number, 1 to 500",
        applies: |operation, _, access| access != Access::Open || has_body(operation),
    },
    CommonProblem {
        name: "Unauthenticated",
        kind: ProblemKind::Unauthenticated,
        description: "Tokens are configured, and the request has no valid token",
        detail: "send the token as `Authorization: Bearer <token>`",
        applies: |_, _, access| access != Access::Open,
    },
    CommonProblem {
        name: "Forbidden",
        kind: ProblemKind::Forbidden,
        description: "The token's role does not allow this (`forbidden`); or, without tokens, the request comes from a page of another site (`cross-site`)",
        detail: "this needs the role operate, or one that includes it: the token \"ci\" has the role submit",
        applies: |_, _, access| access != Access::Open,
    },
    CommonProblem {
        name: "NotFound",
        kind: ProblemKind::NotFound,
        description: "The resource in the path does not exist",
        detail: "task 0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f does not exist",
        applies: |_, path, _| path.contains('{'),
    },
    CommonProblem {
        name: "RequestTimeout",
        kind: ProblemKind::RequestTimeout,
        description: "The body did not arrive completely in time",
        detail: "only 512 bytes of the body arrived: the limit is 60s in total (listener.body_timeout) and 20s between two parts (listener.stall_timeout)",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "BodyTooLarge",
        kind: ProblemKind::BodyTooLarge,
        description: "The body is longer than `limits.max_request`",
        detail: "the body is longer than 1048576 bytes: send less, or raise limits.max_request",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "NotJson",
        kind: ProblemKind::NotJson,
        description: "The body was not sent as JSON",
        detail: "Content-Type is missing: send JSON with `Content-Type: application/json`",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "Misdirected",
        kind: ProblemKind::Misdirected,
        description: "Without tokens: the request names a host that is neither a loopback name or address nor the host of `public_url`",
        detail: "this service accepts requests for localhost and loopback addresses, not for evil.example: use one of those, set public_url to the URL under which the service is reached, or configure tokens",
        applies: |_, _, _| true,
    },
    CommonProblem {
        name: "Invalid",
        kind: ProblemKind::Invalid,
        description: "The content is invalid; `errors` lists every fault with its JSON pointer",
        detail: "/steps/1/after/0: there is no step \"reserv\"; did you mean \"reserve\"?",
        applies: |operation, _, _| has_body(operation),
    },
    CommonProblem {
        name: "Internal",
        kind: ProblemKind::Internal,
        description: "An internal error; the service's log has the details",
        detail: "an internal error prevented this request; the service's log has the details",
        applies: |_, path, _| path.starts_with("/v1/"),
    },
    CommonProblem {
        name: "Unavailable",
        kind: ProblemKind::StoreUnavailable,
        description: "The store cannot commit (`store-full`, `store-unavailable`) or the service is stopping (`stopping`). Nothing was changed. Retry after `Retry-After`",
        detail: "the disk that holds the database is full, or the database has reached its size limit: free some space; the service then continues automatically",
        applies: |_, path, _| path.starts_with("/v1/"),
    },
];

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
    add::<DiagramFormatSchema>(components);
    add::<LabelFilterSchema>(components);
    add::<PlainName>(components);
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

impl CommonProblem {
    fn response(&self) -> Response {
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("Problem")))
            .example(Some(json!({
                "type": format!("/problems/{}", self.kind.slug()),
                "title": self.kind.title(),
                "status": self.kind.status().as_u16(),
                "detail": self.detail,
            })))
            .build();
        ResponseBuilder::new()
            .description(self.description)
            .content("application/problem+json", content)
            .build()
    }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::Value;

    use crate::api::extract::judged;

    fn document() -> Value {
        serde_json::to_value(crate::api::openapi()).unwrap()
    }

    #[test]
    fn the_document_in_the_tree_is_the_one_that_is_served() {
        let served = super::super::openapi().to_pretty_json().unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept.trim_end() == served,
            "openapi/openapi.json is out of date: cargo run -- openapi > openapi/openapi.json"
        );
    }

    fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
        let paths = document["paths"].as_object().unwrap();
        paths.iter().flat_map(|(path, item)| {
            let item = item.as_object().unwrap();
            item.iter()
                .map(move |(method, operation)| (format!("{method} {path}"), operation))
        })
    }

    #[test]
    fn every_operation_says_what_it_is_for() {
        let document = document();
        let tags: HashSet<_> = super::TAGS.iter().map(|(name, _)| *name).collect();
        let mut ids = HashSet::new();
        for (name, operation) in operations(&document) {
            for field in ["summary", "description"] {
                let text = operation[field].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{name} has no {field}");
            }
            assert!(
                tags.contains(operation["tags"][0].as_str().unwrap()),
                "{name}"
            );
            assert!(
                ids.insert(operation["operationId"].as_str().unwrap()),
                "{name}"
            );
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(parameter["description"].is_string(), "{name}: {parameter}");
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                let described = response["description"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty());
                assert!(described || response["$ref"].is_string(), "{name} {status}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn visit(document: &Value, value: &Value) {
            match value {
                Value::Object(members) => {
                    if let Some(Value::String(target)) = members.get("$ref") {
                        let found = document.pointer(target.trim_start_matches('#'));
                        assert!(found.is_some(), "{target} is not there");
                    }
                    members.values().for_each(|member| visit(document, member));
                }
                Value::Array(items) => items.iter().for_each(|item| visit(document, item)),
                _ => {}
            }
        }
        let document = document();
        visit(&document, &document);
    }

    #[test]
    fn a_change_lists_the_conditions_that_it_judges_and_no_others() {
        let document = document();
        for (name, operation) in operations(&document) {
            let (method, path) = name.split_once(' ').unwrap();
            let method = method.to_uppercase().parse::<axum::http::Method>().unwrap();
            let listed: Vec<_> = operation["parameters"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|parameter| parameter["in"] == "header")
                .filter_map(|parameter| parameter["name"].as_str())
                .filter(|name| ["If-Match", "If-None-Match"].contains(name))
                .map(str::to_lowercase)
                .collect();
            if method.is_safe() {
                assert!(!listed.contains(&"if-match".to_owned()), "{name}");
            } else {
                let judged = judged(&method, path).iter();
                let judged: Vec<_> = judged.map(|name| name.as_str().to_owned()).collect();
                assert_eq!(listed, judged, "{name}");
            }
        }
    }

    /// What generators of clients were seen to trip over.
    #[test]
    fn schemas_are_such_as_generators_understand() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas {
            assert!(schema.get("allOf").is_none(), "{name} is put together");
            assert!(!name.contains('_'), "{name} is named after a generic type");
            let properties = schema["properties"].as_object();
            for (field, property) in properties.into_iter().flatten() {
                let place = format!("{name}.{field}");
                // Generated clients take a field that has a default for one that is always there.
                assert!(property.get("default").is_none(), "{place}");
                let choices = property["oneOf"].as_array();
                for part in choices.into_iter().flatten().chain([property]) {
                    let is_object = part["type"].to_string().contains("\"object\"");
                    let says_what = part["additionalProperties"].is_object();
                    assert!(
                        !is_object || says_what,
                        "{place} is any object: is it any JSON?"
                    );
                }
            }
        }
        for input in ["Submission", "Task"] {
            let input = &schemas[input]["properties"]["input"]["$ref"];
            assert_eq!(*input, "#/components/schemas/Json");
        }
        assert_eq!(schemas["Json"].get("type"), None);
        assert_eq!(schemas["Submission"]["additionalProperties"], false);
        assert_eq!(schemas["StepRequest"].get("required"), None);
    }

    /// What a reference leads to.
    fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
        let target = schema["$ref"].as_str();
        let target = target.and_then(|target| document.pointer(target.trim_start_matches('#')));
        target.unwrap_or(schema)
    }

    /// Whether every object that is like `one` may be like `other` as well.
    fn may_be(document: &Value, one: &Value, other: &Value) -> bool {
        let (known, required) = (&one["properties"], &other["required"]);
        let mut required = required.as_array().into_iter().flatten();
        let has_all = required.all(|name| known.get(name.as_str().unwrap()).is_some());
        let words = |schema: &Value| resolved(document, schema)["enum"].clone();
        let properties = other["properties"].as_object();
        let mut properties = properties.into_iter().flatten();
        // They have one field of which the words differ.
        let is_told_apart = properties.any(|(name, schema)| {
            let of_one = known.get(name).map_or(Value::Null, words);
            of_one.is_array() && words(schema).is_array() && of_one != words(schema)
        });
        has_all && other["additionalProperties"] != false && !is_told_apart
    }

    /// A generated client refuses an answer that is two of the parts of a choice by `oneOf`.
    #[test]
    fn what_is_one_part_of_a_choice_is_no_other() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut compared = 0;
        for (name, schema) in schemas {
            let parts = schema["oneOf"].as_array();
            let parts = parts.into_iter().flatten();
            let parts: Vec<_> = parts.map(|part| resolved(&document, part)).collect();
            let is_object = |part: &Value| part["type"] == "object";
            for (at, one) in parts.iter().enumerate() {
                for (other_at, other) in parts.iter().enumerate() {
                    if at == other_at || !is_object(one) || !is_object(other) {
                        continue;
                    }
                    compared += 1;
                    assert!(
                        !may_be(&document, one, other),
                        "{name}: parts {at} and {other_at}"
                    );
                }
            }
        }
        assert!(compared > 0, "there is a choice of objects");
    }

    #[test]
    fn a_link_leads_from_a_submission_to_its_task() {
        let document = document();
        let ids: HashSet<_> = operations(&document)
            .map(|(_, operation)| operation["operationId"].as_str().unwrap())
            .collect();
        for path in ["/v1/tasks", "/v1/tasks/{id}/clone"] {
            let links = &document["paths"][path]["post"]["responses"]["202"]["links"];
            let links = links.as_object().unwrap();
            assert_eq!(links["get"]["parameters"]["id"], "$response.body#/id");
            for link in links.values() {
                let target = link["operationId"].as_str().unwrap();
                assert!(ids.contains(target), "{target}");
            }
        }
    }

    #[test]
    fn headers_and_webhooks_are_described() {
        let document = document();
        let get = &document["paths"]["/v1/tasks/{id}"]["get"];
        assert!(get["responses"]["304"]["headers"]["ETag"].is_object());
        let mut parameters = get["parameters"].as_array().unwrap().iter();
        assert!(parameters.any(|parameter| parameter["name"] == "If-None-Match"));
        let submitted = &document["paths"]["/v1/tasks"]["post"]["responses"]["202"]["headers"];
        for name in [
            "ETag",
            "Retry-After",
            "Location",
            "Preference-Applied",
            "Idempotency-Replayed",
            "Vary",
        ] {
            assert!(submitted[name].is_object(), "{name}");
        }
        let unavailable = &document["components"]["responses"]["Unavailable"];
        assert!(unavailable["headers"]["Retry-After"].is_object());
        let content = &document["webhooks"]["task_event"]["post"]["requestBody"]["content"];
        assert!(content["application/cloudevents+json"]["schema"].is_object());
    }

    #[test]
    fn the_document_is_openapi_3_1_and_names_version_and_licence() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(document["info"]["license"]["identifier"], "Apache-2.0");
        assert!(document["info"].get("contact").is_none());
    }
}

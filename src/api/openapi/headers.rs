//! The headers of responses. Each header is described once, for all operations that return it.

use axum::http::Method;
use utoipa::openapi::{
    HeaderBuilder, Object, ObjectBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Type,
    path::{Operation, ParameterBuilder, ParameterIn},
};

use super::operations_of;

/// The properties of a response that decide which headers it has.
struct ResponseTraits<'a> {
    operation: &'a str,
    method: &'a Method,
    status: &'a str,
    /// The name of the schema of a JSON response.
    schema: Option<&'a str>,
    /// True if the request may have an Idempotency-Key.
    takes_key: bool,
}

impl ResponseTraits<'_> {
    fn is_task(&self) -> bool {
        matches!(
            self.schema,
            Some("Task" | "TaskOrReport" | "TaskOrMigrationReport")
        )
    }

    /// Returns true if the request may wait for the task.
    fn is_submission(&self) -> bool {
        *self.method == Method::POST
            && matches!(self.operation, "submit_task" | "clone_task")
            && self.is_task()
    }

    fn is_picture(&self) -> bool {
        self.operation.ends_with("_graph") && self.status == "200"
    }

    fn is_page_of_problems(&self) -> bool {
        matches!(self.operation, "list_problems" | "get_problem") && self.status == "200"
    }
}

struct HeaderOf {
    name: &'static str,
    description: &'static str,
    schema: fn(ObjectBuilder) -> ObjectBuilder,
    applies: fn(&ResponseTraits<'_>) -> bool,
}

fn text(schema: ObjectBuilder) -> ObjectBuilder {
    schema.schema_type(Type::String)
}

const HEADERS: [HeaderOf; 9] = [
    HeaderOf {
        name: "X-Request-Id",
        description: "The id of the request: the caller's own X-Request-Id if it is 1 to 128 letters, digits and `-_.:/+=@`, otherwise a new id",
        schema: |schema| text(schema).max_length(Some(128)),
        applies: |_| true,
    },
    HeaderOf {
        name: "ETag",
        description: "The version of the resource: for a task its `version`, in quotes; for an agent a hash of its specification, which excludes the calls in flight. Use it in If-None-Match, and, for tasks, agents, schedules and the latest version of a workflow, in If-Match",
        schema: text,
        applies: |answer| {
            answer.is_task()
                || matches!(answer.schema, Some("UndoPlan" | "Agent" | "Workflow"))
                || answer.status == "200"
                    && matches!(
                        answer.operation,
                        "task_graph" | "openapi_json" | "list_problems" | "get_problem"
                    )
        },
    },
    HeaderOf {
        name: "Retry-After",
        description: "Seconds to wait before the next request: to poll a task that is still running, or to retry when the service could not serve the request",
        schema: |schema| schema.schema_type(Type::Integer).minimum(Some(0)),
        applies: |answer| answer.is_task() || answer.status == "503",
    },
    HeaderOf {
        name: "Location",
        description: "The URL of the resource that was created",
        schema: |schema| {
            text(schema).format(Some(utoipa::openapi::SchemaFormat::Custom(
                "uri-reference".to_owned(),
            )))
        },
        applies: |answer| answer.is_submission() || answer.status == "201",
    },
    HeaderOf {
        name: "Preference-Applied",
        description: "With Prefer: wait, the longest time that the response waited, such as `wait=60`",
        schema: |schema| text(schema).pattern(Some("^wait=[0-9]+$")),
        applies: |answer| answer.is_submission(),
    },
    HeaderOf {
        name: "Idempotency-Replayed",
        description: "`true` if the Idempotency-Key was used before: this request changed nothing",
        schema: |schema| text(schema).enum_values(Some(["true"])),
        applies: |answer| answer.takes_key && answer.is_task(),
    },
    HeaderOf {
        name: "Vary",
        description: "The request headers that the response depends on",
        schema: text,
        applies: |answer| {
            answer.is_submission() || answer.is_picture() || answer.is_page_of_problems()
        },
    },
    HeaderOf {
        name: "WWW-Authenticate",
        description: "The authentication scheme: `Bearer`",
        schema: text,
        applies: |answer| answer.status == "401",
    },
    HeaderOf {
        name: "Cache-Control",
        description: "`no-cache`: revalidate with If-None-Match before using a cached copy",
        schema: text,
        applies: |answer| {
            matches!(answer.operation, "openapi_json" | "docs_page") || answer.is_page_of_problems()
        },
    },
];

/// Adds its headers to every response, and If-None-Match to the requests whose responses have an ETag.
pub fn describe(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for header in &HEADERS {
        let schema = (header.schema)(ObjectBuilder::new()).build();
        let made = HeaderBuilder::new()
            .description(Some(header.description))
            .schema(Some(schema));
        components
            .headers
            .insert(header.name.to_owned(), made.build().into());
    }
    for item in document.paths.paths.values_mut() {
        for (method, operation) in operations_of(item) {
            add_headers(&method, operation);
            if method == Method::GET {
                add_304(operation);
            }
        }
    }
    for (name, response) in &mut components.responses {
        let status = match name.as_str() {
            "Unauthenticated" => "401",
            "Unavailable" => "503",
            _ => "",
        };
        if let RefOr::T(response) = response {
            refer(
                response,
                &ResponseTraits {
                    operation: "",
                    method: &Method::GET,
                    status,
                    schema: None,
                    takes_key: false,
                },
            );
        }
    }
}

fn refer(response: &mut Response, traits: &ResponseTraits<'_>) {
    for header in HEADERS.iter().filter(|header| (header.applies)(traits)) {
        let named = Ref::new(format!("#/components/headers/{}", header.name));
        response
            .headers
            .insert(header.name.to_owned(), RefOr::Ref(named));
    }
}

fn add_headers(method: &Method, operation: &mut Operation) {
    let name = operation.operation_id.clone().unwrap_or_default();
    let takes_key = operation.parameters.iter().flatten().any(
        |parameter| matches!(parameter, RefOr::T(parameter) if parameter.name == "Idempotency-Key"),
    );
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else {
            continue;
        };
        let schema = response
            .content
            .get("application/json")
            .and_then(|content| match content {
                RefOr::T(content) => match content.schema.as_ref()? {
                    RefOr::Ref(named) => named.ref_location.rsplit('/').next().map(str::to_owned),
                    RefOr::T(_) => None,
                },
                RefOr::Ref(_) => None,
            });
        refer(
            response,
            &ResponseTraits {
                operation: &name,
                method,
                status,
                schema: schema.as_deref(),
                takes_key,
            },
        );
    }
}

/// The 304 that replaces a response whose ETag the caller already has.
fn add_304(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    let Some(RefOr::T(whole)) = responses.get("200") else {
        return;
    };
    if !whole.headers.contains_key("ETag") {
        return;
    }
    let mut same = ResponseBuilder::new()
        .description("Not modified: If-None-Match contains the current ETag")
        .build();
    same.headers = whole.headers.clone();
    responses.insert("304".to_owned(), same.into());
    let parameter = ParameterBuilder::new()
        .name("If-None-Match")
        .parameter_in(ParameterIn::Header)
        .description(Some("ETags of the caller's cached copies: if one of them is current, the response is 304 without a body"))
        .schema(Some(Object::with_type(Type::String)))
        .example(Some("\"7\"".into()));
    let parameters = operation.parameters.get_or_insert_default();
    parameters.push(parameter.build().into());
}

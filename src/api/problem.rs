//! Every error of the API: RFC 9457 problem details. The kinds are the public contract; each has a
//! section in docs/problems.md that says cause and cure.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::request_id;
use crate::{
    domain::{FieldFault, Refusal, StepStatus, TaskStatus},
    store::{CommandError, RegisterError, StoreError},
};

/// Declares the problem kinds with their slug, status and title.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $slug:literal, $status:ident, $title:literal;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            #[cfg(test)]
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// The last part of the problem's `type`.
            pub fn slug(self) -> &'static str {
                match self { $(Kind::$kind => $slug,)* }
            }

            pub fn status(self) -> StatusCode {
                match self { $(Kind::$kind => StatusCode::$status,)* }
            }

            pub fn title(self) -> &'static str {
                match self { $(Kind::$kind => $title,)* }
            }
        }
    };
}

kinds! {
    MalformedJson = "malformed-json", BAD_REQUEST, "The body is not JSON";
    MalformedRequest = "malformed-request", BAD_REQUEST, "The request is not HTTP";
    InvalidQuery = "invalid-query", BAD_REQUEST, "The query or a header cannot be used";
    Unauthenticated = "unauthenticated", UNAUTHORIZED, "A valid token is needed";
    Forbidden = "forbidden", FORBIDDEN, "The token's role does not allow this";
    CrossSite = "cross-site", FORBIDDEN, "A page of another site made this request";
    NotFound = "not-found", NOT_FOUND, "There is no such thing";
    NoSuchTask = "no-such-task", NOT_FOUND, "There is no such task";
    NoSuchStep = "no-such-step", NOT_FOUND, "The task has no such step";
    NoSuchWorkflow = "no-such-workflow", NOT_FOUND, "There is no such workflow";
    NoSuchAgent = "no-such-agent", NOT_FOUND, "There is no such agent";
    NoSuchAlert = "no-such-alert", NOT_FOUND, "There is no such alert";
    NoSuchMessage = "no-such-message", NOT_FOUND, "There is no such message";
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, "The method is not allowed here";
    TaskEnded = "task-ended", CONFLICT, "The task has ended";
    WrongTaskState = "wrong-task-state", CONFLICT, "The task's state does not allow this";
    WrongStepState = "wrong-step-state", CONFLICT, "The step's state does not allow this";
    PastPivot = "past-pivot", CONFLICT, "The task can no longer be undone";
    MessagePending = "message-pending", CONFLICT, "The message is still being delivered";
    AgentConfigured = "agent-configured", CONFLICT, "The agent belongs to the configuration file";
    VersionMismatch = "version-mismatch", PRECONDITION_FAILED, "The task has changed since";
    PreconditionFailed = "precondition-failed", PRECONDITION_FAILED, "A condition of the request does not hold";
    RequestTimeout = "request-timeout", REQUEST_TIMEOUT, "The request took too long to come in";
    Misdirected = "misdirected", MISDIRECTED_REQUEST, "The request is for another host";
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, "The body is too large";
    UriTooLong = "uri-too-long", URI_TOO_LONG, "The URL is too long";
    HeadersTooLarge = "headers-too-large", REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too large";
    NotJson = "not-json", UNSUPPORTED_MEDIA_TYPE, "The body must be sent as application/json";
    EncodedBody = "encoded-body", UNSUPPORTED_MEDIA_TYPE, "The body must be sent without an encoding";
    Invalid = "invalid", UNPROCESSABLE_ENTITY, "The request is not valid";
    KeyReused = "idempotency-key-reused", UNPROCESSABLE_ENTITY, "The Idempotency-Key was used with another request";
    StoreFull = "store-full", SERVICE_UNAVAILABLE, "The store is full";
    StoreUnavailable = "store-unavailable", SERVICE_UNAVAILABLE, "The store cannot be reached";
    TooManyWaiting = "too-many-waiting", SERVICE_UNAVAILABLE, "Too many callers are waiting";
    Busy = "busy", SERVICE_UNAVAILABLE, "The service is busy";
    Stopping = "stopping", SERVICE_UNAVAILABLE, "The service is stopping";
    UnreadableRecord = "unreadable-record", INTERNAL_SERVER_ERROR, "A record in the database is damaged";
    Internal = "internal", INTERNAL_SERVER_ERROR, "The service failed";
}

/// The answer to what is no request, and was refused with this status before anything could look at it.
pub fn refuse(status: StatusCode) -> Option<Response<String>> {
    let problem = match status {
        StatusCode::BAD_REQUEST => Problem::new(
            Kind::MalformedRequest,
            "what came in is no HTTP request: its first line, a header or the length of its body cannot be read",
        ),
        StatusCode::URI_TOO_LONG => Problem::new(
            Kind::UriTooLong,
            "the URL of the request is longer than 64 KiB: shorten it, for example by fewer filters",
        ),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Problem::new(
            Kind::HeadersTooLarge,
            "the head of the request is longer than 64 KiB, or has more than 100 headers: send fewer or shorter ones",
        ),
        _ => return None,
    };
    let id = request_id::new();
    let body = problem.body(id.to_str().ok());
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response.headers_mut().insert(request_id::HEADER, id);
    Some(response)
}

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// An error on its way to the caller.
#[derive(Debug)]
pub struct Problem {
    kind: Kind,
    detail: String,
    members: Map<String, Value>,
}

/// What a caller sees of an error. `type` names the kind; kinds never change their meaning.
#[derive(ToSchema)]
#[schema(as = Problem)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ProblemBody {
    /// A stable name of the kind, and a reference, relative to where the service was asked, that leads to what
    /// helps: `GET /problems/{kind}`. There may be new ones.
    #[schema(rename = "type", example = "/problems/wrong-step-state")]
    kind: String,
    #[schema(example = "The step's state does not allow this")]
    title: String,
    /// The HTTP status, again.
    #[schema(example = 409)]
    status: u16,
    /// What went wrong this time, and what helps.
    detail: String,
    /// As X-Request-Id says it: the log names the request by it.
    #[schema(example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")]
    request_id: Option<String>,
    /// Where a state stood in the way: the state the task is in.
    #[schema(example = "processing")]
    state: Option<TaskStatus>,
    /// Where a step's state stood in the way: that state.
    step_state: Option<StepStatus>,
    /// Where the task has changed since: the version it is at.
    version: Option<u64>,
    /// Where a condition on an agent or a workflow does not hold: the ETag that it has; null where there is none.
    #[schema(example = "\"5f0c1d2e3fb7ad6b7169203331c80319\"")]
    etag: Option<String>,
    /// Where a bulk command was ended by a fault: how far it got.
    matched: Option<u64>,
    accepted: Option<u64>,
    #[schema(pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
    /// Where the content is not valid: every fault, each with the JSON pointer of its place.
    errors: Option<Vec<FieldErrorBody>>,
}

#[derive(ToSchema)]
#[schema(as = FieldError)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct FieldErrorBody {
    /// RFC 6901, into the request body.
    #[schema(example = "/steps/1/after/0")]
    pointer: String,
    #[schema(example = "there is no step \"reserv\"; did you mean \"reserve\"?")]
    message: String,
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            members: Map::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// The document, of the request with this id.
    fn body(self, request_id: Option<&str>) -> String {
        let mut body = Map::new();
        let kind = self.kind;
        body.insert(
            "type".to_owned(),
            format!("/problems/{}", kind.slug()).into(),
        );
        body.insert("title".to_owned(), kind.title().into());
        body.insert("status".to_owned(), kind.status().as_u16().into());
        body.insert("detail".to_owned(), self.detail.into());
        if let Some(id) = request_id {
            body.insert("request_id".to_owned(), id.into());
        }
        body.extend(self.members);
        Value::Object(body).to_string()
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    #[cfg(test)]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    #[cfg(test)]
    pub fn member(&self, name: &str) -> Option<&Value> {
        self.members.get(name)
    }

    /// All faults of a request at once.
    pub fn invalid(faults: Vec<FieldFault>) -> Self {
        let detail = match faults.as_slice() {
            [only] if only.pointer.is_empty() => format!("the body {}", only.message),
            [only] => format!("{}: {}", only.pointer, only.message),
            faults => format!("{} faults; see errors", faults.len()),
        };
        let errors: Vec<Value> = faults
            .into_iter()
            .map(|fault| json!({ "pointer": fault.pointer, "message": fault.message }))
            .collect();
        Self::new(Kind::Invalid, detail).with("errors", errors)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let kind = match error {
            StoreError::Full => Kind::StoreFull,
            StoreError::Unavailable(_)
            | StoreError::CommitUnknown(_)
            | StoreError::Retryable(_)
            | StoreError::Unreadable(_) => Kind::StoreUnavailable,
            StoreError::Stopping => Kind::Stopping,
            StoreError::Corrupt(_) | StoreError::Task(_) => Kind::UnreadableRecord,
            StoreError::Panicked => Kind::Internal,
        };
        if let Kind::UnreadableRecord = kind {
            tracing::error!(%error, "the store holds something that cannot be read");
        }
        Self::new(kind, error.to_string())
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let detail = error.to_string();
        match error {
            CommandError::NoTask => Self::new(Kind::NoSuchTask, detail),
            CommandError::Refused { refusal, state } => {
                let kind = match refusal {
                    Refusal::NoStep(_) => Kind::NoSuchStep,
                    Refusal::Ended(_) => Kind::TaskEnded,
                    Refusal::TaskState { .. } => Kind::WrongTaskState,
                    Refusal::PastPivot { .. } => Kind::PastPivot,
                    Refusal::StepState { .. } | Refusal::Late { .. } | Refusal::NotDue { .. } => {
                        Kind::WrongStepState
                    }
                };
                let problem = Self::new(kind, detail).with("state", state);
                match refusal {
                    Refusal::StepState { status, .. } | Refusal::PastPivot { status, .. } => {
                        problem.with("step_state", status.as_str())
                    }
                    _ => problem,
                }
            }
            CommandError::VersionMismatch { current, .. } => {
                Self::new(Kind::VersionMismatch, detail).with("version", current)
            }
            CommandError::KeyReused => Self::new(Kind::KeyReused, detail),
            CommandError::Panicked => Self::new(Kind::Internal, detail),
            CommandError::Store(error) => error.into(),
        }
    }
}

impl From<RegisterError> for Problem {
    fn from(error: RegisterError) -> Self {
        let current = match error {
            RegisterError::Unmet(unmet) => unmet.current.map(|tag| tag.to_string()),
            RegisterError::Store(error) => return error.into(),
        };
        let detail = match &current {
            Some(tag) => format!("what is registered under this name has the ETag {tag}"),
            None => "nothing is registered under this name".to_owned(),
        };
        Self::new(Kind::PreconditionFailed, detail).with("etag", current)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let id = request_id::current();
        let mut response = Response::new(Body::from(self.body(id.as_deref())));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::problem_pages::{PAGE, section};

    #[test]
    fn every_kind_has_its_section_with_status_cure_and_example() {
        for kind in Kind::ALL {
            let slug = kind.slug();
            let section = section(slug).unwrap_or_else(|| panic!("{slug} has no section"));
            let status = kind.status().as_u16();
            let cause = format!("\n{status}. ");
            assert!(
                section.starts_with(&cause),
                "{slug} does not begin with {status}"
            );
            assert!(section.contains("\n**Cure**: "), "{slug} names no cure");
            let example = format!("\"type\": \"/problems/{slug}\", \"status\": {status}");
            assert!(section.contains(&example), "{slug} has no example");
            assert!(
                PAGE.contains(&format!("[{slug}](#{slug})")),
                "{slug} is not in the table"
            );
        }
    }

    #[test]
    fn every_section_is_of_a_kind_and_its_example_is_json() {
        let headings = PAGE.lines().filter_map(|line| line.strip_prefix("## "));
        for heading in headings {
            assert!(
                Kind::ALL.iter().any(|kind| kind.slug() == heading),
                "{heading}"
            );
            let lines = section(heading).unwrap().lines();
            let example: String = lines.filter(|line| line.starts_with("    ")).collect();
            let example: Result<Value, _> = serde_json::from_str(&example);
            assert!(example.is_ok(), "{heading}: {example:?}");
        }
    }

    #[tokio::test]
    async fn a_problem_says_what_it_is_twice_and_keeps_its_members() {
        let problem = Problem::new(Kind::WrongStepState, "no").with("state", "processing");
        let response = problem.into_response();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .unwrap();
        assert_eq!(
            &*body,
            br#"{"type":"/problems/wrong-step-state","title":"The step's state does not allow this","status":409,"detail":"no","state":"processing"}"#
        );
    }

    #[test]
    fn refusals_that_pass_say_when_to_come_back() {
        for kind in Kind::ALL {
            let response = Problem::new(*kind, "").into_response();
            let says = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(
                says,
                kind.status() == StatusCode::SERVICE_UNAVAILABLE,
                "{kind:?}"
            );
        }
    }
}

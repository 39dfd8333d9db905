//! Every error of the API, as RFC 9457 problem details. The kinds are the public contract; each has a section in
//! docs/problems.md that gives its cause and its cure.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::request_id;
use crate::{
    domain::{
        task::{Redactor, Refusal, StepStatus, TaskStatus, UnmappedStep},
        values::FieldFault,
    },
    store::{CommandError, RegisterError, StoreError},
};

/// Declares the problem kinds with their slug, status and title.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $slug:literal, $status:ident, $title:literal;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum ProblemKind {
            $($(#[$doc])* $kind,)*
        }

        impl ProblemKind {
            #[cfg(test)]
            pub const ALL: &[ProblemKind] = &[$(ProblemKind::$kind),*];

            /// The last part of the problem's `type`.
            pub fn slug(self) -> &'static str {
                match self { $(ProblemKind::$kind => $slug,)* }
            }

            pub fn status(self) -> StatusCode {
                match self { $(ProblemKind::$kind => StatusCode::$status,)* }
            }

            pub fn title(self) -> &'static str {
                match self { $(ProblemKind::$kind => $title,)* }
            }
        }
    };
}

kinds! {
    MalformedJson = "malformed-json", BAD_REQUEST, "Malformed body";
    MalformedRequest = "malformed-request", BAD_REQUEST, "Malformed HTTP request";
    InvalidQuery = "invalid-query", BAD_REQUEST, "Invalid query parameter or header";
    Unauthenticated = "unauthenticated", UNAUTHORIZED, "Authentication required";
    Forbidden = "forbidden", FORBIDDEN, "Insufficient role";
    CrossSite = "cross-site", FORBIDDEN, "Cross-site request refused";
    NotFound = "not-found", NOT_FOUND, "Not found";
    NoSuchTask = "no-such-task", NOT_FOUND, "Task not found";
    NoSuchStep = "no-such-step", NOT_FOUND, "Step not found";
    AmbiguousKey = "ambiguous-key", CONFLICT, "Several tasks have this key";
    NoSuchWorkflow = "no-such-workflow", NOT_FOUND, "Workflow not found";
    NoSuchSchedule = "no-such-schedule", NOT_FOUND, "Schedule not found";
    NoSuchAgent = "no-such-agent", NOT_FOUND, "Agent not found";
    NoSuchAlert = "no-such-alert", NOT_FOUND, "Alert not found";
    NoSuchFailure = "no-such-failure", NOT_FOUND, "Failure not found";
    NoSuchMessage = "no-such-message", NOT_FOUND, "Message not found";
    NoSuchBulkJob = "no-such-bulk-job", NOT_FOUND, "Bulk job not found";
    NoSuchReply = "no-such-reply", NOT_FOUND, "Reply token not found";
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, "Method not allowed";
    TaskEnded = "task-ended", CONFLICT, "Task has ended";
    WrongTaskState = "wrong-task-state", CONFLICT, "Task state does not allow this";
    WrongStepState = "wrong-step-state", CONFLICT, "Step state does not allow this";
    LateReply = "late-reply", CONFLICT, "Reply came too late";
    PastPivot = "past-pivot", CONFLICT, "Task can no longer be undone";
    CannotMigrate = "cannot-migrate", CONFLICT, "Task cannot move to this version";
    UndoExpired = "undo-expired", CONFLICT, "Too late to undo the task";
    TaskLimit = "task-limit", CONFLICT, "Too many tasks with this key";
    ScheduleBusy = "schedule-busy", CONFLICT, "Another run of the schedule is not over";
    BulkJobEnded = "bulk-job-ended", CONFLICT, "Bulk job has ended";
    MessagePending = "message-pending", CONFLICT, "Message is still being delivered";
    AgentConfigured = "agent-configured", CONFLICT, "Agent is defined in the configuration file";
    AgentInUse = "agent-in-use", CONFLICT, "Steps wait for the agent";
    AgentIsCalled = "agent-is-called", CONFLICT, "Agent is called";
    CannotCheck = "cannot-check", CONFLICT, "Agent cannot be checked";
    NoBreaker = "no-breaker", CONFLICT, "Agent has no breaker";
    PositionGone = "position-gone", GONE, "Position can no longer be read";
    TooManyReaders = "too-many-readers", CONFLICT, "Too many readers";
    NoSuchReader = "no-such-reader", NOT_FOUND, "Reader not found";
    VersionMismatch = "version-mismatch", PRECONDITION_FAILED, "Task has changed";
    PreconditionFailed = "precondition-failed", PRECONDITION_FAILED, "Precondition failed";
    RequestTimeout = "request-timeout", REQUEST_TIMEOUT, "Request timeout";
    Misdirected = "misdirected", MISDIRECTED_REQUEST, "Misdirected request";
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, "Request body too large";
    UriTooLong = "uri-too-long", URI_TOO_LONG, "URL too long";
    HeadersTooLarge = "headers-too-large", REQUEST_HEADER_FIELDS_TOO_LARGE, "Request headers too large";
    NotJson = "not-json", UNSUPPORTED_MEDIA_TYPE, "Unsupported media type";
    EncodedBody = "encoded-body", UNSUPPORTED_MEDIA_TYPE, "Unsupported content encoding";
    Invalid = "invalid", UNPROCESSABLE_ENTITY, "Invalid request";
    TaskFull = "task-full", CONFLICT, "The task has no room for this";
    SignalMismatch = "signal-mismatch", UNPROCESSABLE_ENTITY, "Signal does not match";
    KeyReused = "idempotency-key-reused", UNPROCESSABLE_ENTITY, "Idempotency-Key reused";
    StoreFull = "store-full", SERVICE_UNAVAILABLE, "Store is full";
    StoreUnavailable = "store-unavailable", SERVICE_UNAVAILABLE, "Store unavailable";
    TooManyWaiting = "too-many-waiting", SERVICE_UNAVAILABLE, "Too many waiting callers";
    Busy = "busy", SERVICE_UNAVAILABLE, "Service is busy";
    Stopping = "stopping", SERVICE_UNAVAILABLE, "Service is stopping";
    UnreadableRecord = "unreadable-record", INTERNAL_SERVER_ERROR, "Damaged record";
    Internal = "internal", INTERNAL_SERVER_ERROR, "Internal error";
}

/// Returns the response to bytes that are not an HTTP request, which the connection refused with this status before
/// any route saw them.
pub fn refuse(status: StatusCode) -> Option<Response<String>> {
    let problem = match status {
        StatusCode::BAD_REQUEST => Problem::new(
            ProblemKind::MalformedRequest,
            "the request is not valid HTTP: its first line, a header or the length of its body cannot be parsed",
        ),
        StatusCode::URI_TOO_LONG => Problem::new(
            ProblemKind::UriTooLong,
            "the URL of the request is longer than 64 KiB: shorten it, for example by using fewer filters",
        ),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Problem::new(
            ProblemKind::HeadersTooLarge,
            "the request line and headers are longer than 64 KiB, or there are more than 100 headers: send fewer or shorter headers",
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

/// An error to be sent to the caller.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: ProblemKind,
    detail: String,
    members: Map<String, Value>,
    is_moved_meanwhile: bool,
}

/// An error as a caller sees it. `type` names the kind; the meaning of a kind never changes.
#[derive(ToSchema)]
#[schema(as = Problem)]
#[allow(dead_code, reason = "only the shape, for the OpenAPI document")]
pub struct ProblemBody {
    /// A stable name of the kind, and a relative reference to its documentation: `GET /problems/{kind}`, below the path
    /// of `public_url` where that has one. New kinds may be added.
    #[schema(rename = "type", example = "/problems/wrong-step-state")]
    kind: String,
    #[schema(example = "The step's state does not allow this")]
    title: String,
    /// The HTTP status code, repeated.
    #[schema(example = 409)]
    status: u16,
    /// The cause in this case, and how to fix it.
    detail: String,
    /// The value of X-Request-Id. The log uses the same id.
    #[schema(example = "0197a2b4-6c1e-7d52-9a07-3f6f0c1d2e3f")]
    request_id: Option<String>,
    /// The state of the task, if that state does not allow the request.
    #[schema(example = "processing")]
    state: Option<TaskStatus>,
    /// The state of the step, if that state does not allow the request.
    step_state: Option<StepStatus>,
    /// The current version of the task, if the task has changed since the version in If-Match.
    version: Option<u64>,
    /// The current ETag of the agent or workflow, if a precondition failed; null if there is none.
    #[schema(example = "\"5f0c1d2e3fb7ad6b7169203331c80319\"")]
    etag: Option<String>,
    /// The progress of a bulk command that a fault interrupted.
    matched: Option<u64>,
    accepted: Option<u64>,
    #[schema(pattern = "^[A-Za-z0-9_-]+$")]
    next_cursor: Option<String>,
    /// The steps that prevent a task from moving to another version.
    steps: Option<Vec<UnmappedStep>>,
    /// Every fault of invalid content, each with a JSON pointer to it.
    errors: Option<Vec<FieldErrorBody>>,
}

/// A fault of invalid content.
#[derive(Serialize, ToSchema)]
#[schema(as = FieldError)]
pub struct FieldErrorBody {
    /// A JSON pointer (RFC 6901) into the request body.
    #[schema(example = "/steps/1/after/0")]
    pointer: String,
    #[schema(example = "there is no step \"reserv\"; did you mean \"reserve\"?")]
    message: String,
}

impl From<FieldFault> for FieldErrorBody {
    fn from(fault: FieldFault) -> Self {
        let FieldFault { pointer, message } = fault;
        Self { pointer, message }
    }
}

impl Problem {
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            members: Map::new(),
            is_moved_meanwhile: false,
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// Renders the problem document for the request with this id.
    fn body(self, request_id: Option<&str>) -> String {
        let mut body = Map::new();
        let kind = self.kind;
        body.insert(
            "type".to_owned(),
            format!("{}/problems/{}", request_id::public_path(), kind.slug()).into(),
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

    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// Returns the problem document, for other ways than an HTTP response.
    pub fn document(self) -> String {
        self.body(None)
    }

    /// Returns the problem with the secrets hidden that it quotes from a text of another program.
    #[must_use]
    pub fn without_secrets(mut self, redactor: &Redactor) -> Self {
        self.detail = redactor.hide_in_text(self.detail);
        for value in self.members.values_mut() {
            let text = value.to_string();
            if redactor.finds(text.as_bytes()) {
                let hidden = redactor.hide_in_body(text.into_bytes());
                *value = serde_json::from_slice(&hidden).unwrap_or_default();
            }
        }
        self
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// True if the same request may succeed if it is decided again at once, because the task has moved to another
    /// version.
    pub fn is_moved_meanwhile(&self) -> bool {
        self.is_moved_meanwhile
    }

    /// Returns the faults of invalid content, as the document lists them.
    pub fn errors(&self) -> Option<Vec<Value>> {
        self.members.get("errors")?.as_array().cloned()
    }

    #[cfg(test)]
    pub fn member(&self, name: &str) -> Option<&Value> {
        self.members.get(name)
    }

    /// Returns the faults that [`Problem::invalid`] was made of.
    pub fn faults(&self) -> Vec<FieldFault> {
        let errors = self.members.get("errors").and_then(Value::as_array);
        let text = |error: &Value, name: &str| error[name].as_str().unwrap_or_default().to_owned();
        let fault = |error| FieldFault::new(text(error, "pointer"), text(error, "message"));
        errors.into_iter().flatten().map(fault).collect()
    }

    /// Returns the detail; of several faults the first ones.
    pub fn explained(&self) -> String {
        const SHOWN: usize = 3;
        let faults = self.faults();
        if faults.len() < 2 {
            return self.detail.clone();
        }
        let shown = faults.iter().take(SHOWN).map(ToString::to_string);
        let shown: Vec<_> = shown.collect();
        let more = if faults.len() > SHOWN { "; …" } else { "" };
        format!("{}{more}", shown.join("; "))
    }

    /// Returns the problem for all faults of a request at once.
    pub fn invalid(faults: Vec<FieldFault>) -> Self {
        let detail = match faults.as_slice() {
            [only] if only.pointer.is_empty() => format!("the body {}", only.message),
            [only] => format!("{}: {}", only.pointer, only.message),
            faults => format!("{} faults; see errors", faults.len()),
        };
        let errors: Vec<Value> = faults
            .into_iter()
            .map(|fault| json!(FieldErrorBody::from(fault)))
            .collect();
        Self::new(ProblemKind::Invalid, detail).with("errors", errors)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let kind = match error {
            StoreError::Full => ProblemKind::StoreFull,
            StoreError::Unavailable(_)
            | StoreError::CommitUnknown(_)
            | StoreError::Retryable(_)
            | StoreError::Lost(_)
            | StoreError::NotNow(_)
            | StoreError::RowLocked(_)
            | StoreError::Unreadable(_) => ProblemKind::StoreUnavailable,
            StoreError::Stopping => ProblemKind::Stopping,
            StoreError::Corrupt(_) | StoreError::Task(_) => ProblemKind::UnreadableRecord,
            StoreError::Panicked => ProblemKind::Internal,
        };
        if let ProblemKind::UnreadableRecord = kind {
            tracing::error!(%error, "a record in the database cannot be read");
        }
        Self::new(kind, error.to_string())
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let detail = error.to_string();
        match error {
            CommandError::NoTask => Self::new(ProblemKind::NoSuchTask, detail),
            CommandError::Refused { refusal, state } => {
                let kind = match refusal {
                    Refusal::NoStep(_) | Refusal::NoStepOfName(_) | Refusal::StepRemoved(_) => {
                        ProblemKind::NoSuchStep
                    }
                    Refusal::Ended(_) => ProblemKind::TaskEnded,
                    Refusal::TaskState { .. } | Refusal::MovedMeanwhile => {
                        ProblemKind::WrongTaskState
                    }
                    Refusal::Unmapped { .. } => ProblemKind::CannotMigrate,
                    Refusal::PastPivot { .. } => ProblemKind::PastPivot,
                    Refusal::UndoExpired { .. } => ProblemKind::UndoExpired,
                    Refusal::Late { .. } | Refusal::UsedAddress { .. } => ProblemKind::LateReply,
                    Refusal::SignalMismatch { .. } => ProblemKind::SignalMismatch,
                    Refusal::NoRoom { .. } => ProblemKind::TaskFull,
                    Refusal::StepState { .. }
                    | Refusal::Decided { .. }
                    | Refusal::Deferred { .. }
                    | Refusal::NotDue { .. } => ProblemKind::WrongStepState,
                };
                let problem = Self::new(kind, detail).with("state", state);
                match refusal {
                    Refusal::StepState { status, .. } | Refusal::PastPivot { status, .. } => {
                        problem.with("step_state", status.as_str())
                    }
                    Refusal::Unmapped { steps, .. } => problem.with("steps", json!(&*steps)),
                    Refusal::MovedMeanwhile => Self {
                        is_moved_meanwhile: true,
                        ..problem
                    },
                    _ => problem,
                }
            }
            CommandError::VersionMismatch { current, .. } => {
                Self::new(ProblemKind::VersionMismatch, detail).with("version", current)
            }
            CommandError::KeyReused => Self::new(ProblemKind::KeyReused, detail),
            CommandError::TaskLimit { .. } => Self::new(ProblemKind::TaskLimit, detail),
            CommandError::Panicked => Self::new(ProblemKind::Internal, detail),
            CommandError::Store(error) => error.into(),
        }
    }
}

impl From<RegisterError> for Problem {
    fn from(error: RegisterError) -> Self {
        let current = match error {
            RegisterError::Unmet(unmet) => unmet.current.map(|tag| tag.to_string()),
            RegisterError::InUse(steps) => {
                let detail = format!("{steps} steps wait for the agent");
                return Self::new(ProblemKind::AgentInUse, detail);
            }
            RegisterError::Store(error) => return error.into(),
        };
        let detail = match &current {
            Some(tag) => format!("the resource registered under this name has the ETag {tag}"),
            None => "no resource is registered under this name".to_owned(),
        };
        Self::new(ProblemKind::PreconditionFailed, detail).with("etag", current)
    }
}

/// Adds to a 503 the number of seconds after which the request is worth repeating: such a refusal ends without a
/// change.
pub(super) fn add_retry_after(status: StatusCode, headers: &mut HeaderMap) {
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
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
        add_retry_after(status, headers);
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
        for kind in ProblemKind::ALL {
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
                ProblemKind::ALL.iter().any(|kind| kind.slug() == heading),
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
        let problem = Problem::new(ProblemKind::WrongStepState, "no").with("state", "processing");
        let response = problem.into_response();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .unwrap();
        assert_eq!(
            &*body,
            br#"{"type":"/problems/wrong-step-state","title":"Step state does not allow this","status":409,"detail":"no","state":"processing"}"#
        );
    }

    #[test]
    fn refusals_that_pass_say_when_to_come_back() {
        for kind in ProblemKind::ALL {
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

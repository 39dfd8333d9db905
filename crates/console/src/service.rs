//! The service that the console is part of, as the console sees it.

use async_trait::async_trait;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The rights of a person, weakest first in the order of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Submit,
    Read,
    Operate,
    Admin,
    Work,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
            Self::Work => "work",
        }
    }

    /// Returns whether there are pages for the person.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Operate | Self::Admin)
    }

    /// Returns whether pages offer commands. The API decides again when a command is sent.
    pub fn operates(self) -> bool {
        matches!(self, Self::Operate | Self::Admin)
    }
}

/// The person who looks at the console.
#[derive(Clone, PartialEq, Debug)]
pub struct Person {
    pub name: String,
    pub role: Role,
    /// The SHA-256 of the access token with which the person signed in; `None` if the service needs no token.
    pub credential: Option<[u8; 32]>,
}

/// The service as a whole.
#[derive(Clone, Debug, Default)]
pub struct Installation {
    /// The path of `public_url`, without a slash at its end: every link begins with it.
    pub base: String,
    /// The host of `public_url`, which tells installations apart.
    pub host: Option<String>,
    /// The origin of `public_url`, as browsers send it.
    pub origin: Option<String>,
    /// True if people reach the service by TLS: cookies are then not sent without it.
    pub is_https: bool,
    pub version: &'static str,
    pub instance: String,
}

/// A request to the API.
#[derive(Debug)]
pub struct Call {
    pub method: Method,
    /// The path with its query, such as `/v1/tasks?state=error`.
    pub target: String,
    pub headers: HeaderMap,
    /// The JSON body.
    pub body: Option<String>,
}

/// A response of the API.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// The service that the console is part of.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    fn installation(&self) -> Installation;

    /// Returns whether people sign in.
    fn needs_token(&self) -> bool;

    /// Returns everybody, if people do not sign in.
    fn person_without_token(&self) -> Option<Person>;

    /// Returns the person who has this access token.
    fn person_of_token(&self, token: &str) -> Option<Person>;

    /// Returns the person of a session, with the role that the token has now; `None` if the token was removed.
    fn person_of_credential(&self, credential: &[u8; 32]) -> Option<Person>;

    /// Sends a request to the API as this person.
    async fn call(&self, person: &Person, call: Call) -> Reply;

    /// Sends a request to the API as this person, and returns its response as it comes: for a stream of events.
    async fn open(&self, person: &Person, call: Call) -> Response {
        let reply = self.call(person, call).await;
        (reply.status, reply.headers, reply.body).into_response()
    }
}

/// A response of the API that is an error, as problem details have it (RFC 9457).
#[derive(Clone, Debug, Deserialize)]
pub struct Refusal {
    #[serde(rename = "type", default)]
    pub kind: Box<str>,
    #[serde(default)]
    pub title: Box<str>,
    pub status: u16,
    #[serde(default)]
    pub detail: String,
    #[serde(default)]
    pub request_id: Option<String>,
    #[serde(default)]
    pub errors: Vec<FieldError>,
    #[serde(flatten)]
    pub more: Box<Map<String, Value>>,
}

/// A field of a request that the API does not accept.
#[derive(Clone, Debug, Deserialize)]
pub struct FieldError {
    #[serde(default)]
    pub pointer: String,
    #[serde(default)]
    pub message: String,
}

impl Refusal {
    /// Makes a refusal of the console itself.
    pub fn new(status: StatusCode, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: Box::default(),
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            request_id: None,
            errors: Vec::new(),
            more: Box::default(),
        }
    }

    /// Refuses the value of a parameter.
    pub fn of_value(name: &str, value: &str, is: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "Invalid parameter",
            format!("{name} {value:?} is not valid: it is {is}"),
        )
    }

    /// Reads the refusal from a response that is not a success.
    pub fn of(reply: &Reply) -> Self {
        serde_json::from_slice(&reply.body).unwrap_or_else(|_| {
            Self::new(
                reply.status,
                "Unexpected response",
                format!("the API returned {} without an explanation", reply.status),
            )
        })
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the last part of the type, such as `no-such-task`.
    pub fn slug(&self) -> &str {
        self.kind.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the list in which something may be found that does not exist: its path, a sentence before the link to it, and
    /// the words of the link. `None` for a task, and for what is no 404.
    pub fn list(&self) -> Option<(&'static str, &'static str, &'static str)> {
        if self.status != 404 {
            return None;
        }
        Some(match self.slug() {
            "no-such-task" | "no-such-step" => return None,
            "no-such-agent" => (
                "/agents",
                "It may have been deleted, or is written otherwise. See",
                "all agents",
            ),
            "no-such-schedule" => (
                "/schedules",
                "It may have been deleted, or is written otherwise. See",
                "all schedules",
            ),
            "no-such-workflow" => (
                "/workflows",
                "It may have been deleted, or has no such version. See",
                "all workflows",
            ),
            "no-such-bulk-job" => (
                "/bulk",
                "Jobs are kept for 30 days after their end. See",
                "all bulk jobs",
            ),
            "no-such-message" => (
                "/messages",
                "Messages are deleted after their delivery. See",
                "the messages",
            ),
            _ => (
                "/tasks",
                "Check the address. The search above finds a task by its key or id, as do",
                "all tasks",
            ),
        })
    }

    /// Returns the role that the person lacks.
    pub fn needed_role(&self) -> Option<&str> {
        self.more.get("needed_role").and_then(Value::as_str)
    }
}

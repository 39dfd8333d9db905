//! A client of Provost's public HTTP API, which is all that the demo uses.

use reqwest::{Client, Method, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;

use crate::plain_http;

#[derive(Debug, Error)]
pub enum ApiError {
    #[error("no response to {request}: {cause}")]
    Unanswered { request: String, cause: String },
    #[error("the response to {request} was {status}: {body}")]
    Refused {
        request: String,
        status: StatusCode,
        body: String,
    },
}

pub struct Api {
    client: Client,
    base: String,
}

/// The fields of a task in `GET /v1/tasks/{id}` that the demo uses.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct TaskJson {
    pub id: String,
    pub state: String,
    pub created_at: String,
    pub ended_at: Option<String>,
    pub error: Option<FaultJson>,
    pub steps: Vec<StepJson>,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct StepJson {
    pub name: String,
    pub state: String,
    pub attempt: u32,
    pub failure_count: u32,
    pub output: Option<Value>,
    pub last_fault: Option<FaultJson>,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct FaultJson {
    pub message: String,
    pub body: Option<String>,
    pub at: String,
}

/// One entry of `GET /v1/tasks/{id}/history`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct HistoryEntryJson {
    #[serde(rename = "type")]
    pub kind: String,
    pub step: Option<String>,
    pub attempt: Option<u32>,
    pub by: String,
    pub reason: Option<String>,
    pub error: Option<FaultJson>,
}

/// The fields of an agent in `GET /v1/agents/{name}` that the demo uses.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct AgentJson {
    /// Only of an agent that does not call all endpoints at all times.
    #[serde(default)]
    pub endpoints: Vec<EndpointJson>,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct EndpointJson {
    pub url: String,
    pub state: String,
    pub in_flight: u32,
}

#[derive(Deserialize)]
struct HistoryPageJson {
    items: Vec<HistoryEntryJson>,
}

impl TaskJson {
    /// Returns whether the task has ended or waits for an operator: no step will run without a command.
    pub fn is_at_rest(&self) -> bool {
        matches!(self.state.as_str(), "processed" | "error" | "cancelled")
    }

    pub fn step(&self, name: &str) -> Option<&StepJson> {
        self.steps.iter().find(|step| step.name == name)
    }
}

impl Api {
    /// `base` is the URL of the server, such as `http://127.0.0.1:8080`.
    pub fn new(client: Client, base: String) -> Self {
        Self { client, base }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<(), ApiError> {
        self.send(Method::PUT, path, Some(body)).await.map(|_| ())
    }

    pub async fn submit(&self, submission: &Value) -> Result<TaskJson, ApiError> {
        self.read(Method::POST, "/v1/tasks", Some(submission)).await
    }

    pub async fn task(&self, id: &str) -> Result<TaskJson, ApiError> {
        self.read(Method::GET, &format!("/v1/tasks/{id}"), None)
            .await
    }

    pub async fn agent(&self, name: &str) -> Result<AgentJson, ApiError> {
        self.read(Method::GET, &format!("/v1/agents/{name}"), None)
            .await
    }

    /// Returns the history, oldest entry first. That of a demo order always fits on the first page.
    pub async fn history(&self, id: &str) -> Result<Vec<HistoryEntryJson>, ApiError> {
        let path = format!("/v1/tasks/{id}/history");
        let page: HistoryPageJson = self.read(Method::GET, &path, None).await?;
        Ok(page.items)
    }

    async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, ApiError> {
        let request = format!("{method} {path}");
        let answer = self.send(method, path, body).await?;
        answer.json().await.map_err(|error| ApiError::Unanswered {
            request,
            cause: plain_http::cause(&error),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<reqwest::Response, ApiError> {
        let request = format!("{method} {path}");
        let mut builder = self.client.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            builder = builder.json(body);
        }
        let answer = builder.send().await;
        let answer = answer.map_err(|error| ApiError::Unanswered {
            request: request.clone(),
            cause: plain_http::cause(&error),
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.text().await.unwrap_or_default();
        Err(ApiError::Refused {
            request,
            status,
            body,
        })
    }
}

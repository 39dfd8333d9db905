//! A client of the API. A response that never comes, or a connection that breaks, fails the test unless the test uses
//! [`Call::attempt`].

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Once,
};

use reqwest::{Client, Method, RequestBuilder, Response, header::HeaderMap};
use serde_json::{Value, json};

use super::{PATIENCE, until};

#[derive(Clone)]
pub struct Api {
    address: String,
    client: Client,
}

/// A request that is sent when it is awaited.
pub struct Call(RequestBuilder);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body as JSON, or as a string if it is not JSON.
    pub body: Value,
}

impl Api {
    pub fn new(address: &str) -> Self {
        static CRYPTO: Once = Once::new();
        CRYPTO.call_once(|| {
            // It fails only if a provider is installed already, which is sufficient.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        Self {
            address: address.to_owned(),
            client: Client::builder().timeout(PATIENCE * 2).build().unwrap(),
        }
    }

    /// Returns `127.0.0.1:` and the port of this run.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn call(&self, method: Method, path: &str) -> Call {
        let url = format!("http://{}{path}", self.address);
        Call(self.client.request(method, url))
    }

    pub fn get(&self, path: &str) -> Call {
        self.call(Method::GET, path)
    }

    pub fn post(&self, path: &str, body: &Value) -> Call {
        self.call(Method::POST, path).json(body)
    }

    pub fn put(&self, path: &str, body: &Value) -> Call {
        self.call(Method::PUT, path).json(body)
    }

    pub fn delete(&self, path: &str) -> Call {
        self.call(Method::DELETE, path)
    }

    /// Sends a command without a body, such as `/v1/tasks/{id}/cancel`.
    pub fn command(&self, path: &str) -> Call {
        self.call(Method::POST, path)
    }

    /// Sends a command for many tasks, such as `retry`, and returns its job once that has ended; of a dry run, the counts.
    pub async fn bulk(&self, command: &str, body: &Value) -> Value {
        let call = self.post(&format!("/v1/tasks/{command}"), body);
        call.header("prefer", "wait=60").await.expect(200)
    }

    /// Returns a job of a bulk command once it runs no longer.
    pub async fn bulk_ended(&self, id: &str) -> Value {
        let read = async || self.get(&format!("/v1/bulk/{id}")).await.expect(200);
        let runs = async || {
            let state = read().await["state"].clone();
            state == "running" || state == "stopping"
        };
        until(false, runs).await;
        read().await
    }

    /// Submits a task, and returns its id once it is accepted.
    pub async fn submit(&self, submission: &Value) -> String {
        let task = self.post("/v1/tasks", submission).await.expect(202);
        id_of(&task)
    }

    pub async fn task(&self, id: &str) -> Value {
        self.get(&format!("/v1/tasks/{id}")).await.expect(200)
    }

    /// Returns whether there is a task with this id.
    pub async fn is_there(&self, id: &str) -> bool {
        let answer = self.get(&format!("/v1/tasks/{id}")).await;
        match answer.status {
            200 => true,
            404 => false,
            status => panic!("{status}: {answer:?}"),
        }
    }

    /// Waits until none of these tasks exists any more.
    pub async fn until_deleted(&self, ids: &[String]) {
        for id in ids {
            until(false, || async { self.is_there(id).await }).await;
        }
    }

    /// Returns the number of this metric.
    pub async fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics").await.expect(200);
        let mut lines = metrics.as_str().unwrap().lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let found = found.unwrap_or_else(|| panic!("no {name}"));
        found.parse().unwrap()
    }

    /// Returns the task once it has ended or needs an operator.
    pub async fn settled(&self, id: &str) -> Value {
        let task = self.get(&format!("/v1/tasks/{id}?wait=60s")).await;
        let task = task.expect(200);
        let state = task["state"].as_str().unwrap_or_default();
        assert!(
            ["processed", "error", "undone", "cancelled"].contains(&state),
            "the task did not come to rest: {task:#}"
        );
        task
    }

    /// Submits a task, and returns it once it has ended or needs an operator.
    pub async fn run(&self, submission: &Value) -> Value {
        let id = self.submit(submission).await;
        self.settled(&id).await
    }

    pub async fn history(&self, id: &str) -> Vec<Value> {
        let list = format!("/v1/tasks/{id}/history");
        let (mut entries, mut path) = (Vec::new(), list.clone());
        loop {
            let page = self.get(&path).await.expect(200);
            entries.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(cursor) => path = format!("{list}?cursor={cursor}"),
                None => return entries,
            }
        }
    }

    /// Follows a task live, from its first event on.
    pub async fn events(&self, id: &str) -> Events {
        Events::open(self.get(&format!("/v1/tasks/{id}/events"))).await
    }

    /// Registers an agent with one endpoint.
    pub async fn register(&self, agent: &str, url: &str, max_in_flight: u32) {
        let spec = serde_json::json!({
            "endpoints": [{ "url": url, "max_in_flight": max_in_flight }],
            "retry": { "initial": "10ms", "max": "50ms", "factor": 2 },
        });
        let answer = self.put(&format!("/v1/agents/{agent}"), &spec).await;
        assert!([200, 201].contains(&answer.status), "{answer:?}");
    }
}

pub fn id_of(task: &Value) -> String {
    task["id"].as_str().expect("a task has an id").to_owned()
}

impl Call {
    pub fn header(self, name: &str, value: &str) -> Self {
        Self(self.0.header(name, value))
    }

    pub fn json(self, body: &Value) -> Self {
        Self(self.0.json(body))
    }

    pub fn text(self, content_type: &str, body: impl Into<reqwest::Body>) -> Self {
        Self(self.0.header("content-type", content_type).body(body))
    }

    /// Returns the response, or the error if the process was killed.
    pub async fn attempt(self) -> Result<Answer, reqwest::Error> {
        let response = self.0.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        Ok(Answer {
            status,
            headers,
            body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        })
    }
}

impl IntoFuture for Call {
    type Output = Answer;
    type IntoFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.attempt().await {
                Ok(answer) => answer,
                Err(error) => panic!("no answer: {error:?}"),
            }
        })
    }
}

impl Answer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        self.body
    }

    /// Expects a problem of this kind, in the form of RFC 9457.
    #[track_caller]
    pub fn expect_problem(self, status: u16, slug: &str) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{:#}",
            self.body
        );
        assert_eq!(
            self.body["type"],
            format!("/problems/{slug}"),
            "{:#}",
            self.body
        );
        assert_eq!(self.body["status"], status);
        assert_eq!(
            self.body["request_id"].as_str(),
            self.header("x-request-id"),
            "{:#}",
            self.body
        );
        for member in ["title", "detail", "request_id"] {
            let text = self.body[member].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "no {member}: {:#}", self.body);
        }
        self.body
    }

    /// Expects an invalid body, and returns the JSON pointers of all faults.
    #[track_caller]
    pub fn expect_faults(self) -> Vec<String> {
        let problem = self.expect_problem(422, "invalid");
        let faults = problem["errors"].as_array().expect("a list of errors");
        let pointers = faults.iter().map(|fault| {
            assert!(fault["message"].is_string(), "{fault}");
            fault["pointer"].as_str().expect("a pointer").to_owned()
        });
        pointers.collect()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Server-sent events in the order of their arrival.
pub struct Events {
    response: Response,
    unread: String,
}

/// One server-sent event.
#[derive(Debug)]
pub struct Event {
    pub id: String,
    pub kind: String,
    pub data: Value,
}

impl Events {
    pub async fn open(call: Call) -> Self {
        let response = call.0.send().await.expect("no answer");
        assert_eq!(response.status().as_u16(), 200);
        let content_type = response.headers()["content-type"].to_str().unwrap();
        assert!(
            content_type.starts_with("text/event-stream"),
            "{content_type}"
        );
        Self {
            response,
            unread: String::new(),
        }
    }

    /// Returns the next event; `None` once the stream has closed.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.unread.split_once("\n\n") {
                let event = parse(block);
                self.unread = rest.to_owned();
                match event {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let chunk = self.response.chunk().await.expect("the stream broke off")?;
            self.unread.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Returns the next event of this type.
    pub async fn until(&mut self, kind: &str) -> Event {
        loop {
            match self.next().await {
                Some(event) if event.kind == kind => return event,
                Some(_) => {}
                None => panic!("the stream closed before any {kind}"),
            }
        }
    }

    /// Returns all further events until the stream closes.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// Returns `None` for a comment, which keeps the connection alive.
fn parse(block: &str) -> Option<Event> {
    let field = |name: &str| {
        block.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.strip_prefix(':')?;
            Some(value.strip_prefix(' ').unwrap_or(value).to_owned())
        })
    };
    Some(Event {
        id: field("id")?,
        kind: field("event")?,
        data: serde_json::from_str(&field("data")?).expect("the data is JSON"),
    })
}

/// Submits `count` tasks of one step each at the agent `payments`.
pub async fn submit_charges(api: &Api, count: usize) -> Vec<String> {
    let task =
        json!({ "steps": [{ "name": "charge", "agent": "payments", "complete_within": "10m" }] });
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(api.submit(&task).await);
    }
    ids
}

pub async fn all_processed(api: &Api, ids: &[String]) {
    for id in ids {
        assert_eq!(api.settled(id).await["state"], "processed", "{id}");
    }
}

//! The client of the instances: one request on one connection.

use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper::{Request, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    event_log::shown_path,
    world::{SimulatedWorld, instance},
};

/// The time that a caller who needs a response waits for it before it repeats the request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The API of one instance.
#[derive(Clone)]
pub struct SimulatedApi {
    world: Arc<SimulatedWorld>,
    address: SocketAddr,
}

/// A request that is sent when it is awaited, and repeated until there is a response other than 503.
#[derive(Clone)]
pub struct SimulatedCall {
    api: SimulatedApi,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

#[derive(Clone, Debug)]
pub struct SimulatedAnswer {
    pub status: u16,
    /// The body as JSON, or as a string if it is not JSON.
    pub body: Value,
}

/// The connection was refused or lost before there was a response.
#[derive(Clone, Copy, Debug)]
pub struct LostConnection;

impl SimulatedApi {
    pub fn of(world: Arc<SimulatedWorld>, address: SocketAddr) -> Self {
        Self { world, address }
    }

    /// Returns the clients of all instances.
    pub fn of_all(world: &Arc<SimulatedWorld>) -> Arc<Vec<Self>> {
        let api = |number| Self::of(world.clone(), instance(number));
        Arc::new((0..world.plan.instances).map(api).collect())
    }

    pub fn call(&self, method: Method, path: &str) -> SimulatedCall {
        SimulatedCall {
            api: self.clone(),
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub fn get(&self, path: &str) -> SimulatedCall {
        self.call(Method::GET, path)
    }

    pub fn post(&self, path: &str, body: &Value) -> SimulatedCall {
        self.command(path)
            .text("application/json", body.to_string())
    }

    pub fn put(&self, path: &str, body: &Value) -> SimulatedCall {
        self.call(Method::PUT, path)
            .text("application/json", body.to_string())
    }

    /// Sends a command without a body, such as `/v1/tasks/{id}/cancel`.
    pub fn command(&self, path: &str) -> SimulatedCall {
        self.call(Method::POST, path)
    }

    pub async fn task(&self, id: &str) -> Value {
        self.get(&format!("/v1/tasks/{id}")).await.expect(200)
    }
}

impl SimulatedCall {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn text(mut self, content_type: &str, body: impl Into<String>) -> Self {
        self.body = body.into();
        self.header("content-type", content_type)
    }

    /// Sends the request once.
    pub async fn attempt(self) -> Result<SimulatedAnswer, LostConnection> {
        let (world, what) = (self.api.world.clone(), self.shown());
        let answer = self.exchange().await.ok_or(LostConnection);
        // Reading changes nothing, and there is a lot of it.
        if let Some(what) = what {
            let status = answer.as_ref().map_or(0, |answer| answer.status);
            world.note(format_args!("{what}: {status}"));
        }
        answer
    }

    fn shown(&self) -> Option<String> {
        let is_claim = self.path.ends_with("/claim");
        let changes = self.method == Method::POST || self.method == Method::PUT;
        (changes && !is_claim).then(|| {
            let to = self.api.address.ip();
            format!("{} {} at {to}", self.method, shown_path(&self.path))
        })
    }

    async fn exchange(self) -> Option<SimulatedAnswer> {
        let surroundings = &self.api.world.surroundings;
        let stream = surroundings.connect(self.api.address).ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        // The connection is closed when the caller no longer waits.
        let mut driving = JoinSet::new();
        driving.spawn(connection);
        let mut request = Request::builder()
            .method(self.method)
            .uri(self.path)
            .header("host", self.api.address.to_string());
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(self.body))).unwrap();
        let response = sender.send_request(request).await.ok()?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        Some(SimulatedAnswer {
            status,
            body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        })
    }
}

impl IntoFuture for SimulatedCall {
    type Output = SimulatedAnswer;
    type IntoFuture = Pin<Box<dyn Future<Output = SimulatedAnswer> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            loop {
                match timeout(PATIENCE, self.clone().attempt()).await {
                    Ok(Ok(answer)) if answer.status != 503 => return answer,
                    _ => sleep(Duration::from_millis(200)).await,
                }
            }
        })
    }
}

impl SimulatedAnswer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        self.body
    }
}

//! The client of the instances: one request on one connection.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;

use crate::host::Surroundings;

/// The response to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

/// Sends a request. Returns `None` if there is no response in time, or the connection is lost.
pub async fn send(
    surroundings: &Surroundings,
    to: SocketAddr,
    method: &str,
    path: &str,
    key: Option<&str>,
    body: Option<&Value>,
    patience: Duration,
) -> Option<Answer> {
    let exchange = async {
        let stream = surroundings.connect(to).ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        let driving = tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", to.to_string())
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = sender.send_request(request).await.ok()?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        driving.abort();
        Some(Answer {
            status,
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        })
    };
    timeout(patience, exchange).await.ok().flatten()
}

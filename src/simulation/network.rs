//! The addresses of the simulation, and serving HTTP at one of them.

use std::{net::SocketAddr, sync::Arc};

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;

use crate::host::Surroundings;

pub const SERVICES: SocketAddr = address(200);
pub const RECEIVER: SocketAddr = address(201);

const fn address(last: u8) -> SocketAddr {
    SocketAddr::new(
        std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last)),
        80,
    )
}

pub fn instance(number: usize) -> SocketAddr {
    let mut address = address(1 + u8::try_from(number).unwrap());
    address.set_port(8080);
    address
}

/// A request as a server received it.
pub struct Received {
    pub headers: http::HeaderMap,
    pub body: bytes::Bytes,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The end of an exchange.
pub enum Served {
    Response(Response<Body>),
    /// The connection is cut, without a response.
    Cut,
}

/// Serves an address in this runtime until it ends.
pub async fn serve<F>(
    surroundings: Arc<Surroundings>,
    address: SocketAddr,
    handle: impl Fn(Received) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = Served> + Send + 'static,
{
    let mut accepted = surroundings.listen(address);
    while let Some(stream) = accepted.recv().await {
        let handle = handle.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let handle = handle.clone();
            async move {
                let (head, body) = request.into_parts();
                let Ok(body) = body.collect().await else {
                    return Err("the request is not complete".to_owned());
                };
                let received = Received {
                    headers: head.headers,
                    body: body.to_bytes(),
                };
                match handle(received).await {
                    Served::Response(response) => Ok(response),
                    Served::Cut => Err("it is cut".to_owned()),
                }
            }
        });
        tokio::spawn(async move {
            // A connection that ends with an error is one that the simulation or the client has cut.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

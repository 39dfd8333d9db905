//! The connection that a request came in on, so that a service can close it without an answer: no
//! handler of an HTTP server can do that by what it returns.

use std::{
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    sync::Arc,
};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use tokio::net::TcpListener;

#[derive(Clone)]
pub struct WaitingLine(Option<Arc<TcpStream>>);

impl Connected<IncomingStream<'_, TcpListener>> for WaitingLine {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        let twin = stream.io().as_fd().try_clone_to_owned();
        Self(twin.ok().map(|twin| Arc::new(TcpStream::from(twin))))
    }
}

impl WaitingLine {
    /// Closes it in both directions, and waits: the server sees that and drops the request.
    pub async fn hang_up<T>(self) -> T {
        if let Some(stream) = &self.0 {
            // If it is closed already, so much the better.
            let _ = stream.shutdown(Shutdown::Both);
        }
        std::future::pending().await
    }
}

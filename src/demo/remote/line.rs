//! The connection of a request, so that a service can close it without a response: a handler of an HTTP server
//! cannot do that with its return value.

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
    /// Closes the connection in both directions, and waits: the server notices and drops the request.
    pub async fn hang_up<T>(self) -> T {
        if let Some(stream) = &self.0 {
            // A connection that is closed already is no error.
            let _ = stream.shutdown(Shutdown::Both);
        }
        std::future::pending().await
    }
}

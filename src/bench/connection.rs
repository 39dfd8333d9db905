//! One keep-alive connection to the server under load. It does not use an HTTP client, which would cost more CPU
//! than the server, on the same cores.

use std::io;

use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::frame;

#[derive(Debug, Error)]
pub enum ExchangeError {
    #[error("the connection to the server broke: {0}")]
    Broken(#[from] io::Error),
    #[error("the server sent a response that is not HTTP/1.1 with a Content-Length")]
    Unframed,
    #[error("the server responded {0}")]
    Refused(String),
}

pub struct BenchConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl BenchConnection {
    /// `authority` is a host and a port.
    pub async fn open(authority: &str) -> Result<Self, ExchangeError> {
        let stream = TcpStream::connect(authority).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(8192),
        })
    }

    /// Sends a whole request. Returns the body of the response, which must be a success.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<&[u8], ExchangeError> {
        self.buffer.clear();
        self.stream.write_all(request).await?;
        let (head, body) = loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let whole = frame::whole(&self.buffer).map_err(|_| ExchangeError::Unframed)?;
            if let Some(lengths) = whole {
                break lengths;
            }
        };
        if !self.buffer.starts_with(b"HTTP/1.1 2") {
            let text = String::from_utf8_lossy(&self.buffer);
            let status = text.lines().next().unwrap_or_default();
            let body = &text[text.find("\r\n\r\n").unwrap_or(text.len())..];
            return Err(ExchangeError::Refused(format!(
                "{} {}",
                status.trim_start_matches("HTTP/1.1 "),
                body.trim()
            )));
        }
        Ok(&self.buffer[head..head + body])
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Sends a request to a server that responds to it with this text, in two parts.
    async fn exchanged(answer: &'static str) -> Result<String, ExchangeError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            stream.read_buf(&mut request).await.unwrap();
            let (first, second) = answer.split_at(answer.len() / 2);
            stream.write_all(first.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(second.as_bytes()).await.unwrap();
        };
        let client = async {
            let mut connection = BenchConnection::open(&authority).await?;
            let body = connection.exchange(b"GET / HTTP/1.1\r\n\r\n").await?;
            Ok(String::from_utf8_lossy(body).into_owned())
        };
        tokio::join!(server, client).1
    }

    #[tokio::test]
    async fn an_answer_in_pieces_is_read_whole() {
        let body = exchanged("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole").await;
        assert_eq!(body.unwrap(), "whole");
    }

    #[tokio::test]
    async fn a_refusal_is_an_error_that_says_what_was_answered() {
        let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull";
        let error = exchanged(answer).await.unwrap_err().to_string();
        assert!(error.ends_with("503 Service Unavailable full"), "{error}");
    }

    #[tokio::test]
    async fn a_connection_that_ends_early_is_an_error() {
        let cut = exchanged("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nwhole").await;
        assert!(matches!(cut, Err(ExchangeError::Broken(_))));
    }
}

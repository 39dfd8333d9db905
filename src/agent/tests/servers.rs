//! Faulty remote services on real sockets. Each connection carries one request, so the number of connections is the
//! number of attempts.

use std::future::Future;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_util::task::AbortOnDropHandle;

pub struct Server {
    pub url: String,
    seen: mpsc::UnboundedReceiver<Seen>,
    _running: AbortOnDropHandle<()>,
}

/// A request in the form in which it was received.
#[derive(Debug)]
pub struct Seen {
    pub head: String,
    pub body: String,
}

impl Seen {
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut values = pairs.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value);
        assert!(values.next().is_none(), "{name} was sent twice");
        value
    }
}

impl Server {
    /// Starts a server. `answer` gets the number of the connection, counted from 1, and the stream after the request.
    pub async fn start<F, Fut>(answer: F) -> Self
    where
        F: Fn(usize, TcpStream) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, seen) = mpsc::unbounded_channel();
        let running = tokio::spawn(async move {
            for number in 1.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                if let Some(request) = read_request(&mut stream).await {
                    let _ = tell.send(request);
                    tokio::spawn(answer(number, stream));
                }
            }
        });
        Self {
            url,
            seen,
            _running: AbortOnDropHandle::new(running),
        }
    }

    /// Starts a server that responds to every request with exactly these bytes, and then closes the connection.
    pub async fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(move |_, mut stream| {
            let bytes = bytes.clone();
            async move {
                let _ = stream.write_all(&bytes).await;
                finish(stream).await;
            }
        })
        .await
    }

    /// Waits for the next request.
    pub async fn next(&mut self) -> Seen {
        self.seen.recv().await.unwrap()
    }

    /// Returns the requests that have come and have not been read yet.
    pub fn rest(&mut self) -> Vec<Seen> {
        std::iter::from_fn(|| self.seen.try_recv().ok()).collect()
    }
}

pub fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

/// Waits until the client has closed the connection, so that unread bytes do not turn a clean end into a reset.
pub async fn finish(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = [0; 1024];
    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
}

/// Returns the URL of a port where no process listens.
pub async fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            let head = String::from_utf8(bytes).unwrap();
            let mut seen = Seen {
                head,
                body: String::new(),
            };
            let length = seen.header("content-length").unwrap_or("0");
            let mut left = vec![0; length.parse::<usize>().unwrap() - body.len()];
            stream.read_exact(&mut left).await.ok()?;
            seen.body = String::from_utf8([body, left].concat()).unwrap();
            return Some(seen);
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Keeps the connection open without sending (more).
pub async fn hang(mut stream: TcpStream) {
    let mut ignored = [0; 1024];
    while matches!(stream.read(&mut ignored).await, Ok(1..)) {}
}

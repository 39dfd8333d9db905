//! A server that responds what a test says, each request in turn, and remembers what was asked.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    api::Api,
    context::Target,
    output::{Format, Output},
    session::Session,
};

/// A server of prepared responses.
pub struct Stub {
    pub session: Session,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Stub {
    /// Starts a server that gives these responses, each on a connection of its own.
    pub async fn with(responses: Vec<(u16, &'static str)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = seen.clone();
        tokio::spawn(async move {
            for (status, body) in responses {
                let (mut stream, _) = listener.accept().await.unwrap();
                // The status 0 is a server that ends before it responds.
                if status == 0 {
                    continue;
                }
                let mut request = Vec::new();
                while !is_whole(&request) {
                    let mut piece = [0; 4096];
                    let length = stream.read(&mut piece).await.unwrap();
                    request.extend_from_slice(&piece[..length]);
                }
                requests
                    .lock()
                    .unwrap()
                    .push(String::from_utf8(request).unwrap());
                let response = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(response.as_bytes()).await.unwrap();
            }
        });
        let target = Target {
            url,
            token: Some("secret".to_owned()),
            ca: None,
        };
        let session = Session {
            api: Api::new(&target).unwrap(),
            out: Output::of_tests(Format::Json, None),
        };
        Self { session, seen }
    }

    /// Returns the first lines of the requests.
    pub fn lines(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .map(|request| request.lines().next().unwrap_or_default().to_owned())
            .collect()
    }

    /// Returns the requests as they came.
    pub fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let lengths = head.lines().filter_map(|line| {
        line.to_lowercase()
            .strip_prefix("content-length:")
            .map(str::to_owned)
    });
    let length: usize = lengths
        .map(|length| length.trim().parse().unwrap())
        .next()
        .unwrap_or(0);
    body.len() >= length
}

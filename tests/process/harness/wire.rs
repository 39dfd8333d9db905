//! Reads and writes HTTP/1.1 for a remote service without a library, so that it can be broken at will.

use std::collections::HashMap;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

pub struct Request {
    pub method: String,
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

/// Reads the next request of a connection; `None` once the caller has closed it.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Option<Request> {
    let first = line(stream).await?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let line = line(stream).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length");
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

async fn line<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Option<String> {
    let mut line = String::new();
    match stream.read_line(&mut line).await {
        Ok(read) if read > 0 => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

/// Returns the head of a response. Without a length the body ends when the connection does.
pub fn head(status: u16, headers: &[(&str, String)], length: Option<usize>) -> String {
    let mut head = format!("HTTP/1.1 {status} Whatever\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match length {
        Some(length) => head.push_str(&format!("content-length: {length}\r\n\r\n")),
        None => head.push_str("connection: close\r\n\r\n"),
    }
    head
}

pub async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<()> {
    let mut bytes = head(status, headers, Some(body.len())).into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Returns when the caller has closed the connection.
pub async fn hung_up<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) {
    let mut byte = [0];
    while matches!(stream.read(&mut byte).await, Ok(read) if read > 0) {}
}

//! The remote service of the benchmark: responds to every request at once, and costs next to nothing.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::frame;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
    content-type: application/json\r\n\
    content-length: 31\r\n\r\n\
    {\"id\":\"r-1001\",\"accepted\":true}";

/// Listens until the process ends.
pub async fn start(listen: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        // The error belongs to a connection that closed before it was accepted: the next one may be fine.
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        }
    });
    Ok(address)
}

/// Serves one connection, until the other side closes it or sends something invalid.
async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    while stream.read_buf(&mut buffer).await? > 0 {
        while let Some((head, body)) =
            frame::whole(&buffer).map_err(|_| io::ErrorKind::InvalidData)?
        {
            buffer.drain(..head + body);
            stream.write_all(ANSWER).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::plain_http;

    #[test]
    fn its_answer_is_framed_as_it_says_and_is_json() {
        let (head, body) = frame::whole(ANSWER).unwrap().unwrap();
        assert_eq!(head + body, ANSWER.len());
        let body: serde_json::Value = serde_json::from_slice(&ANSWER[head..]).unwrap();
        assert_eq!(body["id"], "r-1001");
    }

    #[tokio::test]
    async fn it_answers_one_request_after_another_on_a_connection() {
        let address = start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let client = plain_http::client().unwrap();
        for _ in 0..3 {
            let request = client.post(format!("http://{address}/first")).body("{}");
            assert_eq!(request.send().await.unwrap().status(), 200);
        }
    }
}

//! The responses of a remote service, also broken ones, and the requests as it saw them. A service of these tests is on
//! loopback; one of the simulation (`src/simulation`) has connections in memory.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Semaphore,
    time::sleep,
};

use super::wire;

/// The response to a request.
#[derive(Clone)]
pub enum Act {
    /// 200 with this JSON.
    Ok(Value),
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// No response. The request lasts until the caller closes the connection.
    Hang,
    /// Promises a body, sends half of it, and closes.
    CloseHalfway,
    /// Sends a body of a thousand bytes, one a second.
    Drip,
    /// The response, whose bytes come one by one, each after a time.
    Slowly(Duration, Box<Act>),
    /// 200 with a body of 10 MiB whose length is not announced.
    Flood,
    /// Interim responses (102) without end, and no other.
    Interim,
    /// These bytes, which need not be HTTP.
    Raw(String),
    /// Closes the connection without a byte of a response.
    Close,
    /// 200 with this JSON, after a time.
    After(Duration, Value),
    /// The response once the gate lets it through.
    Gated(Gate, Box<Act>),
    /// The response after a time, and the hook just before it.
    Then(Duration, Hook, Box<Act>),
}

/// A function of the test that runs at some moment of a response.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

impl Act {
    pub fn status(status: u16) -> Self {
        Self::answer(status, &[], "")
    }

    pub fn answer(status: u16, headers: &[(&'static str, &str)], body: &str) -> Self {
        let headers = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        Self::Answer {
            status,
            headers: headers.collect(),
            body: body.to_owned(),
        }
    }
}

/// Blocks requests until the test lets them through.
#[derive(Clone)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub fn let_through(&self, requests: usize) {
        self.0.add_permits(requests);
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.0.close();
    }

    async fn pass(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }

    /// Returns a response of 200 with this JSON, which waits for the gate.
    pub fn then(&self, output: Value) -> Act {
        Act::Gated(self.clone(), Box::new(Act::Ok(output)))
    }
}

/// A request as it was recorded.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub method: String,
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: HashMap<String, String>,
    /// The body as JSON, or null if there was none.
    pub body: Value,
    /// The body as it came.
    pub raw: String,
}

impl Seen {
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.unwrap_or_else(|| panic!("no header {name} in {self:?}"))
    }

    /// Returns the idempotency key, which is the same for each attempt of the step.
    pub fn key(&self) -> &str {
        self.header("idempotency-key")
    }

    pub fn attempt(&self) -> u32 {
        self.header("provost-attempt").parse().unwrap()
    }
}

/// Serves a connection until one end closes it.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    mut behave: impl FnMut(Seen) -> Act,
) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = wire::read(&mut stream).await {
        let act = behave(Seen {
            at: tokio::time::Instant::now().into_std(),
            method: request.method,
            path: request.path,
            headers: request.headers,
            body: serde_json::from_slice(&request.body).unwrap_or_default(),
            raw: String::from_utf8(request.body).unwrap_or_default(),
        });
        // A caller that has closed the connection gets no response, as with a real service.
        if !perform(&mut stream, act).await.unwrap_or(false) {
            return;
        }
    }
}

/// Gives the response. Returns whether the connection can be reused.
async fn perform<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    act: Act,
) -> std::io::Result<bool> {
    match act {
        Act::Ok(output) => {
            let json = [("content-type", "application/json".to_owned())];
            wire::answer(stream, 200, &json, output.to_string().as_bytes()).await?;
            Ok(true)
        }
        Act::Answer {
            status,
            headers,
            body,
        } => {
            wire::answer(stream, status, &headers, body.as_bytes()).await?;
            Ok(true)
        }
        Act::Hang => {
            wire::hung_up(stream).await;
            Ok(false)
        }
        Act::CloseHalfway => {
            stream
                .write_all(wire::head(200, &[], Some(1000)).as_bytes())
                .await?;
            stream.write_all(b"{\"half\":").await?;
            stream.shutdown().await?;
            Ok(false)
        }
        Act::Drip => {
            stream
                .write_all(wire::head(200, &[], Some(1000)).as_bytes())
                .await?;
            loop {
                stream.write_all(b" ").await?;
                stream.flush().await?;
                sleep(Duration::from_secs(1)).await;
            }
        }
        Act::Slowly(pause, act) => {
            let Act::Answer {
                status,
                headers,
                body,
            } = *act
            else {
                return Box::pin(perform(stream, *act)).await;
            };
            stream
                .write_all(wire::head(status, &headers, Some(body.len())).as_bytes())
                .await?;
            for byte in body.bytes() {
                stream.flush().await?;
                sleep(pause).await;
                stream.write_all(&[byte]).await?;
            }
            stream.flush().await?;
            Ok(true)
        }
        Act::Flood => {
            stream
                .write_all(wire::head(200, &[], None).as_bytes())
                .await?;
            let mebibyte = vec![b'x'; 1 << 20];
            for _ in 0..10 {
                stream.write_all(&mebibyte).await?;
            }
            stream.shutdown().await?;
            Ok(false)
        }
        Act::Interim => {
            let many = b"HTTP/1.1 102 Processing\r\n\r\n".repeat(1000);
            loop {
                stream.write_all(&many).await?;
            }
        }
        Act::Raw(bytes) => {
            stream.write_all(bytes.as_bytes()).await?;
            Ok(true)
        }
        Act::Close => {
            stream.shutdown().await?;
            Ok(false)
        }
        Act::After(wait, output) => {
            sleep(wait).await;
            Box::pin(perform(stream, Act::Ok(output))).await
        }
        Act::Gated(gate, act) => {
            gate.pass().await;
            Box::pin(perform(stream, *act)).await
        }
        Act::Then(wait, hook, act) => {
            if !wait.is_zero() {
                sleep(wait).await;
            }
            hook();
            Box::pin(perform(stream, *act)).await
        }
    }
}

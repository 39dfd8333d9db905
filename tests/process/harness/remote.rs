//! A remote service on loopback that does as the test says, and records every request.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

use super::{PATIENCE, wire};

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

type Behaviour = Box<dyn Fn(&Seen) -> Act + Send + Sync>;

struct Shared {
    behaviour: Behaviour,
    ledger: watch::Sender<Vec<Seen>>,
}

/// The service works until it is dropped, with the test's runtime.
#[derive(Clone)]
pub struct Remote {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Remote {
    /// Starts a service that decides on each request by itself.
    pub async fn with(behaviour: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, behaviour)
    }

    pub fn on(
        listener: TcpListener,
        behaviour: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            behaviour: Box::new(behaviour),
            ledger: watch::Sender::new(Vec::new()),
        });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream, Arc::clone(&serving)));
            }
        });
        Self { address, shared }
    }

    /// Starts a service that responds at once to everything, with the path of the request.
    pub async fn quick() -> Self {
        Self::with(|seen| Act::Ok(json!({ "path": seen.path }))).await
    }

    /// Starts a service that gives these responses one after another, whatever the path is, and then repeats the last
    /// one.
    pub async fn script(acts: impl IntoIterator<Item = Act>) -> Self {
        let acts: Vec<Act> = acts.into_iter().collect();
        let next = Mutex::new(0);
        Self::with(move |_| {
            let mut next = next.lock().unwrap();
            let act = acts[(*next).min(acts.len() - 1)].clone();
            *next += 1;
            act
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns every request so far, in the order of arrival.
    pub fn ledger(&self) -> Vec<Seen> {
        self.shared.ledger.borrow().clone()
    }

    pub fn count(&self) -> usize {
        self.shared.ledger.borrow().len()
    }

    /// Waits until there were this many requests.
    #[track_caller]
    pub fn requests(&self, count: usize) -> impl Future<Output = Vec<Seen>> {
        self.until(move |seen| seen.len() >= count, format!("{count} requests"))
    }

    /// Waits until there were `count` requests of this path.
    #[track_caller]
    pub fn paths(&self, path: &'static str, count: usize) -> impl Future<Output = Vec<Seen>> {
        let of_path = move |seen: &Vec<Seen>| seen.iter().filter(|seen| seen.path == path).count();
        let what = format!("{count} requests of {path}");
        self.until(move |seen| of_path(seen) >= count, what)
    }

    #[track_caller]
    fn until(
        &self,
        come: impl FnMut(&Vec<Seen>) -> bool,
        what: String,
    ) -> impl Future<Output = Vec<Seen>> {
        let at = std::panic::Location::caller();
        let mut ledger = self.shared.ledger.subscribe();
        async move {
            match timeout(PATIENCE, ledger.wait_for(come)).await {
                Ok(Ok(seen)) => seen.clone(),
                _ => panic!("{at}: {what} did not come"),
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = wire::read(&mut stream).await {
        let seen = Seen {
            at: Instant::now(),
            method: request.method,
            path: request.path,
            headers: request.headers,
            body: serde_json::from_slice(&request.body).unwrap_or_default(),
            raw: String::from_utf8(request.body).unwrap_or_default(),
        };
        let act = (shared.behaviour)(&seen);
        shared.ledger.send_modify(|ledger| ledger.push(seen));
        // A caller that has closed the connection gets no response, as with a real service.
        if !perform(&mut stream, act).await.unwrap_or(false) {
            return;
        }
    }
}

/// Gives the response. Returns whether the connection can be reused.
async fn perform(stream: &mut BufReader<TcpStream>, act: Act) -> std::io::Result<bool> {
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

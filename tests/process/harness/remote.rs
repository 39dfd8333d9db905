//! A remote service on loopback that does as the test says, and records every request.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use serde_json::json;
use tokio::{net::TcpListener, sync::watch, time::timeout};

use super::{
    PATIENCE,
    act::{Act, Seen, serve},
};

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
                let shared = Arc::clone(&serving);
                tokio::spawn(serve(stream, move |seen| {
                    let act = (shared.behaviour)(&seen);
                    shared.ledger.send_modify(|ledger| ledger.push(seen));
                    act
                }));
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

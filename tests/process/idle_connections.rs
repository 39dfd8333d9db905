//! Idle connections to services: some are kept for the next call, and their number is limited.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    sync::{Barrier, watch},
    time::timeout,
};

use crate::harness::{Provost, wire};

const AGENTS: usize = 12;
const EACH: usize = 100;
const CALLS: usize = AGENTS * EACH;
/// The largest number of idle connections that are kept.
const MOST_IDLE: usize = 1024;
/// If there are more idle connections than this, each of them is kept for [`KEPT_FOR`] or longer.
const CROWD: usize = 256;
/// The shortest time for which one of many idle connections is kept.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// The time is much longer than closing takes, and shorter than the 30 s for which a few idle connections are kept.
const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    open: usize,
    /// The number of connections that were closed before they had been idle for [`KEPT_FOR`].
    closed_at_once: usize,
}

/// A service that responds to its first requests when all of them have arrived, so that each has a connection of its
/// own. It never closes a connection.
struct Service {
    url: String,
    counts: watch::Receiver<Counts>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (counts, seen) = watch::channel(Counts::default());
        let all = Arc::new(Barrier::new(CALLS));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, all.clone(), counts.clone()));
            }
        });
        Self { url, counts: seen }
    }

    async fn until(&mut self, holds: impl Fn(&Counts) -> bool) -> Counts {
        let reached = timeout(SOON, self.counts.wait_for(|counts| holds(counts))).await;
        let reached = reached.map(|counts| *counts.unwrap());
        reached.unwrap_or_else(|_| panic!("still {:?}", *self.counts.borrow()))
    }
}

async fn serve(stream: TcpStream, all: Arc<Barrier>, counts: watch::Sender<Counts>) {
    counts.send_modify(|counts| counts.open += 1);
    let mut stream = BufReader::new(stream);
    let mut answered = Instant::now();
    while wire::read(&mut stream).await.is_some() {
        all.wait().await;
        answered = Instant::now();
        wire::answer(&mut stream, 200, &[], b"{}").await.unwrap();
    }
    counts.send_modify(|counts| {
        counts.open -= 1;
        counts.closed_at_once += usize::from(answered.elapsed() < KEPT_FOR);
    });
}

/// Returns a task whose steps all call an agent at once.
fn many_calls(agent: &str) -> Value {
    let steps = (0..EACH).map(|number| {
        json!({ "name": format!("call-{number}"), "agent": agent, "after": [], "complete_within": "60s" })
    });
    json!({ "steps": steps.collect::<Vec<_>>() })
}

/// Raises the limit of open files: the service has one for each connection, and many machines allow 1,024 by default.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[tokio::test]
async fn idle_connections_to_many_agents_are_bounded_together_and_soon_fewer() {
    allow_many_files();
    let mut service = Service::start().await;
    let provost = Provost::start().await;
    let mut tasks = Vec::new();
    for number in 0..AGENTS {
        let agent = format!("agent-{number}");
        let most = u32::try_from(EACH).unwrap();
        provost.register(&agent, &service.url, most).await;
        tasks.push(provost.submit(&many_calls(&agent)).await);
    }
    for task in &tasks {
        assert_eq!(provost.settled(task).await["state"], "processed");
    }
    let beyond = CALLS - MOST_IDLE;
    let counts = service
        .until(|counts| counts.closed_at_once >= beyond)
        .await;
    assert!(counts.open <= MOST_IDLE, "{counts:?}");
    let counts = service.until(|counts| counts.open <= CROWD).await;
    assert_eq!(counts.closed_at_once, beyond, "the others were kept");
}

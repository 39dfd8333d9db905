//! Connections to services that are kept for the next call: when they are replaced, and which calls do not use them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use h2::server;
use http::Response;
use serde_json::{Value, json};
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::timeout,
};

use crate::{
    harness::{Provost, Remote, kinds, messages, one_step, setups, step, until, wire},
    secrets::{one_step_of, spec},
};

/// The longest time that the test waits for something that should happen soon.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
struct Connections {
    /// True for each connection that is open, in the order of their arrival.
    open: Vec<bool>,
    /// The connection of each request, by its index, and the path.
    requests: Vec<(usize, String)>,
}

impl Connections {
    fn requests_of(&self, connection: usize) -> usize {
        let on_it = |(number, _): &&(usize, String)| *number == connection;
        self.requests.iter().filter(on_it).count()
    }

    fn requests_to(&self, path: &str) -> usize {
        self.requests.iter().filter(|(_, to)| to == path).count()
    }
}

/// A service that responds at once, except to `/held`: that request waits until it is released.
#[derive(Clone)]
struct Service {
    connections: watch::Sender<Connections>,
    held: Arc<Semaphore>,
}

impl Service {
    async fn start(is_http2: bool) -> (Self, String) {
        let service = Self {
            connections: watch::Sender::default(),
            held: Arc::new(Semaphore::new(0)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let accepting = service.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = accepting.clone();
                let mut number = 0;
                service.connections.send_modify(|connections| {
                    number = connections.open.len();
                    connections.open.push(true);
                });
                tokio::spawn(async move {
                    match is_http2 {
                        true => service.serve_http2(stream, number).await,
                        false => service.serve_http1(stream, number).await,
                    }
                    let closed = |seen: &mut Connections| seen.open[number] = false;
                    service.connections.send_modify(closed);
                });
            }
        });
        (service, url)
    }

    async fn handle(&self, connection: usize, path: String) {
        let is_held = path == "/held";
        let request = (connection, path);
        self.connections
            .send_modify(|connections| connections.requests.push(request));
        if is_held {
            let _ = self.held.acquire().await;
        }
    }

    async fn serve_http1(&self, stream: TcpStream, number: usize) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = wire::read(&mut stream).await {
            self.handle(number, request.path).await;
            wire::answer(&mut stream, 200, &[], b"{}").await.unwrap();
        }
    }

    async fn serve_http2(&self, stream: TcpStream, number: usize) {
        let mut connection = server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut send))) = connection.accept().await {
            let service = self.clone();
            tokio::spawn(async move {
                let path = request.uri().path().to_owned();
                service.handle(number, path).await;
                let mut body = send.send_response(Response::new(()), false).unwrap();
                body.send_data(Bytes::from_static(b"{}"), true).unwrap();
            });
        }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Connections) -> bool) {
        let mut seen = self.connections.subscribe();
        let reached = timeout(PATIENCE, seen.wait_for(|connections| holds(connections))).await;
        if reached.is_err() {
            panic!("still not {what}: {:?}", self.connections.borrow().open);
        }
    }
}

#[tokio::test]
async fn a_busy_service_gets_new_connections_and_a_call_goes_on_over_its_old_one() {
    let provost = Provost::setup()
        .set("CALLS__MAX_CONNECTION_AGE", "300ms")
        .start()
        .await;
    for is_http2 in [false, true] {
        let (service, url) = Service::start(is_http2).await;
        let (agent, added) = match is_http2 {
            true => ("second", json!({ "http_version": "2" })),
            false => ("first", json!({})),
        };
        let put = provost.put(&format!("/v1/agents/{agent}"), &spec(&url, added));
        put.await.expect(201);
        let held = provost.submit(&one_step_of(agent, "/held")).await;
        let is_held = |seen: &Connections| seen.requests.iter().any(|(_, path)| path == "/held");
        service.until("held", is_held).await;

        // The fourth connection comes after the second and the third have reached their largest age, so the first is
        // older than that as well.
        let busy = async {
            while service.connections.borrow().open.len() < 4 {
                let task = provost.run(&one_step_of(agent, "/quick")).await;
                assert_eq!(step(&task, "only")["state"], "processed", "{task:#}");
                assert_eq!(step(&task, "only")["failure_count"], 0, "{task:#}");
            }
        };
        if timeout(PATIENCE, busy).await.is_err() {
            let open = service.connections.borrow().open.len();
            panic!("a busy service still has {open} connections only");
        }
        let on_the_first = service.connections.borrow().requests_of(0);
        assert!(service.connections.borrow().open[0], "a call was cut off");

        service.held.close();
        let task = provost.settled(&held).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        let history = provost.history(&held).await;
        assert!(!kinds(&history).contains(&"step.retrying"), "{history:#?}");
        service.until("closed", |seen| !seen.open[0]).await;
        provost.run(&one_step_of(agent, "/quick")).await;
        let all = service.connections.borrow().requests_of(0);
        assert_eq!(all, on_the_first, "a connection beyond its age got a call");
    }
}

#[tokio::test]
async fn a_busy_receiver_gets_new_connections_and_a_message_goes_on_over_its_old_one() {
    let remote = Remote::quick().await;
    for setup in setups().await {
        let (receiver, url) = Service::start(false).await;
        let setup = setup.set("CALLS__MAX_CONNECTION_AGE", "300ms");
        // The held message must not be sent again during this time.
        let provost = setup.set("COURIER__TIMEOUT", "60s").start().await;
        let send = async |path: &str| {
            let mut submission = one_step(&remote.url(), "/");
            submission["reply_to"] = json!({ "url": format!("{url}{path}") });
            provost.run(&submission).await;
        };
        let send_quick = async || {
            let before = receiver.connections.borrow().requests_to("/quick");
            send("/quick").await;
            let is_received = |seen: &Connections| seen.requests_to("/quick") > before;
            receiver.until("received", is_received).await;
        };
        send("/held").await;
        let is_held = |seen: &Connections| !seen.requests.is_empty();
        receiver.until("held", is_held).await;

        // The fourth connection comes after the second and the third have reached their largest age, so the first is
        // older than that as well.
        let busy = async {
            while receiver.connections.borrow().open.len() < 4 {
                send_quick().await;
            }
        };
        if timeout(PATIENCE, busy).await.is_err() {
            let open = receiver.connections.borrow().open.len();
            panic!("a busy receiver still has {open} connections only");
        }
        let on_the_first = receiver.connections.borrow().requests_of(0);
        assert!(
            receiver.connections.borrow().open[0],
            "a message was cut off"
        );

        receiver.held.close();
        receiver.until("closed", |seen| !seen.open[0]).await;
        send_quick().await;
        until(0, || async {
            messages(&provost, "state=pending").await.len()
        })
        .await;
        let all = receiver.connections.borrow().requests_of(0);
        assert_eq!(
            all, on_the_first,
            "a connection beyond its age got a message"
        );
        let held = receiver.connections.borrow().requests_to("/held");
        assert_eq!(held, 1, "a message was sent again");
    }
}

/// The behaviour of a service at the second request of a connection.
#[derive(Clone, Copy, PartialEq)]
enum Second {
    Answered,
    /// The connection closes, as if the service had closed it just before the request came.
    Closed,
}

/// Starts a service that responds to every first request of a connection, with this `Keep-Alive` if there is one.
/// `/probe` says that nothing was done. The channel has the number of its connections.
async fn closing_service(
    keep_alive: Option<&'static str>,
    second: Second,
) -> (String, watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (connections, seen) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.send_modify(|count| *count += 1);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut is_first = true;
                while let Some(request) = wire::read(&mut stream).await {
                    if !is_first && second == Second::Closed {
                        return;
                    }
                    is_first = false;
                    let status = if request.path == "/probe" { 404 } else { 200 };
                    let keep_alive = keep_alive.map(|value| ("keep-alive", value.to_owned()));
                    let headers: Vec<_> = keep_alive.into_iter().collect();
                    let _ = wire::answer(&mut stream, status, &headers, b"{}").await;
                }
            });
        }
    });
    (url, seen)
}

fn with_a_probe(max_failures: u32) -> Value {
    let mut task = one_step_of("shop", "/work");
    task["steps"][0]["probe"] = json!({ "request": { "path": "/probe" } });
    task["steps"][0]["max_failures"] = json!(max_failures);
    task
}

#[tokio::test]
async fn a_step_that_may_not_fail_once_more_is_called_over_a_new_connection() {
    for setup in setups().await {
        let (url, connections) = closing_service(None, Second::Closed).await;
        let provost = setup.start().await;
        let put = provost.put("/v1/agents/shop", &spec(&url, json!({})));
        put.await.expect(201);
        for number in 1..=3 {
            let task = provost.run(&with_a_probe(0)).await;
            assert_eq!(task["state"], "processed", "{task:#}");
            assert_eq!(step(&task, "only")["failure_count"], 0, "{task:#}");
            assert_eq!(*connections.borrow(), number);
        }
        // A step that may fail once uses the kept connection. The probe finds out the effect of the call, and the last
        // attempt has a connection of its own.
        let task = provost.run(&with_a_probe(1)).await;
        assert_eq!(task["state"], "processed", "{task:#}");
        assert_eq!(step(&task, "only")["failure_count"], 1, "{task:#}");
    }
}

#[tokio::test]
async fn a_connection_is_not_used_when_its_service_is_about_to_close_it() {
    let provost = Provost::start().await;
    for (agent, keep_alive, expected) in [
        ("short", "timeout=1", 4),
        ("long", "timeout=60, max=1000", 1),
    ] {
        let (url, connections) = closing_service(Some(keep_alive), Second::Answered).await;
        let put = provost.put(&format!("/v1/agents/{agent}"), &spec(&url, json!({})));
        put.await.expect(201);
        for _ in 0..4 {
            let task = provost.run(&one_step_of(agent, "/work")).await;
            assert_eq!(task["state"], "processed", "{task:#}");
        }
        assert_eq!(*connections.borrow(), expected, "{keep_alive}");
    }
}

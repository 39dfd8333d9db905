//! HTTP/2: many calls over one connection, and the effects on them of its end, of its limits and of a hostile service.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ::http::{Request, Response};
use bytes::Bytes;
use h2::{Reason, RecvStream, server};
use parking_lot::Mutex;
use rcgen::generate_simple_self_signed;
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Barrier,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::domain::{
    agent::{AgentTlsSpec, HttpVersion, TextOrSecret},
    values::Effect,
};

/// The record of all connections and requests.
#[derive(Default)]
struct Ledger {
    connections: AtomicUsize,
    /// The number of times that each key was processed.
    keys: Mutex<HashMap<String, usize>>,
    resets: Mutex<Vec<Reason>>,
}

impl Ledger {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn process(&self, request: &Request<RecvStream>) {
        let key = request.headers()["idempotency-key"].to_str().unwrap();
        *self.keys.lock().entry(key.to_owned()).or_default() += 1;
    }

    fn once_each(&self) -> usize {
        let keys = self.keys.lock();
        assert!(keys.values().all(|count| *count == 1), "{keys:?}");
        keys.len()
    }
}

struct Service {
    url: String,
    ledger: Arc<Ledger>,
    _running: AbortOnDropHandle<()>,
}

impl Service {
    /// Starts a service. `connected` gets the number of the connection, counted from 1.
    async fn raw<F, Fut>(connected: F) -> Self
    where
        F: Fn(usize, TcpStream, Arc<Ledger>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ledger = Arc::<Ledger>::default();
        let known = ledger.clone();
        let running = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let number = known.connections.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::spawn(connected(number, stream, known.clone()));
            }
        });
        Self {
            url,
            ledger,
            _running: AbortOnDropHandle::new(running),
        }
    }

    /// Starts a service that handles each request in a task of its own.
    async fn with<F, Fut>(builder: server::Builder, handle: F) -> Self
    where
        F: Fn(Request<RecvStream>, server::SendResponse<Bytes>, Arc<Ledger>) -> Fut
            + Clone
            + Send
            + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::raw(move |_, stream, ledger| serve(stream, builder.clone(), handle.clone(), ledger))
            .await
    }
}

async fn serve<S, F, Fut>(stream: S, builder: server::Builder, handle: F, ledger: Arc<Ledger>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<RecvStream>, server::SendResponse<Bytes>, Arc<Ledger>) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(handle(request, respond, ledger.clone()));
    }
}

fn respond(mut respond: server::SendResponse<Bytes>) {
    // The client may have closed the connection.
    if let Ok(mut body) = respond.send_response(Response::new(()), false) {
        let _ = body.send_data(Bytes::from_static(b"\"done\""), true);
    }
}

async fn done(
    request: Request<RecvStream>,
    send: server::SendResponse<Bytes>,
    ledger: Arc<Ledger>,
) {
    ledger.process(&request);
    respond(send);
}

fn http2(url: &str) -> AgentSpec {
    AgentSpec {
        http_version: Some(HttpVersion::Http2),
        ..spec(&[url])
    }
}

fn agents_of(spec: AgentSpec) -> Arc<Agents> {
    let agents = Agents::new(settings());
    agents.put(payments(), spec);
    Arc::new(agents)
}

fn numbered(number: usize) -> Call {
    Call {
        idempotency_key: format!("key-{number}"),
        ..a_call()
    }
}

/// Makes `count` calls at once, each with one attempt, and returns their outcomes.
async fn at_once(agents: &Arc<Agents>, count: usize) -> Vec<CallOutcome> {
    let calls = (0..count).map(|number| {
        let agents = agents.clone();
        tokio::spawn(async move { once(&agents, numbered(number)).await })
    });
    let ended = futures::future::join_all(calls).await;
    ended.into_iter().map(|ended| ended.unwrap()).collect()
}

async fn once(agents: &Agents, call: Call) -> CallOutcome {
    let deadline = Instant::now() + AMPLE;
    let made = agents.call(&call, call.body.clone(), deadline, &Granted);
    made.await.unwrap().outcome
}

async fn transient(agents: &Agents) -> Fault {
    match once(agents, a_call()).await {
        CallOutcome::Transient { fault, .. } => fault,
        other => panic!("{other:?}"),
    }
}

fn succeeded(outcomes: &[CallOutcome]) -> usize {
    let is_success = |outcome: &&CallOutcome| matches!(outcome, CallOutcome::Success(_));
    outcomes.iter().filter(is_success).count()
}

#[tokio::test]
async fn many_calls_are_in_flight_over_one_connection() {
    let all_there = Arc::new(Barrier::new(64));
    let service = Service::with(server::Builder::new(), move |request, send, ledger| {
        let all_there = all_there.clone();
        async move {
            assert_eq!(request.method(), "POST");
            assert_eq!(request.uri().path(), "/charges");
            assert_eq!(request.uri().scheme_str(), Some("http"));
            assert!(request.uri().authority().is_some());
            assert!(!request.headers().contains_key("host"));
            assert_eq!(request.headers()["content-length"], "12");
            let (parts, mut body) = request.into_parts();
            assert_eq!(body.data().await.unwrap().unwrap(), r#"{"amount":5}"#);
            all_there.wait().await;
            done(Request::from_parts(parts, body), send, ledger).await;
        }
    })
    .await;
    let agents = agents_of(http2(&service.url));
    assert_eq!(succeeded(&at_once(&agents, 64).await), 64);
    assert_eq!(service.ledger.connections(), 1);
    assert_eq!(service.ledger.once_each(), 64);
}

#[tokio::test]
async fn calls_beyond_the_streams_that_the_service_allows_have_further_connections() {
    let all_there = Arc::new(Barrier::new(5));
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(2);
    let service = Service::with(builder, move |request, send, ledger| {
        let all_there = all_there.clone();
        async move {
            all_there.wait().await;
            done(request, send, ledger).await;
        }
    })
    .await;
    let agents = agents_of(http2(&service.url));
    assert_eq!(succeeded(&at_once(&agents, 5).await), 5);
    assert_eq!(service.ledger.connections(), 3);
    assert_eq!(service.ledger.once_each(), 5);
}

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

async fn frame(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(id.to_be_bytes());
    bytes.extend(payload);
    let _ = stream.write_all(&bytes).await;
}

/// Responds to pings until `count` streams have ended. Returns the ids of the streams.
async fn requests(stream: &mut TcpStream, count: usize) -> Vec<u32> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    frame(stream, SETTINGS, 0, 0, &[]).await;
    let mut ended = Vec::new();
    while ended.len() < count {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes(head[5..9].try_into().unwrap());
        if kind == PING && flags == 0 {
            frame(stream, PING, 1, 0, &payload).await;
        }
        if kind <= 1 && flags & 1 == 1 {
            ended.push(id);
        }
    }
    ended
}

#[tokio::test]
async fn what_a_goaway_leaves_out_is_sent_again_and_nothing_is_done_twice() {
    let service = Service::raw(|number, mut stream, ledger| async move {
        if number > 1 {
            return serve(stream, server::Builder::new(), done, ledger).await;
        }
        let ids = requests(&mut stream, 8).await;
        // The GOAWAY frame says that the first three streams were processed.
        let last = ids[2];
        let mut payload = last.to_be_bytes().to_vec();
        payload.extend(0_u32.to_be_bytes());
        frame(&mut stream, GOAWAY, 0, 0, &payload).await;
        for id in ids.iter().filter(|id| **id <= last) {
            // 0x88 is `:status: 200` in the static table.
            frame(&mut stream, 1, 4, *id, &[0x88]).await;
            frame(&mut stream, 0, 1, *id, b"\"done\"").await;
        }
        servers::hang(stream).await;
    })
    .await;
    let agents = agents_of(http2(&service.url));
    assert_eq!(succeeded(&at_once(&agents, 8).await), 8);
    assert_eq!(service.ledger.connections(), 2);
    assert_eq!(service.ledger.once_each(), 5, "the others were done before");
}

#[tokio::test]
async fn a_stream_that_the_service_refuses_leaves_no_effect_and_one_that_it_resets_may() {
    for (reason, effect) in [
        (Reason::REFUSED_STREAM, Effect::Known),
        (Reason::HTTP_1_1_REQUIRED, Effect::Known),
        (Reason::INTERNAL_ERROR, Effect::Unknown),
        (Reason::CANCEL, Effect::Unknown),
        (Reason::NO_ERROR, Effect::Unknown),
    ] {
        let service = Service::with(server::Builder::new(), move |_, mut send, _| async move {
            send.send_reset(reason);
        })
        .await;
        let agents = agents_of(http2(&service.url));
        for _ in 0..2 {
            let fault = transient(&agents).await;
            assert_eq!(fault.effect, effect, "{reason:?}: {}", fault.message);
            if reason == Reason::HTTP_1_1_REQUIRED {
                let remedy = "remove `http_version` from the agent";
                assert!(fault.message.contains(remedy), "{}", fault.message);
            }
        }
        assert_eq!(service.ledger.connections(), 1, "{reason:?}");
    }
}

#[tokio::test]
async fn calls_whose_connection_breaks_have_an_unknown_effect_and_the_next_has_another() {
    let service = Service::raw(|number, mut stream, ledger| async move {
        if number > 1 {
            return serve(stream, server::Builder::new(), done, ledger).await;
        }
        requests(&mut stream, 8).await;
    })
    .await;
    let agents = agents_of(http2(&service.url));
    let broken = at_once(&agents, 8).await;
    for outcome in &broken {
        let CallOutcome::Transient { fault, .. } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(fault.effect, Effect::Unknown, "{}", fault.message);
    }
    assert_eq!(succeeded(&at_once(&agents, 8).await), 8);
    assert_eq!(service.ledger.connections(), 2);
}

#[tokio::test]
async fn complete_by_ends_the_stream_and_not_its_connection() {
    let service = Service::with(
        server::Builder::new(),
        |request, mut send, ledger| async move {
            if request.headers()["idempotency-key"] == "slow" {
                let reset = poll_fn(|cx| send.poll_reset(cx)).await;
                ledger.resets.lock().push(reset.unwrap());
            } else {
                done(request, send, ledger).await;
            }
        },
    )
    .await;
    let agents = agents_of(http2(&service.url));
    let slow = Call {
        idempotency_key: "slow".to_owned(),
        ..a_call()
    };
    assert!(run(&agents, slow, SHORT).await.outcome.is_none());
    let reset = async {
        while service.ledger.resets.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(AMPLE, reset).await.unwrap();
    assert_eq!(*service.ledger.resets.lock(), [Reason::CANCEL]);
    assert_eq!(succeeded(&at_once(&agents, 3).await), 3);
    assert_eq!(service.ledger.connections(), 1);
}

#[tokio::test]
async fn a_service_that_speaks_http_1_only_is_named_with_the_remedy() {
    let service = Service::raw(|_, mut stream, _| async move {
        let _ = stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            .await;
        servers::finish(stream).await;
    })
    .await;
    let agents = agents_of(http2(&service.url));
    let fault = transient(&agents).await;
    assert_eq!(fault.effect, Effect::Known);
    let message = "does not speak HTTP/2 at this address";
    assert!(fault.message.contains(message), "{}", fault.message);
    assert!(fault.message.contains("remove `http_version`"));
}

/// Starts a service with TLS that offers these protocols. Returns it and its certificate.
async fn with_tls(protocols: &[&str]) -> (Service, String) {
    let made = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
    crate::agent::install_crypto();
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut service = Service::raw(move |_, stream, ledger| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            serve(stream, server::Builder::new(), done, ledger).await;
        }
    })
    .await;
    service.url = service.url.replace("http://", "https://");
    (service, made.cert.pem())
}

#[tokio::test]
async fn over_tls_http_2_is_chosen_by_alpn_or_nothing_is_sent() {
    for (protocols, chosen) in [
        (&["h2", "http/1.1"][..], None),
        (&["http/1.1"], Some("ALPN chose http/1.1")),
        (&[], Some("ALPN chose nothing")),
    ] {
        let (service, certificate) = with_tls(protocols).await;
        let agents = agents_of(AgentSpec {
            tls: Some(AgentTlsSpec {
                ca: Some(TextOrSecret::Text(certificate)),
                ..AgentTlsSpec::default()
            }),
            ..http2(&service.url)
        });
        let Some(chosen) = chosen else {
            assert_eq!(succeeded(&at_once(&agents, 20).await), 20);
            assert_eq!(service.ledger.connections(), 1);
            continue;
        };
        let fault = transient(&agents).await;
        assert_eq!(fault.effect, Effect::Known);
        assert!(fault.message.contains(chosen), "{}", fault.message);
        assert!(fault.message.contains("remove `http_version`"));
        assert_eq!(service.ledger.once_each(), 0);
    }
}

#[tokio::test]
async fn a_connection_whose_service_responds_to_no_ping_is_given_up() {
    let service = Service::raw(|number, mut stream, ledger| async move {
        if number > 1 {
            return serve(stream, server::Builder::new(), done, ledger).await;
        }
        requests(&mut stream, 1).await;
        // The service is suspended, or its network is cut.
        std::future::pending::<()>().await;
    })
    .await;
    let agents = agents_of(http2(&service.url));
    let fault = transient(&agents).await;
    assert_eq!(fault.effect, Effect::Unknown);
    assert!(
        fault.message.contains("to a ping within"),
        "{}",
        fault.message
    );
    assert_eq!(succeeded(&at_once(&agents, 3).await), 3);
    assert_eq!(service.ledger.connections(), 2);
}

#[tokio::test]
async fn interim_responses_headers_and_bodies_without_end_are_cut_off() {
    for what in ["interim", "headers", "body"] {
        let service = Service::with(server::Builder::new(), move |_, mut send, _| async move {
            let mut response = Response::new(());
            match what {
                "interim" => loop {
                    *response.status_mut() = ::http::StatusCode::EARLY_HINTS;
                    if send.send_informational(response.clone()).is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                },
                "headers" => {
                    let value = "x".repeat(8 << 10);
                    for number in 0..12 {
                        let name = ::http::HeaderName::try_from(format!("x-{number}")).unwrap();
                        response.headers_mut().insert(name, value.parse().unwrap());
                    }
                    let _ = send.send_response(response, true);
                }
                _ => {
                    let mut body = send.send_response(response, false).unwrap();
                    while let Some(Ok(room)) = {
                        body.reserve_capacity(1 << 16);
                        poll_fn(|cx| body.poll_capacity(cx)).await
                    } {
                        let data = Bytes::from(vec![b'x'; room]);
                        if body.send_data(data, false).is_err() {
                            return;
                        }
                    }
                }
            }
        })
        .await;
        let agents = agents_of(http2(&service.url));
        let made = tokio::time::timeout(AMPLE, once(&agents, a_call())).await;
        let message = match made.unwrap() {
            CallOutcome::Transient { fault, .. } | CallOutcome::Failed(fault) => fault.message,
            other => panic!("{what}: {other:?}"),
        };
        let expected = match what {
            "interim" => "interim responses",
            "headers" => "",
            _ => "limits.max_output",
        };
        assert!(message.contains(expected), "{what}: {message}");
    }
}

#[tokio::test]
async fn a_body_for_which_the_service_has_no_room_waits_until_complete_by() {
    let mut builder = server::Builder::new();
    builder.initial_window_size(0);
    let service = Service::with(builder, |request, send, ledger| async move {
        if request.method() == "GET" {
            return done(request, send, ledger).await;
        }
        // The request is neither read nor answered.
        let _kept = (request, send);
        std::future::pending::<()>().await;
    })
    .await;
    let agents = agents_of(http2(&service.url));
    assert!(run(&agents, a_call(), SHORT).await.outcome.is_none());
    let get = Call {
        method: Method::Get,
        body: None,
        ..numbered(1)
    };
    assert!(matches!(once(&agents, get).await, CallOutcome::Success(_)));
    assert_eq!(service.ledger.connections(), 1);
}

#[tokio::test]
async fn many_calls_that_cannot_connect_fail_together() {
    let agents = agents_of(http2(&servers::refusing().await));
    for outcome in at_once(&agents, 32).await {
        let CallOutcome::Transient { fault, .. } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(fault.effect, Effect::Known);
        assert!(
            fault.message.contains("could not connect"),
            "{}",
            fault.message
        );
    }
}

/// Each frame costs work, and none is a response. The error must name the flood; it must not claim that the service
/// speaks another protocol.
#[tokio::test]
async fn a_service_that_floods_a_connection_with_frames_that_carry_nothing_is_named_with_that() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    for (kind, payload) in [(8, &[0, 0, 0, 1][..]), (6, &[1; 8])] {
        let service = Service::raw(move |_, mut stream, _| async move {
            let length = u8::try_from(payload.len()).unwrap();
            let frame = [&[0, 0, length, kind, 0, 0, 0, 0, 0], payload].concat();
            // The connection may be closed by now.
            let _ = stream.write_all(&SETTINGS).await;
            let _ = stream.write_all(&frame.repeat(100_000)).await;
            servers::finish(stream).await;
        })
        .await;
        let agents = agents_of(http2(&service.url));
        let fault = transient(&agents).await;
        let message = "frames that carry nothing";
        assert!(fault.message.contains(message), "{}", fault.message);
        assert!(
            !fault.message.contains("does not speak"),
            "{}",
            fault.message
        );
    }
}

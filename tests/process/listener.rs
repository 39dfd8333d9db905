//! Clients that open connections and do nothing with them, or everything slowly: they neither prevent the service of
//! others, nor the stop.

use std::io;

use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::harness::{Act, Gate, PATIENCE, Provost, Remote, one_step, pipeline};

/// The bytes with which a client may begin without anything after them: nothing, one letter, part of the preface of
/// HTTP/2, part of a head.
const BEGINNINGS: [&str; 5] = [
    "",
    "G",
    "PRI * HTTP/2.0\r\n\r\nSM",
    "GET /livez HTTP/1.1\r\nhost: x",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

async fn begin(provost: &Provost, beginning: &str) -> TcpStream {
    let connected = timeout(PATIENCE, TcpStream::connect(provost.address())).await;
    let mut stream = connected.expect("nobody accepts").unwrap();
    // The connection may be closed already, to make room for others.
    let _ = stream.write_all(beginning.as_bytes()).await;
    stream
}

async fn crowd(provost: &Provost, count: usize) -> Vec<TcpStream> {
    let mut crowd = Vec::with_capacity(count);
    for beginning in BEGINNINGS.iter().cycle().take(count) {
        crowd.push(begin(provost, beginning).await);
    }
    crowd
}

/// Each of these frames costs work, and none is a request. A real client sends few of them.
#[tokio::test]
async fn a_flood_of_pings_ends_the_connection() {
    let provost = Provost::start().await;
    for (kind, payload) in [(6, &[1; 8][..]), (4, &[]), (8, &[0, 0, 0, 1])] {
        let mut stream = begin(&provost, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        stream.write_all(&settings).await.unwrap();
        let length = u8::try_from(payload.len()).unwrap();
        let frame = [&[0, 0, length, kind, 0, 0, 0, 0, 0], payload].concat();
        // The connection may have been closed already.
        let _ = stream.write_all(&frame.repeat(3000)).await;
        rest(&mut stream).await;
    }
    assert_eq!(provost.get("/livez").await.status, 200);
}

/// Sends requests whose bodies begin and do not continue.
async fn stalled(provost: &Provost, count: usize) -> Vec<TcpStream> {
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 1000\r\n\r\n{";
    let mut stalled = Vec::with_capacity(count);
    for _ in 0..count {
        stalled.push(begin(provost, head).await);
    }
    stalled
}

/// Returns everything that is received until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    // A connection that is reset has ended as well.
    let _ = read.expect("the connection stays open");
    String::from_utf8_lossy(&rest).into_owned()
}

/// Sends a request on a connection of its own, and keeps the connection open.
async fn ask(provost: &Provost, path: &str) -> (String, TcpStream) {
    let mut stream = begin(
        provost,
        &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    )
    .await;
    let mut answer = vec![0; 1024];
    let read = timeout(PATIENCE, stream.read(&mut answer)).await;
    let length = read.expect("no answer").unwrap();
    (
        String::from_utf8_lossy(&answer[..length]).into_owned(),
        stream,
    )
}

#[tokio::test]
async fn a_crowd_that_asks_nothing_keeps_nobody_out_and_delays_no_end() {
    let remote = Remote::quick().await;
    // The limit of files is lower than the number of connections that come in, and than the setting allows.
    let setup = Provost::setup().open_files(256);
    let mut provost = setup.start().await;
    let crowd = crowd(&provost, 3000).await;
    assert_eq!(provost.get("/livez").await.status, 200);
    let task = provost.run(&one_step(&remote.url(), "/work")).await;
    assert_eq!(task["state"], "processed");
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    assert!(!provost.log().contains("did not end in time"));
    assert!(
        !provost.log().contains("cannot accept"),
        "the reserve is used up"
    );
    drop(crowd);
}

#[tokio::test]
async fn a_newcomer_has_time_to_ask_when_everybody_else_stalls() {
    let setup = Provost::setup().open_files(256);
    let mut provost = setup.start().await;
    // There are more of them than the limit of connections, so that only these remain.
    let stalled = stalled(&provost, 400).await;
    let mut newcomer = begin(&provost, "").await;
    let silent = crowd(&provost, 50).await;
    let request = b"GET /livez HTTP/1.1
host: localhost
connection: close

";
    newcomer.write_all(request).await.unwrap();
    let answer = rest(&mut newcomer).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    drop((stalled, silent));
}

#[tokio::test]
async fn a_head_that_does_not_come_in_time_ends_its_connection() {
    let setup = Provost::setup().set("LISTENER__HEAD_TIMEOUT", "300ms");
    let provost = setup.start().await;
    for beginning in BEGINNINGS {
        let mut stream = begin(&provost, beginning).await;
        // A connection of HTTP/2 may get the settings of the server.
        rest(&mut stream).await;
    }
    // The same limit applies to a further request on a connection that has had one.
    let (answer, mut stream) = ask(&provost, "/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    stream.write_all(b"GET /livez HT").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn a_connection_that_is_kept_alive_for_nothing_is_closed() {
    let setup = Provost::setup().set("LISTENER__IDLE_TIMEOUT", "300ms");
    let provost = setup.start().await;
    let (answer, mut stream) = ask(&provost, "/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn a_body_that_stops_coming_is_answered_408() {
    let setup = Provost::setup().set("LISTENER__STALL_TIMEOUT", "300ms");
    let provost = setup.start().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 1000\r\n\r\n{";
    let mut stream = begin(&provost, head).await;
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("/problems/request-timeout"), "{answer}");
}

#[tokio::test]
async fn a_body_that_drips_is_answered_408() {
    let setup = Provost::setup().set("LISTENER__BODY_TIMEOUT", "500ms");
    let provost = setup.start().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 1000000\r\n\r\n{";
    let mut stream = begin(&provost, head).await;
    let (mut reading, mut writing) = stream.split();
    let drip = async {
        while writing.write_all(b" ").await.is_ok() {
            sleep(std::time::Duration::from_millis(10)).await;
        }
        std::future::pending().await
    };
    let mut answer = vec![0; 1024];
    let length = tokio::select! {
        read = timeout(PATIENCE, reading.read(&mut answer)) => read.expect("no answer").unwrap(),
        () = drip => unreachable!(),
    };
    let answer = String::from_utf8_lossy(&answer[..length]);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

/// The length is much more than fits into the buffers of a connection.
const LARGE: usize = 20 << 20;

/// Sends `head` and a body of `length` bytes. Returns the response, and whether another request on the same connection
/// gets one.
async fn posts(provost: &Provost, head: &str, length: usize) -> (String, bool) {
    let head = format!(
        "{head}\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut stream = begin(provost, &head).await;
    stream.write_all(&vec![b' '; length]).await.unwrap();
    let again = "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let _ = stream.write_all(again.as_bytes()).await;
    let answers = rest(&mut stream).await;
    (answers.clone(), answers.matches("HTTP/1.1 ").count() == 2)
}

#[tokio::test]
async fn who_sends_a_body_that_is_not_read_sees_the_answer_and_knows_of_the_connection() {
    let provost = Provost::start().await;
    for (head, length, status, goes_on) in [
        ("POST /v1/tasks HTTP/1.1", 3_000_000, 413, false),
        ("POST /v1/tasks HTTP/1.1", LARGE, 413, false),
        ("POST /v1/nothing HTTP/1.1", 3_000_000, 404, false),
        ("POST /v1/nothing HTTP/1.1", 1000, 404, true),
        ("GET /livez HTTP/1.1", 1000, 200, true),
    ] {
        let (answers, went_on) = posts(&provost, head, length).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answers.starts_with(&expected), "{head}: {answers}");
        assert_eq!(went_on, goes_on, "{head}: {answers}");
        let first = answers.split("\r\n\r\n").next().unwrap();
        let says = first.contains("connection: close");
        assert_eq!(says, !goes_on, "{head}: {answers}");
    }
}

/// Sends a large body in chunks, and reads the response once all of it is sent, as many clients do.
pub async fn posts_chunks(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [&b"100000\r\n"[..], &[b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..LARGE / (1 << 20) {
        stream.write_all(&chunk).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    // Over TLS the connection may end without a close message.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("no end");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn who_sends_far_too_much_in_chunks_sees_the_answer() {
    let provost = Provost::start().await;
    let answer = posts_chunks(begin(&provost, "").await).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("body-too-large"), "{answer}");
}

#[tokio::test]
async fn a_body_that_waits_to_be_asked_for_and_is_too_large_is_not_asked_for() {
    let provost = Provost::start().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                expect: 100-continue\r\ncontent-length: 3000000\r\n\r\n";
    let mut stream = begin(&provost, head).await;
    let mut answer = vec![0; 4096];
    let read = timeout(PATIENCE, stream.read(&mut answer)).await;
    let length = read.expect("no answer").unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

/// Sends requests without end and reads nothing. Returns when the server has closed the connection.
async fn gorge(stream: &mut TcpStream) -> io::Error {
    let request = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(20);
    loop {
        if let Err(error) = stream.write_all(request.as_bytes()).await {
            return error;
        }
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_cut_off() {
    let setup = Provost::setup().set("LISTENER__STALL_TIMEOUT", "300ms");
    let provost = setup.start().await;
    let mut stream = begin(&provost, "").await;
    timeout(PATIENCE, gorge(&mut stream))
        .await
        .expect("it may go on without reading");
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the begin of a connection of HTTP/2 whose client has a window of zero, and requests a page.
fn asks_without_room() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    // GET, http, and the path and the authority as literals.
    let mut head = vec![0x82, 0x86, 0x04, 13];
    head.extend(b"/openapi.json");
    head.extend([0x01, 9]);
    head.extend(b"localhost");
    bytes.extend(frame(1, 5, 1, &head));
    bytes
}

#[tokio::test]
async fn a_client_that_makes_no_room_on_http2_is_cut_off() {
    let setup = Provost::setup().set("LISTENER__STALL_TIMEOUT", "300ms");
    let provost = setup.start().await;
    let mut stream = begin(&provost, "").await;
    stream.write_all(&asks_without_room()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(!answer.contains("openapi"), "nobody made room for it");
}

#[tokio::test]
async fn a_flood_of_requests_that_are_taken_back_ends_its_connection_and_no_other() {
    let provost = Provost::start().await;
    let mut stream = begin(&provost, "").await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    for stream in (1..40_000).step_by(2) {
        bytes.extend(frame(1, 5, stream, &[0x82, 0x86, 0x84, 0x01, 1, b'x']));
        bytes.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
    }
    let (mut reading, mut writing) = stream.split();
    let _ = tokio::join!(writing.write_all(&bytes), async {
        let mut read = [0; 4096];
        while matches!(timeout(PATIENCE, reading.read(&mut read)).await.expect("it goes on"), Ok(length) if length > 0)
        {
        }
    });
    assert_eq!(provost.get("/livez").await.status, 200);
}

#[tokio::test]
async fn who_waits_or_follows_is_not_idle() {
    let gate = Gate::closed();
    let remote = Remote::script([gate.then(json!("done"))]).await;
    let short = "300ms";
    let provost = Provost::setup()
        .set("LISTENER__HEAD_TIMEOUT", short)
        .set("LISTENER__BODY_TIMEOUT", short)
        .set("LISTENER__STALL_TIMEOUT", short)
        .set("LISTENER__IDLE_TIMEOUT", short)
        .start()
        .await;
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    let mut events = provost.events(&id).await;
    // Several times the longest wait for a client passes.
    let task = provost
        .get(&format!("/v1/tasks/{id}?wait=2s"))
        .await
        .expect(200);
    assert_eq!(task["state"], "processing");
    gate.open();
    events.until("task.processed").await;
    events.rest().await;
}

#[tokio::test]
async fn when_there_is_no_room_those_that_do_nothing_make_way_and_exchanges_do_not() {
    let remote = Remote::script([Act::Hang]).await;
    let setup = Provost::setup()
        .set("LISTENER__MAX_CONNECTIONS", "20")
        .set("SHUTDOWN_GRACE", "100ms");
    let mut provost = setup.start().await;
    let id = provost.submit(&pipeline(&remote.url(), &["a"])).await;
    let wait = format!("GET /v1/tasks/{id}?wait=60s HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut waiting = Vec::new();
    for _ in 0..10 {
        waiting.push(begin(&provost, &wait).await);
    }
    // Some connections are idle and some have bodies that do not come: each new connection is still served.
    let mut kept = Vec::new();
    for _ in 0..50 {
        let (answer, stream) = ask(&provost, "/livez").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        kept.push(stream);
        let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                    content-length: 1000\r\n\r\n{";
        kept.push(begin(&provost, head).await);
    }
    drop(crowd(&provost, 100).await);
    provost.terminate();
    for stream in &mut waiting {
        let answer = rest(stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "cut off: {answer:?}");
    }
    assert_eq!(provost.ended().await.code(), Some(0));
}

#[tokio::test]
async fn however_many_wait_others_are_served() {
    let remote = Remote::with(|_| Act::Hang).await;
    let setup = Provost::setup().set("LISTENER__MAX_CONNECTIONS", "8");
    let provost = setup.start().await;
    let id = provost.submit(&one_step(&remote.url(), "/work")).await;
    let path = format!("/v1/tasks/{id}");
    let mut following = Vec::new();
    for _ in 0..6 {
        let (answer, stream) = ask(&provost, &format!("{path}/events")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        following.push(stream);
    }
    let (refused, _) = ask(&provost, &format!("{path}/events")).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("/problems/too-many-waiting"), "{refused}");
    let (livez, _) = ask(&provost, "/livez").await;
    assert!(livez.starts_with("HTTP/1.1 200 "), "{livez}");
    // A preference that cannot be met is no error.
    for answer in [
        ask(&provost, &format!("{path}?wait=60s")).await.0,
        ask(&provost, &path).await.0,
    ] {
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("\"processing\""), "{answer}");
    }
    // Clients that have disconnected free their slots.
    drop(following);
    let again = async {
        loop {
            let (answer, _) = ask(&provost, &format!("{path}/events")).await;
            if answer.starts_with("HTTP/1.1 200 ") {
                break;
            }
        }
    };
    timeout(PATIENCE, again).await.expect("no place is free");
}

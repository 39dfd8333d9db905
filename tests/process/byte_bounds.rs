//! The bytes that callers and services can make the service hold in memory are bounded: unread responses, request
//! bodies, the data of one task, and the messages about it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
};

use crate::harness::{
    Act, Database, Gate, PATIENCE, Provost, Remote, alerts, pipeline, setups, step, until,
};

const MIB: usize = 1 << 20;

/// A connection on which a request was sent, and only the first line of the response was read.
struct Reader {
    line: String,
    _stream: BufReader<TcpStream>,
}

impl Reader {
    /// Connects with the smallest receive buffer that the system allows.
    async fn connect(provost: &Provost) -> TcpStream {
        let address = provost.address().trim_start_matches("http://");
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(address.parse().unwrap()).await.unwrap()
    }

    async fn begin(provost: &Provost, request: &[u8]) -> Self {
        let mut stream = Self::connect(provost).await;
        stream.write_all(request).await.unwrap();
        Self::first_line(stream).await
    }

    async fn first_line(stream: TcpStream) -> Self {
        let mut stream = BufReader::with_capacity(64, stream);
        let mut line = String::new();
        let read = stream.read_line(&mut line);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        Self {
            line,
            _stream: stream,
        }
    }
}

#[tokio::test]
async fn readers_of_a_large_task_who_do_not_read_on_hold_no_more_than_the_budget() {
    let remote = Remote::script([Act::Hang]).await;
    let setup = Provost::setup()
        .set("LIMITS__MAX_REQUEST", "16MiB")
        .set("STORE__CACHE_BYTES", "1MiB")
        .set("LISTENER__MAX_RESPONSE_BYTES", "40MiB");
    let provost = setup.start().await;
    let mut submission = pipeline(&remote.url(), &["only"]);
    submission["input"] = json!("x".repeat(12 * MIB));
    submission["steps"][0]["request"] = json!({ "body": {} });
    let id = provost.submit(&submission).await;
    let small = provost.submit(&pipeline(&remote.url(), &["only"])).await;
    let before = provost.peak_memory();
    let request = format!("GET /v1/tasks/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut readers = Vec::new();
    for _ in 0..40 {
        readers.push(Reader::begin(&provost, request.as_bytes()).await);
    }
    let count = |status: &str| {
        let found = readers.iter();
        found.filter(|reader| reader.line.contains(status)).count()
    };
    assert_eq!([count(" 200 "), count(" 503 ")], [3, 37]);
    if let (Some(before), Some(peak)) = (before, provost.peak_memory()) {
        let grown = (peak - before) as usize;
        println!("40 readers of 12 MiB took {} MiB", grown / MIB);
        assert!(grown < 200 * MIB, "40 readers of 12 MiB took {grown} bytes");
    }
    // Small responses are sent, and a large one is refused with a problem that says why.
    provost.get(&format!("/v1/tasks/{small}")).await.expect(200);
    let refused = provost.get(&format!("/v1/tasks/{id}")).await;
    assert!(refused.header("retry-after").is_some());
    let problem = refused.expect_problem(503, "busy");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("listener.max_response_bytes"), "{detail}");
    // A command is carried out, and its response says what it leaves out.
    let paused = provost.command(&format!("/v1/tasks/{id}/pause")).await;
    assert!(paused.header("provost-left-out").is_some(), "{paused:?}");
    let paused = paused.expect(200);
    assert_eq!(paused["id"], id);
    assert_eq!(paused["input"], Value::Null);
    drop(readers);
    let read = async {
        while provost.get(&format!("/v1/tasks/{id}")).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let read = tokio::time::timeout(PATIENCE, read).await;
    read.expect("the room is given back");
}

#[tokio::test]
async fn request_bodies_that_arrive_slowly_hold_no_more_than_the_budget() {
    let setup = Provost::setup().set("LISTENER__MAX_REQUEST_BYTES", "1MiB");
    let provost = setup.start().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n";
    let mut part = head.as_bytes().to_vec();
    part.extend(std::iter::repeat_n(b' ', 700_000));
    let mut one = Reader::connect(&provost).await;
    let mut other = Reader::connect(&provost).await;
    one.write_all(&part).await.unwrap();
    other.write_all(&part).await.unwrap();
    // The second one is refused: the first one still waits for the rest of its body.
    let (one, other) = (Reader::first_line(one), Reader::first_line(other));
    let refused = tokio::select! {
        refused = one => refused,
        refused = other => refused,
    };
    assert!(refused.line.contains(" 503 "), "{}", refused.line);
}

#[tokio::test]
async fn a_task_that_keeps_too_much_fails_the_step_whose_reply_finds_no_room() {
    let remote = Remote::script([Act::Ok(json!("x".repeat(200_000)))]).await;
    let setup = Provost::setup().set("LIMITS__MAX_TASK_OUTPUTS", "1MiB");
    let provost = setup.start().await;
    let task = pipeline(&remote.url(), &["a", "b", "c", "d", "e", "f", "g"]);
    let task = provost.run(&task).await;
    assert_eq!(task["state"], "error");
    assert_eq!(step(&task, "e")["state"], "processed");
    let error = &step(&task, "f")["error"];
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("limits.max_task_outputs"), "{message}");
    let id = task["id"].as_str().unwrap();
    let resolve = json!({ "output": "y".repeat(200_000), "reason": "by the test" });
    let path = format!("/v1/tasks/{id}/steps/f/resolve");
    let refused = provost.post(&path, &resolve).await;
    refused.expect_problem(409, "task-full");
    let resolve = json!({ "output": "y", "reason": "by the test" });
    provost.post(&path, &resolve).await.expect(200);
}

#[tokio::test]
async fn the_messages_of_a_task_grow_with_its_steps_and_not_with_their_square() {
    let remote = Remote::script([Act::Ok(json!("x".repeat(100_000)))]).await;
    let receiver = Remote::script([Act::status(500)]).await;
    let provost = Provost::start().await;
    let names: Vec<_> = (0..20).map(|number| format!("s{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut task = pipeline(&remote.url(), &names);
    task["reply_to"] = json!({ "url": receiver.url(), "events": ["step.processed"] });
    let task = provost.run(&task).await;
    assert_eq!(task["state"], "processed");
    let database = Database::open(&provost.database());
    let waiting = database.number("SELECT coalesce(sum(length(body)), 0) FROM messages");
    assert!((19 * 100_000..20 * 110_000).contains(&waiting), "{waiting}");
}

#[tokio::test]
async fn a_receiver_for_which_too_many_bytes_wait_has_an_alert_and_gets_messages_without_payloads()
{
    for setup in setups().await {
        let remote = Remote::script([Act::Ok(json!("x".repeat(200_000)))]).await;
        let gate = Gate::closed();
        let receiver = Remote::script([gate.then(json!("ok"))]).await;
        let setup = setup
            .set("COURIER__POLL", "20ms")
            .set("COURIER__MAX_WAITING_BYTES", "1MiB");
        let provost = setup.start().await;
        let mut submission = pipeline(&remote.url(), &["a", "b", "c", "d", "e", "f"]);
        submission["reply_to"] =
            json!({ "url": receiver.url(), "events": ["step.processed", "task.processed"] });
        let whole = provost.run(&submission).await;
        let open = async || {
            let alerts = alerts(&provost, "open").await;
            let kinds = alerts.iter().map(|alert| &alert["kind"]);
            kinds.filter(|kind| **kind == "messages.waiting").count()
        };
        until(1, open).await;
        let short = provost.run(&submission).await;
        gate.open();
        let seen = receiver.requests(14).await;
        for seen in seen {
            let (data, task) = (&seen.body["data"], &seen.body["data"]["task"]);
            let is_short = data["left_out"].is_array();
            assert_eq!(is_short, task["id"] == short["id"], "{data}");
            assert_eq!(is_short, seen.raw.len() < 10_000);
            assert!([&whole["id"], &short["id"]].contains(&&task["id"]));
        }
        until(0, open).await;
    }
}

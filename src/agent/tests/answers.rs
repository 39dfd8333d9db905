//! The requests that are sent, and the results of complete responses.

use std::sync::Arc;

use tokio::{io::AsyncWriteExt, sync::Notify};

use super::{
    servers::{Server, response},
    *,
};
use crate::domain::{
    task::{ReplyAddresses, ReplyKey},
    values::{BODY_EXCERPT, Effect},
};

#[tokio::test]
async fn a_call_carries_what_a_remote_service_needs() {
    let mut server = Server::answering(response("200 OK", "", r#"{"id": 7}"#)).await;
    let mut call = a_call();
    call.headers = vec![
        ("accept".to_owned(), "text/plain".to_owned()),
        ("x-tenant".to_owned(), "acme".to_owned()),
    ];
    let ended = run(&agents_at(&format!("{}/v2/", server.url)), call, AMPLE).await;
    assert_eq!(ended.output(), r#"{"id": 7}"#);

    let seen = server.next().await;
    assert_eq!(seen.line(), "POST /v2/charges HTTP/1.1");
    assert_eq!(seen.body, r#"{"amount":5}"#);
    for (name, value) in [
        ("idempotency-key", "0197-charge"),
        ("provost-task", "00000000-0000-0000-0000-000000000007"),
        ("provost-task-key", "order-1001"),
        ("provost-step", "charge"),
        ("provost-attempt", "2"),
        ("provost-complete-by", "2023-11-14T22:13:20.000Z"),
        ("traceparent", &a_call().trace.parent()),
        ("tracestate", "rojo=00f067aa0ba902b7"),
        ("content-type", "application/json"),
        ("accept", "text/plain"),
        ("user-agent", concat!("provost/", env!("CARGO_PKG_VERSION"))),
        ("x-tenant", "acme"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn a_call_without_body_and_key_sends_neither() {
    let mut server = Server::answering(response("204 No Content", "", "")).await;
    let mut call = a_call();
    call.method = Method::Get;
    call.path = "/charges?hold=1&to=a%20b".to_owned();
    call.body = None;
    call.task_key = None;
    assert_eq!(
        run(&agents_at(&server.url), call, AMPLE).await.output(),
        "null"
    );
    let seen = server.next().await;
    assert_eq!(seen.line(), "GET /charges?hold=1&to=a%20b HTTP/1.1");
    assert_eq!(seen.header("content-type"), None);
    assert_eq!(seen.header("provost-task-key"), None);
    assert_eq!(seen.header("accept"), Some("application/json"));
}

#[tokio::test]
async fn a_key_that_no_header_can_hold_is_percent_encoded() {
    let mut server = Server::answering(response("200 OK", "", "")).await;
    for (key, sent) in [
        ("bestellung grün", "bestellung%20gr%C3%BCn"),
        ("a b", "a b"),
        (" a", "%20a"),
    ] {
        let mut call = a_call();
        call.task_key = Some(key.into());
        run(&agents_at(&server.url), call, AMPLE).await.output();
        assert_eq!(server.next().await.header("provost-task-key"), Some(sent));
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_permanent_and_never_sent() {
    let mut server = Server::answering(response("200 OK", "", "")).await;
    let agents = agents_at(&format!("{}/base", server.url));
    let header = |name: &str, value: &str| Call {
        headers: vec![(name.to_owned(), value.to_owned())],
        ..a_call()
    };
    let path = |path: &str| Call {
        path: path.to_owned(),
        ..a_call()
    };
    for (call, says) in [
        (header("x y", "1"), "not a valid header name"),
        (
            header("x-secret", "hush\r\nx: y"),
            "characters that are not allowed in a header",
        ),
        (header("content-length", "3"), "cannot be set by a step"),
        (header("provost-attempt", "9"), "cannot be set by a step"),
        (path("@elsewhere/"), "does not start with /"),
        (path("/../admin"), "a path has no `.` or `..`"),
        (path("/%2e%2e/admin"), "a path has no `.` or `..`"),
        (path("/../based"), "a path has no `.` or `..`"),
    ] {
        let fault = run(&agents, call, AMPLE).await.fault();
        assert!(fault.message.contains(says), "{}", fault.message);
        assert!(!fault.message.contains("hush"), "{}", fault.message);
    }
    assert!(server.rest().is_empty());
}

#[tokio::test]
async fn a_step_may_say_what_its_body_is() {
    let mut server = Server::answering(response("200 OK", "", "1")).await;
    let mut call = a_call();
    let kind = "application/cloudevents+json";
    call.headers = vec![("content-type".to_owned(), kind.to_owned())];
    run(&agents_at(&server.url), call, AMPLE).await.output();
    let seen = server.next().await;
    assert_eq!(seen.header("content-type"), Some(kind));
}

#[tokio::test]
async fn text_is_an_output_and_broken_json_is_not() {
    let server =
        Server::answering(response("200 OK", "content-type: text/plain\r\n", "done")).await;
    assert_eq!(
        run(&agents_at(&server.url), a_call(), AMPLE).await.output(),
        r#""done""#
    );

    let json = "content-type: application/json\r\n";
    let server = Server::answering(response("200 OK", json, "<html>")).await;
    let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
    assert!(
        fault.message.contains("cannot be parsed"),
        "{}",
        fault.message
    );
    assert_eq!(
        (fault.status, fault.body.as_deref()),
        (Some(200), Some("<html>"))
    );
}

#[tokio::test]
async fn a_reply_that_would_come_later_needs_an_address() {
    let answer = response("202 Accepted", "provost-async: true\r\n", "");
    let server = Server::answering(answer).await;
    let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
    assert!(
        fault.message.contains("set public_url"),
        "{}",
        fault.message
    );
    assert_eq!(fault.effect, Effect::Unknown);
    let settings = settings();
    let key = ReplyKey::new(b"secret").unwrap();
    let address = ReplyAddresses::new("http://provost:8080", key);
    settings.replies.set(Arc::new(address)).unwrap();
    let agents = Agents::new(settings);
    agents.put(payments(), spec(&[&server.url]));
    let outcome = run(&agents, a_call(), AMPLE).await.outcome;
    assert_eq!(outcome, Some(CallOutcome::Deferred));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let mut elsewhere = Server::answering(response("200 OK", "", "")).await;
    let location = format!("location: {}/here\r\n", elsewhere.url);
    let mut server = Server::answering(response("302 Found", &location, "")).await;
    let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
    assert_eq!(fault.status, Some(302));
    assert!(
        fault.message.contains(&format!("{}/here", elsewhere.url)),
        "{}",
        fault.message
    );
    assert_eq!(server.rest().len(), 1);
    assert!(elsewhere.rest().is_empty());
}

#[tokio::test]
async fn a_refusal_is_permanent_and_keeps_the_start_of_its_body() {
    let body = "x".repeat(1 << 20);
    let mut server = Server::answering(response("400 Bad Request", "", &body)).await;
    let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
    assert!(ended.noted.is_empty());
    let fault = ended.fault();
    assert_eq!(fault.status, Some(400));
    assert_eq!(fault.body.unwrap(), "x".repeat(BODY_EXCERPT));
    assert_eq!(fault.message, "the service responded 400 Bad Request");
    // `at` is the time of the store, which the agent derives from complete-by: the call got AMPLE, and took a part of
    // it.
    let complete_by = a_call().complete_by;
    let left = complete_by.since(fault.at);
    assert!(fault.at < complete_by && left <= AMPLE, "{left:?}");
    assert_eq!(server.rest().len(), 1);
}

#[tokio::test]
async fn a_refusal_whose_body_never_comes_is_still_a_refusal() {
    let head = "HTTP/1.1 402 Payment Required\r\ncontent-length: 100\r\n\r\ndecl";
    let server = Server::start(move |_, mut stream| async move {
        stream.write_all(head.as_bytes()).await.unwrap();
        servers::hang(stream).await;
    })
    .await;
    let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
    assert_eq!(
        (fault.status, fault.body.as_deref()),
        (Some(402), Some("decl"))
    );
}

#[tokio::test]
async fn an_output_over_the_limit_is_refused_by_its_announced_length() {
    let flood = response("200 OK", "", &"x".repeat(10 << 20));
    let server = Server::answering(flood).await;
    let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
    assert!(
        fault.message.contains("262144 bytes") && fault.message.contains("`limits.max_output`")
    );
}

#[tokio::test]
async fn a_flood_is_cut_off_at_the_limit() {
    let cut_off = Arc::new(Notify::new());
    let tell = Arc::clone(&cut_off);
    let server = Server::start(move |_, mut stream| {
        let tell = Arc::clone(&tell);
        async move {
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head).await.unwrap();
            // The body is endless: it stops only when the agent closes the connection.
            let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
            while stream.write_all(chunk.as_bytes()).await.is_ok() {}
            tell.notify_one();
        }
    })
    .await;
    let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
    assert!(
        fault.message.contains("`limits.max_output`"),
        "{}",
        fault.message
    );
    cut_off.notified().await;
}

#[tokio::test]
async fn an_output_of_just_the_limit_is_kept() {
    let body = format!("\"{}\"", "x".repeat(62));
    let server = Server::answering(response("200 OK", "", &body)).await;
    for (max_output, fits) in [(64, true), (63, false)] {
        let agents = Agents::new(AgentSettings {
            max_output,
            ..settings()
        });
        agents.put(payments(), spec(&[&server.url]));
        let outcome = run(&agents, a_call(), AMPLE).await.outcome;
        assert_eq!(
            matches!(outcome, Some(CallOutcome::Success(_))),
            fits,
            "{outcome:?}"
        );
    }
}

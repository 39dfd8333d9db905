//! Calls of undo steps, probes, and calls that leave their effect unknown.

use tokio::io::AsyncWriteExt;

use super::{
    servers::{Server, finish, refusing, response},
    *,
};
use crate::domain::values::Effect;

fn undoes() -> Call {
    Call {
        step_name: StepName::new("charge.undo"),
        idempotency_key: "0197:charge.undo".to_owned(),
        method: Method::Delete,
        path: "/charges/ch_1".to_owned(),
        body: None,
        purpose: Purpose::Undo("0197:charge".to_owned()),
        ..a_call()
    }
}

fn probes() -> Call {
    Call {
        method: Method::Get,
        path: "/charges?order=1001".to_owned(),
        body: None,
        purpose: Purpose::Probe("0197:charge".to_owned()),
        ..a_call()
    }
}

/// Starts a server that closes the first connection after `half`, which may be empty, and responds to later requests.
async fn breaking(half: &'static [u8]) -> Server {
    Server::start(move |number, mut stream| async move {
        let answer = response("200 OK", "", "1");
        let bytes = if number == 1 { half } else { &answer };
        let _ = stream.write_all(bytes).await;
        finish(stream).await;
    })
    .await
}

const HALF: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"a\":";

#[tokio::test]
async fn an_undo_says_what_it_undoes_under_a_key_of_its_own() {
    let mut server = Server::answering(response("204 No Content", "", "")).await;
    run(&agents_at(&server.url), undoes(), AMPLE).await.output();
    let seen = server.next().await;
    assert_eq!(seen.line(), "DELETE /charges/ch_1 HTTP/1.1");
    for (name, value) in [
        ("idempotency-key", Some("0197:charge.undo")),
        ("provost-undoes", Some("0197:charge")),
        ("provost-step", Some("charge.undo")),
        ("provost-probes", None),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn a_probe_says_what_it_asks_about_and_has_no_key() {
    let mut server = Server::answering(response("200 OK", "", r#"{"id":7}"#)).await;
    let ended = run(&agents_at(&server.url), probes(), AMPLE).await;
    assert!(
        matches!(ended.outcome, Some(CallOutcome::Probed { status: 200, ref body }) if body.as_json() == r#"{"id":7}"#),
        "{:?}",
        ended.outcome
    );
    let seen = server.next().await;
    assert_eq!(seen.line(), "GET /charges?order=1001 HTTP/1.1");
    assert_eq!(seen.header("provost-probes"), Some("0197:charge"));
    assert_eq!(seen.header("provost-undoes"), None);
    assert_eq!(seen.header("idempotency-key"), None);
}

#[tokio::test]
async fn a_plain_call_neither_undoes_nor_probes() {
    let mut server = Server::answering(response("200 OK", "", "1")).await;
    run(&agents_at(&server.url), a_call(), AMPLE).await.output();
    let seen = server.next().await;
    assert_eq!(seen.header("provost-undoes"), None);
    assert_eq!(seen.header("provost-probes"), None);
}

#[tokio::test]
async fn to_a_probe_not_found_and_gone_are_answers() {
    for (status, number) in [("404 Not Found", 404), ("410 Gone", 410)] {
        let server = Server::answering(response(status, "", "")).await;
        let ended = run(&agents_at(&server.url), probes(), AMPLE).await;
        assert!(
            matches!(ended.outcome, Some(CallOutcome::Probed { status, .. }) if status == number),
            "{:?}",
            ended.outcome
        );
        // For any other call these statuses are refusals.
        let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
        assert_eq!(fault.status, Some(number));
    }
}

#[tokio::test]
async fn a_probe_can_be_refused_and_its_trouble_passes_like_any_other() {
    let server = Server::answering(response("401 Unauthorized", "", "")).await;
    let fault = run(&agents_at(&server.url), probes(), AMPLE).await.fault();
    assert_eq!(fault.status, Some(401));
    for half in [HALF, b""] {
        let mut server = breaking(half).await;
        let ended = run(&agents_at(&server.url), probes(), AMPLE).await;
        assert!(
            matches!(ended.outcome, Some(CallOutcome::Probed { .. })),
            "{:?}",
            ended.outcome
        );
        assert_eq!(server.rest().len(), 2);
    }
}

#[tokio::test]
async fn a_call_that_breaks_off_may_have_taken_effect() {
    for half in [HALF, b""] {
        let server = breaking(half).await;
        let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
        let (fault, _) = &ended.noted[0];
        assert_eq!(fault.effect, Effect::Unknown);
        assert!(fault.message.contains("broke off"), "{}", fault.message);
    }
}

#[tokio::test]
async fn a_call_that_never_left_did_nothing() {
    let agents = agents_at(&refusing().await);
    for (fault, _) in faults(&agents, 2).await {
        assert_eq!(
            fault.effect,
            Effect::Known,
            "nothing was sent: {}",
            fault.message
        );
    }
}

#[tokio::test]
async fn an_undo_that_breaks_off_is_repeated_under_its_key() {
    let mut server = breaking(b"").await;
    let ended = run(&agents_at(&server.url), undoes(), AMPLE).await;
    assert_eq!(ended.noted[0].0.effect, Effect::Unknown);
    ended.output();
    let keys: Vec<_> = server.rest();
    let keys: Vec<_> = keys.iter().map(|s| s.header("idempotency-key")).collect();
    assert_eq!(keys, [Some("0197:charge.undo"); 2]);
}

#[tokio::test]
async fn a_useless_answer_to_work_that_was_done_leaves_its_outcome_open() {
    let json = "content-type: application/json\r\n";
    let unknown = Effect::Unknown;
    for (answer, effect) in [
        (response("200 OK", json, "{"), unknown),
        (
            response("202 Accepted", "provost-async: true\r\n", ""),
            unknown,
        ),
        (
            response("303 See Other", "location: /charges/7\r\n", ""),
            unknown,
        ),
        (
            response("307 Temporary Redirect", "location: /v2\r\n", ""),
            Effect::Known,
        ),
        (response("402 Payment Required", "", ""), Effect::Known),
    ] {
        let server = Server::answering(answer).await;
        let fault = run(&agents_at(&server.url), a_call(), AMPLE).await.fault();
        assert_eq!(fault.effect, effect, "{}", fault.message);
    }
    let server = Server::answering(response("200 OK", json, "{")).await;
    let fault = run(&agents_at(&server.url), probes(), AMPLE).await.fault();
    assert_eq!(fault.effect, Effect::Known, "asking changes nothing");
}

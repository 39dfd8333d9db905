//! Services that hang, send slowly, break off and recover.

use std::sync::Arc;

use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc};

use super::{
    super::{notes::CallNotes, transport::CallAttempt},
    servers::{Server, finish, hang, refusing, response},
    *,
};

/// Starts a server that handles its first `bad` connections with `wrong`, and responds normally to the others.
async fn recovering<F, Fut>(bad: usize, wrong: F) -> Server
where
    F: Fn(TcpStream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let wrong = Arc::new(wrong);
    Server::start(move |number, mut stream| {
        let wrong = Arc::clone(&wrong);
        async move {
            if number <= bad {
                wrong(stream).await;
            } else {
                let _ = stream.write_all(&response("200 OK", "", "1")).await;
                finish(stream).await;
            }
        }
    })
    .await
}

/// Starts a server that never responds, and that reports when the client closes the connection.
async fn hanging() -> (Server, mpsc::UnboundedReceiver<()>) {
    let (tell, hung_up) = mpsc::unbounded_channel();
    let server = Server::start(move |_, stream| {
        let tell = tell.clone();
        async move {
            hang(stream).await;
            let _ = tell.send(());
        }
    })
    .await;
    (server, hung_up)
}

#[tokio::test]
async fn a_service_that_hangs_is_left_at_complete_by_and_nothing_is_reported() {
    let (server, mut hung_up) = hanging().await;
    let agents = agents_at(&server.url);
    let began = Instant::now();
    let ended = run(&agents, a_call(), SHORT).await;
    assert!(began.elapsed() >= SHORT);
    assert_eq!(ended.outcome, None);
    assert!(ended.noted.is_empty());
    // The request itself was dropped, so its connection is closed.
    assert_eq!(hung_up.recv().await, Some(()));
}

/// The attempt begins after complete-by, as when the process wakes up and both are due.
#[tokio::test]
async fn a_try_that_comes_after_complete_by_is_not_made() {
    let mut server = Server::answering(response("200 OK", "", "1")).await;
    let agent = agents_at(&server.url).get(&payments()).unwrap();
    let late = CallAttempt {
        call: &a_call(),
        deadline: Instant::now(),
        permission: &Granted,
        notes: &CallNotes::new(false),
    };
    let made = tokio::time::timeout(SHORT, agent.wire().call(late, None));
    assert!(made.await.is_err(), "it was made");
    assert!(server.rest().is_empty());
}

#[tokio::test]
async fn a_call_that_is_dropped_lets_go_of_the_service() {
    let (mut server, mut hung_up) = hanging().await;
    let agents = agents_at(&server.url);
    tokio::select! {
        ended = run(&agents, a_call(), AMPLE) => panic!("ended: {:?}", ended.outcome),
        _ = server.next() => {}
    }
    assert_eq!(hung_up.recv().await, Some(()));
}

#[tokio::test]
async fn a_service_that_drips_does_not_outlast_complete_by() {
    let server = Server::start(|_, mut stream| async move {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let ended = run(&agents_at(&server.url), a_call(), SHORT).await;
    assert_eq!(ended.outcome, None);
}

#[tokio::test]
async fn a_503_is_tried_again_under_the_same_key_until_the_service_recovers() {
    let mut server = recovering(2, |mut stream| async move {
        let answer = response("503 Service Unavailable", "", "busy");
        let _ = stream.write_all(&answer).await;
        finish(stream).await;
    })
    .await;
    let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
    let noted: Vec<_> = ended
        .noted
        .iter()
        .map(|(fault, _)| (fault.kind, fault.status, fault.body.as_deref()))
        .collect();
    let kind = FaultKind::Transient;
    let busy = Some("busy");
    assert_eq!(noted, [(kind, Some(503), busy); 2]);
    assert_eq!(ended.output(), "1");
    let seen = server.rest();
    assert_eq!(seen.len(), 3);
    for (request, attempt) in seen.iter().zip(["2", "3", "4"]) {
        assert_eq!(request.header("idempotency-key"), Some("0197-charge"));
        assert_eq!(request.header("provost-attempt"), Some(attempt));
        assert_eq!(request.body, r#"{"amount":5}"#);
    }
}

#[tokio::test]
async fn a_reset_connection_is_tried_again() {
    let mut server = recovering(1, |stream| async move {
        stream.set_zero_linger().unwrap();
    })
    .await;
    let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
    assert_eq!(ended.noted.len(), 1);
    let message = &ended.noted[0].0.message;
    assert!(
        message.starts_with(&format!("the call to {} broke off", server.url)),
        "{message}"
    );
    assert_eq!(ended.output(), "1");
    assert_eq!(server.rest().len(), 2);
}

#[tokio::test]
async fn an_answer_that_breaks_off_half_way_is_tried_again() {
    let mut server = recovering(1, |mut stream| async move {
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"a\":";
        let _ = stream.write_all(half).await;
        finish(stream).await;
    })
    .await;
    let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
    assert_eq!(ended.noted.len(), 1);
    assert_eq!(ended.output(), "1");
    assert_eq!(server.rest().len(), 2);
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_tried_again() {
    let server = recovering(1, |mut stream| async move {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").await;
        finish(stream).await;
    })
    .await;
    let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
    assert_eq!(ended.noted.len(), 1);
    assert_eq!(ended.output(), "1");
}

#[tokio::test]
async fn a_refused_connection_is_tried_again() {
    let url = refusing().await;
    for (fault, _) in faults(&agents_at(&url), 3).await {
        assert!(
            fault
                .message
                .starts_with(&format!("could not connect to {url}")),
            "{}",
            fault.message
        );
        assert_eq!(fault.status, None);
    }
}

#[tokio::test]
async fn a_service_that_says_when_to_come_back_is_left_alone_until_then() {
    let server = recovering(1, |mut stream| async move {
        let answer = response("429 Too Many Requests", "retry-after: 1\r\n", "");
        let _ = stream.write_all(&answer).await;
        finish(stream).await;
    })
    .await;
    let began = Instant::now();
    let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(ended.noted[0].1 >= Duration::from_secs(1));
    assert_eq!(ended.output(), "1");
}

#[tokio::test]
async fn a_wait_beyond_complete_by_is_told_at_once() {
    let answer = response("503 Service Unavailable", "retry-after: 3600\r\n", "");
    let mut server = Server::answering(answer).await;
    let ended = run(&agents_at(&server.url), a_call(), AMPLE).await;
    assert_eq!(server.rest().len(), 1);
    assert!(ended.noted[0].1 >= Duration::from_secs(3600));
}

#[tokio::test]
async fn a_connection_that_never_comes_about_is_given_up_and_tried_again() {
    // If the backlog of a listener is full, further connections hang.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut fill = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(50), TcpStream::connect(address)).await
    {
        fill.push(stream);
    }
    let agents = Agents::new(AgentSettings {
        connect_timeout: Duration::from_millis(20),
        ..settings()
    });
    agents.put(payments(), spec(&[&format!("http://{address}")]));
    let noted = faults(&agents, 2).await;
    assert!(
        noted[0].0.message.starts_with("could not connect"),
        "{}",
        noted[0].0.message
    );
}

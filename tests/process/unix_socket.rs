//! The API on a Unix socket: the mode of its file decides who may connect.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use crate::harness::{PATIENCE, Provost, binary};

async fn ask(socket: &Path, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    send(socket, &request).await
}

async fn send(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("no answer").unwrap();
    answer
}

#[tokio::test]
async fn the_api_is_served_on_a_unix_socket_for_those_who_may_write_to_it() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("api.sock");
    let listen = format!("unix:{}", socket.display());
    let setup = Provost::setup().listen(&listen);
    let mut provost = setup.clone().start().await;
    assert_eq!(provost.address(), listen);
    // The socket counts as loopback: no caller needs a token.
    let answer = ask(&socket, "/v1/tasks").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    let health = binary()
        .args(["healthcheck", "--listen", &listen])
        .output()
        .await
        .unwrap();
    assert!(
        health.status.success(),
        "{}",
        String::from_utf8_lossy(&health.stderr)
    );

    let (code, said) = setup.refused().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another process listens there"), "{said}");
    assert!(ask(&socket, "/livez").await.starts_with("HTTP/1.1 200 OK"));

    // The socket file of a crashed process does not prevent the start.
    provost.kill().await;
    assert!(socket.exists());
    provost
        .restart_with(|setup| setup.set("LISTENER__UNIX_MODE", "0660"))
        .await;
    assert!(ask(&socket, "/livez").await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(mode(&socket), 0o660);
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
    assert!(!socket.exists());
}

/// There is no address that a service could reply to.
#[tokio::test]
async fn a_step_whose_service_replies_later_needs_a_public_url() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("api.sock");
    let setup = Provost::setup().listen(&format!("unix:{}", socket.display()));
    let body = r#"{"steps":[{"name":"a","url":"http://127.0.0.1:1","reply":"callback"}]}"#;
    let submission = format!(
        "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut provost = setup.clone().start().await;
    let answer = send(&socket, &submission).await;
    assert!(answer.starts_with("HTTP/1.1 422 "), "{answer}");
    assert!(
        answer.contains("/steps/0/reply") && answer.contains("set public_url"),
        "{answer}"
    );
    // Its socket is free once it has ended.
    provost.kill().await;
    let _provost = setup.set("PUBLIC_URL", "http://localhost:7").start().await;
    let answer = send(&socket, &submission).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notes");
    fs::write(&path, "mine").unwrap();
    let setup = Provost::setup().listen(&format!("unix:{}", path.display()));
    let (code, said) = setup.refused().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("not a socket"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

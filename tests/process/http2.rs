//! HTTP/2 on the real binary: many steps over few connections, which their service closes again and again.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use h2::server;
use http::Response;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{
    agent_tls::{authority, issued},
    harness::{Provost, setups, step, until},
    secrets::{one_step_of, spec},
};

/// The number of requests after which a connection sends GOAWAY.
const REQUESTS_EACH: usize = 15;

#[derive(Default)]
struct Ledger {
    connections: AtomicUsize,
    /// The number of requests with each key, of those that were processed.
    keys: Mutex<HashMap<String, usize>>,
    health_checks: AtomicUsize,
}

/// Starts a service with a certificate for `payments.internal`.
async fn service(certificate: &str, key: &str, ledger: Arc<Ledger>) -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, ledger) = (acceptor.clone(), ledger.clone());
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.unwrap();
                ledger.connections.fetch_add(1, Ordering::SeqCst);
                let mut connection = server::handshake(stream).await.unwrap();
                let mut count = 0;
                while let Some(Ok((request, send))) = connection.accept().await {
                    count += 1;
                    if count == REQUESTS_EACH {
                        connection.graceful_shutdown();
                    }
                    tokio::spawn(handle(request, send, ledger.clone()));
                }
            });
        }
    });
    url
}

async fn handle(
    request: http::Request<h2::RecvStream>,
    mut send: server::SendResponse<Bytes>,
    ledger: Arc<Ledger>,
) {
    match request.headers().get("idempotency-key") {
        None => drop(ledger.health_checks.fetch_add(1, Ordering::SeqCst)),
        Some(key) => {
            let key = key.to_str().unwrap().to_owned();
            *ledger.keys.lock().unwrap().entry(key).or_default() += 1;
        }
    }
    // The client may have closed the connection.
    if let Ok(mut body) = send.send_response(Response::new(()), false) {
        let _ = body.send_data(Bytes::from_static(b"{\"id\": 1}"), true);
    }
}

#[tokio::test]
async fn steps_over_connections_that_the_service_closes_are_done_once_and_cost_no_attempt() {
    for setup in setups().await {
        let ours = authority();
        let (certificate, key) = issued(&ours, "payments.internal");
        let ledger = Arc::<Ledger>::default();
        let url = service(&certificate, &key, ledger.clone()).await;
        let provost: Provost = setup.start().await;
        let added = json!({
            "tls": { "ca": ours.pem(), "server_name": "payments.internal" }, "http_version": "2",
            "health": { "path": "/health", "interval": "1s", "timeout": "1s" },
        });
        let put = provost.put("/v1/agents/payments", &spec(&url, added));
        put.await.expect(201);
        let agent = provost.get("/v1/agents/payments").await.expect(200);
        assert_eq!(agent["spec"]["http_version"], "2");
        let mut ids = Vec::new();
        for _ in 0..200 {
            ids.push(provost.submit(&one_step_of("payments", "/x")).await);
        }
        for id in &ids {
            let task = provost.settled(id).await;
            assert_eq!(task["state"], "processed", "{task:#}");
            assert_eq!(step(&task, "only")["failure_count"], 0);
            let history = provost.history(id).await;
            let is_retry = |event: &Value| event["type"] == "step.retrying";
            assert!(!history.iter().any(is_retry), "{history:#?}");
        }
        let keys = ledger.keys.lock().unwrap().clone();
        assert_eq!(keys.len(), 200);
        assert!(keys.values().all(|count| *count == 1), "{keys:?}");
        let connections = ledger.connections.load(Ordering::SeqCst);
        assert!(
            (200 / REQUESTS_EACH / 4..100).contains(&connections),
            "{connections}"
        );
        until(true, || async {
            ledger.health_checks.load(Ordering::SeqCst) > 0
        })
        .await;

        let request = json!({ "request": { "path": "/charges", "body": {} }, "within": "30s" });
        let check = provost.post("/v1/agents/payments/check", &request).await;
        let check = check.expect(200).to_string();
        assert!(
            check.contains("\"work\"") && !check.contains("HTTP/2"),
            "{check}"
        );
        assert!(ledger.keys.lock().unwrap().len() > 200);
    }
}

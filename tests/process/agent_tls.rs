//! TLS of agents: an authority, a certificate and a name of their own, and connections that end when those change.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    harness::{Provost, step, until},
    secrets::{SecretFiles, one_step_of, secret, spec},
};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, in PEM form.
fn issued(authority: &Authority, name: &str) -> (String, String) {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// Responds 200 to whatever comes; counts connections that were accepted.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Its certificate is for `payments.internal`. Clients need one of `clients`, if given.
    async fn start(
        authority: &Authority,
        clients: Option<&Authority>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (certificate, key) = issued(authority, "payments.internal");
        let builder = ServerConfig::builder_with_protocol_versions(versions);
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.der().clone()).unwrap();
                builder.with_client_cert_verifier(
                    WebPkiClientVerifier::builder(roots.into()).build().unwrap(),
                )
            }
        };
        let chain = vec![
            rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap(),
        ];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = builder.with_single_cert(chain, key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), counted.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    counted.fetch_add(1, Ordering::SeqCst);
                    let mut came = Vec::new();
                    while stream.read_buf(&mut came).await.is_ok_and(|read| read > 0) {
                        // Its body is JSON, and nothing else ends so.
                        if came.ends_with(b"}") {
                            came.clear();
                            let _ = stream
                                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                                .await;
                        }
                    }
                });
            }
        });
        Self {
            address,
            connections,
        }
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn put(provost: &Provost, url: &str, tls: Value) {
    let answer = provost
        .put("/v1/agents/payments", &spec(url, json!({ "tls": tls })))
        .await;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
}

/// Why a call fails.
async fn failure(provost: &Provost) -> String {
    let mut submission = one_step_of("payments", "/x");
    submission["steps"][0]["complete_within"] = json!("300ms");
    submission["steps"][0]["max_failures"] = json!(0);
    let task = provost.run(&submission).await;
    assert_eq!(task["state"], "error", "{task:#}");
    let history = provost.history(task["id"].as_str().unwrap()).await;
    Value::from(history).to_string()
}

#[tokio::test]
async fn a_service_is_known_by_the_authority_and_name_that_its_agent_says() {
    let (ours, theirs) = (authority(), authority());
    let server = Server::start(&ours, None, rustls::ALL_VERSIONS).await;
    let provost = Provost::start().await;
    put(
        &provost,
        &server.url(),
        json!({ "ca": ours.pem(), "server_name": "payments.internal", "min_version": "1.3" }),
    )
    .await;
    for _ in 0..3 {
        let task = provost.run(&one_step_of("payments", "/x")).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
    assert_eq!(server.connections(), 1);
    for tls in [
        json!({ "ca": ours.pem() }),
        json!({ "ca": ours.pem(), "server_name": "other.internal" }),
        json!({ "ca": theirs.pem(), "server_name": "payments.internal" }),
        json!({ "server_name": "payments.internal" }),
    ] {
        // The connection that is there was made under other rules.
        put(&provost, &server.url(), tls).await;
        let why = failure(&provost).await;
        assert!(why.contains("certificate"), "{why}");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_old_version_of_tls_is_refused_where_the_agent_says_so() {
    let ours = authority();
    let server = Server::start(&ours, None, &[&rustls::version::TLS12]).await;
    let provost = Provost::start().await;
    let tls = json!({ "ca": ours.pem(), "server_name": "payments.internal", "min_version": "1.2" });
    put(&provost, &server.url(), tls.clone()).await;
    assert_eq!(
        provost.run(&one_step_of("payments", "/x")).await["state"],
        "processed"
    );
    let mut latest = tls;
    latest["min_version"] = json!("1.3");
    put(&provost, &server.url(), latest).await;
    failure(&provost).await;
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_client_certificate_is_shown_and_changes_without_a_restart() {
    let (ours, clients, others) = (authority(), authority(), authority());
    let server = Server::start(&ours, Some(&clients), rustls::ALL_VERSIONS).await;
    let (certificate, key) = issued(&clients, "provost");
    let files = SecretFiles::new()
        .with("certificate", &certificate, &[server.url()])
        .with("key", &key, &[server.url()]);
    let provost = Provost::setup()
        .config(&files.config)
        .argument("--log=trace")
        .start()
        .await;
    let tls = json!({ "ca": ours.pem(), "server_name": "payments.internal",
        "certificate": secret("certificate"), "key": secret("key") });
    put(&provost, &server.url(), tls).await;
    let task = provost.run(&one_step_of("payments", "/x")).await;
    assert_eq!(task["state"], "processed", "{task:#}");

    // Of two files one has changed: they do not belong together, and no call is made.
    let (certificate, new_key) = issued(&clients, "provost");
    files.put("key", &new_key);
    let blocked = || async {
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        let task = provost.task(&id).await;
        step(&task, "only")["blocked_by"]["message"].clone()
    };
    let message = "`tls.certificate` and `tls.key` cannot be used together: the first certificate must belong to the key";
    until(json!(message), blocked).await;
    files.put("certificate", &certificate);
    until(json!("processed"), || async {
        provost.run(&one_step_of("payments", "/x")).await["state"].clone()
    })
    .await;
    // The one that was there was made with the old certificate.
    assert!(server.connections() >= 2);

    let (certificate, other_key) = issued(&others, "provost");
    files.put("certificate", &certificate);
    files.put("key", &other_key);
    let log = || async { provost.log().matches("read a secret").count() };
    until(true, || async { log().await >= 6 }).await;
    failure(&provost).await;
    for key in [&key, &new_key, &other_key] {
        let line = key.lines().nth(1).unwrap();
        assert!(!provost.log().contains(line), "a key is in the log");
    }
}

#[tokio::test]
async fn nobody_reads_a_file_of_the_machine_through_an_agent() {
    let provost = Provost::start().await;
    for (tls, pointer) in [
        (json!({ "ca": "/etc/passwd" }), "/tls/ca"),
        (
            json!({ "certificate": "/etc/ssl/a.pem", "key": secret("/etc/ssl/a.key") }),
            "/tls/certificate",
        ),
        (
            json!({ "certificate": secret("a"), "key": "-----BEGIN PRIVATE KEY-----" }),
            "/tls/key",
        ),
    ] {
        let put = provost
            .put(
                "/v1/agents/payments",
                &spec("https://payments.example", json!({ "tls": tls })),
            )
            .await;
        let faults = put.expect_faults();
        assert!(faults.contains(&pointer.to_owned()), "{faults:?}");
    }
}

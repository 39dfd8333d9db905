//! TLS of agents: each may have its own authority, certificate and server name, and connections end when these change.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
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

pub fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Returns a certificate and its key, in PEM form.
pub fn issued(authority: &Authority, name: &str) -> (String, String) {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// A server that responds 200 to every request, and counts the accepted connections.
struct Server {
    address: SocketAddr,
    /// The heads and bodies of all requests.
    came: Arc<Mutex<String>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server with a certificate for `payments.internal`. If `clients` is given, clients need a certificate of
    /// that authority.
    async fn start(
        authority: &Authority,
        clients: Option<&Authority>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Self {
        Self::with_body(authority, clients, versions, "{}").await
    }

    async fn with_body(
        authority: &Authority,
        clients: Option<&Authority>,
        versions: &[&'static rustls::SupportedProtocolVersion],
        body: &'static str,
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
        let all = Arc::new(Mutex::new(String::new()));
        let came = all.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counted, all) = (acceptor.clone(), counted.clone(), all.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    counted.fetch_add(1, Ordering::SeqCst);
                    let mut came = Vec::new();
                    while stream.read_buf(&mut came).await.is_ok_and(|read| read > 0) {
                        // The body is JSON or a form, and no other part of a request ends like this.
                        if came.ends_with(b"}") || came.ends_with(b"=client_credentials") {
                            all.lock()
                                .unwrap()
                                .push_str(&String::from_utf8_lossy(&came));
                            came.clear();
                            let length = body.len();
                            let response = format!(
                                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
                            );
                            let _ = stream.write_all(response.as_bytes()).await;
                        }
                    }
                });
            }
        });
        Self {
            address,
            came,
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

/// Returns the reason why a call fails.
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
        // The existing connection was made with other TLS settings.
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

    // Only one of two files has changed: they do not match, and no call is made.
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
    // The old connection was made with the old certificate.
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
async fn the_token_endpoint_has_an_authority_a_certificate_and_a_name_of_its_own() {
    let (ours, theirs, clients) = (authority(), authority(), authority());
    let service = Server::start(&ours, None, rustls::ALL_VERSIONS).await;
    let login = Server::with_body(
        &theirs,
        Some(&clients),
        rustls::ALL_VERSIONS,
        r#"{"access_token": "the-token-of-payments"}"#,
    )
    .await;
    let (certificate, key) = issued(&clients, "provost");
    // The key is only for the token endpoint.
    let files = SecretFiles::new()
        .with("client", "client-secret", &[login.url(), service.url()])
        .with("key", &key, &[login.url()]);
    let setup = Provost::setup().config(&files.config);
    let provost = setup.argument("--log=trace").start().await;
    let put = async |token_tls: Value| {
        let mut oauth = json!({ "token_url": format!("{}/token", login.url()), "client_id": "provost",
            "client_secret": secret("client") });
        if !token_tls.is_null() {
            oauth["tls"] = token_tls;
        }
        let added = json!({ "auth": { "oauth2": oauth },
            "tls": { "ca": ours.pem(), "server_name": "payments.internal" } });
        let put = provost.put("/v1/agents/payments", &spec(&service.url(), added));
        assert!([200, 201].contains(&put.await.status));
    };
    let identity = json!({ "ca": theirs.pem(), "server_name": "payments.internal", "certificate": certificate,
        "key": secret("key") });
    let without = |field: &str| {
        let mut tls = identity.clone();
        tls.as_object_mut().unwrap().remove(field);
        tls
    };
    let mut other_authority = identity.clone();
    other_authority["ca"] = json!(ours.pem());
    // The TLS settings of the agent's endpoints do not apply to the token endpoint.
    for tls in [
        Value::Null,
        other_authority,
        without("ca"),
        without("server_name"),
    ] {
        put(tls).await;
        let why = failure(&provost).await;
        assert!(
            why.contains("no access token") && why.contains("certificate"),
            "{why}"
        );
    }
    let mut anonymous = without("key");
    anonymous.as_object_mut().unwrap().remove("certificate");
    put(anonymous).await;
    let why = failure(&provost).await;
    assert!(why.contains("no access token"), "{why}");
    assert_eq!(service.connections(), 0);
    assert_eq!(*login.came.lock().unwrap(), "");

    put(identity.clone()).await;
    for _ in 0..3 {
        let task = provost.run(&one_step_of("payments", "/x")).await;
        assert_eq!(task["state"], "processed", "{task:#}");
    }
    assert_eq!(login.connections(), 1);
    let came = service.came.lock().unwrap().clone();
    assert_eq!(came.matches("Bearer the-token-of-payments").count(), 3);
    let mut latest = identity;
    latest["min_version"] = json!("1.3");
    put(latest).await;
    let task = provost.run(&one_step_of("payments", "/x")).await;
    assert_eq!(task["state"], "processed", "{task:#}");

    // The message about a file that does not match any more names the field.
    let (_, other_key) = issued(&clients, "provost");
    files.put("key", &other_key);
    until(true, || async {
        let id = provost.submit(&one_step_of("payments", "/x")).await;
        let task = provost.task(&id).await;
        let message = step(&task, "only")["blocked_by"]["message"].to_string();
        message.contains("for the token endpoint, `tls.certificate` and `tls.key`")
    })
    .await;
    for key in [&key, &other_key] {
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

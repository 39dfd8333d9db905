//! HTTPS: the API has a certificate, which can be replaced without a restart.

use std::{path::PathBuf, sync::Arc};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    harness::{PATIENCE, Provost, Setup, binary},
    listener::posts_chunks,
};

/// A folder with a certificate and its key in two files, which a test can replace.
struct Files(TempDir);

type Certificate = CertifiedKey<rcgen::KeyPair>;

fn certificate() -> Certificate {
    generate_simple_self_signed(["provost.example".to_owned()]).unwrap()
}

impl Files {
    fn new(certificate: &Certificate) -> Self {
        let files = Self(TempDir::new().unwrap());
        files.put(certificate);
        files
    }

    fn put(&self, certificate: &Certificate) {
        std::fs::write(self.path("crt"), certificate.cert.pem()).unwrap();
        std::fs::write(self.path("key"), certificate.signing_key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn setup(&self) -> Setup {
        Provost::setup()
            .set("TLS__CERTIFICATE", self.path("crt").to_str().unwrap())
            .set("TLS__KEY", self.path("key").to_str().unwrap())
    }
}

/// Opens a connection that trusts this certificate and no other.
async fn connect(
    provost: &Provost,
    trusted: &Certificate,
) -> std::io::Result<TlsStream<TcpStream>> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    roots.add(trusted.cert.der().clone()).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(provost.address()).await?;
    let name = ServerName::try_from("provost.example").unwrap();
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream);
    timeout(PATIENCE, connected).await.expect("no handshake")
}

async fn livez(stream: &mut TlsStream<TcpStream>) -> String {
    let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("no answer");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits until the server uses this certificate.
async fn shown(provost: &Provost, certificate: &Certificate) -> TlsStream<TcpStream> {
    let trusted = async {
        loop {
            if let Ok(stream) = connect(provost, certificate).await {
                return stream;
            }
            sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, trusted)
        .await
        .expect("the certificate is never shown")
}

#[tokio::test]
async fn who_sends_far_too_much_over_tls_sees_the_answer() {
    let certificate = certificate();
    let files = Files::new(&certificate);
    let provost = files.setup().start().await;
    let stream = connect(&provost, &certificate).await.unwrap();
    let answer = posts_chunks(stream).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn the_api_is_served_over_tls_and_not_without() {
    let certificate = certificate();
    let files = Files::new(&certificate);
    let setup = files.setup().set("LISTENER__HEAD_TIMEOUT", "2s");
    let provost = setup.start().await;
    let mut stream = connect(&provost, &certificate).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = livez(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");

    assert!(
        provost.get("/livez").attempt().await.is_err(),
        "plain HTTP is served"
    );
    // A client that begins no handshake, or does not complete it, has sent no request.
    for beginning in [&b""[..], &[22, 3, 1]] {
        let mut silent = TcpStream::connect(provost.address()).await.unwrap();
        silent.write_all(beginning).await.unwrap();
        let mut rest = Vec::new();
        let _ = timeout(PATIENCE, silent.read_to_end(&mut rest))
            .await
            .expect("it stays open");
    }

    let health = binary()
        .args(["healthcheck", "--listen", provost.address()])
        .env("PROVOST_TLS__CERTIFICATE", files.path("crt"))
        .env("PROVOST_TLS__KEY", files.path("key"))
        .output()
        .await
        .unwrap();
    assert!(
        health.status.success(),
        "{}",
        String::from_utf8_lossy(&health.stderr)
    );
}

#[tokio::test]
async fn a_certificate_that_changes_is_shown_from_then_on_and_a_bad_one_never() {
    let first = certificate();
    let files = Files::new(&first);
    let mut provost = files.setup().start().await;
    let mut old = connect(&provost, &first).await.unwrap();

    let second = certificate();
    files.put(&second);
    let mut new = shown(&provost, &second).await;
    assert!(livez(&mut new).await.contains("200 OK"));
    assert!(
        livez(&mut old).await.contains("200 OK"),
        "open connections stay"
    );

    std::fs::write(files.path("crt"), "no certificate").unwrap();
    provost.says("the new certificate is invalid").await;
    assert!(connect(&provost, &second).await.is_ok());

    let third = certificate();
    files.put(&third);
    provost.reload("");
    shown(&provost, &third).await;
    provost.terminate();
    assert_eq!(provost.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_stops_the_start_and_is_named() {
    let certificate = certificate();
    let files = Files::new(&certificate);
    let (code, said) = files
        .setup()
        .set("TLS__KEY", "/nowhere/key")
        .refused()
        .await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("tls.key: /nowhere/key"), "{said}");
    std::fs::write(
        files.path("key"),
        self::certificate().signing_key.serialize_pem(),
    )
    .unwrap();
    let (_, said) = files.setup().refused().await;
    assert!(said.contains("cannot be used together"), "{said}");
    let alone = Provost::setup().set("TLS__KEY", "key");
    let (code, said) = alone.refused().await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("tls.certificate"), "{said}");
}

//! TLS to a broker: the certificate is verified, and the message about a wrong one says what is wrong.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Provost, Rabbit, Remote, Setup, one_step, until};

/// An authority, and a folder with its certificates.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// Returns the certificate and the key of a server with this name.
    fn server(&self, name: &str) -> (String, String) {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Makes Provost trust only this authority.
    fn trusted_by(&self, setup: Setup) -> Setup {
        let file = self.folder.path().join("ca.pem");
        setup.environment("SSL_CERT_FILE", file.to_str().unwrap())
    }
}

fn reading(url: &str) -> Setup {
    Provost::setup()
        .set("BROKER__URL", url)
        .set("INTAKE", r#"[{name="shop",queue="orders"}]"#)
}

#[tokio::test]
async fn a_broker_is_reached_over_tls_if_its_certificate_is_trusted() {
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let (certificate, key) = own.server("localhost");
    let rabbit = Rabbit::start_with_tls(&certificate, &key).await;
    let client = rabbit.client().await;
    let service = Remote::quick().await;
    let url = rabbit.tls_url("localhost");
    let provost = own.trusted_by(reading(&url)).start().await;
    until(true, || async { client.depth("orders").await.is_some() }).await;
    client.declare("shop.replies").await;
    let mut submission = one_step(&service.url(), "/charge");
    submission["reply_to"] = json!({ "queue": "shop.replies" });
    let allowed = own
        .trusted_by(reading(&url).set("BROKER__REPLY_QUEUES", r#"["shop.*"]"#))
        .start()
        .await;
    // Messages are published over TLS too.
    allowed.submit(&submission).await;
    assert_eq!(
        client.take("shop.replies").await.body["type"],
        "task.processed"
    );
    client
        .submit("orders", "m-1", &one_step(&service.url(), "/charge"))
        .await;
    until(2, || async { service.count() }).await;
    assert_eq!(
        provost
            .metric(r#"provost_broker_up{broker="broker"}"#)
            .await,
        1.0
    );
    // The faults are an authority that is not trusted, another name, and a port without TLS.
    let plain = format!("amqps://guest:guest@localhost:{}", rabbit.port());
    for (authority, url, says) in [
        (&other, url, "SSL_CERT_FILE"),
        (&own, rabbit.tls_url("127.0.0.1"), "for another host"),
        (&own, plain, "does not speak TLS"),
    ] {
        let refused = authority.trusted_by(reading(&url)).start().await;
        refused.says(says).await;
        assert!(!refused.log().contains("guest:guest"));
        let task = refused.run(&one_step(&service.url(), "/b")).await;
        assert_eq!(task["state"], "processed");
    }
}

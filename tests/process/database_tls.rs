//! TLS to PostgreSQL: the time that it may cost, and the messages about TLS that fails.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::harness::{Postgres, Provost, Remote, binary, pipeline};

type Certificate = CertifiedKey<KeyPair>;

/// Returns a certificate of the name that the server has here.
fn certificate() -> Certificate {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

/// A server that accepts TLS, and a folder with its certificate as the only trusted authority.
struct Trusted {
    server: Postgres,
    folder: TempDir,
}

impl Trusted {
    async fn start() -> Self {
        let own = certificate();
        let key = own.signing_key.serialize_pem();
        let server = Postgres::start_with_tls(&own.cert.pem(), &key).await;
        let folder = TempDir::new().unwrap();
        let trusted = Self { server, folder };
        trusted.put("ca.pem", &own.cert.pem());
        trusted
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self, host: &str, database: &str, parameters: &str) -> String {
        let port = self.server.port();
        format!("postgres://provost:s3cret@{host}:{port}/{database}?{parameters}")
    }

    /// Returns a URL that requires full verification, with the authorities of this file.
    fn verified(&self, host: &str, file: &str) -> String {
        let parameters = format!(
            "sslmode=verify-full&sslrootcert={}",
            self.path(file).display()
        );
        self.url(host, "postgres", &parameters)
    }
}

#[tokio::test]
async fn tasks_are_kept_over_tls_with_all_verified() {
    let remote = Remote::quick().await;
    let trusted = Trusted::start().await;
    let url = trusted.verified("localhost", "ca.pem");
    let provost = Provost::setup().database_url(&url).start().await;
    let mut task = pipeline(&remote.url(), &["a", "b", "c"]);
    task["input"] = json!({ "text": "x".repeat(60_000) });
    assert_eq!(provost.run(&task).await["state"], "processed");
    let sessions = trusted.server.sql(
        "SELECT bool_and(ssl) AND count(*) > 3 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
         WHERE application_name = 'provost'",
    );
    assert_eq!(sessions.await, "t");
}

/// Returns the time of the fastest of some statements that are too large for one TLS record.
async fn fastest(url: &str) -> Duration {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let text = "x".repeat(60_000);
    let mut fastest = Duration::MAX;
    for _ in 0..30 {
        let started = Instant::now();
        let asked = sqlx::query("SELECT length($1)").bind(&text);
        asked.execute(&mut connection).await.unwrap();
        fastest = fastest.min(started.elapsed());
    }
    fastest
}

/// The test uses the crate alone, which is the same as in the binary: see `vendor/README.md`. With Nagle's algorithm
/// each record after the first waits until the server has acknowledged the ones before it, which the server delays by
/// 40 ms: many times the time of the statement.
#[tokio::test]
async fn a_statement_of_several_records_waits_for_no_acknowledgement() {
    let trusted = Trusted::start().await;
    let plain = fastest(&trusted.url("localhost", "postgres", "sslmode=disable")).await;
    let tls = fastest(&trusted.verified("localhost", "ca.pem")).await;
    assert!(tls < plain * 8, "plain {plain:?}, TLS {tls:?}");
}

#[tokio::test]
async fn what_stops_tls_is_told_apart_and_the_file_is_named() {
    let trusted = Trusted::start().await;
    trusted.put("other.pem", &certificate().cert.pem());
    trusted.put("notes.pem", "no certificate\n");
    let path = |name: &str| trusted.path(name).display().to_string();
    let client = format!(
        "sslmode=require&sslcert={}&sslkey={}",
        path("ca.pem"),
        path("key.pem")
    );
    let unverified = format!("sslmode=require&sslrootcert={}", path("other.pem"));
    let cases = [
        (
            trusted.verified("localhost", "other.pem"),
            vec![path("other.pem"), "authority".to_owned()],
        ),
        (
            trusted.verified("localhost", "none.pem"),
            vec![
                path("none.pem"),
                "sslrootcert".to_owned(),
                "No such file".to_owned(),
            ],
        ),
        (
            trusted.verified("localhost", "notes.pem"),
            vec![path("notes.pem"), "contains no certificate".to_owned()],
        ),
        (
            trusted.verified("127.0.0.1", "ca.pem"),
            vec!["\"127.0.0.1\"".to_owned(), "not for the host".to_owned()],
        ),
        (
            trusted.url("localhost", "postgres", &client),
            vec![path("key.pem"), "sslkey".to_owned()],
        ),
        // An explicit list of authorities must be used even with a mode that does not require verification.
        (
            trusted.url("localhost", "postgres", &unverified),
            vec![path("other.pem"), "authority".to_owned()],
        ),
    ];
    for (url, words) in cases {
        let (code, said) = Provost::setup().database_url(&url).refused().await;
        assert_eq!(code, Some(1), "{url}: {said}");
        for word in words {
            assert!(said.contains(&word), "{url}: no {word:?} in {said}");
        }
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[tokio::test]
async fn check_config_shows_the_parameters_of_the_url_and_misses_its_files() {
    let folder = TempDir::new().unwrap();
    let ca = folder.path().join("ca.pem");
    let url = format!(
        "postgres://ann:s3cret@db.example/tasks?sslmode=verify-full&sslrootcert={}",
        ca.display()
    );
    let check = async || {
        let output = binary()
            .args(["check-config", "--database-url", &url])
            .current_dir(folder.path())
            .output()
            .await
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, shown, said) = check().await;
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains(&format!("sslrootcert: {}", ca.display())),
        "{said}"
    );
    let whole = url
        .replace(":s3cret", "")
        .replace("db.example", "db.example:5432");
    assert!(
        shown.contains(&format!("database_url = \"{whole}\"")),
        "{shown}"
    );
    assert!(!shown.contains("s3cret") && !said.contains("s3cret"));
    std::fs::write(&ca, certificate().cert.pem()).unwrap();
    let (code, _, said) = check().await;
    assert_eq!(code, Some(0), "{said}");
}

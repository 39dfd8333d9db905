//! PostgreSQL servers of a test's own, which the test may stop, restart and promote. A test that only needs a database
//! uses the cluster of all tests (`cluster::new_database`), which runs already.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use crate::cluster::{as_owner, binaries, client, free_port};

/// The settings suit a test of minutes, and do not sync to disk: these servers crash, but their machine does not.
const SETTINGS: &str = "listen_addresses = '127.0.0.1'\nfsync = off\nmax_connections = 60\n\
                        shared_buffers = 16MB\nlog_min_messages = warning\nmax_wal_senders = 4\n";

/// A server. It ends when the test ends, in whatever way.
pub struct Postgres {
    place: Place,
    /// Ends the server and removes its folder as soon as this process closes the child's input.
    keeper: Child,
}

#[derive(Clone)]
struct Place {
    folder: PathBuf,
    port: u16,
}

impl Postgres {
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a server that also accepts TLS, with this certificate and key in PEM form.
    pub async fn start_with_tls(certificate: &str, key: &str) -> Self {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let server = Self::start_with("").await;
        let data = server.place.data();
        blocking(move || {
            for (name, text) in [("server.crt", certificate), ("server.key", key)] {
                let written = as_owner(Path::new("sh"))
                    .args(["-c", "umask 077 && printf %s \"$2\" >\"$1\"", "sh"])
                    .arg(data.join(name))
                    .arg(text)
                    .output();
                expect(written);
            }
        })
        .await;
        server.sql("ALTER SYSTEM SET ssl = on").await;
        server.control(&["reload"]).await;
        while server.sql("SHOW ssl").await != "on" {}
        server
    }

    /// Adds a role that can connect only with its password.
    pub async fn add_role(&self, role: &str, password: &str) {
        self.sql(&format!(
            "CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{password}'"
        ))
        .await;
        let file = self.place.data().join("pg_hba.conf");
        let rule = format!("host all {role} 127.0.0.1/32 scram-sha-256");
        blocking(move || {
            // The first rule that matches applies, so the new rule is inserted at the top.
            let script = "echo \"$2\" | cat - \"$1\" >\"$1.new\" && mv \"$1.new\" \"$1\"";
            let added = as_owner(Path::new("sh"))
                .args(["-c", script, "sh"])
                .arg(file)
                .arg(rule)
                .output();
            expect(added);
        })
        .await;
        // A new session has the new setting once the server has read both files.
        self.sql("ALTER SYSTEM SET log_disconnections = on").await;
        self.control(&["reload"]).await;
        while self.sql("SHOW log_disconnections").await != "on" {}
    }

    /// Starts a server with additional lines in its settings.
    pub async fn start_with(settings: &str) -> Self {
        let settings = format!("{SETTINGS}{settings}");
        blocking(move || {
            let place = Place::new();
            let data = place.data();
            let made = as_owner(&binaries().join("initdb"))
                .args(["--auth=trust", "--username=provost", "--encoding=UTF8"])
                .args(["--locale=C.UTF-8", "--no-sync", "-D"])
                .arg(&data)
                .output();
            expect(made);
            Self::on(place, &settings)
        })
        .await
    }

    /// Starts a standby for which this server waits at every commit. The server is stopped for a moment and copied,
    /// because `pg_basebackup`, which copies a running server, refuses servers that are newer than itself.
    pub async fn synchronous_standby(&self) -> Self {
        self.control(&["stop", "-m", "fast"]).await;
        let primary = self.place.clone();
        let standby = blocking(move || {
            let place = Place::new();
            let copied = as_owner(Path::new("cp"))
                .arg("-a")
                .args([primary.data(), place.data()])
                .output();
            expect(copied);
            primary.control(&["start".to_owned()]);
            fs::write(place.data().join("standby.signal"), "").unwrap();
            let primary = format!(
                "primary_conninfo = 'host=127.0.0.1 port={} user=provost application_name=standby'\n",
                primary.port
            );
            Self::on(place, &format!("{SETTINGS}{primary}"))
        })
        .await;
        self.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            .await;
        self.sql("SELECT pg_reload_conf()").await;
        while self.sql("SELECT sync_state FROM pg_stat_replication").await != "sync" {}
        standby
    }

    /// Returns the URL of its database.
    pub fn url(&self) -> String {
        Self::url_of(&[self])
    }

    /// Returns one URL for several servers.
    pub fn url_of(servers: &[&Self]) -> String {
        let places = servers.iter().map(|server| server.address());
        let places: Vec<_> = places.collect();
        format!("postgres://provost@{}/postgres", places.join(","))
    }

    pub fn port(&self) -> u16 {
        self.place.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.place.port)
    }

    /// Stops the server as a crash does: nothing more is written.
    pub async fn crash(&self) {
        self.control(&["stop", "-m", "immediate"]).await;
    }

    /// Starts it after a crash or a stop.
    pub async fn start_again(&self) {
        self.control(&["start"]).await;
    }

    pub async fn crash_and_start_again(&self) {
        self.control(&["restart", "-m", "immediate"]).await;
    }

    /// Makes a standby the primary.
    pub async fn promote(&self) {
        self.control(&["promote"]).await;
    }

    pub async fn sql(&self, statement: &str) -> String {
        let (url, statement) = (self.url(), statement.to_owned());
        blocking(move || super::sql(&url, &statement)).await
    }

    /// Returns the log of the server.
    pub fn log(&self) -> String {
        fs::read_to_string(self.place.folder.join("log")).unwrap_or_default()
    }

    pub fn log_length(&self) -> u64 {
        fs::metadata(self.place.folder.join("log")).unwrap().len()
    }

    /// Returns the log from this byte on.
    pub fn log_from(&self, start: u64) -> String {
        let mut log = File::open(self.place.folder.join("log")).unwrap();
        log.seek(SeekFrom::Start(start)).unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    }

    async fn control(&self, arguments: &[&str]) {
        let place = self.place.clone();
        let arguments: Vec<_> = arguments.iter().map(|word| (*word).to_owned()).collect();
        blocking(move || place.control(&arguments)).await;
    }

    fn on(place: Place, settings: &str) -> Self {
        fs::write(place.data().join("postgresql.auto.conf"), settings).unwrap();
        // The owner of the server may not be able to read the folder of the checkout.
        let keeper = as_owner(Path::new("setsid"))
            .args([
                "sh",
                "-c",
                "cat; \"$0/pg_ctl\" -D \"$1/data\" -m immediate stop; rm -rf \"$1\"",
            ])
            .args([&binaries(), &place.folder])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        place.control(&["start".to_owned()]);
        Self { place, keeper }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(20)..];
            eprintln!(
                "the last that PostgreSQL at {} said:\n{}",
                self.place.port,
                last.join("\n")
            );
        }
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Place {
    fn new() -> Self {
        let folder =
            std::env::temp_dir().join(format!("provost-pg-{:032x}", rand::random::<u128>()));
        expect(
            as_owner(Path::new("mkdir"))
                .args(["-m", "700"])
                .arg(&folder)
                .output(),
        );
        Self {
            folder,
            port: free_port(),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn control(&self, arguments: &[String]) {
        let controlled = as_owner(&binaries().join("pg_ctl"))
            .args(arguments)
            .args(["--wait", "--silent", "--timeout=60", "-D"])
            .arg(self.data())
            .arg("-l")
            .arg(self.folder.join("log"))
            .args([
                "-o",
                &format!("-p {} -k {}", self.port, self.folder.display()),
            ])
            .current_dir("/")
            // The server inherits them. With a pipe, the wait for its end would last as long as the server runs.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        assert!(controlled.unwrap().success(), "{arguments:?}: {}", log());
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn expect(output: std::io::Result<Output>) -> Output {
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output
}

/// Returns the output of psql, without decoration.
pub fn sql(url: &str, statement: &str) -> String {
    let output = Command::new(client("psql"))
        .args([url, "-XqAtc", statement])
        .output();
    let output = expect(output);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

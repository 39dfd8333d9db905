//! Tests through a real PgBouncer that assigns connections for each transaction.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
};

use futures::future::join_all;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::{
    cluster::{self, as_owner},
    harness::{Act, Gate, Provost, Remote, free_port, pipeline, sql},
    slow_reads,
};

/// The number of connections to the database that all clients of the pooler share.
const POOL: u32 = 4;

struct PgBouncer {
    folder: TempDir,
    port: u16,
    keeper: Child,
}

impl PgBouncer {
    /// Starts a pooler for the server of this URL.
    async fn start(url: &str) -> Self {
        Self::start_in(url, "transaction").await
    }

    async fn start_in(url: &str, mode: &str) -> Self {
        let (_, place) = url.split_once('@').unwrap();
        let (host, rest) = place.split_once(':').unwrap();
        let (server_port, _) = rest.split_once('/').unwrap();
        let folder = TempDir::new().unwrap();
        let port = free_port();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("users.txt"), "\"provost\" \"\"\n").unwrap();
        let settings = format!(
            "[databases]\n* = host={host} port={server_port}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\npool_mode = {mode}\ndefault_pool_size = {POOL}\n",
            file("users.txt").display()
        );
        fs::write(file("pgbouncer.ini"), settings).unwrap();
        let all = as_owner(Path::new("true")).status();
        assert!(all.unwrap().success());
        let open = std::process::Command::new("chmod")
            .args(["-R", "a+rX"])
            .arg(folder.path())
            .status();
        assert!(open.unwrap().success());
        let keeper = Self::spawn(folder.path());
        let pooler = Self {
            folder,
            port,
            keeper,
        };
        pooler.answers().await;
        pooler
    }

    /// Starts a process that ends as soon as this process closes its input.
    fn spawn(folder: &Path) -> Child {
        as_owner(Path::new("setsid"))
            .args([
                "sh",
                "-c",
                "exec 3<&0; pgbouncer -q \"$0\" & cat <&3; kill $!; wait",
            ])
            .arg(folder.join("pgbouncer.ini"))
            .current_dir("/")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    async fn answers(&self) {
        let connect =
            async { while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {} };
        let answers = tokio::time::timeout(crate::harness::PATIENCE, connect).await;
        assert!(
            answers.is_ok(),
            "pgbouncer did not start: scripts/prepare installs it"
        );
    }

    async fn restart(&mut self) {
        self.end();
        self.keeper = Self::spawn(self.folder.path());
        self.answers().await;
    }

    fn end(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }

    fn url(&self, behind: &str) -> String {
        let (_, name) = behind.rsplit_once('/').unwrap();
        format!("postgres://provost@127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.end();
    }
}

#[tokio::test]
async fn instances_work_through_a_pooler_that_gives_out_connections_by_the_transaction() {
    let direct = tokio::task::spawn_blocking(cluster::new_database)
        .await
        .unwrap();
    let mut pooler = PgBouncer::start(&direct).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let remote = Remote::with(move |seen| match seen.path.as_str() {
        "/held" => held.then(json!(1)),
        _ => Act::Ok(json!({ "path": seen.path })),
    })
    .await;
    // One setting is enough. Both instances migrate the schema through the pooler too, at the same time.
    let setup = Provost::setup()
        .database_url(&pooler.url(&direct))
        .set("POSTGRES__LISTEN", "false");
    let (mut a, b) = tokio::join!(setup.clone().set("INSTANCE_ID", "a").start(), setup.start());
    a.register("known", &remote.url(), 4).await;
    // Tasks are submitted at one instance and awaited at the other, and there are more at once than connections.
    let submission = pipeline(&remote.url(), &["one", "two", "three"]);
    let run = async || {
        let id = a.submit(&submission).await;
        b.settled(&id).await
    };
    for task in join_all((0..40).map(|_| run())).await {
        assert_eq!(task["state"], "processed", "{task:#}");
    }
    let lists = join_all((0..20).map(async |_| b.get("/v1/tasks?limit=100").await));
    for page in lists.await {
        assert_eq!(page.expect(200)["items"].as_array().unwrap().len(), 40);
    }
    let backends = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let backends: u32 = sql(&direct, backends).parse().unwrap();
    assert!((1..=POOL).contains(&backends), "{backends}");

    // The interrupted call continues after a crash, and all clients continue after a restart of the pooler.
    let interrupted = a.submit(&pipeline(&remote.url(), &["held"])).await;
    remote.paths("/held", 1).await;
    a.kill().await;
    a.restart().await;
    remote.paths("/held", 2).await;
    pooler.restart().await;
    gate.open();
    for instance in [&a, &b] {
        loop {
            let answer = instance
                .get(&format!("/v1/tasks/{interrupted}?wait=60s"))
                .await;
            if answer.status != 503 {
                assert_eq!(answer.expect(200)["state"], "processed");
                break;
            }
        }
        let log = instance.log();
        assert!(!log.contains("prepared statement"), "{log}");
    }
}

#[tokio::test]
async fn a_read_that_takes_too_long_is_ended_behind_a_pooler_too() {
    let direct = tokio::task::spawn_blocking(cluster::new_database).await;
    let direct = direct.unwrap();
    let pooler = PgBouncer::start(&direct).await;
    let setup = Provost::setup().set("POSTGRES__LISTEN", "false");
    let provost = setup.database_url(&pooler.url(&direct)).start().await;
    slow_reads::ends_slow_reads(&provost, &direct).await;
}

#[tokio::test]
async fn what_needs_a_connection_of_its_own_is_refused_behind_a_pooler() {
    let direct = tokio::task::spawn_blocking(cluster::new_database).await;
    let direct = direct.unwrap();
    let pooler = PgBouncer::start(&direct).await;
    let setup = Provost::setup().database_url(&pooler.url(&direct));
    let (code, said) = setup.refused().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("postgres.listen = false"), "{said}");
}

#[tokio::test]
async fn a_pooler_that_gives_out_connections_by_the_statement_is_refused_with_the_remedy() {
    let direct = tokio::task::spawn_blocking(cluster::new_database).await;
    let direct = direct.unwrap();
    let pooler = PgBouncer::start_in(&direct, "statement").await;
    let setup = Provost::setup()
        .database_url(&pooler.url(&direct))
        .set("POSTGRES__LISTEN", "false");
    let (code, said) = setup.refused().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("pool_mode = transaction"), "{said}");
}

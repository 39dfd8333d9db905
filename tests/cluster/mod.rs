//! A temporary PostgreSQL that all tests of a run share, each with a database of its own. It does not sync to disk:
//! tests of a power cut start their own server.

mod ports;
mod programs;
mod proxy;
mod server;
mod shared;

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    process::{self, Command, Output},
    thread,
    time::{Duration, Instant},
};

pub use ports::free_port;
pub use programs::{binaries, client};
pub use proxy::Proxy;
pub use server::{Server, url};
pub use shared::Shared;
use shared::is_root;

const START_WITHIN: Duration = Duration::from_secs(60);

/// The most databases of ended tests that are dropped when a new one is created.
const MOST_DROPPED: usize = 4;

/// Returns the URL of a new, empty database. Databases of tests that have ended are dropped, so that those of a whole run
/// take no gigabytes.
pub fn new_database() -> String {
    let port = port_of_cluster();
    // The name says which process uses the database.
    let (process, number) = (process::id(), rand::random::<u128>());
    let name = format!("t{process}_{number:032x}");
    let known = psql(port, "SELECT datname FROM pg_database");
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    let unused = known.lines().filter(|name| is_of_ended_test(name));
    for unused in unused.take(MOST_DROPPED) {
        // Another test may drop it at the same moment.
        psql(
            port,
            &format!("DROP DATABASE IF EXISTS {unused} WITH (FORCE)"),
        );
    }
    let created = psql(port, &format!("CREATE DATABASE {name}"));
    assert!(
        created.status.success(),
        "{}",
        String::from_utf8_lossy(&created.stderr)
    );
    format!("postgres://provost@127.0.0.1:{port}/{name}")
}

fn is_of_ended_test(database: &str) -> bool {
    let process = database
        .strip_prefix('t')
        .and_then(|name| name.split_once('_'));
    let process = process.and_then(|(process, _)| process.parse::<u32>().ok());
    process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
}

fn psql(port: u16, command: &str) -> Output {
    as_owner(&client("psql"))
        .args(["-h", "127.0.0.1", "-U", "provost", "-d", "postgres"])
        .args(["-p", &port.to_string(), "-qAtc", command])
        .output()
        .unwrap()
}

/// Returns a command that runs as the user who owns the cluster, because PostgreSQL refuses to run as root.
pub fn as_owner(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

fn port_of_cluster() -> u16 {
    let mut installation = DefaultHasher::new();
    binaries().hash(&mut installation);
    let installation = installation.finish() as u32;
    let shared = Shared::lock(&format!("postgres-{installation:08x}"));
    shared.port().unwrap_or_else(|| start(&shared))
}

fn start(shared: &Shared) -> u16 {
    let folder = &shared.folder;
    let _ = fs::remove_dir_all(folder);
    fs::create_dir(folder).unwrap();
    if is_root() {
        let owned = Command::new("chown").arg("postgres").arg(folder).status();
        assert!(owned.unwrap().success());
    }
    let data = folder.join("data");
    let made = as_owner(&binaries().join("initdb"))
        .args(["--auth=trust", "--username=provost", "--encoding=UTF8"])
        .args(["--locale=C.UTF-8", "--no-sync", "-D"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let settings = "listen_addresses = '127.0.0.1'\nfsync = off\nmax_connections = 400\n\
                    shared_buffers = 32MB\nlog_min_messages = warning\n\
                    min_wal_size = 32MB\nmax_wal_size = 64MB\n";
    fs::write(data.join("postgresql.auto.conf"), settings).unwrap();
    let port = free_port();
    let arguments = [
        "-D",
        data.to_str().unwrap(),
        "-p",
        &port.to_string(),
        "-k",
        folder.to_str().unwrap(),
    ];
    let setsid = as_owner(Path::new("setsid"));
    shared.run(setsid, "INT", &binaries().join("postgres"), &arguments);
    let started = Instant::now();
    while !is_ready(port) {
        assert!(started.elapsed() < START_WITHIN, "{}", shared.log());
        thread::sleep(Duration::from_millis(50));
    }
    shared.is_at(port);
    port
}

fn is_ready(port: u16) -> bool {
    let asked = Command::new(client("pg_isready"))
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .output();
    asked.is_ok_and(|asked| asked.status.success())
}

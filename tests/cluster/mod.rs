//! A throwaway PostgreSQL that all tests of a run share, each with a database of its own. It does not sync to disk:
//! tests of what survives a power cut start their own.

mod programs;
mod proxy;
mod server;
mod shared;

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

pub use programs::{binaries, client};
pub use proxy::Proxy;
pub use server::{Server, url};
pub use shared::Shared;
use shared::is_root;

const START_WITHIN: Duration = Duration::from_secs(60);

/// The URL of a new, empty database.
pub fn new_database() -> String {
    let port = port_of_cluster();
    let name = format!("t{:032x}", rand::random::<u128>());
    let created = as_owner(&client("psql"))
        .args(["-h", "127.0.0.1", "-U", "provost", "-d", "postgres"])
        .args(["-p", &port.to_string()])
        .args(["-qc", &format!("CREATE DATABASE {name}")])
        .output()
        .unwrap();
    assert!(
        created.status.success(),
        "{}",
        String::from_utf8_lossy(&created.stderr)
    );
    format!("postgres://provost@127.0.0.1:{port}/{name}")
}

/// A command that runs as the user who owns the cluster: PostgreSQL refuses to run as root.
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
                    shared_buffers = 32MB\nlog_min_messages = warning\n";
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

pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

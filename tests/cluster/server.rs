//! A PostgreSQL of one test's own, which the test may damage as it likes.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::{as_owner, binaries, free_port};

/// Starts the server, and ends and removes it when the test closes the standard input: by dropping it, or by exiting in
/// any way.
const RUN: &str = r#"
bin=$1 folder=$2 port=$3
"$bin/pg_ctl" -D "$folder/data" -l "$folder/log" -o "-p $port -k $folder" -w start >&2 || exit 1
echo started
cat >/dev/null
"$bin/pg_ctl" -D "$folder/data" -m immediate -w stop >&2
rm -rf "$folder"
"#;

/// There are enough connections for four instances that restart while the sessions of their previous processes still
/// exist. Data that no commit has forced to disk is written late, so that a crash loses it. The times of commits are
/// kept, so that the record can be compared with what was done.
const SETTINGS: &str = "listen_addresses = '127.0.0.1'\nfsync = off\nmax_connections = 200\n\
                        shared_buffers = 32MB\nwal_writer_delay = 10s\n\
                        track_commit_timestamp = on\n";

pub struct Server {
    folder: PathBuf,
    port: u16,
    running: Child,
}

impl Server {
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(start).await.unwrap()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        url(self.port)
    }

    /// Ends the server's processes at once, as in a crash, and lets it recover. Returns when it accepts connections.
    pub async fn restart_at_once(&self) {
        let (folder, port) = (self.folder.clone(), self.port);
        let restarted = tokio::task::spawn_blocking(move || {
            run(as_owner(&binaries().join("pg_ctl"))
                .arg("-D")
                .arg(folder.join("data"))
                .arg("-l")
                .arg(folder.join("log"))
                .arg("-o")
                .arg(format!("-p {port} -k {}", folder.display()))
                .args(["-m", "immediate", "-w", "restart"]));
        });
        restarted.await.unwrap();
    }
}

/// Returns the URL of the server at this port, or of a proxy for it.
pub fn url(port: u16) -> String {
    format!("postgres://provost@127.0.0.1:{port}/postgres?sslmode=disable")
}

fn start() -> Server {
    let folder = std::env::temp_dir().join(format!("provost-test-{:032x}", rand::random::<u128>()));
    run(as_owner(Path::new("mkdir")).arg(&folder));
    run(as_owner(&binaries().join("initdb"))
        .args(["--auth=trust", "--username=provost", "--encoding=UTF8"])
        .args(["--locale=C.UTF-8", "--no-sync", "-D"])
        .arg(folder.join("data")));
    run(as_owner(Path::new("sh"))
        .args(["-c", "printf %s \"$2\" >\"$1\"", "sh"])
        .arg(folder.join("data/postgresql.auto.conf"))
        .arg(SETTINGS));
    let port = free_port();
    // The process is in a group of its own, so that a signal to the test's group does not end the process that cleans
    // up.
    let mut running = as_owner(Path::new("setsid"))
        .args(["sh", "-c", RUN, "server"])
        .args([&binaries(), &folder])
        .arg(port.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stdout = std::io::BufReader::new(running.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut said).unwrap();
    assert_eq!(said, "started\n", "PostgreSQL did not start");
    Server {
        folder,
        port,
        running,
    }
}

fn run(command: &mut Command) {
    // The output is discarded: a server that the command starts would keep a pipe open.
    let done = command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(done.success(), "{command:?}: {done}");
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.stdin.take();
        let _ = self.running.wait();
    }
}

//! A throwaway PostgreSQL that all tests of a run share, each with a database of its own. The first test
//! starts it; a watchdog ends it a while after the last test that needs it. It does not sync to disk: tests
//! of what survives a power cut start their own.

mod programs;
mod proxy;
mod server;

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Once,
    thread,
    time::{Duration, Instant},
};

pub use programs::{binaries, client};
pub use proxy::Proxy;
pub use server::{Server, url};

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

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn port_of_cluster() -> u16 {
    // One for each checkout, user and installation of PostgreSQL. Its socket is in it too, whose path must
    // be short.
    let user = if is_root() { "root" } else { "user" };
    let checkout = env!("CARGO_MANIFEST_DIR").replace('/', "-");
    let mut installation = DefaultHasher::new();
    binaries().hash(&mut installation);
    let installation = installation.finish() as u32;
    let name = format!("provost-test-postgres-{user}{checkout}-{installation:08x}");
    let place = |end: &str| std::env::temp_dir().join(format!("{name}{end}"));
    let (folder, lock, alive) = (place(""), place(".lock"), place(".alive"));
    let locked = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock)
        .unwrap();
    locked.lock().unwrap();
    fs::write(&alive, "").unwrap();
    keep_alive(alive.clone());
    let running = fs::read_to_string(folder.join("port"))
        .ok()
        .and_then(|port| port.trim().parse().ok())
        .filter(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok());
    running.unwrap_or_else(|| start(&folder, &lock, &alive))
}

/// As long as this process lives, somebody needs the cluster.
fn keep_alive(alive: PathBuf) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_secs(10));
                let _ = fs::write(&alive, "");
            }
        });
    });
}

fn start(folder: &Path, lock: &Path, alive: &Path) -> u16 {
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
    let watchdog = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/watchdog.sh");
    // The folder of the checkout may be closed to the owner of the cluster: the script goes in by text.
    let mut spawned = as_owner(Path::new("setsid"))
        .args([
            "sh",
            "-c",
            &fs::read_to_string(watchdog).unwrap(),
            "watchdog",
        ])
        .args([&binaries(), folder, lock, alive])
        .arg(port.to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It outlives this process; while that lasts, it must not become a zombie.
    thread::spawn(move || spawned.wait());
    let started = Instant::now();
    while !is_ready(port) {
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(started.elapsed() < START_WITHIN, "{}", log());
        thread::sleep(Duration::from_millis(50));
    }
    fs::write(folder.join("port"), port.to_string()).unwrap();
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

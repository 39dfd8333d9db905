//! Servers that all tests of a run share. The first test that needs a server starts it, and a watchdog ends it a while
//! after the last test.

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

/// The server for one checkout, user and kind. Its lock is held, so that no other process starts it at the same time.
pub struct Shared {
    /// The folder is removed when the server ends. A socket may be in it, whose path must be short.
    pub folder: PathBuf,
    lock: PathBuf,
    alive: PathBuf,
    _locked: File,
}

impl Shared {
    /// Locks the server, and keeps it running as long as this process lives.
    pub fn lock(kind: &str) -> Self {
        let user = if is_root() { "root" } else { "user" };
        let checkout = env!("CARGO_MANIFEST_DIR").replace('/', "-");
        let name = format!("provost-test-{kind}-{user}{checkout}");
        let place = |end: &str| env::temp_dir().join(format!("{name}{end}"));
        let (folder, lock, alive) = (place(""), place(".lock"), place(".alive"));
        let locked = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock)
            .unwrap();
        locked.lock().unwrap();
        fs::write(&alive, "").unwrap();
        keep_alive(&alive);
        Self {
            folder,
            lock,
            alive,
            _locked: locked,
        }
    }

    /// Returns the port where it accepts connections, if it runs.
    pub fn port(&self) -> Option<u16> {
        let port = fs::read_to_string(self.folder.join("port")).ok()?;
        let port = port.trim().parse().ok()?;
        let takes_connections = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        takes_connections.then_some(port)
    }

    /// Runs the server by a `setsid` command that has the server's user and environment. `signal` ends the server.
    pub fn run(&self, mut setsid: Command, signal: &str, server: &Path, arguments: &[&str]) {
        let watchdog = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/watchdog.sh");
        // The owner of the server may not be able to read the folder of the checkout, so the script is passed as text.
        let mut spawned = setsid
            .args([
                "sh",
                "-c",
                &fs::read_to_string(watchdog).unwrap(),
                "watchdog",
            ])
            .args([&self.folder, &self.lock, &self.alive])
            .arg(signal)
            .arg(server)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It outlives this process. As long as this process lives, the child must not become a zombie.
        thread::spawn(move || spawned.wait());
    }

    /// Lets other processes find it.
    pub fn is_at(&self, port: u16) {
        fs::write(self.folder.join("port"), port.to_string()).unwrap();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Marks the server as needed as long as this process lives.
fn keep_alive(file: &Path) {
    static KEPT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap();
    if kept.is_empty() {
        thread::spawn(|| {
            loop {
                thread::sleep(Duration::from_secs(10));
                for file in KEPT.lock().unwrap().iter() {
                    let _ = fs::write(file, "");
                }
            }
        });
    }
    if !kept.iter().any(|other| other == file) {
        kept.push(file.to_owned());
    }
}

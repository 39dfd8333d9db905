//! Servers that all tests of a run share. The first test that needs one starts it; a watchdog ends it a while after the last.

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

/// One for each checkout, user and kind. Nobody else looks for it meanwhile.
pub struct Shared {
    /// Removed when the server ends. A socket may be in it, whose path must be short.
    pub folder: PathBuf,
    lock: PathBuf,
    alive: PathBuf,
    _locked: File,
}

impl Shared {
    /// From now on it is needed, as long as this process lives.
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

    /// Where it takes connections, if it runs.
    pub fn port(&self) -> Option<u16> {
        let port = fs::read_to_string(self.folder.join("port")).ok()?;
        let port = port.trim().parse().ok()?;
        let takes_connections = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        takes_connections.then_some(port)
    }

    /// Runs the server by a `setsid` that has its user and environment. This signal ends it.
    pub fn run(&self, mut setsid: Command, signal: &str, server: &Path, arguments: &[&str]) {
        let watchdog = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/watchdog.sh");
        // The folder of the checkout may be closed to the owner of the server: the script goes in by text.
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
        // It outlives this process; while that lasts, it must not become a zombie.
        thread::spawn(move || spawned.wait());
    }

    /// Others find it from now on.
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

/// As long as this process lives, somebody needs the server.
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

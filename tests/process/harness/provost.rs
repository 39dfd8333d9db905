//! The binary under test, as a child process.

use std::{
    fs::File,
    io::Write,
    ops::Deref,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::{Notify, watch},
    time::timeout,
};

use super::{Api, PATIENCE, failure};

/// Returns a command for the binary without the environment of the tests, which must not change what they test.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_provost"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PROVOST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Returns a command for the binary with this limit of open files, which it cannot raise.
fn limited(open_files: u32) -> Command {
    let mut command = binary();
    let program = command.as_std().get_program().to_owned();
    let kept: Vec<_> = command
        .as_std()
        .get_envs()
        .map(|(name, _)| name.to_owned())
        .collect();
    command = Command::new("sh");
    let script = format!("ulimit -n {open_files} && exec \"$0\" \"$@\"");
    command.arg("-c").arg(script).arg(program);
    for name in kept {
        command.env_remove(name);
    }
    command
}

/// The settings, environment and files with which it is started.
#[derive(Clone, Default)]
pub struct Setup {
    env: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    config: Option<String>,
    database: Option<PathBuf>,
    database_url: Option<String>,
    unread: Option<Arc<Notify>>,
    /// The address. `None`: any free port of loopback.
    listen: Option<String>,
    open_files: Option<u32>,
}

impl Setup {
    /// Sets a setting by its variable without the prefix, such as `SUPERVISOR__INTERVAL`.
    pub fn set(mut self, setting: &str, value: &str) -> Self {
        self.env.retain(|(name, _)| name != setting);
        self.env.push((setting.to_owned(), value.to_owned()));
        self
    }

    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets a variable that is no setting.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the text of `provost.toml` in its working folder.
    pub fn config(mut self, text: &str) -> Self {
        self.config = Some(text.to_owned());
        self
    }

    /// Uses a database file outside its own folder.
    pub fn database(mut self, path: &Path) -> Self {
        self.database = Some(path.to_owned());
        self
    }

    /// Uses a database that is no file.
    pub fn database_url(mut self, url: &str) -> Self {
        self.database_url = Some(url.to_owned());
        self
    }

    /// Leaves the log unread from the time when it is ready until `read_again` is notified.
    pub fn unread(mut self, read_again: &Arc<Notify>) -> Self {
        self.unread = Some(read_again.clone());
        self
    }

    pub fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        self
    }

    /// Limits the number of open files, as `ulimit -n` does.
    pub fn open_files(mut self, most: u32) -> Self {
        self.open_files = Some(most);
        self
    }

    pub async fn start(self) -> Provost {
        let folder = TempDir::new().unwrap();
        let mut process = self.spawn(folder.path());
        let api = process.ready().await;
        Provost {
            folder,
            setup: self,
            process,
            api,
        }
    }

    /// Starts it. The test itself must wait until it is [`Provost::ready`].
    pub fn launch(self) -> Provost {
        let folder = TempDir::new().unwrap();
        Provost {
            process: self.spawn(folder.path()),
            api: Api::new("not ready"),
            setup: self,
            folder,
        }
    }

    /// Starts it with settings that it must refuse. Returns its exit code and its output.
    pub async fn refused(self) -> (Option<i32>, String) {
        let folder = TempDir::new().unwrap();
        let mut process = self.spawn(folder.path());
        let exit = timeout(PATIENCE, process.child.wait()).await;
        let exit = exit
            .expect("it started, although it should have refused")
            .unwrap();
        process.log.closed().await;
        (exit.code(), process.log.text())
    }

    fn spawn(&self, folder: &Path) -> Process {
        if let Some(text) = &self.config {
            std::fs::write(folder.join("provost.toml"), text).unwrap();
        }
        let database = self.database.clone();
        let database = database.unwrap_or_else(|| folder.join("provost.db"));
        let database = format!("sqlite://{}", database.display());
        let mut command = match self.open_files {
            Some(most) => limited(most),
            None => binary(),
        };
        command
            .args(["serve", "--log-json", "--listen"])
            .arg(self.listen.as_deref().unwrap_or("127.0.0.1:0"))
            .arg("--database-url")
            .arg(self.database_url.as_ref().unwrap_or(&database))
            .args(&self.arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for (setting, value) in &self.env {
            command.env(format!("PROVOST_{setting}"), value);
        }
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        let mut child = command.spawn().unwrap();
        let process = child.id().unwrap();
        let log = Log::read(child.stderr.take().unwrap(), process, self.unread.clone());
        Process {
            child,
            id: process,
            log,
        }
    }
}

/// One process of the binary.
struct Process {
    child: Child,
    id: u32,
    log: Log,
}

impl Process {
    async fn ready(&mut self) -> Api {
        let mut ready = self.log.ready.clone();
        let address = timeout(PATIENCE, ready.wait_for(Option::is_some)).await;
        let address = match address {
            Ok(Ok(address)) => address.clone(),
            _ => None,
        };
        match address {
            Some(address) => Api::new(&address),
            None => panic!("it did not get ready; it said:\n{}", self.log.text()),
        }
    }

    async fn kill(&mut self) {
        // An error here means that it has ended by itself, and the next assertion decides about that.
        let _ = self.child.kill().await;
        self.log.closed().await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let address = self.log.ready.borrow().clone();
            failure::keep(self.id, &self.log.text(), address.as_deref());
        }
    }
}

/// A running Provost with a folder of its own. It is killed when the test is over.
pub struct Provost {
    folder: TempDir,
    setup: Setup,
    process: Process,
    api: Api,
}

impl Provost {
    /// Returns a setup with settings that make recovery quick.
    pub fn setup() -> Setup {
        Setup::default().set("SUPERVISOR__INTERVAL", "100ms")
    }

    pub async fn start() -> Self {
        Self::setup().start().await
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn database(&self) -> PathBuf {
        let elsewhere = self.setup.database.clone();
        elsewhere.unwrap_or_else(|| self.folder.path().join("provost.db"))
    }

    /// Returns the URL of its database, if that is no file.
    pub fn database_url(&self) -> Option<String> {
        self.setup.database_url.clone()
    }

    /// Returns its log since it was last started.
    pub fn log(&self) -> String {
        self.process.log.text()
    }

    /// Waits until a line of its log contains this.
    pub async fn says(&self, words: &str) {
        let mut lines = self.process.log.lines.subscribe();
        let holds = |lines: &Vec<String>| lines.iter().any(|line| line.contains(words));
        let said = timeout(PATIENCE, lines.wait_for(holds)).await;
        let said = said.is_ok_and(|said| said.is_ok());
        assert!(said, "it never said {words:?} but:\n{}", self.log());
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Starts again on the same database.
    pub async fn restart(&mut self) {
        self.launch();
        self.ready().await;
    }

    /// Starts it again, with other settings from then on.
    pub async fn restart_with(&mut self, change: impl FnOnce(Setup) -> Setup) {
        self.setup = change(std::mem::take(&mut self.setup));
        self.restart().await;
    }

    /// Does the first half of [`Provost::restart`], for tests that kill it before it is ready.
    pub fn launch(&mut self) {
        self.process = self.setup.spawn(self.folder.path());
    }

    pub async fn ready(&mut self) {
        self.api = self.process.ready().await;
    }

    pub fn is_ready(&self) -> bool {
        self.process.log.ready.borrow().is_some()
    }

    /// Sends SIGTERM. It runs until [`Provost::ended`].
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends SIGHUP after it has replaced `provost.toml`.
    pub fn reload(&self, config: &str) {
        std::fs::write(self.folder.path().join("provost.toml"), config).unwrap();
        self.signal("HUP");
    }

    /// Sends SIGHUP after it has removed `provost.toml`.
    pub fn reload_without_file(&self) {
        std::fs::remove_file(self.folder.path().join("provost.toml")).unwrap();
        self.signal("HUP");
    }

    /// Sends SIGSTOP: it does nothing until [`Provost::resume`].
    pub fn suspend(&self) {
        self.signal("STOP");
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let id = self.process.child.id().expect("it runs");
        // This is the `kill` of the shell, because a machine may have no other.
        let sent = std::process::Command::new("sh")
            .args(["-c", &format!("kill -{name} {id}")])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Returns the largest amount of memory that it has used since it was last started, in bytes; `None` if the system
    /// does not report it.
    pub fn peak_memory(&self) -> Option<u64> {
        let id = self.process.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib * 1024)
    }

    /// Returns the number of its threads; `None` if the system does not report it.
    pub fn threads(&self) -> Option<usize> {
        let id = self.process.child.id().expect("it runs");
        Some(std::fs::read_dir(format!("/proc/{id}/task")).ok()?.count())
    }

    /// Returns the processor time that it has used since it was last started; `None` if the system does not report it.
    pub fn cpu_time(&self) -> Option<Duration> {
        let id = self.process.child.id().expect("it runs");
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The fields follow the name of the program, which may have spaces.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks = ticks.map(|ticks| ticks.parse::<u64>().ok());
        let ticks: u64 = ticks.sum::<Option<u64>>()?;
        // Linux counts a hundred ticks a second.
        Some(Duration::from_millis(ticks * 10))
    }

    /// Returns whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process.child.try_wait().unwrap().is_some()
    }

    /// Waits until it ends, however long that takes.
    pub async fn exits(&mut self) -> ExitStatus {
        self.process.child.wait().await.unwrap()
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = timeout(PATIENCE, self.process.child.wait()).await;
        let status = ended.expect("it did not end").unwrap();
        self.process.log.closed().await;
        status
    }
}

impl Deref for Provost {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// If PROVOST_TEST_LOGS names a folder, returns a file there for the whole log of the process.
fn kept(process: u32) -> Option<File> {
    let folder = PathBuf::from(std::env::var_os("PROVOST_TEST_LOGS")?);
    Some(File::create(folder.join(format!("{process}.log"))).unwrap())
}

/// The lines that a process writes to stderr, and the address at which it is ready.
struct Log {
    lines: watch::Sender<Vec<String>>,
    /// The sender is dropped when stderr has closed.
    ready: watch::Receiver<Option<String>>,
}

impl Log {
    /// Reads the log. Once the process is ready, an `unread` log is not read until that is notified.
    fn read(
        stderr: tokio::process::ChildStderr,
        process: u32,
        unread: Option<Arc<Notify>>,
    ) -> Self {
        let lines = watch::Sender::new(Vec::new());
        let (announce, ready) = watch::channel(None);
        let log = lines.clone();
        tokio::spawn(async move {
            let mut stderr = BufReader::new(stderr).lines();
            let mut kept = kept(process);
            while let Ok(Some(line)) = stderr.next_line().await {
                if let Some(kept) = &mut kept {
                    writeln!(kept, "{line}").unwrap();
                }
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                log.send_modify(|lines| lines.push(line));
                if event["message"] == "provost is ready" {
                    let address = event["address"].as_str().map(str::to_owned);
                    announce.send_replace(address);
                    if let Some(read_again) = &unread {
                        read_again.notified().await;
                    }
                }
            }
        });
        Self { lines, ready }
    }

    fn text(&self) -> String {
        self.lines.borrow().join("\n")
    }

    async fn closed(&self) {
        let mut ready = self.ready.clone();
        while ready.changed().await.is_ok() {}
    }
}

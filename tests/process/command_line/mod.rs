//! The command line as the client of a running server: the real binary in pipes and in a pseudo-terminal.

mod completion;
mod contexts;
mod definitions;
mod documented;
mod exit_codes;
mod forms;
mod local;
mod night;
mod pipes;
mod steps;
mod terminal;

use std::{
    fs::File,
    io::{Seek, Write},
    path::Path,
    process::Stdio,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
    sync::mpsc,
    time::timeout,
};

use crate::harness::{PATIENCE, Provost, binary};

/// A person, or a script, with a folder and contexts of their own.
pub struct Person {
    pub folder: TempDir,
    url: Option<String>,
}

/// The end of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Person {
    /// Returns a person whose variable PROVOST_URL names this server.
    pub fn of(provost: &Provost) -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            url: Some(format!("http://{}", provost.address())),
        }
    }

    /// Returns a person who has no variable.
    pub fn without_server() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            url: None,
        }
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn command(&self) -> Command {
        let mut command = binary();
        let contexts = self.folder.path().join("contexts.toml");
        command
            .env("PROVOST_CONTEXTS", contexts)
            .env_remove("NO_COLOR")
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some(url) = &self.url {
            command.env("PROVOST_URL", url);
        }
        command
    }

    /// Runs a command in pipes.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        ran(self.command().args(arguments)).await
    }

    /// Runs a command to which this text comes on standard input.
    pub async fn run_with(&self, arguments: &[&str], input: &str) -> Ran {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(input.as_bytes()).unwrap();
        file.rewind().unwrap();
        ran(self.command().args(arguments).stdin(file)).await
    }

    /// Runs a command that must exit with 0, and returns its output.
    #[track_caller]
    pub fn done(&self, arguments: &[&str]) -> impl Future<Output = String> {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        let mut command = self.command();
        async move {
            let ran = ran(command.args(&arguments)).await;
            assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
            ran.out
        }
    }

    /// Runs a command that must exit with 0, and returns its output as JSON.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let out = self.done(&[arguments, &["-o", "json"]].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{arguments:?}: {out}"))
    }

    /// Starts a command in a terminal of 60 columns.
    pub fn terminal(&self, arguments: &[&str]) -> Terminal {
        self.terminal_with(arguments, |command| command)
    }

    pub fn terminal_with(
        &self,
        arguments: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Terminal {
        let mut command = self.command();
        change(command.args(arguments));
        Terminal::start(command)
    }
}

pub async fn ran(command: &mut Command) -> Ran {
    let output = timeout(PATIENCE, command.output()).await;
    let output = output.expect("the command did not end").unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A command in a pseudo-terminal.
pub struct Terminal {
    child: tokio::process::Child,
    keyboard: tokio::fs::File,
    shown: mpsc::UnboundedReceiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let mut options = File::options();
        let slave = options
            .read(true)
            .write(true)
            .open(Path::new(name.to_str().unwrap()));
        let slave = slave.unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 60,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).unwrap();
        let copy = || Stdio::from(slave.try_clone().unwrap());
        let child = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn();
        drop(command);
        let screen = File::from(master);
        let keyboard = tokio::fs::File::from_std(screen.try_clone().unwrap());
        let (sender, shown) = mpsc::unbounded_channel();
        let mut screen = tokio::fs::File::from_std(screen);
        tokio::spawn(async move {
            let mut piece = [0; 4096];
            // When the last program has closed the terminal, a read fails.
            while let Ok(length @ 1..) = screen.read(&mut piece).await {
                if sender.send(piece[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child: child.unwrap(),
            keyboard,
            shown,
            text: String::new(),
        }
    }

    /// Waits until the terminal shows this.
    pub async fn shows(&mut self, words: &str) {
        while !self.text.contains(words) {
            match timeout(PATIENCE, self.shown.recv()).await {
                Ok(Some(piece)) => self.text.push_str(&String::from_utf8_lossy(&piece)),
                _ => panic!("it never showed {words:?} but:\n{}", self.text),
            }
        }
    }

    pub async fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).await.unwrap();
        self.keyboard.flush().await.unwrap();
    }

    /// Waits for the end, and returns the exit code with everything that was shown.
    pub async fn end(mut self) -> (i32, String) {
        let status = timeout(PATIENCE, self.child.wait()).await;
        let status = status.expect("the command did not end").unwrap();
        while let Ok(Some(piece)) = timeout(PATIENCE, self.shown.recv()).await {
            self.text.push_str(&String::from_utf8_lossy(&piece));
        }
        (status.code().unwrap_or(-1), self.text)
    }
}

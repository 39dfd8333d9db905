//! Questions to the person at the terminal. Without a terminal nothing is asked.

use std::io::{self, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::{outcome::ClientError, output::Output};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Yes,
    No,
    /// Nobody can be asked.
    NoTerminal,
}

/// Asks a question whose default is no.
pub fn ask(out: &Output, question: &str) -> Answer {
    if !out.is_interactive() {
        return Answer::NoTerminal;
    }
    eprint!("{question} [y/N] ");
    let mut line = String::new();
    let read = io::stderr()
        .flush()
        .and_then(|()| io::stdin().read_line(&mut line));
    match (read, line.trim().to_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Answer::Yes,
        _ => Answer::No,
    }
}

/// Reads a secret from the terminal, which does not show it.
pub fn secret(out: &Output, name: &str) -> Result<String, ClientError> {
    if !out.is_interactive() {
        return Err(ClientError::usage(format!(
            "there is no terminal to ask for the {name}"
        )));
    }
    let failed = |error: rustix::io::Errno| ClientError::file("the terminal", error.into());
    let stdin = io::stdin();
    let shown = tcgetattr(&stdin).map_err(failed)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    // The question comes after the change, which discards what was typed before it.
    tcsetattr(&stdin, OptionalActions::Flush, &hidden).map_err(failed)?;
    eprint!("{name}: ");
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    let restored = tcsetattr(&stdin, OptionalActions::Flush, &shown);
    eprintln!();
    read.map_err(|error| ClientError::file("the terminal", error))?;
    restored.map_err(failed)?;
    Ok(line.trim().to_owned())
}

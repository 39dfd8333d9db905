//! The end of a command: the exit codes, and the errors with their texts.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::Deserialize;
use thiserror::Error;

use crate::{
    plain::{plain, shell_word},
    remedy,
};

/// The end of a command that the server accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    /// The task is in error or was cancelled, or the job failed.
    Failed,
    /// The task was undone.
    Undone,
    /// The task or the job still runs when the time is over.
    Running,
    /// The server refused the command, or some of the tasks did.
    Refused,
}

impl Outcome {
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 2,
            Self::Undone => 3,
            Self::Running => 4,
            Self::Refused => 5,
        }
    }
}

/// The exit code for wrong arguments, and for a server that does not respond.
pub const MISUSE: u8 = 1;

/// A problem document of the server (RFC 9457).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ProblemJson {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub state: Option<String>,
    pub errors: Vec<FieldErrorJson>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FieldErrorJson {
    pub pointer: String,
    pub message: String,
}

#[derive(Debug, Error)]
pub enum ClientError {
    /// The arguments do not fit the command or the server.
    #[error("{0}")]
    Usage(String),
    #[error(
        "no response from {server}: {cause}; is the server running there? Give --server or --context otherwise"
    )]
    NoResponse {
        server: String,
        cause: String,
        /// True if the request may have reached the server.
        was_sent: bool,
    },
    /// The server was reached, and the connection ended without a response that is one of HTTP.
    #[error(
        "{server} closed the connection, or its response is not one of HTTP: {cause}; a server with TLS has an address with https://"
    )]
    BrokenResponse { server: String, cause: String },
    /// The server was reached, and TLS failed.
    #[error("{server} was reached, but {cause}")]
    Tls { server: String, cause: String },
    #[error("the response to {request} is not that of Provost: {cause}")]
    Unreadable {
        request: String,
        cause: String,
        status: u16,
    },
    #[error("{}", refusal(.0, .1))]
    Refused(Box<ProblemJson>, String),
    /// The server does not have the thing that the arguments name.
    #[error("{0}")]
    NotFound(String),
    /// Several things were refused.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<ClientError>),
    /// A file has faults: each is a line with its line and column.
    #[error("{}", .0.join("\n"))]
    Faults(Vec<String>),
    /// A file that the server would refuse has faults: each is a line with its line and column.
    #[error("{}", .0.join("\n"))]
    RefusedFiles(Vec<String>),
    #[error("{}", of_file(.path, .error))]
    File { path: PathBuf, error: io::Error },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// The reader of standard output has gone, as `| head` does.
    #[error("standard output is closed")]
    ClosedOutput,
}

impl ClientError {
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Returns the errors as one.
    pub fn all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    pub fn file(path: impl Into<PathBuf>, error: io::Error) -> Self {
        Self::File {
            path: path.into(),
            error,
        }
    }

    /// Returns the error of a file that could not be made.
    pub fn unwritable(path: &Path, error: &io::Error) -> Self {
        Self::Usage(format!(
            "{} cannot be written: {error}; name a folder in which you may write",
            path.display()
        ))
    }

    fn code(&self) -> u8 {
        match self {
            // The arguments are the query: a value there that the server does not know is a wrong argument.
            Self::Refused(problem, _) if problem.kind.ends_with("/invalid-query") => MISUSE,
            Self::Refused(problem, _) if problem.status < 500 => Outcome::Refused.code(),
            Self::NotFound(_) | Self::RefusedFiles(_) => Outcome::Refused.code(),
            Self::Several(errors) => errors.iter().map(Self::code).max().unwrap_or(MISUSE),
            Self::ClosedOutput => 0,
            _ => MISUSE,
        }
    }

    /// Returns whether a server that is restarted gives this error: no response, that it is starting, or what a proxy in
    /// front of it responds meanwhile.
    pub fn is_of_a_restart(&self) -> bool {
        match self {
            Self::NoResponse { .. } | Self::BrokenResponse { .. } => true,
            Self::Refused(problem, _) => problem.status == 503,
            Self::Unreadable { status, .. } => matches!(status, 502..=504),
            _ => false,
        }
    }

    /// Adds to an error of the connection that the request may have been carried out all the same, and how it is repeated.
    pub fn may_be_done(self, how: impl FnOnce() -> String) -> Self {
        match self {
            Self::BrokenResponse { .. }
            | Self::Unreadable { .. }
            | Self::NoResponse { was_sent: true, .. } => Self::Usage(format!("{self}; {}", how())),
            other => other,
        }
    }

    /// Returns whether the server refuses the request, however often it is sent.
    pub fn is_refusal(&self) -> bool {
        self.code() == Outcome::Refused.code()
    }

    /// Returns the problem if the server refused the request with this status.
    pub fn problem(&self, status: u16) -> Option<&ProblemJson> {
        match self {
            Self::Refused(problem, _) if problem.status == status => Some(problem),
            _ => None,
        }
    }
}

/// Returns the exit code, and prints the error.
pub fn exit(result: Result<Outcome, ClientError>) -> ExitCode {
    match result {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(ClientError::ClosedOutput) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::from(error.code())
        }
    }
}

fn of_file(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!("{path} does not exist"),
        io::ErrorKind::PermissionDenied => format!("you may not use {path}: permission denied"),
        _ => format!("{path} cannot be used: {error}"),
    }
}

/// Returns a text of the server, with the commands of this client for the requests that it names.
fn for_people(text: &str) -> String {
    plain(&remedy::in_commands(text))
}

/// Returns the text of a refusal: title, detail, the faults with their pointers, what to do, and the page that says more.
fn refusal(problem: &ProblemJson, server: &str) -> String {
    let title = plain(&problem.title);
    // The detail of a single fault repeats it, and has no line and column.
    let is_repeated = match problem.errors.as_slice() {
        [fault] => problem.detail.contains(&fault.message),
        _ => false,
    };
    let mut text = match problem.detail.is_empty() || is_repeated {
        true => title,
        // The faults are below, and not in a member of that name.
        false => format!(
            "{title}: {}",
            for_people(problem.detail.trim_end_matches("; see errors"))
        ),
    };
    for fault in &problem.errors {
        let pointer = match fault.pointer.is_empty() {
            true => "(the whole body)",
            false => &fault.pointer,
        };
        text.push_str(&format!(
            "\n  {}: {}",
            plain(pointer),
            for_people(&fault.message)
        ));
    }
    if let Some(state) = &problem.state {
        text.push_str(&format!("\n  the task is {}", plain(state)));
    }
    if let Some(kind) = problem
        .kind
        .rsplit('/')
        .next()
        .filter(|kind| !kind.is_empty())
        && kind != "about:blank"
    {
        // A newer server may know a problem that this program does not.
        if let Some(cure) = remedy::of(kind) {
            text.push_str(&format!("\n  what to do: {cure}"));
        }
        let kind = plain(kind);
        text.push_str(&match server.strip_prefix("unix:") {
            Some(socket) => format!(
                "\n  more: curl --unix-socket {} http://localhost/problems/{kind}",
                shell_word(socket)
            ),
            None => format!("\n  more: {server}/problems/{kind}"),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_title_detail_pointers_and_remedy() {
        let problem = ProblemJson {
            kind: "/problems/wrong-kind".to_owned(),
            title: "Invalid body".to_owned(),
            status: 422,
            detail: "two faults".to_owned(),
            state: None,
            errors: vec![FieldErrorJson {
                pointer: "/steps/0".to_owned(),
                message: "needs a name\u{1b}[2J".to_owned(),
            }],
        };
        let error = ClientError::Refused(Box::new(problem), "http://p".to_owned());
        assert_eq!(
            error.to_string(),
            "Invalid body: two faults\n  /steps/0: needs a name\\u{1b}[2J\n  more: http://p/problems/wrong-kind"
        );
        assert_eq!(error.code(), 5);
    }

    #[test]
    fn a_single_fault_is_printed_once_and_requests_become_commands() {
        let message = "is not registered: PUT /v1/agents/nobody registers it";
        let problem = ProblemJson {
            title: "Invalid request".to_owned(),
            status: 422,
            detail: format!("/steps/0/agent: {message}"),
            errors: vec![FieldErrorJson {
                pointer: "/steps/0/agent".to_owned(),
                message: message.to_owned(),
            }],
            ..ProblemJson::default()
        };
        let error = ClientError::Refused(Box::new(problem), "http://p".to_owned());
        assert_eq!(
            error.to_string(),
            "Invalid request\n  /steps/0/agent: is not registered: provost apply registers it"
        );
    }
}

//! The end of a command: the exit codes, and the errors with their texts.

use std::{io, path::PathBuf, process::ExitCode};

use serde::Deserialize;
use thiserror::Error;

use crate::{plain::plain, remedy};

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
    NoResponse { server: String, cause: String },
    #[error("the response to {request} is not that of Provost: {cause}")]
    Unreadable { request: String, cause: String },
    #[error("{}", refusal(.0, .1))]
    Refused(Box<ProblemJson>, String),
    /// The server does not have the thing that the arguments name.
    #[error("{0}")]
    NotFound(String),
    /// A file has faults: each is a line with its line and column.
    #[error("{}", .0.join("\n"))]
    Faults(Vec<String>),
    #[error("{}: {error}", .path.display())]
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

    pub fn file(path: impl Into<PathBuf>, error: io::Error) -> Self {
        Self::File {
            path: path.into(),
            error,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Refused(problem, _) if problem.status < 500 => Outcome::Refused.code(),
            Self::NotFound(_) => Outcome::Refused.code(),
            Self::ClosedOutput => 0,
            _ => MISUSE,
        }
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

/// Returns the text of a refusal: title, detail, the faults with their pointers, what to do, and the page that says more.
fn refusal(problem: &ProblemJson, server: &str) -> String {
    let title = plain(&problem.title);
    let mut text = match problem.detail.is_empty() {
        true => title,
        false => format!("{title}: {}", plain(&problem.detail)),
    };
    for fault in &problem.errors {
        let pointer = match fault.pointer.is_empty() {
            true => "(the whole body)",
            false => &fault.pointer,
        };
        text.push_str(&format!(
            "\n  {}: {}",
            plain(pointer),
            plain(&fault.message)
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
        text.push_str(&format!("\n  more: {server}/problems/{}", plain(kind)));
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
}

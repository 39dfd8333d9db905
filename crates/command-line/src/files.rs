//! Values that arguments name: JSON in the argument itself, in a file or on standard input; and files with the line and
//! column of each value.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use provost_domain::values::FieldFault;
use provost_rehearsal::{SourceFormat, SourceText};
use serde_json::value::RawValue;

use crate::{
    outcome::{ClientError, FieldErrorJson},
    plain::plain,
};

/// The largest file that is sent.
const LONGEST_FILE: u64 = 16 << 20;

/// The name of standard input in messages.
const STANDARD_INPUT: &str = "standard input";

/// Returns whether a path stands for standard input.
pub fn is_standard_input(path: &Path) -> bool {
    path == "-"
}

/// A file of JSON or YAML, or what came on standard input.
#[derive(Debug)]
pub struct Document {
    /// For messages.
    pub path: PathBuf,
    source: SourceText,
}

impl Document {
    pub fn read(path: &Path) -> Result<Self, ClientError> {
        let text = read_text(path)?;
        let path = match is_standard_input(path) {
            true => Path::new(STANDARD_INPUT),
            false => path,
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        let format = match extension {
            Some("yaml" | "yml") => SourceFormat::Yaml,
            None if path == STANDARD_INPUT && !text.trim_start().starts_with(['{', '[']) => {
                SourceFormat::Yaml
            }
            _ => SourceFormat::Json,
        };
        let source = SourceText::parse(text, format).map_err(|fault| {
            let location = fault.location;
            let line = note(path, location.line, location.column, &fault.message);
            ClientError::Faults(vec![line])
        })?;
        Ok(Self {
            path: path.to_owned(),
            source,
        })
    }

    /// Returns the content as JSON, as it was written.
    pub fn json(&self) -> &str {
        self.source.json().raw().get()
    }

    /// Returns a message about a value of the file, with its line and column.
    pub fn note(&self, pointer: &str, message: &str) -> String {
        let fault = FieldFault::new(pointer.to_owned(), message.to_owned());
        let located = self.source.locate(&fault);
        note(
            &self.path,
            located.location.line,
            located.location.column,
            &located.message,
        )
    }

    /// Returns the error with the lines and columns of the file, if the server names values that are in it.
    pub fn locate(&self, error: ClientError) -> ClientError {
        let ClientError::Refused(problem, server) = error else {
            return error;
        };
        if problem.errors.is_empty() {
            return ClientError::Refused(problem, server);
        }
        let mut located = (*problem).clone();
        located.errors = problem
            .errors
            .iter()
            .map(|fault| self.located(fault))
            .collect();
        ClientError::Refused(Box::new(located), server)
    }

    fn located(&self, fault: &FieldErrorJson) -> FieldErrorJson {
        let location = self.source.location(&fault.pointer);
        let path = self.path.display();
        FieldErrorJson {
            pointer: format!(
                "{path}:{}:{}: {}",
                location.line, location.column, fault.pointer
            ),
            message: fault.message.clone(),
        }
    }
}

fn note(path: &Path, line: usize, column: usize, message: &str) -> String {
    format!("{}:{line}:{column}: {}", path.display(), plain(message))
}

/// Returns the text of a file; `-` is standard input.
pub fn read_text(path: &Path) -> Result<String, ClientError> {
    let failed = |error| ClientError::file(path, error);
    let mut bytes = Vec::new();
    match is_standard_input(path) {
        true => io::stdin().take(LONGEST_FILE + 1).read_to_end(&mut bytes),
        false => {
            let file = fs::File::open(path).map_err(failed)?;
            file.take(LONGEST_FILE + 1).read_to_end(&mut bytes)
        }
    }
    .map_err(failed)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(ClientError::usage(format!(
            "{} is longer than 16 MiB, the most that is sent",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let read = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + read.iter().filter(|byte| **byte == b'\n').count();
        let column = 1 + read.iter().rev().take_while(|byte| **byte != b'\n').count();
        let message = "is not UTF-8 text: save the file in UTF-8";
        ClientError::Faults(vec![note(path, line, column, message)])
    })
}

/// Returns the JSON of an argument: the value itself, or `@file` (JSON or YAML), or `-` or `@-` for standard input.
pub fn json_argument(name: &str, text: &str) -> Result<Box<RawValue>, ClientError> {
    let raw = match text
        .strip_prefix('@')
        .unwrap_or(if text == "-" { "-" } else { "" })
    {
        "" => text.to_owned(),
        path => Document::read(Path::new(path))?.json().to_owned(),
    };
    serde_json::from_str(&raw).map_err(|error| {
        ClientError::usage(format!(
            "{name}: the value is not JSON ({error}): write JSON such as '{{\"amount\": 5}}', or @file"
        ))
    })
}

/// Returns a text argument as JSON if it is JSON, and as a string otherwise.
pub fn name_value(text: &str) -> Result<(String, String), String> {
    match text.split_once(['=', ':']) {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not of the form name=value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::ProblemJson;

    #[test]
    fn a_refused_file_points_at_line_and_column() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order.yaml");
        fs::write(&path, "steps:\n  - name: charge\n    agent: 7\n").unwrap();
        let document = Document::read(&path).unwrap();
        let problem = ProblemJson {
            status: 422,
            title: "Invalid".to_owned(),
            errors: vec![FieldErrorJson {
                pointer: "/steps/0/agent".to_owned(),
                message: "must be a string".to_owned(),
            }],
            ..ProblemJson::default()
        };
        let located = document.locate(ClientError::Refused(Box::new(problem), String::new()));
        let expected = format!("{}:3:5: /steps/0/agent: must be a string", path.display());
        assert!(located.to_string().contains(&expected), "{located}");
    }

    #[test]
    fn a_broken_file_points_at_line_and_column() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order.json");
        fs::write(&path, "{\n  \"a\": 1,\n}").unwrap();
        let error = Document::read(&path).unwrap_err().to_string();
        assert!(error.contains("order.json:3:1: is not JSON"), "{error}");
    }

    #[test]
    fn an_argument_is_json_or_a_file_of_json_or_yaml() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input.yaml");
        fs::write(&path, "amount: 5\n").unwrap();
        assert_eq!(
            json_argument("--input", "{\"a\":1}").unwrap().get(),
            "{\"a\":1}"
        );
        let from_file = json_argument("--input", &format!("@{}", path.display())).unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(from_file.get()).unwrap(),
            serde_json::json!({ "amount": 5 })
        );
        assert!(
            json_argument("--input", "amount")
                .unwrap_err()
                .to_string()
                .contains("--input")
        );
    }
}

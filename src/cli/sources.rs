//! The files of `provost test` and `provost validate`: JSON or YAML, read up to a limit.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::{
    domain::values::FieldFault,
    rehearsal::{SourceFault, SourceFormat, SourceLocation, SourceText, WorkflowFile},
};

/// The longest file, in bytes.
const LONGEST_FILE: u64 = 4 << 20;

/// A file that was read.
pub struct SourceFile {
    pub path: PathBuf,
    pub source: SourceText,
}

/// A message about a location in a file, in the form of compilers: `order.json:3:5: message`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileNote {
    pub path: PathBuf,
    pub location: SourceLocation,
    pub message: String,
}

impl fmt::Display for FileNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceLocation { line, column } = self.location;
        let message = in_one_line(&self.message);
        write!(f, "{}:{line}:{column}: {message}", self.path.display())
    }
}

/// Returns the text with its control characters escaped, so that text of a file cannot send commands to the terminal.
pub fn in_one_line(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

#[derive(Debug, Error)]
pub enum SourceFileError {
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} is longer than 4 MiB: make it smaller, or split it", .0.display())]
    TooLong(PathBuf),
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    /// The content is invalid.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Faults(Vec<FileNote>),
}

impl SourceFile {
    pub fn read(path: &Path) -> Result<Self, SourceFileError> {
        let text = read_text(path, LONGEST_FILE)?;
        let source = SourceText::parse(text, format_of(path));
        let source = source.map_err(|SourceFault { location, message }| {
            SourceFileError::Faults(vec![FileNote {
                path: path.to_owned(),
                location,
                message,
            }])
        })?;
        Ok(Self {
            path: path.to_owned(),
            source,
        })
    }

    /// Returns the fault with the location of its JSON pointer in the file.
    pub fn note(&self, fault: &FieldFault) -> FileNote {
        let SourceFault { location, message } = self.source.locate(fault);
        FileNote {
            path: self.path.clone(),
            location,
            message,
        }
    }

    /// Returns all faults, in the order of the file.
    pub fn faults(&self, faults: &[FieldFault]) -> SourceFileError {
        let mut notes: Vec<_> = faults.iter().map(|fault| self.note(fault)).collect();
        notes.sort();
        SourceFileError::Faults(notes)
    }

    pub fn workflow(&self) -> Result<WorkflowFile, SourceFileError> {
        let read = WorkflowFile::read(self.source.json().raw());
        read.map_err(|faults| self.faults(&faults))
    }
}

fn format_of(path: &Path) -> SourceFormat {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("yaml" | "yml") => SourceFormat::Yaml,
        _ => SourceFormat::Json,
    }
}

/// Returns the text of a file of at most this many bytes.
pub fn read_text(path: &Path, longest: u64) -> Result<String, SourceFileError> {
    let unreadable = |error| SourceFileError::Unreadable {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let mut start = file.take(longest + 1);
    start.read_to_end(&mut bytes).map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > longest {
        return Err(SourceFileError::TooLong(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| SourceFileError::NotText(path.to_owned()))
}

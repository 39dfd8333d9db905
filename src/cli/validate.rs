//! `provost validate`: checks files of workflows without a service, for CI.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    MISUSE,
    sources::{FileNote, SourceFile, SourceFileError},
};
use crate::{domain::values::FieldFault, output::say};

#[derive(Args, Debug)]
pub struct ValidateOptions {
    /// Files of workflows: the body of a registration, or of a submission with inline steps, as JSON or YAML
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub fn run(options: &ValidateOptions) -> ExitCode {
    let mut worst = 0;
    for path in &options.files {
        match check(path) {
            Ok(warnings) => {
                for warning in &warnings {
                    say!("{warning}");
                }
                say!("{}: valid", path.display());
            }
            Err(SourceFileError::Faults(faults)) => {
                for fault in &faults {
                    say!("{fault}");
                }
                worst = worst.max(1);
            }
            Err(error) => {
                eprintln!("provost: {error}");
                worst = worst.max(MISUSE);
            }
        }
    }
    ExitCode::from(worst)
}

fn check(path: &std::path::Path) -> Result<Vec<FileNote>, SourceFileError> {
    let file = SourceFile::read(path)?;
    let workflow = file.workflow()?;
    let warnings = workflow.warnings();
    let mut notes: Vec<_> = warnings
        .into_iter()
        .map(|warning| {
            let message = format!("warning: {} ({})", warning.message, warning.code.as_str());
            file.note(&FieldFault::new(warning.pointer, message))
        })
        .collect();
    notes.sort();
    Ok(notes)
}

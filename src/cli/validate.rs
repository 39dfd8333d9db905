//! `provost validate`: checks files of workflows without a service, for CI.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    MISUSE,
    sources::{FileNote, SourceFile, SourceFileError},
};
use crate::{
    domain::{values::FieldFault, view::WarningCode},
    output::say,
};

#[derive(Args, Debug)]
pub struct ValidateOptions {
    /// Files of workflows: the body of a registration, or of a submission with inline steps, as JSON or YAML
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Exit with 1 if there is a warning. Notes, such as that services must deduplicate by Idempotency-Key, are none
    #[arg(long)]
    strict: bool,
}

/// A file without faults, with its warnings.
struct Checked {
    notes: Vec<FileNote>,
    has_warning: bool,
}

pub fn run(options: &ValidateOptions) -> ExitCode {
    let mut worst = 0;
    for path in &options.files {
        match check(path) {
            Ok(checked) => {
                for note in &checked.notes {
                    say!("{note}");
                }
                if options.strict && checked.has_warning {
                    say!("{}: valid, but it has warnings", path.display());
                    worst = worst.max(1);
                } else {
                    say!("{}: valid", path.display());
                }
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

fn check(path: &std::path::Path) -> Result<Checked, SourceFileError> {
    let file = SourceFile::read(path)?;
    let workflow = file.workflow()?;
    let warnings = workflow.warnings();
    let has_warning = warnings.iter().any(|warning| !is_note(warning.code));
    let mut notes: Vec<_> = warnings
        .into_iter()
        .map(|warning| {
            let kind = if is_note(warning.code) {
                "note"
            } else {
                "warning"
            };
            let message = format!("{kind}: {} ({})", warning.message, warning.code.as_str());
            file.note(&FieldFault::new(warning.pointer, message))
        })
        .collect();
    notes.sort();
    Ok(Checked { notes, has_warning })
}

/// Returns whether no change of the file can end a warning: only a running service knows what its agents hold.
fn is_note(code: WarningCode) -> bool {
    code == WarningCode::ReliesOnIdempotencyKey
}

//! `provost test`: runs the cases of a workflow without its services and without waiting.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::{Map, Value};
use thiserror::Error;

use super::{
    MISUSE, exploration,
    sources::{FileNote, SourceFile, SourceFileError, read_text},
    test_report::{self, CaseReport, FileResult},
};
use crate::{
    clock,
    domain::values::{FieldFault, nearest},
    rehearsal::{CaseNote, CasesFile, TestCase, UsedMocks, WorkflowFile, run_case, unused_mocks},
};

/// The longest file of snapshots, in bytes.
const LONGEST_SNAPSHOTS: u64 = 64 << 20;

#[derive(Args, Debug)]
pub struct TestOptions {
    /// The file of the workflow: the body of a registration, or of a submission with inline steps
    #[arg(value_name = "WORKFLOW")]
    workflow: PathBuf,

    /// Files of cases, as YAML or JSON
    #[arg(value_name = "CASES", required = true)]
    cases: Vec<PathBuf>,

    /// Run only the case of this name
    #[arg(long = "case", value_name = "NAME")]
    only: Option<String>,

    /// Write what happened to a file of snapshots beside each file of cases; later runs compare with it
    #[arg(long)]
    update: bool,

    /// Try a fault at every step of the first case, and show how each ends and which effects stand
    #[arg(long, conflicts_with_all = ["update", "tap", "junit"])]
    explore: bool,

    /// Print the results in the Test Anything Protocol
    #[arg(long)]
    tap: bool,

    /// Also write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// With --explore: print JSON
    #[arg(long, requires = "explore")]
    json: bool,
}

#[derive(Debug, Error)]
pub enum RehearseError {
    #[error(transparent)]
    File(#[from] SourceFileError),
    #[error("{}: no case has the name {name:?}{}", .path.display(), .meant.as_ref().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default())]
    NoCase {
        path: PathBuf,
        name: String,
        meant: Option<String>,
    },
    #[error(
        "{} is not a file of snapshots: {why}; delete it, or write it again with --update", .path.display()
    )]
    Snapshots { path: PathBuf, why: String },
    #[error("cannot write {}: {error}", .path.display())]
    Unwritable {
        path: PathBuf,
        error: std::io::Error,
    },
}

pub fn run(options: &TestOptions) -> ExitCode {
    match rehearse(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(RehearseError::File(SourceFileError::Faults(faults))) => {
            for fault in &faults {
                eprintln!("{fault}");
            }
            ExitCode::from(MISUSE)
        }
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::from(MISUSE)
        }
    }
}

/// Runs the cases, and returns whether all of them passed.
fn rehearse(options: &TestOptions) -> Result<bool, RehearseError> {
    let workflow = SourceFile::read(&options.workflow)?.workflow()?;
    // All files are read before a case runs, so that unusable ones are reported at once.
    let files = options
        .cases
        .iter()
        .map(|path| read_cases(path, &workflow, options));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    if options.explore {
        for (file, cases) in &files {
            if let Some(case) = chosen(cases, options).next() {
                let name = file.path.display().to_string();
                exploration::print(&workflow, cases, case, &name, options.json);
            }
        }
        return Ok(true);
    }
    let results = files
        .iter()
        .map(|(file, cases)| run_file(file, cases, &workflow, options));
    let results = results.collect::<Result<Vec<_>, _>>()?;
    match options.tap {
        true => test_report::print_tap(&results),
        false => test_report::print(&results),
    }
    if let Some(path) = &options.junit {
        write(path, &test_report::junit(&results))?;
    }
    let mut cases = results.iter().flat_map(|file| &file.cases);
    Ok(cases.all(CaseReport::has_passed))
}

fn read_cases(
    path: &Path,
    workflow: &WorkflowFile,
    options: &TestOptions,
) -> Result<(SourceFile, CasesFile), RehearseError> {
    let file = SourceFile::read(path)?;
    let cases = CasesFile::read(file.source.json().raw(), workflow);
    let cases = cases.map_err(|faults| file.faults(&faults))?;
    if let Some(name) = &options.only
        && chosen(&cases, options).next().is_none()
    {
        let names = cases.cases.iter().map(|case| case.name.as_str());
        return Err(RehearseError::NoCase {
            path: path.to_owned(),
            name: name.clone(),
            meant: nearest(name, names).map(str::to_owned),
        });
    }
    Ok((file, cases))
}

fn chosen<'c>(
    cases: &'c CasesFile,
    options: &'c TestOptions,
) -> impl Iterator<Item = &'c TestCase> {
    let is_chosen = |case: &&TestCase| options.only.as_ref().is_none_or(|name| case.name == *name);
    cases.cases.iter().filter(is_chosen)
}

fn run_file(
    file: &SourceFile,
    cases: &CasesFile,
    workflow: &WorkflowFile,
    options: &TestOptions,
) -> Result<FileResult, RehearseError> {
    let path = snapshots_of(&file.path);
    let mut snapshots = read_snapshots(&path)?;
    let mut used = UsedMocks::new();
    let mut warnings = Vec::new();
    let mut reports = Vec::new();
    for case in chosen(cases, options) {
        let known = snapshots.as_ref().and_then(|known| known.get(&case.name));
        let began = clock::instant();
        let known = known.filter(|_| !options.update);
        let mut result = run_case(case, cases, workflow, known, &mut used);
        let took = began.elapsed();
        if options.update {
            let snapshots = snapshots.get_or_insert_default();
            snapshots.insert(case.name.clone(), result.snapshot);
            // The case has a snapshot now, so the warning about a missing one is removed.
            result
                .warnings
                .retain(|warning| warning.pointer != case.pointer);
        }
        let located = |notes: &[CaseNote]| -> Vec<FileNote> {
            notes.iter().map(|note| located(file, case, note)).collect()
        };
        warnings.extend(located(&result.warnings));
        reports.push(CaseReport {
            name: case.name.clone(),
            case: located(&[CaseNote::new(&case.pointer, "")]).remove(0),
            failures: located(&result.failures),
            timeline: result.timeline,
            took,
        });
    }
    if options.only.is_none() {
        let notes = unused_mocks(&workflow.names, &cases.services, &used);
        warnings.extend(notes.iter().map(|note| file.note(note)));
        if let Some(snapshots) = &mut snapshots {
            let is_known = |name: &str| cases.cases.iter().any(|case| case.name == name);
            if options.update {
                snapshots.retain(|name, _| is_known(name));
            }
            for name in snapshots.keys().filter(|name| !is_known(name)) {
                let message = format!(
                    "{} has a snapshot of {name:?}, which is no case here: --update removes it",
                    path.display()
                );
                warnings.push(file.note(&FieldFault::new("", message)));
            }
        }
    }
    if options.update {
        let snapshots = snapshots.map(Value::Object).unwrap_or_default();
        // A JSON value has text as the names of its members, so it can always be written.
        let text = serde_json::to_string_pretty(&snapshots).unwrap_or_default() + "\n";
        write(&path, &text)?;
    }
    warnings.sort();
    Ok(FileResult {
        path: file.path.clone(),
        cases: reports,
        warnings,
    })
}

/// Returns the note with its location, and with its field relative to the case, as `expect.state`.
fn located(file: &SourceFile, case: &TestCase, note: &CaseNote) -> FileNote {
    let FileNote { path, location, .. } = file.note(note);
    let field = note
        .pointer
        .strip_prefix(&case.pointer)
        .unwrap_or(&note.pointer);
    let field = field.trim_start_matches('/').replace('/', ".");
    let message = match &*field {
        "" => note.message.clone(),
        field => format!("{field}: {}", note.message),
    };
    FileNote {
        path,
        location,
        message,
    }
}

/// Returns the path of a file's snapshots: `order.cases.snapshot.json` for `order.cases.yaml`.
fn snapshots_of(cases: &Path) -> PathBuf {
    cases.with_extension("snapshot.json")
}

/// Returns `None` if there is no file of snapshots.
fn read_snapshots(path: &Path) -> Result<Option<Map<String, Value>>, RehearseError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = read_text(path, LONGEST_SNAPSHOTS)?;
    let read = serde_json::from_str(&text);
    read.map(Some).map_err(|error| RehearseError::Snapshots {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

fn write(path: &Path, text: &str) -> Result<(), RehearseError> {
    std::fs::write(path, text).map_err(|error| RehearseError::Unwritable {
        path: path.to_owned(),
        error,
    })
}

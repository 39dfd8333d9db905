//! The files of definitions. A file has the body that the API takes. Its kind is the member `kind`, the folder that it is in
//! (`agents`, `workflows`, `schedules`), or follows from its members; its name is the member `name`, or that of the file.
//! One definition may come on standard input, which has no name.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use provost_domain::values::plain_name_fault;
use serde_json::{Map, Value};

use crate::{
    files::{Document, is_standard_input},
    outcome::ClientError,
};

/// The kind of a definition, in the order in which they are applied: a workflow names agents, a schedule a workflow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum DefinitionKind {
    #[value(alias = "agents")]
    Agent,
    #[value(alias = "workflows")]
    Workflow,
    #[value(alias = "schedules")]
    Schedule,
}

impl DefinitionKind {
    pub const ALL: [Self; 3] = [Self::Agent, Self::Workflow, Self::Schedule];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Workflow => "workflow",
            Self::Schedule => "schedule",
        }
    }

    /// Returns the folder of the files of this kind.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Agent => "agents",
            Self::Workflow => "workflows",
            Self::Schedule => "schedules",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == word || kind.folder() == word)
    }
}

impl fmt::Display for DefinitionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A definition in a file.
#[derive(Debug)]
pub struct Definition {
    pub kind: DefinitionKind,
    pub name: String,
    pub document: Document,
    /// The body that the API takes, as it was written if the file says neither kind nor name.
    pub body: String,
}

/// Returns whether an argument names a file of definitions and not a task.
pub fn is_file(argument: &str) -> bool {
    let path = Path::new(argument);
    is_standard_input(path) || path.exists() || has_extension(path) || argument.contains('/')
}

fn has_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("json" | "yaml" | "yml"))
}

/// Reads all files that the paths name, in the order in which they are applied. All faults are reported at once.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Definition>, ClientError> {
    let mut files = Vec::new();
    for path in paths {
        find(path, true, &mut files)?;
    }
    let (mut definitions, mut faults) = (Vec::new(), Vec::new());
    for path in files {
        match Definition::read(&path) {
            Ok(definition) => definitions.push(definition),
            Err(ClientError::Faults(more)) => faults.extend(more),
            Err(error) => return Err(error),
        }
    }
    definitions.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    for pair in definitions.windows(2) {
        if (pair[0].kind, &pair[0].name) == (pair[1].kind, &pair[1].name) {
            let (first, second) = (pair[0].document.path.display(), &pair[1]);
            let message = format!(
                "this file defines {} {}, which {first} defines too",
                second.kind, second.name
            );
            faults.push(second.document.note("", &message));
        }
    }
    match (faults.is_empty(), definitions.is_empty()) {
        (false, _) => Err(ClientError::Faults(faults)),
        (true, true) => Err(ClientError::usage(
            "no file of a workflow, an agent or a schedule was found (.json, .yaml, .yml)",
        )),
        (true, false) => Ok(definitions),
    }
}

/// Adds the files below a path. In folders, files of cases and files with other endings are not definitions.
fn find(path: &Path, is_named: bool, files: &mut Vec<PathBuf>) -> Result<(), ClientError> {
    let failed = |error| ClientError::file(path, error);
    if is_standard_input(path) {
        files.push(path.to_owned());
        return Ok(());
    }
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        let name = path.file_name().map(|name| name.to_string_lossy());
        let is_of_cases = name.is_some_and(|name| name.contains(".cases."));
        if is_named || (has_extension(path) && !is_of_cases) {
            files.push(path.to_owned());
        }
        return Ok(());
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    let is_hidden = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'))
    };
    entries
        .iter()
        .filter(|path| !is_hidden(path))
        .try_for_each(|path| find(path, false, files))
}

impl Definition {
    fn read(path: &Path) -> Result<Self, ClientError> {
        let document = Document::read(path)?;
        let fault = |pointer: &str, message: &str| {
            ClientError::Faults(vec![document.note(pointer, message)])
        };
        let mut members: Map<String, Value> =
            serde_json::from_str(document.json()).map_err(|_| fault("", "is not an object"))?;
        let word = members.shift_remove("kind");
        let is_of_kind = word.as_ref().and_then(Value::as_str);
        let kind = match (&word, is_of_kind.and_then(DefinitionKind::from_word)) {
            (Some(_), None) => return Err(fault("/kind", "must be workflow, agent or schedule")),
            (_, Some(kind)) => Some(kind),
            (None, None) => kind_of_folder(path).or_else(|| kind_of_members(&members)),
        };
        let kind = kind.ok_or_else(|| {
            fault(
                "",
                "is neither a workflow, an agent nor a schedule: say which with \"kind\"",
            )
        })?;
        let named = members.shift_remove("name");
        let name = match &named {
            Some(Value::String(name)) => name.clone(),
            Some(_) => return Err(fault("/name", "must be a string")),
            None if is_standard_input(path) => {
                return Err(fault(
                    "",
                    "has no member \"name\", which a definition on standard input needs",
                ));
            }
            None => path
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
                .unwrap_or_default(),
        };
        let subject = match kind {
            DefinitionKind::Agent => "an agent",
            DefinitionKind::Workflow => "a workflow",
            DefinitionKind::Schedule => "a schedule",
        };
        if let Some(message) = plain_name_fault(subject, &name) {
            return Err(match named {
                Some(_) => fault("/name", &message),
                None => fault(
                    "",
                    &format!("{message}: rename the file, or give it a member \"name\""),
                ),
            });
        }
        let body = match (word, named) {
            (None, None) => document.json().to_owned(),
            _ => Value::Object(members).to_string(),
        };
        Ok(Self {
            kind,
            name,
            document,
            body,
        })
    }
}

fn kind_of_folder(path: &Path) -> Option<DefinitionKind> {
    let folder = path.parent()?.file_name()?;
    let folder = folder.to_str()?;
    DefinitionKind::ALL
        .into_iter()
        .find(|kind| kind.folder() == folder)
}

fn kind_of_members(members: &Map<String, Value>) -> Option<DefinitionKind> {
    let has = |name: &str| members.contains_key(name);
    match () {
        () if has("steps") => Some(DefinitionKind::Workflow),
        () if has("workflow") && (has("cron") || has("every")) => Some(DefinitionKind::Schedule),
        () if has("endpoints") || has("mode") => Some(DefinitionKind::Agent),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn names(folder: &tempfile::TempDir) -> Vec<String> {
        let read = read(&[folder.path().to_owned()]).unwrap();
        read.iter()
            .map(|definition| format!("{} {}", definition.kind, definition.name))
            .collect()
    }

    #[test]
    fn kind_and_name_come_from_the_file_its_folder_or_its_members() {
        let folder = folder(&[
            (
                "schedules/nightly.yaml",
                "cron: 0 3 * * *\nworkflow: order\n",
            ),
            ("order.yaml", "steps: []\n"),
            ("order.cases.yaml", "cases: []\n"),
            ("README.md", "not a definition"),
            (
                "x.json",
                "{\"kind\":\"agent\",\"name\":\"payments\",\"mode\":\"pull\"}",
            ),
        ]);
        assert_eq!(
            names(&folder),
            ["agent payments", "workflow order", "schedule nightly"]
        );
        let read = read(&[folder.path().to_owned()]).unwrap();
        assert_eq!(read[0].body, "{\"mode\":\"pull\"}");
    }

    #[test]
    fn every_fault_of_every_file_is_reported_with_its_line() {
        let folder = folder(&[
            ("a.json", "{\n\"b\": 1 "),
            ("b.json", "[]"),
            ("c.json", "{\"x\":1}"),
            ("d.json", "{\n \"kind\": 7}"),
        ]);
        let error = read(&[folder.path().to_owned()]).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 4, "{error}");
        assert!(error.contains("d.json:2:2: /kind: must be"), "{error}");
    }

    #[test]
    fn a_name_that_the_server_would_refuse_is_a_fault_of_the_file() {
        let folder = folder(&[
            ("my order.json", "{\"steps\":[]}"),
            ("x.json", "{\"mode\":\"pull\",\n\"name\":\"a/b\"}"),
        ]);
        let error = read(&[folder.path().to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("my order.json:1:1: the name of a workflow is \"my order\", but"),
            "{error}"
        );
        assert!(error.contains("rename the file"), "{error}");
        assert!(
            error.contains("x.json:2:1: /name: the name of an agent is \"a/b\", but"),
            "{error}"
        );
    }

    #[test]
    fn a_definition_that_two_files_have_is_refused() {
        let folder = folder(&[
            ("a/order.json", "{\"steps\":[]}"),
            ("b/order.json", "{\"steps\":[]}"),
        ]);
        let error = read(&[folder.path().to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("this file defines workflow order, which "),
            "{error}"
        );
    }
}

//! Completion of ids, keys and names. What the server knows is asked for within 300 ms; if it does not respond, nothing is
//! completed, and nothing is printed.

use std::{ffi::OsStr, io, path::Path, time::Duration};

use clap_complete::{CompletionCandidate, env::Shells};
use serde::Deserialize;

use crate::{
    api::Api,
    context::{Choice, Contexts, variable},
    operations::{
        LIST_AGENTS, LIST_BULK_JOBS, LIST_FAILURES, LIST_MESSAGES, LIST_SCHEDULES, LIST_TASKS,
        LIST_WORKFLOWS, Operation,
    },
    outcome::ClientError,
    output,
};

/// The variable with which a shell asks this program for candidates.
pub const VARIABLE: &str = "PROVOST_COMPLETE";
/// The longest time that a person waits after a tab.
const PATIENCE: Duration = Duration::from_millis(300);
/// The most candidates.
const MOST: usize = 100;

/// The names that an item of a list may have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    id: Option<String>,
    key: Option<String>,
    name: Option<String>,
    fingerprint: Option<String>,
    sentence: Option<String>,
    state: Option<String>,
}

/// Prints the script that a shell loads.
pub fn print_script(shell: &str) -> Result<(), ClientError> {
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(shell) else {
        let names: Vec<_> = shells.names().collect();
        return Err(ClientError::usage(format!(
            "{shell} is none of {}",
            names.join(", ")
        )));
    };
    let mut script = Vec::new();
    let written =
        completer.write_registration(VARIABLE, "provost", "provost", "provost", &mut script);
    written.map_err(|error: io::Error| ClientError::file(Path::new(shell), error))?;
    output::write(format_args!("{}", String::from_utf8_lossy(&script)))
}

/// Asks the server for a list, and returns the candidates that begin with what was typed.
fn candidates(
    operation: &'static Operation,
    query: &[(&'static str, &str)],
    typed: &OsStr,
    named: fn(&Named) -> Vec<CompletionCandidate>,
) -> Vec<CompletionCandidate> {
    let items = items(operation, query);
    let candidates = items.iter().flat_map(named);
    let typed = typed.to_string_lossy();
    candidates
        .filter(|candidate| candidate.get_value().to_string_lossy().starts_with(&*typed))
        .collect()
}

fn items(operation: &'static Operation, query: &[(&'static str, &str)]) -> Vec<Named> {
    let query: Vec<_> = query
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect();
    // A token's command, name resolution and the server all count: the thread is left behind if one of them hangs.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(read(operation, &query));
    });
    receiver
        .recv_timeout(PATIENCE)
        .ok()
        .flatten()
        .unwrap_or_default()
}

fn read(operation: &Operation, query: &[(&str, String)]) -> Option<Vec<Named>> {
    let contexts = match Contexts::path(&variable) {
        Some(path) => Contexts::read(&path).ok()?,
        None => Contexts::default(),
    };
    let target = Choice::default().target(&contexts, &variable).ok()?;
    let api = Api::new(&target).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    let listing = runtime
        .block_on(api.list(operation, &[], query, MOST))
        .ok()?;
    listing.read().ok()
}

fn name_of(named: &Named) -> Vec<CompletionCandidate> {
    named.name.iter().map(CompletionCandidate::new).collect()
}

fn id_and_key_of(named: &Named) -> Vec<CompletionCandidate> {
    let help = named.state.clone().map(Into::into);
    let names = named.key.iter().chain(&named.id);
    names
        .map(|name| CompletionCandidate::new(name).help(help.clone()))
        .collect()
}

fn id_of(named: &Named) -> Vec<CompletionCandidate> {
    let help = named
        .sentence
        .clone()
        .or_else(|| named.state.clone())
        .map(Into::into);
    named
        .id
        .iter()
        .map(|id| CompletionCandidate::new(id).help(help.clone()))
        .collect()
}

/// Tasks that need a person come first: those are typed most.
pub fn tasks(typed: &OsStr) -> Vec<CompletionCandidate> {
    let failed = candidates(&LIST_TASKS, &[("state", "error")], typed, id_and_key_of);
    match failed.is_empty() {
        true => candidates(&LIST_TASKS, &[], typed, id_and_key_of),
        false => failed,
    }
}

pub fn causes(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_FAILURES, &[], typed, |named| {
        let help = named.sentence.clone().map(Into::into);
        let fingerprint = named.fingerprint.iter();
        fingerprint
            .map(|fingerprint| CompletionCandidate::new(fingerprint).help(help.clone()))
            .collect()
    })
}

pub fn workflows(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_WORKFLOWS, &[], typed, name_of)
}

pub fn agents(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_AGENTS, &[], typed, name_of)
}

pub fn schedules(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_SCHEDULES, &[], typed, name_of)
}

pub fn bulk_jobs(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_BULK_JOBS, &[], typed, id_of)
}

pub fn messages(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_MESSAGES, &[("state", "dead")], typed, id_of)
}

pub fn states(typed: &OsStr) -> Vec<CompletionCandidate> {
    const STATES: [&str; 8] = [
        "pending",
        "processing",
        "paused",
        "processed",
        "error",
        "undoing",
        "undone",
        "cancelled",
    ];
    let typed = typed.to_string_lossy();
    let begun = STATES.iter().filter(|state| state.starts_with(&*typed));
    begun.map(CompletionCandidate::new).collect()
}

/// The names of contexts are in a file of this person.
pub fn contexts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let path = Contexts::path(&variable);
    let contexts = path
        .and_then(|path| Contexts::read(&path).ok())
        .unwrap_or_default();
    let typed = typed.to_string_lossy();
    let begun = contexts
        .contexts
        .into_keys()
        .filter(|name| name.starts_with(&*typed));
    begun.map(CompletionCandidate::new).collect()
}

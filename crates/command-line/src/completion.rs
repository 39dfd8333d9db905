//! Completion of ids, keys and names. What the server knows is asked for within 300 ms in all; if it does not respond,
//! nothing is completed, and nothing is printed.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    sync::{LazyLock, mpsc},
    time::{Duration, Instant},
};

use clap::{ArgMatches, Args, Command, Subcommand};
use clap_complete::{CompletionCandidate, env::Shells};
use serde::Deserialize;

use crate::{
    AgentCommand, ClientCommand, MigrateTasks,
    api::Api,
    context::{Choice, Contexts, variable},
    definitions::DefinitionKind,
    find_task::{self, Purpose},
    operations::{
        LIST_AGENTS, LIST_ALERTS, LIST_ASKS, LIST_BULK_JOBS, LIST_FAILURES, LIST_MESSAGES,
        LIST_SCHEDULES, LIST_TASKS, LIST_WORKFLOW_VERSIONS, LIST_WORKFLOWS, Operation,
    },
    outcome::ClientError,
    output,
    plain::{plain, shell_word},
    values,
};

/// The variable with which a shell asks this program for candidates.
pub const VARIABLE: &str = "PROVOST_COMPLETE";
/// The variable of a shell with the index of the word that is typed.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";
/// The variable with the options that preceded the command, for a process that completes the rest of the line.
const OPTIONS: &str = "PROVOST_COMPLETE_OPTIONS";
/// The character between two of them.
const BETWEEN_OPTIONS: char = '\u{1f}';
/// The longest time that a person waits after a tab.
const PATIENCE: Duration = Duration::from_millis(300);
/// The most candidates.
const MOST: usize = 100;

/// The end of that time. One word may need several requests, which have it in common.
static DEADLINE: LazyLock<Instant> = LazyLock::new(|| Instant::now() + PATIENCE);

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
    version: Option<u64>,
    receiver: Option<String>,
    task: Option<String>,
    step: Option<String>,
    people: Vec<Asked>,
}

/// A person who is asked.
#[derive(Deserialize)]
struct Asked {
    person: String,
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
    let script = String::from_utf8_lossy(&script);
    let script = match shell {
        "bash" => WHOLE_WORDS.to_owned() + &script.replace(OF_CLAP, OF_WHOLE_WORDS),
        _ => script.into_owned(),
    };
    output::write(format_args!("{script}"))
}

const OF_CLAP: &str = "-F _clap_complete_provost provost";
const OF_WHOLE_WORDS: &str = "-F _provost_whole_words provost";

/// Bash ends words at `:` and `=`, also in an address or in `workflow=order`, and replaces the last part of such a word only. This
/// function joins the parts, has the whole words completed, and leaves out what the line has already.
const WHOLE_WORDS: &str = r#"_provost_whole_words() {
    local words=() at=0 last=0 i breaks="" typed begun
    [[ $COMP_WORDBREAKS == *=* ]] && breaks+="="
    [[ $COMP_WORDBREAKS == *:* ]] && breaks+=":"
    for i in "${!COMP_WORDS[@]}"; do
        if [[ -n $breaks && $i -gt 0 ]] && [[ ${COMP_WORDS[i]} == [$breaks]* || ${words[last]} == *[$breaks] ]]; then
            words[last]+=${COMP_WORDS[i]}
        else
            last=${#words[@]}
            words[last]=${COMP_WORDS[i]}
        fi
        [[ $i -eq $COMP_CWORD ]] && at=$last
    done
    typed=${words[at]}
    begun=${typed%"${typed##*[$breaks]}"}
    [[ -z $breaks ]] && begun=""
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$at
    _clap_complete_provost "$1" "$typed" "$3"
    COMPREPLY=("${COMPREPLY[@]#"$begun"}")
}

"#;

/// Returns whether another process has completed the line, and its exit code. A shell asks for `provost --context prod task …` too, where
/// `count` words precede the command: they are options of every command of the client, and of none for the parser.
pub fn complete_after_options(count: impl Fn(&[OsString]) -> usize) -> Option<i32> {
    std::env::var_os(VARIABLE)?;
    let mut arguments = std::env::args_os();
    let program = arguments.next()?;
    let mut words: Vec<_> = arguments.skip_while(|word| word != "--").skip(1).collect();
    let count = count(&words);
    let index = variable(INDEX).and_then(|index| index.parse().ok());
    let typed: usize = index.unwrap_or(words.len().saturating_sub(1));
    let is_option = words
        .get(typed)
        .is_some_and(|word| word.to_string_lossy().starts_with('-'));
    let mut process = std::process::Command::new(program);
    let moved = if typed > 0 && (typed <= count || (typed == count + 1 && is_option)) {
        // Each command of the client has these options.
        words.insert(1, "status".into());
        typed + 1
    } else if count > 0 {
        let options: Vec<_> = words.drain(1..=count).collect();
        process.env(
            OPTIONS,
            options.join(OsStr::new(&BETWEEN_OPTIONS.to_string())),
        );
        typed - count
    } else {
        return None;
    };
    process.env(INDEX, moved.to_string()).arg("--").args(words);
    let ended = process.status().ok()?;
    Some(ended.code().unwrap_or_default())
}

/// The words of the line that is completed, but for the one that is typed.
struct Line(ArgMatches);

impl Line {
    /// Reads the line that the shell gave to this process.
    fn read() -> Option<Self> {
        let arguments = std::env::args_os().skip_while(|word| word != "--").skip(1);
        let words: Vec<_> = arguments.collect();
        let index = variable(INDEX).and_then(|index| index.parse().ok());
        let options = variable(OPTIONS).unwrap_or_default();
        let options = options
            .split(BETWEEN_OPTIONS)
            .filter(|word| !word.is_empty());
        Self::of(words, index, options.map(OsString::from))
    }

    /// `index` is that of the word that is typed, the last one if a shell does not say.
    fn of(
        mut words: Vec<OsString>,
        index: Option<usize>,
        options: impl IntoIterator<Item = OsString>,
    ) -> Option<Self> {
        let typed = index.unwrap_or(words.len().saturating_sub(1));
        if typed < words.len() {
            words.remove(typed);
        }
        words.extend(options);
        let agent = AgentCommand::augment_subcommands(Command::new("agent"));
        let migrate = MigrateTasks::augment_args(Command::new("migrate"));
        let commands = ClientCommand::augment_subcommands(Command::new("provost"))
            .subcommand(agent)
            .subcommand(migrate)
            .ignore_errors(true);
        let mut matches = commands.try_get_matches_from(words).ok()?;
        while let Some((_, inner)) = matches.remove_subcommand() {
            matches = inner;
        }
        Some(Self(matches))
    }

    fn get<T: Clone + Send + Sync + 'static>(&self, id: &str) -> Option<T> {
        self.0.try_get_one::<T>(id).ok().flatten().cloned()
    }

    /// Returns the server that the line names, or else the current one.
    fn api(&self) -> Option<Api> {
        let choice = Choice {
            server: self.get("server"),
            context: self.get("context"),
            token_file: self.get::<PathBuf>("token_file"),
            ca: self.get::<PathBuf>("ca"),
        };
        Api::new(&choice.resolve().ok()?).ok()
    }
}

/// Does some work with the server, and returns its result if that comes in time.
fn ask<T: Send + 'static>(
    deadline: Instant,
    work: impl AsyncFnOnce(Line, Api) -> Option<T> + Send + 'static,
) -> Option<T> {
    // A token's command, name resolution and the server all count: the thread is left alone if one of them hangs.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let work = move || {
            let line = Line::read()?;
            let api = line.api()?;
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().ok()?.block_on(work(line, api))
        };
        let _ = sender.send(work());
    });
    let left = deadline.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).ok().flatten()
}

async fn list(api: &Api, operation: &Operation, query: &[(&str, String)]) -> Option<Vec<Named>> {
    let listing = api.list(operation, &[], query, MOST).await.ok()?;
    listing.read().ok()
}

/// Asks the server for a list, and returns the candidates that begin with what was typed.
fn candidates(
    operation: &'static Operation,
    query: &'static [(&'static str, &'static str)],
    typed: &OsStr,
    named: fn(&Named) -> Vec<CompletionCandidate>,
) -> Vec<CompletionCandidate> {
    let items = ask(*DEADLINE, async move |_, api| {
        let query = query
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        list(&api, operation, &query.collect::<Vec<_>>()).await
    });
    begun(typed, items.unwrap_or_default().iter().flat_map(named))
}

/// Returns the candidates that begin with what was typed, each once.
fn begun(
    typed: &OsStr,
    candidates: impl IntoIterator<Item = CompletionCandidate>,
) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let mut found: Vec<CompletionCandidate> = Vec::new();
    for candidate in candidates {
        let is_new = || {
            found
                .iter()
                .all(|known| known.get_value() != candidate.get_value())
        };
        let value = candidate.get_value().to_string_lossy();
        // A shell puts the candidate into the line as it is, and would run what a submitter has written into a key.
        let is_word = shell_word(&value) == *value;
        if is_word && value.starts_with(&*typed) && is_new() {
            found.push(candidate);
        }
    }
    found
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
        .as_deref()
        .or(named.state.as_deref())
        .map(|help| plain(help).into());
    named
        .id
        .iter()
        .map(|id| CompletionCandidate::new(id).help(help.clone()))
        .collect()
}

/// Tasks that need a person come first: those are typed most. What is typed is looked for in all keys, as the task may be
/// an older one.
pub fn tasks(typed: &OsStr) -> Vec<CompletionCandidate> {
    let text = typed.to_string_lossy().into_owned();
    let lists = ask(*DEADLINE, async move |_, api| {
        let failed = [("state", "error".to_owned())];
        let with_text = [("text", text.clone())];
        let named = async {
            match text.is_empty() {
                true => None,
                false => list(&api, &LIST_TASKS, &with_text).await,
            }
        };
        Some(tokio::join!(
            list(&api, &LIST_TASKS, &failed),
            named,
            list(&api, &LIST_TASKS, &[])
        ))
    });
    let Some((failed, named, latest)) = lists else {
        return Vec::new();
    };
    let failed = failed.unwrap_or_default();
    let is_asked_for_all = !typed.is_empty() || failed.is_empty();
    let others = named.into_iter().chain(latest).flatten();
    let others = others.filter(|_| is_asked_for_all);
    let all: Vec<_> = failed.into_iter().chain(others).collect();
    begun(typed, all.iter().flat_map(id_and_key_of))
}

/// The steps of the task that the line names.
pub fn steps(typed: &OsStr) -> Vec<CompletionCandidate> {
    let steps = ask(*DEADLINE, async |line: Line, api: Api| {
        let task: String = line.get("task")?;
        let found = find_task::find(&api, &task, Purpose::Command).await.ok()?;
        Some(found.task.steps)
    });
    let steps = steps.unwrap_or_default().into_iter();
    let candidates = steps.map(|step| {
        let help = (!step.state.is_empty()).then(|| step.state.into());
        CompletionCandidate::new(step.name).help(help)
    });
    begun(typed, candidates)
}

/// The versions of the workflow that the line names, the latest first.
pub fn versions(typed: &OsStr) -> Vec<CompletionCandidate> {
    let versions = ask(*DEADLINE, async |line: Line, api: Api| {
        let name: String = line.get("workflow").or_else(|| line.get("name"))?;
        let versions = api.list(&LIST_WORKFLOW_VERSIONS, &[&name], &[], MOST).await;
        versions.ok()?.read::<Named>().ok()
    });
    let versions = versions.unwrap_or_default();
    let numbers = versions.iter().filter_map(|named| named.version);
    begun(
        typed,
        numbers.map(|number| CompletionCandidate::new(number.to_string())),
    )
}

/// The names of definitions of the kind that the line names.
pub fn definitions(typed: &OsStr) -> Vec<CompletionCandidate> {
    let named = ask(*DEADLINE, async |line: Line, api: Api| {
        let operation = match line.get("kind")? {
            DefinitionKind::Agent => &LIST_AGENTS,
            DefinitionKind::Workflow => &LIST_WORKFLOWS,
            DefinitionKind::Schedule => &LIST_SCHEDULES,
        };
        list(&api, operation, &[]).await
    });
    begun(typed, named.unwrap_or_default().iter().flat_map(name_of))
}

/// The receivers of the messages that wait or were given up: the API has no list of all.
pub fn receivers(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_MESSAGES, &[], typed, |named| {
        named
            .receiver
            .iter()
            .map(CompletionCandidate::new)
            .collect()
    })
}

/// The tasks that ask people something.
pub fn asking_tasks(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_ASKS, &[], typed, |named| {
        let names = named.key.iter().chain(&named.task);
        names.map(CompletionCandidate::new).collect()
    })
}

/// The people who are asked, by the task that the line names.
pub fn people(typed: &OsStr) -> Vec<CompletionCandidate> {
    let asks = asks_of_line().into_iter();
    let people = asks.flat_map(|ask| ask.people);
    begun(
        typed,
        people.map(|asked| CompletionCandidate::new(asked.person)),
    )
}

/// The steps that ask, of the task that the line names.
pub fn asking_steps(typed: &OsStr) -> Vec<CompletionCandidate> {
    let asks = asks_of_line().into_iter();
    let steps = asks.filter_map(|ask| ask.step);
    begun(typed, steps.map(CompletionCandidate::new))
}

/// Returns the open questions, those of one task if the line names it.
fn asks_of_line() -> Vec<Named> {
    let asks = ask(*DEADLINE, async |line: Line, api: Api| {
        let task: Option<String> = line.get("ask");
        let mut asks = list(&api, &LIST_ASKS, &[]).await?;
        asks.retain(|ask| task.is_none() || task == ask.task || task == ask.key);
        Some(asks)
    });
    asks.unwrap_or_default()
}

/// A filter of commands for many tasks: its name, and then its value where the server or the list of words knows it.
pub fn filters(typed: &OsStr) -> Vec<CompletionCandidate> {
    let text = typed.to_string_lossy();
    let Some((name, value)) = text.split_once('=') else {
        let names = values::FILTERS.map(|name| CompletionCandidate::new(format!("{name}=")));
        return begun(typed, names);
    };
    let words = |words: &[&str]| words.iter().map(CompletionCandidate::new).collect();
    let values: Vec<_> = match name {
        "state" => words(&values::TASK_STATES),
        "bulk_result" => words(&values::BULK_RESULTS),
        "at_risk" => words(&["true", "false"]),
        "workflow" => workflows(OsStr::new(value)),
        "agent" => agents(OsStr::new(value)),
        "cause" => causes(OsStr::new(value)),
        "bulk" => bulk_jobs(OsStr::new(value)),
        "alert" => alerts(OsStr::new(value)),
        _ => Vec::new(),
    };
    let whole = values.into_iter().map(|candidate| {
        let value = candidate.get_value().to_string_lossy();
        let help = candidate.get_help().cloned();
        CompletionCandidate::new(format!("{name}={value}")).help(help)
    });
    begun(typed, whole)
}

/// The alerts that are not closed.
pub fn alerts(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_ALERTS, &[], typed, id_of)
}

/// The ids of tasks, for options that take no key.
pub fn task_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_TASKS, &[], typed, id_of)
}

pub fn causes(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(&LIST_FAILURES, &[], typed, |named| {
        let help = named.sentence.as_deref().map(|help| plain(help).into());
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

/// The names of contexts are in a file of this person.
pub fn contexts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let contexts = Contexts::of_this_person().unwrap_or_default();
    let names = contexts.contexts.into_keys();
    begun(typed, names.map(CompletionCandidate::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str], index: Option<usize>) -> Line {
        Line::of(words.iter().map(OsString::from).collect(), index, []).unwrap()
    }

    #[test]
    fn the_line_names_the_server_and_what_stands_before_the_word() {
        let skip = ["provost", "skip", "--server", "http://a", "order-1", "ch"];
        let read = line(&skip, None);
        assert_eq!(read.get::<String>("server").as_deref(), Some("http://a"));
        assert_eq!(read.get::<String>("task").as_deref(), Some("order-1"));
        let read = line(&["provost", "task", "ord", "--context", "prod"], Some(2));
        assert_eq!(read.get::<String>("context").as_deref(), Some("prod"));
        let read = line(&["provost", "get", "workflow", ""], None);
        assert_eq!(read.get("kind"), Some(DefinitionKind::Workflow));
        let read = line(&["provost", "workflow", "promote", "order", ""], None);
        assert_eq!(read.get::<String>("workflow").as_deref(), Some("order"));
        let read = line(&["provost", "agent", "pause", "--token-file=t", ""], None);
        assert_eq!(read.get::<PathBuf>("token_file"), Some(PathBuf::from("t")));
        let read = line(&["provost", "migrate", "--server=http://b", ""], None);
        assert_eq!(read.get::<String>("server").as_deref(), Some("http://b"));
    }

    #[test]
    fn no_candidate_is_more_than_a_word_for_the_shell() {
        let keys = [
            "order-1",
            "order $(touch x)",
            "order`id`",
            "order;id",
            "order'1",
            "-order",
            "order\n1",
            "order\u{1b}[2J",
            "größe-9",
        ];
        let found = begun(OsStr::new(""), keys.map(CompletionCandidate::new));
        let found: Vec<_> = found.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(found, ["order-1", "größe-9"]);
    }

    #[test]
    fn all_requests_of_a_word_have_one_deadline() {
        let deadline = Instant::now() + Duration::from_millis(20);
        let hangs = || {
            ask(deadline, async |_, _| {
                std::future::pending::<Option<()>>().await
            })
        };
        assert_eq!(hangs(), None);
        assert!(Instant::now() >= deadline);
        let begin = Instant::now();
        assert_eq!(hangs(), None);
        assert!(deadline.saturating_duration_since(begin).is_zero());
    }
}

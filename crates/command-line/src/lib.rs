//! The command line: the program `provost` as the client of a running server.
//!
//! Every command is a client of the public API (`api.rs`), so that it can do and see what curl can, with the same roles,
//! refusals and counts. `operations.rs` lists the operations and `shapes.rs` the fields of responses that are used; a test
//! compares both with `openapi/openapi.json`. For programs the responses are passed on unchanged (`output/`).
//!
//! A file is a command or a family of commands: its arguments, which are the help, and below them what it does.

#![allow(
    clippy::disallowed_methods,
    reason = "it is a client with the clock of its machine, and no part of an instance"
)]
#![allow(
    rustdoc::bare_urls,
    reason = "comments of arguments are the help in a terminal"
)]

mod act;
mod agent;
mod api;
mod ask;
mod away;
mod bulk;
mod compare;
mod completion;
mod confirm;
mod context;
mod definitions;
mod events;
mod failures;
mod files;
mod filter;
mod find_task;
mod init;
mod login;
mod manual;
mod message;
mod operations;
mod outcome;
mod output;
mod page;
mod plain;
mod reference;
mod remedy;
mod schedule;
mod session;
mod shapes;
mod status;
mod stream;
mod submit;
mod task;
mod tasks;
mod values;
mod wait;
mod workflow;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

pub use agent::{AgentCommand, check as check_agent};
pub use api::{cause, http_client};
pub use completion::{
    VARIABLE as COMPLETION_VARIABLE, agents as complete_agents, complete_after_options,
};
pub use manual::{Shell, write_pages};
pub use outcome::{ClientError, MISUSE};
pub use reference::reference;
pub use session::ServerOptions;

use outcome::Outcome;
use session::{NoOptions, WithShared};

/// The commands of the client.
#[derive(Subcommand, Clone, Debug)]
pub enum ClientCommand {
    /// Show what needs you: causes, alerts, queues, agents and instances
    #[command(after_help = "Examples:\n  provost status\n  provost status -o json")]
    Status(WithShared<NoOptions>),

    /// Show one task: its state in a sentence, the step that failed, what was sent, and the commands that apply
    #[command(
        after_help = "Examples:\n  provost task order-1001\n  provost task order-1001 --history\n  provost task order-1001 --follow --timeout 5m"
    )]
    Task(WithShared<task::TaskOptions>),

    /// List tasks
    #[command(
        after_help = "Examples:\n  provost tasks --state error --workflow order\n  provost tasks --label country=DE --created-after 2h -o name"
    )]
    Tasks(WithShared<tasks::TasksOptions>),

    /// Show why tasks need you: one line for each cause, or one cause with what helps
    #[command(after_help = "Examples:\n  provost failures\n  provost failures 5f1d0a7c93b2e846")]
    Failures(WithShared<failures::FailuresOptions>),

    /// Retry a task, one of its steps, or all tasks of a cause
    #[command(after_help = "Examples:
  provost retry order-1001 --reason 'payments works again'
  provost retry order-1001 charge --input '{\"currency\": \"EUR\"}'
  provost retry --cause 5f1d0a7c93b2e846 --dry-run
  provost retry --filter agent=payments --filter created_after=2h --yes
  provost retry --cause 5f1d0a7c93b2e846 --patch '{\"currency\": \"EUR\"}' --first 5")]
    Retry(WithShared<act::RetryOptions>),

    /// Skip the step in error
    #[command(
        after_help = "Examples:\n  provost skip order-1001 notify\n  provost skip --cause 5f1d0a7c93b2e846"
    )]
    Skip(WithShared<act::SkipOptions>),

    /// Say that the work of a step was done outside Provost, with its output
    #[command(
        after_help = "Example:\n  provost resolve order-1001 charge --result '{\"id\": \"ch_17\"}'"
    )]
    Resolve(WithShared<act::ResolveOptions>),

    /// Undo a task: with --dry-run, show the calls that this would make
    #[command(
        after_help = "Examples:\n  provost undo order-1001 --dry-run\n  provost undo order-1001 --wait"
    )]
    Undo(WithShared<act::ManyOptions>),

    /// Cancel a task, or the running call of one of its steps; what is completed is not undone
    #[command(
        after_help = "Examples:\n  provost cancel order-1001\n  provost cancel order-1001 charge --reason 'it hangs'\n  provost cancel --filter state=paused --filter workflow=order"
    )]
    Cancel(WithShared<act::CancelOptions>),

    /// Pause a task: no further step of it begins
    #[command(
        after_help = "Examples:\n  provost pause order-1001 --reason 'the customer called'\n  provost pause --filter workflow=order --reason 'the warehouse moves'"
    )]
    Pause(WithShared<act::ManyOptions>),

    /// Resume a task that is paused
    #[command(
        after_help = "Examples:\n  provost resume order-1001\n  provost resume --filter workflow=order"
    )]
    Resume(WithShared<act::ManyOptions>),

    /// Start a task now that would start later
    #[command(after_help = "Example:\n  provost start order-1001")]
    Start(WithShared<act::OneTask>),

    /// Submit a new task like another one, with changes
    #[command(
        after_help = "Examples:\n  provost clone order-1001 --input-patch '{\"card\": \"tok_other\"}' --dry-run\n  provost clone --filter state=error --filter workflow=order --workflow-version latest"
    )]
    Clone(WithShared<act::CloneOptions>),

    /// Run a step again, and all steps that depend on it, also if they were completed
    #[command(
        after_help = "Examples:\n  provost rerun order-1001 charge --reason 'the prices were wrong'\n  provost rerun --cause 5f1d0a7c93b2e846 --step charge --reason 'the prices were wrong'"
    )]
    Rerun(WithShared<act::RerunOptions>),

    /// Submit a task; its id is printed
    #[command(after_help = "Examples:
  provost submit order --input @order.json --key order-1003
  provost submit order --input '{\"amount\": 5}' --wait --timeout 5m
  provost submit --file task.yaml --idempotency-key import-17")]
    Submit(WithShared<submit::SubmitOptions>),

    /// Report the event that a step waits for
    #[command(after_help = "Example:\n  provost signal order-1001 paid '{\"amount\": 5}'")]
    Signal(WithShared<submit::SignalOptions>),

    /// Questions to people
    #[command(
        subcommand,
        after_help = "Examples:\n  provost ask list --of ada\n  provost ask answer order-1001 approve --person ada"
    )]
    Ask(ask::AskCommand),

    /// Schedules
    #[command(
        subcommand,
        after_help = "Examples:\n  provost schedule list\n  provost schedule trigger nightly"
    )]
    Schedule(schedule::ScheduleCommand),

    /// Messages to receivers
    #[command(
        subcommand,
        after_help = "Examples:\n  provost message list --state dead\n  provost message redeliver --receiver billing"
    )]
    Message(message::MessageCommand),

    /// Jobs of commands for many tasks
    #[command(
        subcommand,
        after_help = "Examples:\n  provost bulk list\n  provost bulk stop 0197a1b2-0000-7000-8000-000000000001"
    )]
    Bulk(bulk::BulkCommand),

    /// Show what happened, to all tasks and to everything else
    #[command(
        after_help = "Examples:\n  provost events --follow\n  provost events --since 2h --types task.error,agent.* -o jsonl"
    )]
    Events(WithShared<events::EventsOptions>),

    /// Show what people, definitions and agents changed, and who did it
    #[command(after_help = "Example:\n  provost changes --types agent.*,workflow.activated")]
    Changes(WithShared<events::ChangesOptions>),

    /// Workflows: versions, the active one, pictures
    #[command(
        subcommand,
        after_help = "Examples:\n  provost workflow list\n  provost workflow promote order 13 --reason 'version 14 charges twice'"
    )]
    Workflow(workflow::WorkflowCommand),

    /// Compare two tasks, or files of definitions with the server
    #[command(
        after_help = "Of two tasks it says why one failed and the other did not. Of files it exits with 2 if they differ from the server.

Examples:
  provost diff order-1001 order-1002
  provost diff definitions/"
    )]
    Diff(WithShared<DiffOptions>),

    /// Register workflows, agents and schedules from files: the differences are shown
    #[command(
        after_help = "A file has the body that the API takes, as JSON or YAML. Its kind is the member \"kind\" (workflow, agent or schedule), the
folder that it is in (workflows, agents, schedules), or follows from its members; its name is the member \"name\", or
that of the file. In folders, files of cases (*.cases.yaml) are left out.

Examples:
  provost apply definitions/ --dry-run
  provost apply definitions/ --yes
  provost apply order.yaml --activate"
    )]
    Apply(WithShared<definitions::ApplyOptions>),

    /// Print a definition as its file would be
    #[command(
        after_help = "Examples:\n  provost get workflow order > order.json\n  provost get agent payments -o yaml\n  provost get agents"
    )]
    Get(WithShared<definitions::GetOptions>),

    /// Write all definitions to a folder, from which `provost apply` reads them
    #[command(after_help = "Example:\n  provost export shop --yaml")]
    Export(WithShared<definitions::ExportOptions>),

    /// Make files of a first workflow, its cases and its agents
    #[command(after_help = "Example:\n  provost init my-orders")]
    Init(init::InitOptions),

    /// Remember a server and the place of its token, and make it the current one
    #[command(
        after_help = "Contexts are in $XDG_CONFIG_HOME/provost/contexts.toml; PROVOST_CONTEXTS names another file.

Examples:
  provost login prod --url https://provost.example --token-command 'pass show provost'
  provost login dev --url unix:/run/provost.sock --no-token"
    )]
    Login(login::LoginOptions),

    /// The servers that `provost login` remembers
    #[command(
        subcommand,
        after_help = "Examples:\n  provost context list\n  provost context use prod"
    )]
    Context(login::ContextCommand),
}

#[derive(Args, Clone, Debug)]
pub struct DiffOptions {
    /// Two tasks by their ids or keys, or files and folders of definitions
    #[arg(value_name = "TASK|FILE", required = true, add = clap_complete::ArgValueCompleter::new(completion::tasks))]
    what: Vec<String>,
}

/// Runs a command, and prints its error.
pub fn run(command: ClientCommand) -> ExitCode {
    finish(async move { command.run().await })
}

/// Runs a command about agents, and prints its error.
pub fn run_agent(command: AgentCommand) -> ExitCode {
    finish(async move { command.run().await })
}

/// The arguments of `provost migrate` for tasks. The program has one command of this name: without them it migrates a database.
#[derive(Args, Clone, Debug)]
pub struct MigrateTasks {
    #[command(flatten)]
    command: WithShared<act::MigrateOptions>,
}

impl MigrateTasks {
    /// Returns whether the arguments are about tasks.
    pub fn is_given(&self) -> bool {
        self.command.options.is_of_tasks() || self.command.shared.is_given()
    }
}

/// Moves tasks to another version of their workflow, and prints its error.
pub fn run_migrate(tasks: MigrateTasks) -> ExitCode {
    finish(async move {
        let session = tasks.command.shared.session()?;
        act::migrate(&session, &tasks.command.options).await
    })
}

/// Prints the script with which a shell completes commands.
pub fn print_completions(shell: Shell) -> ExitCode {
    outcome::exit(completion::print_script(shell.as_str()).map(|()| Outcome::Done))
}

fn finish(work: impl Future<Output = Result<Outcome, ClientError>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => outcome::exit(runtime.block_on(work)),
        Err(error) => {
            eprintln!("provost: cannot start: {error}");
            ExitCode::from(MISUSE)
        }
    }
}

impl ClientCommand {
    async fn run(self) -> Result<Outcome, ClientError> {
        match self {
            Self::Status(command) => status::run(&command.shared.session()?).await,
            Self::Task(command) => task::run(&command.shared.session()?, &command.options).await,
            Self::Tasks(command) => tasks::run(&command.shared.session()?, &command.options).await,
            Self::Failures(command) => {
                failures::run(&command.shared.session()?, &command.options).await
            }
            Self::Retry(command) => act::retry(&command.shared.session()?, &command.options).await,
            Self::Skip(command) => act::skip(&command.shared.session()?, &command.options).await,
            Self::Resolve(command) => {
                act::resolve(&command.shared.session()?, &command.options).await
            }
            Self::Undo(command) => act::undo(&command.shared.session()?, &command.options).await,
            Self::Cancel(command) => {
                act::cancel(&command.shared.session()?, &command.options).await
            }
            Self::Pause(command) => act::pause(&command.shared.session()?, &command.options).await,
            Self::Resume(command) => {
                act::resume(&command.shared.session()?, &command.options).await
            }
            Self::Start(command) => act::start(&command.shared.session()?, &command.options).await,
            Self::Clone(command) => act::clone(&command.shared.session()?, &command.options).await,
            Self::Rerun(command) => act::rerun(&command.shared.session()?, &command.options).await,
            Self::Submit(command) => {
                submit::run(&command.shared.session()?, &command.options).await
            }
            Self::Signal(command) => {
                submit::signal(&command.shared.session()?, &command.options).await
            }
            Self::Ask(command) => command.run().await,
            Self::Schedule(command) => command.run().await,
            Self::Message(command) => command.run().await,
            Self::Bulk(command) => command.run().await,
            Self::Events(command) => {
                events::run(&command.shared.session()?, &command.options).await
            }
            Self::Changes(command) => {
                events::changes(&command.shared.session()?, &command.options).await
            }
            Self::Workflow(command) => command.run().await,
            Self::Diff(command) => diff(&command.shared.session()?, &command.options.what).await,
            Self::Apply(command) => {
                definitions::apply(&command.shared.session()?, &command.options).await
            }
            Self::Get(command) => {
                definitions::get(&command.shared.session()?, &command.options).await
            }
            Self::Export(command) => {
                definitions::export(&command.shared.session()?, &command.options).await
            }
            Self::Init(options) => init::run(&options),
            Self::Login(options) => login::run(&options).await,
            Self::Context(command) => command.run(),
        }
    }
}

async fn diff(session: &session::Session, what: &[String]) -> Result<Outcome, ClientError> {
    match what {
        [one, other] if !definitions::is_file(one) && !definitions::is_file(other) => {
            compare::run(session, one, other).await
        }
        files if files.iter().all(|file| definitions::is_file(file)) => {
            let files: Vec<_> = files.iter().map(PathBuf::from).collect();
            definitions::diff(session, &files).await
        }
        _ => Err(ClientError::usage(
            "give two tasks, or files and folders of definitions",
        )),
    }
}

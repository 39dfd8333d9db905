//! The command line. It turns arguments, environment and files into one typed [`CliCommand`]; other modules run the
//! command.

pub mod agent_check;
mod args;
pub mod backup;
mod certificate_end;
pub mod doctor;
mod exploration;
pub mod files;
pub mod healthcheck;
pub mod purge;
pub mod rehearse;
pub mod serve;
mod sources;
mod test_report;
pub mod validate;

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, Parser};
use provost_command_line::{AgentCommand, ClientCommand, MigrateTasks, Shell};

use crate::config::{self, Config, ConfigError, DatabaseUrl, Sources};
pub use args::{BenchOptions, DemoOptions, PurgeOptions};

/// The command to run.
pub enum CliCommand {
    /// Start the service. The sources of the settings are read again on SIGHUP.
    Serve(Box<Config>, Box<Sources>),
    Demo(DemoOptions),
    Bench(BenchOptions),
    /// Print the OpenAPI document.
    Openapi,
    /// Print these validated settings, and check the files that they name.
    CheckConfig(String, Box<Config>),
    /// Migrate the schema of this database.
    Migrate(DatabaseUrl),
    /// Copy this database to a new file.
    Backup {
        database: DatabaseUrl,
        to: PathBuf,
    },
    /// Delete ended tasks of the database of these settings.
    Purge(Box<Config>, PurgeOptions),
    /// Check whether the server at this address is ready.
    Healthcheck(healthcheck::HealthcheckTarget),
    /// Have a running service check one of its agents.
    CheckAgent(agent_check::AgentCheckOptions),
    /// Run the cases of a workflow without its services.
    Test(rehearse::TestOptions),
    /// Check files of workflows.
    Validate(validate::ValidateOptions),
    /// Ask a running service.
    Client(Box<ClientCommand>),
    /// Ask a running service about its agents.
    ClientAgent(Box<AgentCommand>),
    /// Move tasks to another version of their workflow.
    ClientMigrate(Box<MigrateTasks>),
    /// Print the script with which a shell completes commands.
    Completions(Shell),
    /// Write the man pages to this folder.
    Man(PathBuf),
    Version,
    /// Examine these settings and what a server with them relies on; as JSON if true.
    Doctor(Box<Sources>, bool),
}

/// The exit code for a wrong argument or setting; clap uses the same.
pub const MISUSE: u8 = 2;

/// Reads the arguments and environment of this process. Prints help and argument errors itself, and then exits.
pub fn parse() -> Result<CliCommand, ConfigError> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        // A name that is not UTF-8 is not one of Provost's; a value of Provost's that is not UTF-8 will be refused.
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    });
    // A shell that completes a command asks this program, which then exits.
    if let Some(code) = provost_command_line::complete_after_options(leading_options) {
        std::process::exit(code);
    }
    clap_complete::CompleteEnv::with_factory(args::Arguments::command)
        .var(provost_command_line::COMPLETION_VARIABLE)
        .complete();
    let typed = with_options_at_end(std::env::args_os().collect());
    match args::Arguments::try_parse_from(&typed) {
        Ok(arguments) => command(arguments, variables.collect()),
        Err(error) if error.use_stderr() && is_of_client(&typed) => {
            // An error that cannot be printed has no other place either.
            let _ = error.print();
            std::process::exit(i32::from(provost_command_line::MISUSE));
        }
        Err(error) => error.exit(),
    }
}

/// Returns the commands and their arguments, for man pages.
pub fn clap_command() -> clap::Command {
    args::Arguments::command()
}

/// The options of every command of the client that have a value.
const WITH_VALUE: [&str; 7] = [
    "--server",
    "--context",
    "--token-file",
    "--ca",
    "--output",
    "-o",
    "--color",
];

/// Returns the number of words that are options of the client, with their values, and precede the command.
fn leading_options(typed: &[OsString]) -> usize {
    let mut count = 0;
    while let Some(word) = typed.get(1 + count).and_then(|word| word.to_str()) {
        let name = word.split_once('=').map(|(name, _)| name);
        count += match name.unwrap_or(word) {
            word if WITH_VALUE.contains(&word) && name.is_none() => 2,
            word if WITH_VALUE.contains(&word) || word == "--utc" => 1,
            _ => break,
        };
    }
    count
}

/// Returns the arguments with the options of the client that precede the command at the end, where each command takes them. As
/// global options of clap they would be options of `serve` and the like too, which have other ones for their address and
/// their certificates.
fn with_options_at_end(mut typed: Vec<OsString>) -> Vec<OsString> {
    let count = leading_options(&typed);
    // Without a command the options are refused as they stand.
    if count == 0 || typed.len() <= 1 + count {
        return typed;
    }
    let options: Vec<_> = typed.drain(1..=count).collect();
    let end = typed.iter().position(|word| word == "--");
    let end = end.unwrap_or(typed.len());
    typed.splice(end..end, options);
    typed
}

/// The commands whose exit code for wrong arguments has been 2 before there was a client.
const OF_SERVER: [&str; 11] = [
    "serve",
    "demo",
    "bench",
    "test",
    "validate",
    "openapi",
    "check-config",
    "backup",
    "purge",
    "doctor",
    "healthcheck",
];

/// Returns whether wrong arguments of this process have the exit code of the client, for which 2 says that a task failed. A
/// command that does not exist is most likely one of the client that was misspelt.
fn is_of_client(typed: &[OsString]) -> bool {
    let arguments = typed.iter().skip(1);
    let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let name = arguments.next().unwrap_or_default();
    match name.as_str() {
        "migrate" => arguments.any(|argument| argument == "--to"),
        "agent" => arguments.next().as_deref() != Some("check"),
        name => !OF_SERVER.contains(&name),
    }
}

fn command(
    arguments: args::Arguments,
    env: Vec<(String, String)>,
) -> Result<CliCommand, ConfigError> {
    Ok(match arguments.command {
        args::Subcommand::Serve(flags) => {
            let mut sources = flags.sources(env);
            let config = config::load(&sources)?;
            sources.keep_file();
            CliCommand::Serve(Box::new(config), Box::new(sources))
        }
        args::Subcommand::Demo(options) => CliCommand::Demo(options),
        args::Subcommand::Bench(options) => CliCommand::Bench(options),
        args::Subcommand::Openapi => CliCommand::Openapi,
        args::Subcommand::Test(options) => CliCommand::Test(options),
        args::Subcommand::Validate(options) => CliCommand::Validate(options),
        args::Subcommand::CheckConfig(flags) => {
            let sources = flags.sources(env);
            let config = config::load(&sources)?;
            CliCommand::CheckConfig(config::describe(&sources)?, Box::new(config))
        }
        args::Subcommand::Migrate(flags) if flags.tasks.is_given() => {
            CliCommand::ClientMigrate(Box::new(flags.tasks))
        }
        args::Subcommand::Migrate(flags) => {
            CliCommand::Migrate(config::load(&flags.database.sources(env))?.database_url)
        }
        args::Subcommand::Backup(flags) => {
            let (sources, to) = flags.sources(env);
            CliCommand::Backup {
                database: config::load(&sources)?.database_url,
                to,
            }
        }
        args::Subcommand::Purge(flags) => {
            let (sources, options) = flags.sources(env);
            CliCommand::Purge(Box::new(config::load(&sources)?), options)
        }
        args::Subcommand::Agent(args::AgentSubcommand::Check(flags)) => {
            CliCommand::CheckAgent(flags.options(env)?)
        }
        args::Subcommand::Agent(args::AgentSubcommand::Client(command)) => {
            CliCommand::ClientAgent(command)
        }
        args::Subcommand::Client(command) => CliCommand::Client(command),
        args::Subcommand::Completions { shell } => CliCommand::Completions(shell),
        args::Subcommand::Man { to } => CliCommand::Man(to),
        args::Subcommand::Version => CliCommand::Version,
        args::Subcommand::Doctor(flags) => {
            let (sources, json) = flags.sources(env);
            CliCommand::Doctor(Box::new(sources), json)
        }
        args::Subcommand::Healthcheck(flags) => {
            let config = config::load(&flags.sources(env))?;
            CliCommand::Healthcheck(healthcheck::HealthcheckTarget {
                tls: config.tls.certificate.is_some(),
                listen: config.listen,
            })
        }
    })
}

#[cfg(test)]
mod tests;

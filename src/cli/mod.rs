//! The command line. It turns arguments, environment and files into one typed [`Command`]; other modules run the
//! command.

mod args;
pub mod backup;
pub mod files;
pub mod healthcheck;
pub mod purge;
pub mod serve;

use std::path::PathBuf;

use clap::Parser;

use crate::config::{self, Config, ConfigError, DatabaseUrl, Sources};
pub use args::{BenchOptions, DemoOptions, PurgeOptions};

/// The command to run.
pub enum Command {
    /// With the sources of the settings, which SIGHUP reads again.
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
    /// Check whether the server that listens here is ready.
    Healthcheck(healthcheck::Target),
}

/// The exit code for a wrong argument or setting; clap uses the same.
pub const MISUSE: u8 = 2;

/// Reads the arguments and environment of this process. Prints help and argument errors itself, and then exits.
pub fn parse() -> Result<Command, ConfigError> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        // A name that is not UTF-8 is not one of ours; a value of ours that is not UTF-8 will be refused.
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    });
    match args::Arguments::try_parse() {
        Ok(arguments) => command(arguments, variables.collect()),
        Err(error) => error.exit(),
    }
}

fn command(arguments: args::Arguments, env: Vec<(String, String)>) -> Result<Command, ConfigError> {
    Ok(match arguments.command {
        args::Subcommand::Serve(flags) => {
            let mut sources = flags.sources(env);
            let config = config::load(&sources)?;
            sources.keep_file();
            Command::Serve(Box::new(config), Box::new(sources))
        }
        args::Subcommand::Demo(options) => Command::Demo(options),
        args::Subcommand::Bench(options) => Command::Bench(options),
        args::Subcommand::Openapi => Command::Openapi,
        args::Subcommand::CheckConfig(flags) => {
            let sources = flags.sources(env);
            let config = config::load(&sources)?;
            Command::CheckConfig(config::describe(&sources)?, Box::new(config))
        }
        args::Subcommand::Migrate(flags) => {
            Command::Migrate(config::load(&flags.sources(env))?.database_url)
        }
        args::Subcommand::Backup(flags) => {
            let (sources, to) = flags.sources(env);
            Command::Backup {
                database: config::load(&sources)?.database_url,
                to,
            }
        }
        args::Subcommand::Purge(flags) => {
            let (sources, options) = flags.sources(env);
            Command::Purge(Box::new(config::load(&sources)?), options)
        }
        args::Subcommand::Healthcheck(flags) => {
            let config = config::load(&flags.sources(env))?;
            Command::Healthcheck(healthcheck::Target {
                tls: config.tls.certificate.is_some(),
                listen: config.listen,
            })
        }
    })
}

#[cfg(test)]
mod tests;

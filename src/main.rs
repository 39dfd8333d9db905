#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests may read the clocks of the system"
    )
)]

mod agent;
mod api;
mod bench;
mod blocking;
mod broker;
mod chance;
mod cli;
mod clock;
mod config;
mod console;
mod delivery;
mod demo;
#[cfg(test)]
mod host;
mod http2_guard;
mod instance;
mod intake;
mod interrupt;
mod listener;
mod output;
mod plain_http;
mod planted;
mod retention;
mod scheduler;
mod service;
#[cfg(test)]
mod simulation;
mod store;
mod supervisor;
mod telemetry;

use std::process::ExitCode;

use cli::CliCommand;
use provost_domain as domain;
use provost_rehearsal as rehearsal;

// Without transparent huge pages (a feature of the crate): with them an idle process uses four times the memory,
// with no gain in the benchmark. Tests count allocations.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = match cli::parse() {
        Ok(command) => command,
        Err(error) => {
            eprintln!("provost: {error}");
            return ExitCode::from(cli::MISUSE);
        }
    };
    output::exit_code(run(command))
}

fn run(command: CliCommand) -> ExitCode {
    match command {
        CliCommand::CheckConfig(settings, config) => {
            output::write(format_args!("{settings}"));
            let faults = cli::files::faults(&config);
            for fault in &faults {
                eprintln!("provost: {fault}");
            }
            match faults.is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(cli::MISUSE),
            }
        }
        CliCommand::Healthcheck(target) => match cli::healthcheck::check(&target) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("provost: {error}");
                ExitCode::FAILURE
            }
        },
        CliCommand::CheckAgent(options) => in_runtime(cli::agent_check::run(options)),
        CliCommand::Backup { database, to } => in_runtime(cli::backup::run(database, &to)),
        CliCommand::Purge(config, options) => in_runtime(cli::purge::run(*config, options)),
        CliCommand::Serve(config, sources) => cli::serve::run(*config, *sources),
        CliCommand::Migrate(database) => in_runtime(migrate(database)),
        CliCommand::Test(options) => cli::rehearse::run(&options),
        CliCommand::Validate(options) => cli::validate::run(&options),
        CliCommand::Client(command) => provost_command_line::run(*command),
        CliCommand::ClientAgent(command) => provost_command_line::run_agent(*command),
        CliCommand::ClientMigrate(tasks) => provost_command_line::run_migrate(*tasks),
        CliCommand::Completions(shell) => provost_command_line::print_completions(shell),
        CliCommand::Man(folder) => {
            match provost_command_line::write_pages(cli::clap_command(), &folder) {
                Ok(pages) => {
                    for page in pages {
                        output::say!("{}", folder.join(page).display());
                    }
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    eprintln!("provost: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        CliCommand::Doctor(sources, json) => in_runtime(cli::doctor::run(*sources, json)),
        CliCommand::Version => {
            output::say!("provost {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        CliCommand::Openapi => {
            output::say!("{}", api::openapi().to_pretty_json().unwrap_or_default());
            ExitCode::SUCCESS
        }
        CliCommand::Demo(options) => in_runtime(demo::run(options)),
        CliCommand::Bench(options) => in_runtime(bench::run(options)),
    }
}

async fn migrate(database: config::DatabaseUrl) -> ExitCode {
    match service::migrate(&database).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::FAILURE
        }
    }
}

fn in_runtime(work: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => {
            eprintln!("provost: cannot start the threads that it needs: {error}");
            ExitCode::FAILURE
        }
    }
}

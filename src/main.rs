mod agent;
mod api;
mod cli;
mod config;
mod domain;
mod scheduler;
mod service;
mod store;
mod supervisor;
mod telemetry;

use std::process::ExitCode;

use cli::Command;

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
    match command {
        Command::CheckConfig(settings) => {
            print!("{settings}");
            ExitCode::SUCCESS
        }
        Command::Healthcheck(listen) => match cli::healthcheck::check(listen) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("provost: {error}");
                ExitCode::FAILURE
            }
        },
        Command::Serve(config) => cli::serve::run(*config),
        Command::Openapi => {
            println!("{}", api::openapi().to_pretty_json().unwrap_or_default());
            ExitCode::SUCCESS
        }
        Command::Demo(_) | Command::Bench(_) => {
            eprintln!("provost: this command is not part of this build");
            ExitCode::FAILURE
        }
    }
}

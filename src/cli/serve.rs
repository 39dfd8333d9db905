//! `provost serve`: starts an instance and runs it until it is stopped. On SIGHUP it reloads the settings that can
//! change at run time.

use std::{process::ExitCode, thread::available_parallelism};

use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use crate::{
    config::{self, Config, Sources},
    interrupt,
    service::{Service, StartError, Systemd},
    telemetry::{self, Metrics, TelemetryError},
};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("a component of the service failed, see the log; restart it: no accepted task is lost")]
    PartFailed,
    #[error("the process cannot be set up: {0}")]
    Process(#[from] std::io::Error),
}

pub fn run(config: Config, sources: Sources) -> ExitCode {
    let cores = available_parallelism().map_or(1, usize::from);
    let log = match telemetry::start_logging(config.log.targets(), config.log_json) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("provost: {error}");
            return ExitCode::FAILURE;
        }
    };
    let served = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads(cores))
        .enable_all()
        .build()
        .map_err(ServeError::Process)
        .and_then(|runtime| runtime.block_on(serve(config, &sources)));
    drop(log);
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: Config, sources: &Sources) -> Result<(), ServeError> {
    warn_of_ignored_variables(sources);
    let metrics = Metrics::install()?;
    let systemd = Systemd::from_env();
    // After this line SIGHUP does not end the process; one that arrives during the start is handled after it.
    let mut hangup = signal(SignalKind::hangup())?;
    // Installed before the start: a signal that arrives during the start stops the service gracefully.
    let mut interrupted = std::pin::pin!(interrupt::wait());
    let started = tokio::select! {
        biased;
        () = &mut interrupted => return Ok(()),
        started = Service::start(config, metrics) => started,
    };
    let mut service = started?;
    systemd.ready();
    loop {
        tokio::select! {
            () = &mut interrupted => break,
            () = service.failed() => return Err(ServeError::PartFailed),
            () = systemd.keep_alive() => {}
            Some(()) = hangup.recv() => {
                systemd.reloading();
                reload(&mut service, sources);
                systemd.ready();
            }
        }
    }
    systemd.stopping();
    tokio::select! {
        () = service.drain() => {}
        () = interrupt::wait() => {}
        () = service.failed() => return Err(ServeError::PartFailed),
        () = systemd.keep_alive() => {}
    }
    tokio::select! {
        () = service.stop() => {}
        () = systemd.keep_alive() => {}
    }
    Ok(())
}

fn reload(service: &mut Service, sources: &Sources) {
    info!("SIGHUP: reloading the settings");
    const KEPT: &str = "the reloaded settings are invalid; the previous ones stay in force";
    match config::load(sources) {
        Ok(config) => {
            if let Err(error) = service.reload(config) {
                error!(%error, "{KEPT}");
            }
        }
        Err(error) => error!(%error, "{KEPT}"),
    }
}

/// Writes one warning for all of them, with their names only: a value may be a secret.
fn warn_of_ignored_variables(sources: &Sources) {
    let ignored = config::ignored_variables(&sources.env);
    if !ignored.is_empty() {
        warn!(
            variables = ignored.join(", "),
            "environment variables that begin with PROVOST_ but are not settings are ignored; Kubernetes sets some for each service, unless the pod's spec says enableServiceLinks: false"
        );
    }
}

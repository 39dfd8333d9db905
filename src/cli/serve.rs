//! `provost serve`: starts an instance and runs it until it is told to stop.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::{
    config::Config,
    service::{Service, StartError},
    telemetry::{self, Metrics, TelemetryError},
};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("the process cannot be set up: {0}")]
    Process(#[from] std::io::Error),
}

pub fn run(config: Config) -> ExitCode {
    let served = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Process)
        .and_then(|runtime| runtime.block_on(serve(config)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("provost: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: Config) -> Result<(), ServeError> {
    telemetry::start_logging(config.log.targets(), config.log_json)?;
    let metrics = Metrics::install()?;
    // Before the start: a signal that comes meanwhile stops it in order.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let service = Service::start(config, metrics).await?;
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM"),
        _ = interrupt.recv() => info!("SIGINT"),
    }
    service.stop().await;
    Ok(())
}

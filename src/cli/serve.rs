//! `provost serve`: starts an instance and runs it until it is told to stop.

use std::process::ExitCode;

use crate::{
    config::Config,
    interrupt,
    service::{Service, StartError},
    telemetry::{self, Metrics, TelemetryError},
};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("a part of the service failed, see the log; start it again: nothing accepted is lost")]
    PartFailed,
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
    // Listened to before the start: a signal that comes meanwhile stops it in order.
    let mut interrupted = std::pin::pin!(interrupt::wait());
    let started = tokio::select! {
        biased;
        () = &mut interrupted => return Ok(()),
        started = Service::start(config, metrics) => started,
    };
    let service = started?;
    tokio::select! {
        () = interrupted => {}
        () = service.failed() => return Err(ServeError::PartFailed),
    }
    service.stop().await;
    Ok(())
}

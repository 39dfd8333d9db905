//! What Provost says about itself: log lines for operators, metrics for Prometheus. What is logged
//! and counted is decided where it happens; here is only where it goes.

mod process;

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{
    Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt,
};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("logging has been started before in this process: start it once, in main")]
    Logging(#[from] tracing_subscriber::util::TryInitError),
    #[error("metrics cannot be recorded: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// Sends log lines to stderr: one readable line for each event, or one JSON object.
///
/// `RUST_LOG` is not read, so that what is logged is known from the settings alone.
pub fn start_logging(filter: &Targets, json: bool) -> Result<(), TelemetryError> {
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = if json {
        lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed()
    } else {
        lines.with_ansi(stderr_has_colours()).boxed()
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter.clone()))
        .try_init()?;
    Ok(())
}

/// As <https://no-color.org> asks.
fn stderr_has_colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// From a commit of a tenth of a millisecond to a step that takes minutes.
const SECONDS: [f64; 18] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 15.0, 60.0, 300.0,
];

/// Counts of things in one batch.
const SIZES: [f64; 11] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

const BYTES: [f64; 8] = [
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    16_777_216.0,
];

/// Histograms keep every value until they are drained: seldom enough to cost nothing.
const DRAIN_EVERY: Duration = Duration::from_secs(5);

/// Everything that was counted in this process since [`Metrics::install`].
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Makes `metrics::counter!` and its like record. Names that end in `_seconds`, `_size` or
    /// `_bytes` get buckets of their kind.
    pub fn install() -> Result<Self, TelemetryError> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_size".into()), &SIZES)?
            .set_buckets_for_metric(Matcher::Suffix("_bytes".into()), &BYTES)?
            .install_recorder()?;
        Ok(Self(handle))
    }

    /// The body of `/metrics`, with [`Metrics::CONTENT_TYPE`].
    pub fn render(&self) -> String {
        let mut text = self.0.render();
        process::render(&mut text);
        text
    }

    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Drains histograms until `stop`: without it, a service that nobody scrapes grows forever.
    pub async fn keep(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(DRAIN_EVERY);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.0.run_upkeep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_rendered_with_buckets_of_its_kind() {
        let metrics = Metrics::install().unwrap();
        metrics::histogram!("telemetry_test_seconds").record(0.0007);
        metrics::histogram!("telemetry_test_batch_size").record(3.0);
        let text = metrics.render();
        assert!(
            text.contains("telemetry_test_seconds_bucket{le=\"0.0005\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("telemetry_test_seconds_bucket{le=\"0.001\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("telemetry_test_batch_size_bucket{le=\"4\"} 1"),
            "{text}"
        );
    }
}

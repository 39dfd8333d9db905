//! Log lines for operators and metrics for Prometheus. The code that logs or counts decides what to report; this
//! module decides where it goes.

mod log_queue;
mod one_line;
mod process;

use std::io::{self, IsTerminal};

use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    fmt,
    fmt::MakeWriter,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

pub use log_queue::LogGuard;
use log_queue::LogQueue;
use one_line::OneLine;

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("logging is already started in this process: start it once, in main")]
    Logging(#[from] tracing_subscriber::util::TryInitError),
    #[error("the thread that writes the log cannot be started: {0}")]
    LogThread(#[source] io::Error),
    #[error("metrics are already recorded in this process: install the recorder once, in main")]
    Recording,
    #[error("the buckets of a histogram are wrong: {0}")]
    Buckets(#[from] BuildError),
}

/// Writes log lines to stderr: one readable line for each event, or one JSON object.
///
/// `RUST_LOG` is ignored, so that the settings alone decide what is logged. Keep the guard until the process ends.
pub fn start_logging(filter: &Targets, json: bool) -> Result<LogGuard, TelemetryError> {
    let (queue, guard) = LogQueue::start(io::stderr()).map_err(TelemetryError::LogThread)?;
    logging(filter, json, stderr_has_colours(), queue).try_init()?;
    Ok(guard)
}

fn logging<W>(filter: &Targets, json: bool, colours: bool, to: W) -> impl SubscriberInitExt
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_ansi(colours);
    let lines = if json {
        lines
            .with_writer(to)
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed()
    } else {
        lines.with_writer(OneLine(to)).boxed()
    };
    tracing_subscriber::registry().with(lines.with_filter(of_operators(filter)))
}

/// Returns the filter with the AMQP client silenced, unless the filter names it: the client reports errors that
/// Provost expects and reports itself, such as a queue that does not exist yet.
fn of_operators(filter: &Targets) -> Targets {
    const CLIENT: &str = "lapin";
    match filter.iter().any(|(target, _)| target.starts_with(CLIENT)) {
        true => filter.clone(),
        false => filter.clone().with_target(CLIENT, LevelFilter::OFF),
    }
}

/// Returns whether the log may have colours, by the rule of <https://no-color.org>.
fn stderr_has_colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The buckets of durations, in seconds: from a commit of a tenth of a millisecond to a step that takes minutes.
const SECONDS: [f64; 18] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 15.0, 60.0, 300.0,
];

/// The buckets of counts of items in one batch.
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

fn recorder() -> Result<PrometheusRecorder, BuildError> {
    Ok(PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_size".into()), &SIZES)?
        .set_buckets_for_metric(Matcher::Suffix("_bytes".into()), &BYTES)?
        .build_recorder())
}

/// All metrics of this process since [`Metrics::install`].
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder of `metrics::counter!` and similar macros. Names that end in `_seconds`, `_size` or
    /// `_bytes` get suitable buckets.
    pub fn install() -> Result<Self, TelemetryError> {
        let recorder = recorder()?;
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| TelemetryError::Recording)?;
        log_queue::describe_metrics();
        metrics::describe_gauge!("provost_build_info", "1, with the running version");
        metrics::gauge!("provost_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        Ok(Self(handle))
    }

    /// Returns metrics that nothing is added to.
    #[cfg(test)]
    pub fn detached() -> Self {
        Self(recorder().unwrap().handle())
    }

    /// Returns the body of `/metrics`, with [`Metrics::CONTENT_TYPE`].
    pub fn render(&self) -> String {
        let mut text = self.0.render();
        process::render(&mut text);
        text
    }

    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Empties the buffers of the histograms, which keep every value until then. It costs almost nothing once a
    /// second.
    pub fn drain(&self) {
        self.0.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use parking_lot::Mutex;

    #[test]
    fn what_was_measured_is_rendered_with_buckets_of_its_kind() {
        let recorder = recorder().unwrap();
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!("commit_seconds").record(0.0007);
            metrics::histogram!("batch_size").record(3.0);
            metrics::histogram!("output_bytes").record(300.0);
        });
        let text = Metrics(recorder.handle()).render();
        for line in [
            "commit_seconds_bucket{le=\"0.0005\"} 0",
            "commit_seconds_bucket{le=\"0.001\"} 1",
            "batch_size_bucket{le=\"2\"} 0",
            "batch_size_bucket{le=\"4\"} 1",
            "output_bytes_bucket{le=\"1024\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log of two events inside a span.
    fn logged(json: bool) -> String {
        let buffer = Buffer::default();
        let to = buffer.clone();
        let filter: Targets = "info".parse().unwrap();
        let guard = logging(&filter, json, false, move || to.clone()).set_default();
        tracing::info_span!("step", task = "t-1", attempt = 2).in_scope(|| {
            tracing::info!(status = 503, "will be tried\nagain");
            tracing::debug!("not for operators");
        });
        drop(guard);
        String::from_utf8(buffer.0.lock().clone()).unwrap()
    }

    #[test]
    fn a_readable_event_is_one_line_with_its_span_and_its_fields() {
        let text = logged(false);
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in [
            "INFO",
            "step{task=\"t-1\" attempt=2}",
            "status=503",
            "tried\\nagain",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("not for operators"), "{text}");
    }

    #[test]
    fn a_json_event_is_one_object_on_one_line() {
        let text = logged(true);
        assert_eq!(text.lines().count(), 1, "{text}");
        let event: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(event["level"], "INFO");
        assert_eq!(event["message"], "will be tried\nagain");
        assert_eq!(event["status"], 503);
        assert_eq!(event["span"]["task"], "t-1");
        assert_eq!(event["span"]["attempt"], 2);
    }
}

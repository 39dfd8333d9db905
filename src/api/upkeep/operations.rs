//! Endpoints for operators: liveness, readiness and metrics.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use metrics::gauge;
use serde::Serialize;
use tokio::sync::Mutex;
use tracing::warn;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::failure_gauges::ShownFailures;
use crate::api::{
    App, Problem,
    agent::queue_gauges::{self, QueueBlocks, ShownBlocks},
    problem::{ProblemBody, ProblemKind},
    response::json,
};
use crate::{
    agent::{Agents, metrics_label},
    clock::{self, Instant, timeout_at},
    domain::task::{AlertKind, StepStatus, TaskStatus},
    store::{SharedReader, StoreCounts, StoreError},
    telemetry::Metrics,
};

/// The longest time that a readiness check waits for its commit.
const COMMIT_WITHIN: Duration = Duration::from_secs(2);
/// Counting takes at most one part in this many of a reader's time.
const COUNT_SHARE: u32 = 20;
/// Counting takes time of the store, so all scrapers share one count for this long.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// The store may hold millions of tasks. A scrape waits this long for the count and then returns the previous one:
/// Prometheus gives up after ten seconds, and would lose the metrics of the process as well.
const COUNT_WITHIN: Duration = Duration::from_secs(1);

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(livez))
        .routes(routes!(readyz))
        .routes(routes!(metrics_text))
}

#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
struct HealthView {
    #[schema(example = "ready")]
    status: HealthStatus,
}

/// The readiness of the service. `held`: it is ready, but makes no calls.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum HealthStatus {
    Alive,
    Ready,
    Held,
}

/// Liveness probe
///
/// Returns 200 as long as the process can serve requests, and 503 if the writer of the store has made no progress for
/// more than a minute: one transaction is running, and none has begun or ended. An outage of the database is not a
/// reason for 503. Restart the process if this fails.
#[utoipa::path(
    get, path = "/livez", tag = "service",
    responses(
        (status = 200, description = "The process is alive", body = HealthView, example = json!({"status": "alive"})),
        (status = 503, description = "The writer of the store stands still", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn livez(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    match app.store.health.writer().stood_still() {
        None => Ok(alive().await),
        Some(still) => Err(Problem::new(
            ProblemKind::StoreUnavailable,
            format!(
                "the writer of the store has stood still for {} seconds: restart the process; no accepted task is lost",
                still.as_secs()
            ),
        )),
    }
}

/// Returns the response of a process that works, or that is starting.
pub(in crate::api) async fn alive() -> Response {
    json(
        StatusCode::OK,
        &HealthView {
            status: HealthStatus::Alive,
        },
    )
}

/// Readiness probe
///
/// Performs a test write to the store. Do not route traffic here while it fails: submissions would be refused for
/// the same reason. A held instance accepts requests and returns `held` instead of `ready`; it makes no calls until
/// `POST /v1/hold/release`.
#[utoipa::path(
    get, path = "/readyz", tag = "service",
    responses(
        (status = 200, description = "The store can commit", body = HealthView, example = json!({"status": "ready"})),
        (status = 503, description = "The store cannot commit or has a fault (the detail names it), or the service is stopping", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
async fn readyz(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    if app.draining.is_cancelled() || app.stop.is_cancelled() {
        return Err(Problem::new(
            ProblemKind::Stopping,
            "the service is stopping",
        ));
    }
    if let Some(fault) = app.store.health.worst() {
        return Err(fault.error().into());
    }
    match clock::timeout(COMMIT_WITHIN, app.store.heartbeat()).await {
        Ok(committed) => committed?,
        Err(_) => {
            return Err(Problem::new(
                ProblemKind::StoreUnavailable,
                format!(
                    "the store did not commit within {} seconds: check the disk and its load",
                    COMMIT_WITHIN.as_secs()
                ),
            ));
        }
    }
    let status = match app.hold.is_held() {
        true => HealthStatus::Held,
        false => HealthStatus::Ready,
    };
    Ok(json(StatusCode::OK, &HealthView { status }))
}

/// Get metrics
///
/// In the Prometheus text format. Provost counts tasks and steps at most every five seconds, and less often when
/// there are very many. A scrape waits up to one second for a new count and otherwise returns the previous one.
/// There may be millions of ended tasks, so Provost counts them in the background: `provost_tasks` includes
/// processed, undone and cancelled tasks as soon as the first count is complete, usually by the next scrape.
#[utoipa::path(
    get, path = "/metrics", tag = "service", operation_id = "metrics",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain",
        example = json!("provost_tasks{state=\"processing\"} 12\n"))),
)]
async fn metrics_text(State(app): State<Arc<App>>) -> Response {
    gauge!("provost_held").set(f64::from(u8::from(app.hold.is_held())));
    app.ended_tasks.count(&app.store.housekeeping, &app.stop);
    app.gauges.refresh(&app.store.reader, &app.agents).await;
    let headers = [(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)];
    (headers, app.metrics.render()).into_response()
}

/// The gauges that describe the contents of the store.
#[derive(Default)]
pub struct Gauges(Arc<Mutex<GaugeSnapshot>>);

#[derive(Default)]
struct GaugeSnapshot {
    at: Option<Instant>,
    /// The time for which the last count stays valid: counting millions of live tasks takes a while.
    good_for: Duration,
    /// The label values that earlier scrapes returned. A value whose count is now zero must be reported as zero.
    queue_labels: HashSet<String>,
    /// The kinds of alerts that earlier scrapes returned, for the same reason.
    alerts: HashSet<String>,
    blocks: ShownBlocks,
    failures: ShownFailures,
}

impl Gauges {
    /// Counts again if the last count is too old. Scrapers that arrive meanwhile wait briefly for the same count,
    /// which continues without them.
    async fn refresh(&self, reader: &SharedReader, agents: &Arc<Agents>) {
        let until = clock::instant() + COUNT_WITHIN;
        let (reader, agents) = (reader.clone(), Arc::clone(agents));
        let Ok(mut counted) = timeout_at(until, self.0.clone().lock_owned()).await else {
            return;
        };
        if counted.is_good() {
            return;
        }
        let counting = tokio::spawn(async move {
            let asked = clock::instant();
            let read = async {
                let counts = reader.counts().await?;
                let blocks = QueueBlocks::read(&agents, &counts, &reader).await?;
                let (failures, _) = reader.failures().await?;
                Ok::<_, StoreError>((counts, blocks, failures))
            };
            match read.await {
                Ok((counts, blocks, failures)) => {
                    counted.show(&counts);
                    counted.blocks.show(&blocks);
                    counted.failures.show(&failures);
                }
                // The metrics of the process are useful even when the store cannot be counted.
                Err(error) => warn!(%error, "could not count tasks and steps for the metrics"),
            }
            counted.good_for = COUNT_EVERY.max(asked.elapsed() * COUNT_SHARE);
            counted.at = Some(clock::instant());
        });
        let _ = timeout_at(until, counting).await;
    }
}

impl GaugeSnapshot {
    fn is_good(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < self.good_for)
    }

    fn show(&mut self, counts: &StoreCounts) {
        if self.at.is_none() {
            describe();
        }
        for &state in TaskStatus::ALL {
            // Ended tasks are counted separately, because there may be many.
            if state.is_ended() {
                continue;
            }
            let found = counts.tasks.iter().find(|(counted, _)| *counted == state);
            let count = found.map_or(0, |(_, count)| *count);
            gauge!("provost_tasks", "state" => state.as_str()).set(count as f64);
        }
        let lines = queue_depths(counts);
        for gone in self
            .queue_labels
            .iter()
            .filter(|gone| !lines.contains_key(*gone))
        {
            gauge!("provost_queue_depth", "agent" => gone.clone()).set(0.0);
        }
        for (agent, count) in lines {
            gauge!("provost_queue_depth", "agent" => agent.clone()).set(count as f64);
            self.queue_labels.insert(agent);
        }
        let queued: u64 = counts.queued.iter().map(|(_, count)| count).sum();
        for (state, count) in [
            (StepStatus::Waiting, counts.waiting),
            (StepStatus::Pending, queued + counts.delayed),
            (
                StepStatus::Processing,
                counts.held + counts.awaited + counts.waits,
            ),
            (StepStatus::Error, counts.failed),
        ] {
            gauge!("provost_steps", "state" => state.as_str()).set(count as f64);
        }
        gauge!("provost_steps_delayed").set(counts.delayed as f64);
        gauge!("provost_replies_awaited").set(counts.awaited as f64);
        gauge!("provost_steps_waiting_for_event").set(counts.waits as f64);
        gauge!("provost_tasks_at_risk").set(counts.at_risk as f64);
        for &kind in AlertKind::ALL {
            // The kind is reported even when its count is zero, so that a monitoring rule can refer to it from the
            // start.
            self.alerts.insert(kind.as_str().to_owned());
        }
        self.alerts
            .extend(counts.open_alerts.iter().map(|(kind, _)| kind.clone()));
        for kind in &self.alerts {
            let found = counts.open_alerts.iter().find(|(known, _)| known == kind);
            let count = found.map_or(0, |(_, count)| *count);
            gauge!("provost_alerts_open", "kind" => kind.clone()).set(count as f64);
        }
        for (state, count) in [
            ("pending", counts.messages_pending),
            ("dead", counts.messages_dead),
        ] {
            gauge!("provost_messages", "state" => state).set(count as f64);
        }
    }
}

/// Returns the numbers of enqueued steps by the label of their agent, as in the metrics of calls: a client that may
/// submit must not be able to grow the metrics without bound.
fn queue_depths(counts: &StoreCounts) -> HashMap<String, u64> {
    let mut lines = HashMap::new();
    for (agent, count) in &counts.queued {
        *lines.entry(metrics_label(agent.as_str())).or_default() += count;
    }
    lines
}

fn describe() {
    queue_gauges::describe();
    metrics::describe_gauge!(
        "provost_tasks",
        "Tasks by state. Processed, undone and cancelled tasks are counted in the background and absent until the first count is complete"
    );
    metrics::describe_gauge!(
        "provost_held",
        "1 while this instance is held: it makes no calls and delivers no messages"
    );
    metrics::describe_gauge!(
        "provost_queue_depth",
        "Steps in an agent's queue that could be claimed now"
    );
    metrics::describe_gauge!(
        "provost_steps_delayed",
        "Steps that are delayed and join the queue of their agent later, also to be polled again"
    );
    metrics::describe_gauge!(
        "provost_replies_awaited",
        "Steps whose service has promised to reply later, or that a worker has fetched"
    );
    metrics::describe_gauge!(
        "provost_steps_waiting_for_event",
        "Steps that call no service and wait for a time or a signal"
    );
    metrics::describe_gauge!(
        "provost_tasks_at_risk",
        "Tasks that will be late by what is known, up to 10,000"
    );
    metrics::describe_gauge!(
        "provost_steps",
        "Steps that are waiting, pending, processing or in error, by state"
    );
    metrics::describe_gauge!(
        "provost_alerts_open",
        "Open alerts by kind, including acknowledged ones"
    );
    metrics::describe_gauge!(
        "provost_messages",
        "Messages that are not delivered: pending ones and dead letters"
    );
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::domain::values::AgentName;

    #[test]
    fn a_line_that_emptied_is_shown_as_empty() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let mut counts = StoreCounts {
            tasks: vec![(TaskStatus::Error, 2)],
            queued: vec![
                (AgentName::new("payments"), 7),
                (AgentName::new("http://a:1"), 1),
                (AgentName::new("http://b:2"), 2),
            ],
            waiting: 5,
            delayed: 1,
            held: 3,
            awaited: 6,
            open_alerts: vec![("task.error".to_owned(), 2)],
            failed: 2,
            messages_pending: 4,
            messages_dead: 1,
            at_risk: 8,
            waits: 10,
        };
        let mut counted = GaugeSnapshot::default();
        let shown = |counted: &mut GaugeSnapshot, counts: &StoreCounts| {
            metrics::with_local_recorder(&recorder, || counted.show(counts));
            recorder.handle().render()
        };
        let text = shown(&mut counted, &counts);
        for line in [
            "provost_tasks{state=\"error\"} 2",
            "provost_tasks{state=\"paused\"} 0",
            "provost_queue_depth{agent=\"payments\"} 7",
            "provost_queue_depth{agent=\"(url)\"} 3",
            "provost_steps_delayed 1",
            "provost_steps{state=\"waiting\"} 5",
            "provost_steps{state=\"processing\"} 19",
            "provost_replies_awaited 6",
            "provost_tasks_at_risk 8",
            "provost_steps_waiting_for_event 10",
            "provost_steps{state=\"pending\"} 11",
            "provost_alerts_open{kind=\"task.error\"} 2",
            "provost_alerts_open{kind=\"message.undeliverable\"} 0",
            "provost_steps{state=\"error\"} 2",
            "provost_messages{state=\"pending\"} 4",
            "provost_messages{state=\"dead\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        counts.queued.clear();
        counts.open_alerts.clear();
        let text = shown(&mut counted, &counts);
        assert!(
            text.contains("provost_queue_depth{agent=\"payments\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("provost_alerts_open{kind=\"task.error\"} 0"),
            "{text}"
        );
    }
}

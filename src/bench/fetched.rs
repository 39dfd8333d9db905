//! `--workers`: the same tasks, once with their steps called at a service, and once with their steps fetched by
//! workers.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    BenchError,
    connection::BenchConnection,
    latency::{Latencies, Millis, median},
    load::{self, Amount, LoadPhase},
    requests::{Requests, WORKFLOW, workflow},
    server::{self, BenchServers},
};
use crate::{
    cli::BenchOptions,
    clock::{self, Instant},
};

/// The agent whose steps are fetched, and the workflow that uses it.
pub(super) const FETCHED: &str = "bench-fetched";
/// The most steps that a worker takes at once.
const MOST: usize = 10;

/// A number of tasks, with the time and the CPU seconds that they took.
struct TaskPhase {
    phase: LoadPhase,
    cpu_seconds: Option<f64>,
}

impl TaskPhase {
    fn cpu_millis(&self) -> Option<f64> {
        Some(1000.0 * self.cpu_seconds? / self.phase.latencies.count() as f64)
    }
}

/// Makes the measurements, and returns the text of the report.
pub(super) async fn measure(
    options: &BenchOptions,
    workers: u32,
    servers: &BenchServers,
) -> Result<String, BenchError> {
    let pull = json!({ "mode": "pull" });
    servers.put(&format!("/v1/agents/{FETCHED}"), &pull).await?;
    let mut of_fetched = workflow();
    let steps = of_fetched["steps"].as_array_mut().into_iter().flatten();
    steps.for_each(|step| step["agent"] = json!(FETCHED));
    let path = format!("/v1/workflows/{FETCHED}");
    servers.put(&path, &of_fetched).await?;
    let requests = servers.requests();
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    // The workers end when this is dropped.
    let mut running = JoinSet::new();
    for number in 0..workers as usize {
        // With several servers, no worker waits at the server that the tasks at rest are submitted to.
        let others = requests.len().saturating_sub(1).max(1);
        let server = (number % others + 1) % requests.len();
        running.spawn(work(requests[server].clone(), number, arrived.clone()));
    }
    let measured = tokio::select! {
        measured = phases(options, servers, &requests, &mut arrivals) => measured?,
        Some(ended) = running.join_next() => {
            ended??;
            String::new()
        }
    };
    Ok(measured)
}

async fn phases(
    options: &BenchOptions,
    servers: &BenchServers,
    requests: &[Requests],
    arrivals: &mut mpsc::UnboundedReceiver<Instant>,
) -> Result<String, BenchError> {
    let tasks = options.tasks.div_ceil(options.rounds);
    let in_flight = options.in_flight;
    let amount = Amount { tasks, in_flight };
    let warm_up = Amount {
        tasks: tasks / 20 + 1,
        in_flight,
    };
    of(servers, requests, FETCHED, warm_up).await?;
    of(servers, requests, WORKFLOW, warm_up).await?;
    let reached = at_rest(options.at_rest, &requests[0], arrivals).await?;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let called = of(servers, requests, WORKFLOW, amount).await?;
        rounds.push([called, of(servers, requests, FETCHED, amount).await?]);
    }
    Ok(text(&rounds, &reached))
}

fn submission(workflow: &str) -> String {
    let input =
        json!({ "sku": "book-7", "quantity": 2, "price": 1800, "address": "7 Station Road" });
    json!({ "workflow": workflow, "input": input }).to_string()
}

async fn of(
    servers: &BenchServers,
    requests: &[Requests],
    workflow: &str,
    amount: Amount,
) -> Result<TaskPhase, BenchError> {
    let before = servers.usage().await?;
    let phase = load::processed(requests, &submission(workflow), amount).await?;
    let after = servers.usage().await?;
    Ok(TaskPhase {
        phase,
        cpu_seconds: server::cpu_seconds(&before, &after),
    })
}

/// Measures the time from the begin of a submission until a worker has the step, one task after another.
async fn at_rest(
    tasks: u32,
    requests: &Requests,
    arrivals: &mut mpsc::UnboundedReceiver<Instant>,
) -> Result<Latencies, BenchError> {
    let step = json!({ "name": "only", "agent": FETCHED });
    let submit = requests.post_and_wait("/v1/tasks", &json!({ "steps": [step] }).to_string());
    let mut connection = BenchConnection::open(&requests.authority).await?;
    let mut reached = Latencies::with_capacity(tasks as usize);
    while arrivals.try_recv().is_ok() {}
    for _ in 0..tasks {
        let submitted = clock::instant();
        // The response comes when the task has ended.
        connection.exchange(&submit).await?;
        if let Some(arrived) = arrivals.recv().await {
            reached.record(arrived - submitted);
        }
    }
    Ok(reached)
}

#[derive(Deserialize)]
struct WorkResponse<'a> {
    #[serde(borrow)]
    steps: Vec<WorkStep<'a>>,
}

#[derive(Deserialize)]
struct WorkStep<'a> {
    token: &'a str,
}

/// Fetches steps and replies to them, with the response that the service would have sent.
async fn work(
    requests: Requests,
    number: usize,
    arrived: mpsc::UnboundedSender<Instant>,
) -> Result<(), BenchError> {
    let ask = json!({ "worker": format!("bench-{number}"), "max": MOST, "wait": "60s" });
    let ask = requests.post(&format!("/v1/agents/{FETCHED}/claim"), &ask.to_string());
    let mut connection = BenchConnection::open(&requests.authority).await?;
    let mut body = String::new();
    loop {
        let answer = connection.exchange(&ask).await?;
        let now = clock::instant();
        let work: WorkResponse<'_> =
            serde_json::from_slice(answer).map_err(|error| BenchError::Work(error.to_string()))?;
        body.clear();
        for step in &work.steps {
            let comma = if body.is_empty() { "" } else { "," };
            let token = step.token;
            // Writing to a string does not fail.
            let _ = write!(
                body,
                r#"{comma}{{"token":"{token}","output":{{"id":"r-1001","accepted":true}}}}"#
            );
            let _ = arrived.send(now);
        }
        if !body.is_empty() {
            let reply = format!(r#"{{"replies":[{body}]}}"#);
            connection
                .exchange(&requests.post("/v1/replies", &reply))
                .await?;
        }
    }
}

fn text(rounds: &[[TaskPhase; 2]], reached: &Latencies) -> String {
    let mut text = format!(
        "{:<36} {:>9} {:>12} {:>12}\n",
        "", "tasks/s", "CPU a task", "task, p50"
    );
    for (at, name) in ["called at the service", "fetched by workers"]
        .iter()
        .enumerate()
    {
        let of = |value: fn(&TaskPhase) -> Option<f64>| {
            median(rounds.iter().filter_map(|round| value(&round[at])))
        };
        let rate = of(|measured| Some(measured.phase.per_second())).unwrap_or_default();
        let cpu = of(TaskPhase::cpu_millis).map_or("-".to_owned(), |cpu| format!("{cpu:.3} ms"));
        let took = of(|measured| Some(measured.phase.latencies.percentile(0.5)?.as_secs_f64()));
        let took = Millis(took.map(std::time::Duration::from_secs_f64));
        let _ = writeln!(text, "{name:<36} {rate:>9.0} {cpu:>12} {took:>12}");
    }
    let (half, most) = (reached.percentile(0.5), reached.percentile(0.99));
    let _ = writeln!(
        text,
        "\nfrom the submission to the worker, at rest: p50 {}, p99 {}",
        Millis(half),
        Millis(most)
    );
    text
}

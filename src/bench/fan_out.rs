//! `--fan-out`: tasks whose steps run in parallel and are joined by the last step, with few and with many steps.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    BenchError,
    latency::{Millis, median},
    load::{self, Amount, LoadPhase},
    requests::{AGENT, STEP_BODIES},
    server::{self, BenchServers},
};
use crate::cli::BenchOptions;

/// The steps of a task; the last number is the most that a task may have.
const STEPS: [u32; 5] = [10, 50, 100, 250, 500];
/// The number of tasks that run at once.
const AT_ONCE: u32 = 20;

/// A number of steps, with the time and the CPU seconds that they took.
struct FanOutPhase {
    steps: u32,
    phase: LoadPhase,
    cpu_seconds: Option<f64>,
}

impl FanOutPhase {
    fn per_second(&self) -> f64 {
        f64::from(self.steps) / self.phase.elapsed.as_secs_f64()
    }

    fn cpu_millis(&self) -> Option<f64> {
        Some(1000.0 * self.cpu_seconds? / f64::from(self.steps))
    }
}

/// Makes the measurements, and returns the text of the report.
pub(super) async fn measure(
    options: &BenchOptions,
    servers: &BenchServers,
) -> Result<String, BenchError> {
    let mut rounds: Vec<Vec<FanOutPhase>> = Vec::new();
    // Each phase has as many steps as the pipelines have.
    let tasks = options.tasks.div_ceil(options.rounds);
    let steps = tasks.saturating_mul(STEP_BODIES.len() as u32);
    for most in STEPS {
        let workflow = format!("/v1/workflows/{}", name(most));
        servers.put(&workflow, &parallel(most)).await?;
    }
    // This warms up the servers.
    of_parallel(servers, 50, steps / 20).await?;
    for _ in 0..options.rounds {
        let mut round = vec![of_pipelines(servers, tasks, options.in_flight).await?];
        for most in STEPS {
            round.push(of_parallel(servers, most, steps).await?);
        }
        rounds.push(round);
    }
    Ok(text(&rounds))
}

fn name(steps: u32) -> String {
    format!("bench-parallel-{steps}")
}

/// Returns this many steps, of which the last runs after all others.
fn parallel(steps: u32) -> Value {
    let (path, _) = STEP_BODIES[0];
    let request = json!({ "method": "POST", "path": path, "body": { "sku": "{{ input.sku }}" } });
    let names: Vec<_> = (1..steps).map(|number| format!("part-{number}")).collect();
    let step = |name: &str, after: &[String]| json!({ "name": name, "agent": AGENT, "after": after, "request": request });
    let mut steps: Vec<Value> = names.iter().map(|name| step(name, &[])).collect();
    steps.push(step("join", &names));
    json!({ "steps": steps })
}

async fn of_pipelines(
    servers: &BenchServers,
    tasks: u32,
    in_flight: u32,
) -> Result<FanOutPhase, BenchError> {
    let before = servers.usage().await?;
    let amount = Amount { tasks, in_flight };
    let phase = load::end_to_end(&servers.requests(), amount).await?;
    let after = servers.usage().await?;
    Ok(FanOutPhase {
        steps: tasks * STEP_BODIES.len() as u32,
        phase,
        cpu_seconds: server::cpu_seconds(&before, &after),
    })
}

async fn of_parallel(
    servers: &BenchServers,
    steps: u32,
    all_steps: u32,
) -> Result<FanOutPhase, BenchError> {
    let before = servers.usage().await?;
    let amount = Amount {
        tasks: (all_steps / steps).max(AT_ONCE),
        in_flight: AT_ONCE,
    };
    let body = json!({ "workflow": name(steps), "input": { "sku": "book-7" } }).to_string();
    let phase = load::processed(&servers.requests(), &body, amount).await?;
    let after = servers.usage().await?;
    Ok(FanOutPhase {
        steps: amount.tasks * steps,
        phase,
        cpu_seconds: server::cpu_seconds(&before, &after),
    })
}

fn text(rounds: &[Vec<FanOutPhase>]) -> String {
    let mut text = format!(
        "{:<36} {:>9} {:>12} {:>12}\n",
        "", "steps/s", "CPU a step", "task, p50"
    );
    let pipelines = "pipelines of three steps".to_owned();
    let parallel = STEPS.map(|steps| format!("{steps} steps, {AT_ONCE} tasks at once"));
    let names = [pipelines].into_iter().chain(parallel);
    for (at, name) in names.enumerate() {
        let of = |value: fn(&FanOutPhase) -> Option<f64>| {
            median(rounds.iter().filter_map(|round| value(&round[at])))
        };
        let rate = of(|measured| Some(measured.per_second())).unwrap_or_default();
        let cpu = of(FanOutPhase::cpu_millis).map_or("-".to_owned(), |cpu| format!("{cpu:.3} ms"));
        let took = of(|measured| {
            let took = measured.phase.latencies.percentile(0.5)?;
            Some(took.as_secs_f64())
        });
        let took = Millis(took.map(std::time::Duration::from_secs_f64));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<36} {rate:>9.0} {cpu:>12} {took:>12}");
    }
    text + "\nmedians of the rounds; the agent has 1024 slots, and what has none is queued\n"
}
